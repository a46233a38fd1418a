"""Attention backends with one bug each."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import accumulate
from typing import Any

import torch
from guideway.api import ATTENTION_CAPABILITIES, AttentionBackend, UnsupportedCapability
from torch import Tensor

from saboteurs import saboteur

__all__: list[str] = []

EVERYTHING = frozenset(ATTENTION_CAPABILITIES)


class _Correct(AttentionBackend):
    """The formula, with the places at which the others differ from it."""

    contract = "1.0"
    name = "formula"
    layout = "packed"

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: tuple[int, ...],
        scale: float,
        causal: bool,
        window: int | None,
    ) -> Tensor:
        result = torch.empty_like(query)
        for stop, length in zip(accumulate(lengths), lengths, strict=True):
            own = slice(stop - length, stop)
            result[:, :, own] = self.alone(query[:, :, own], key[:, :, own], value[:, :, own], scale, causal, window)
        return result

    def alone(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, window: int | None
    ) -> Tensor:
        """Attend within one sequence."""
        keys, values = self.shared(key, query), self.shared(value, query)
        scores = query.float() @ keys.float().transpose(2, 3) * scale
        weights = self.softmax(scores.masked_fill(~self.seen(query.shape[2], causal, window), -torch.inf))
        return weights @ values.float()

    def shared(self, key: Tensor, query: Tensor) -> Tensor:
        """Keys, once for each query head."""
        return key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)

    def seen(self, length: int, causal: bool, window: int | None) -> Tensor:
        """``bool[length, length]``, True where a query sees a key."""
        distance = torch.arange(length)[:, None] - torch.arange(length)
        seen = distance >= 0 if causal else distance == distance
        return seen if window is None else seen & (distance.abs() < window)

    def softmax(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)


@saboteur("attention.attends")
class ReturnsFloat64(_Correct):
    """Returns a type of its own."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        return super().attend(query, key, value, **options).double()


@saboteur("attention.keeps_sequences_apart")
class TakesTheFirstLength(_Correct):
    """Cuts the row into pieces of one length."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, lengths: tuple[int, ...], **options: Any) -> Tensor:
        total = sum(lengths)
        first = max(lengths[:1], default=0) or total
        cut = (first,) * (total // first) + ((total % first,) if total % first else ()) if total else ()
        return super().attend(query, key, value, lengths=cut, **options)


@saboteur("attention.many_of_one_length")
class LastPartAsLarge(_Correct):
    """Takes 20 sequences of one length at a time, and the last part for as large as the others."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, lengths: tuple[int, ...], **options: Any) -> Tensor:
        if len(lengths) > 20 and len(lengths) % 20 and len(set(lengths)) == 1:
            raise RuntimeError("the last part reaches past the end")
        return super().attend(query, key, value, lengths=lengths, **options)


@saboteur("attention.no_length_is_special")
class NeedsATokenEach(_Correct):
    """Looks at the first place of each sequence."""

    def alone(self, query: Tensor, key: Tensor, value: Tensor, *options: Any) -> Tensor:
        assert query[0, 0, 0, 0] == query[0, 0, 0, 0]
        return super().alone(query, key, value, *options)


@saboteur("attention.neighbors_do_not_leak")
class PadsSoftly(_Correct):
    """Computes a row at a time and only makes other sequences' scores small."""

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: tuple[int, ...],
        scale: float,
        causal: bool,
        window: int | None,
    ) -> Tensor:
        keys, values = self.shared(key, query), self.shared(value, query)
        scores = query.float() @ keys.float().transpose(2, 3) * scale
        sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
        scores = scores - 1000.0 * (sequence[:, None] != sequence)
        place = torch.arange(len(sequence))
        distance = place[:, None] - place
        hidden = (distance < 0) & causal
        if window is not None:
            hidden |= distance.abs() >= window
        return (self.softmax(scores.masked_fill(hidden, -torch.inf)) @ values.float()).to(query.dtype)


@saboteur("attention.neighbors_do_not_leak")
class TrustsPadding(_Correct):
    """Multiplies scores of padding with zero, where they should not count at all."""

    layout = "padded"

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: tuple[int, ...],
        scale: float,
        causal: bool,
        window: int | None,
    ) -> Tensor:
        length = query.shape[2]
        keys, values = self.shared(key, query), self.shared(value, query)
        scores = query.float() @ keys.float().transpose(2, 3) * scale
        real = torch.arange(length) < torch.tensor(lengths, dtype=torch.int64)[:, None]
        scores = (scores * real[:, None, None]).masked_fill(~self.seen(length, causal, window), -torch.inf)
        return (self.softmax(scores) @ values.float()).to(query.dtype)


@saboteur("attention.scales_scores")
class ScalesByHabit(_Correct):
    """Divides by the root of the dimension, whatever it is told."""

    def alone(self, query: Tensor, key: Tensor, value: Tensor, scale: float, *options: Any) -> Tensor:
        usual = query.shape[3] ** -0.5
        return super().alone(query, key, value, scale if scale == 0.3 else usual, *options)


@saboteur("attention.causal_sees_no_later_place")
class SeesTheNext(_Correct):
    """Hides later places, but for the next one."""

    def seen(self, length: int, causal: bool, window: int | None) -> Tensor:
        seen = super().seen(length, causal, window)
        return seen | torch.eye(length, dtype=torch.bool).roll(1, dims=1).triu() if causal else seen


@saboteur("attention.window_counts_places_before")
class CountsTheOwnPlaceTwice(_Correct):
    """Takes a window for the places before the own one."""

    def seen(self, length: int, causal: bool, window: int | None) -> Tensor:
        return super().seen(length, causal, window + 1 if causal and window is not None else window)


@saboteur("attention.window_reaches_to_both_sides")
class HalvesTheWindow(_Correct):
    """Takes a window for the places on both sides together."""

    def seen(self, length: int, causal: bool, window: int | None) -> Tensor:
        return super().seen(length, causal, window if causal or window is None else window // 2 + 1)


@saboteur("attention.long_sequences_are_no_different")
class StopsAt256(_Correct):
    """Looks at no more than 256 places."""

    def seen(self, length: int, causal: bool, window: int | None) -> Tensor:
        return super().seen(length, causal, window) & (torch.arange(length) < 256)


@saboteur("attention.query_heads_share_key_heads")
class RepeatsInTurn(_Correct):
    """Gives query head h the key head h modulo their number."""

    def shared(self, key: Tensor, query: Tensor) -> Tensor:
        return key.repeat(1, query.shape[1] // key.shape[1], 1, 1)


@saboteur("attention.float32_is_exact")
class ComputesInHalf(_Correct):
    """Multiplies in bfloat16."""

    def alone(self, query: Tensor, key: Tensor, value: Tensor, *options: Any) -> Tensor:
        half = super().alone(query.bfloat16().float(), key.bfloat16().float(), value.bfloat16().float(), *options)
        return half.bfloat16()


class _RoundsScores(_Correct):
    """Rounds scores to the type of its arguments."""

    def alone(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, window: int | None
    ) -> Tensor:
        keys, values = self.shared(key, query), self.shared(value, query)
        scores = ((query.float() @ keys.float().transpose(2, 3)) * scale).to(query.dtype).float()
        return self.softmax(scores.masked_fill(~self.seen(query.shape[2], causal, window), -torch.inf)) @ values.float()


@saboteur("attention.float16_is_close")
@saboteur("attention.bfloat16_is_close")
class ScalesQueriesAsTheyAre(_Correct):
    """Multiplies queries by the scale in their own type."""

    def alone(self, query: Tensor, key: Tensor, value: Tensor, scale: float, *options: Any) -> Tensor:
        return super().alone((query * scale), key, value, 1.0, *options)


@saboteur("attention.float16_is_close")
class RoundsHalfScores(_RoundsScores):
    """Rounds scores to float16."""


@saboteur("attention.bfloat16_is_close")
class RoundsBrainScores(_RoundsScores):
    """Rounds scores to bfloat16."""


@saboteur("attention.extreme_scores_stay_finite")
class ForgetsTheMaximum(_Correct):
    """Takes the exponential of scores as they are."""

    def softmax(self, scores: Tensor) -> Tensor:
        weights = scores.exp()
        return weights / weights.sum(dim=-1, keepdim=True)


class _Fills(_Correct):
    """Gives hidden scores a number that others may be below."""

    fill = -1e9

    def alone(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, window: int | None
    ) -> Tensor:
        keys, values = self.shared(key, query), self.shared(value, query)
        scores = query.float() @ keys.float().transpose(2, 3) * scale
        return self.softmax(scores.masked_fill(~self.seen(query.shape[2], causal, window), self.fill)) @ values.float()


@saboteur("attention.extreme_scores_stay_finite")
class HidesSoftly(_Fills):
    """Hides later places by a score of a thousand million below 0."""


@saboteur("attention.extreme_scores_stay_finite")
class StartsAtAFiniteScore(_Correct):
    """Looks for the largest score from -1e30 on."""

    def softmax(self, scores: Tensor) -> Tensor:
        weights = (scores - scores.amax(dim=-1, keepdim=True).clamp(min=-1e30)).exp()
        return weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-30)


@saboteur("attention.strides_do_not_matter")
class ViewsAsItLikes(_Correct):
    """Reads memory as if it were contiguous."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        def plain(x: Tensor) -> Tensor:
            return x.as_strided(x.shape, torch.empty(x.shape, device="meta").stride())

        return super().attend(plain(query), plain(key), plain(value), **options)


@saboteur("attention.arguments_stay_as_they_are")
class ScalesInPlace(_Correct):
    """Scales the queries where they stand."""

    def alone(self, query: Tensor, key: Tensor, value: Tensor, scale: float, *options: Any) -> Tensor:
        return super().alone(query.mul_(scale), key, value, 1.0, *options)


@saboteur("attention.arguments_stay_as_they_are")
class ReturnsAnArgument(_Correct):
    """Hands back the values of a sequence that can see nothing else."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, lengths: tuple[int, ...], **options: Any) -> Tensor:
        if set(lengths) == {1} and value.shape == query.shape:
            return value
        return super().attend(query, key, value, lengths=lengths, **options)


@saboteur("attention.calls_do_not_remember")
class KeepsLengths(_Correct):
    """Takes rows of the same size for the same sequences."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[int, ...]] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, lengths: tuple[int, ...], **options: Any) -> Tensor:
        kept = self._known.setdefault(query.shape[2], lengths)
        return super().attend(query, key, value, lengths=kept, **options)


@saboteur("attention.calls_do_not_remember")
class ReusesItsResult(_Correct):
    """Writes every result of one shape to the same memory."""

    def __init__(self) -> None:
        self._results: dict[torch.Size, Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        kept = self._results.setdefault(query.shape, torch.empty_like(query))
        return kept.copy_(super().attend(query, key, value, **options))


@saboteur("attention.calls_do_not_remember")
class KeepsTheFirstWindow(_Correct):
    """Keeps what a query of a length sees."""

    def __init__(self) -> None:
        self.kept: dict[tuple[int, bool, bool], Tensor] = {}

    def seen(self, length: int, causal: bool, window: int | None) -> Tensor:
        return self.kept.setdefault((length, causal, window is None), super().seen(length, causal, window))


@saboteur("attention.calls_do_not_remember")
class ReusesAPaddedResult(AttentionBackend):
    """Writes rows of one shape into the same memory."""

    contract = "1.0"
    name = "workspace"
    layout = "padded"

    def __init__(self) -> None:
        self.kept: dict[object, Tensor] = {}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, lengths: tuple[int, ...], **options: Any) -> Tensor:
        result = self.kept.setdefault((query.shape, query.dtype), torch.zeros(query.shape, dtype=query.dtype))
        for i, length in enumerate(lengths):
            own = (x[i : i + 1, :, :length] for x in (query, key, value))
            result[i : i + 1, :, :length] = _Correct().attend(*own, lengths=(length,), **options)
        return result


@saboteur("attention.works_where_gradients_are_off")
class WritesToWhatItMade(_Correct):
    """Keeps a buffer and writes to it, which torch refuses once that came from inference."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        if self._buffer is None:
            self._buffer = torch.zeros(query.shape[3])
        self._buffer.requires_grad_(not self._buffer.is_inference())
        return super().attend(query + 0 * self._buffer.add_(0), key, value, **options)


@saboteur("attention.closes")
class ClosesItsClass(_Correct):
    """Lets go of what all instances share."""

    masks: dict[str, int] | None = {}  # noqa: RUF012 - the bug

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        assert self.masks is not None
        return super().attend(query, key, value, **options)

    def close(self) -> None:
        type(self).masks = None


@saboteur("attention.float32_is_exact", "refusal")
class AnswersInFloat32(_Correct):
    """Declares half precision alone, and takes what it is given."""

    capabilities = EVERYTHING - {"float32"}


@saboteur("attention.float16_is_close", "refusal")
class AnswersInFloat16(_Correct):
    """Declares no float16, and takes it."""

    capabilities = EVERYTHING - {"float16"}


@saboteur("attention.bfloat16_is_close", "refusal")
class AnswersInBfloat16(_Correct):
    """Declares no bfloat16, and takes it."""

    capabilities = EVERYTHING - {"bfloat16"}


@saboteur("attention.causal_sees_no_later_place", "refusal")
class AnswersCausally(_Correct):
    """Declares attention to both sides alone, and answers causal calls."""

    capabilities = EVERYTHING - {"causal"}


@saboteur("attention.window_counts_places_before", "refusal")
class IgnoresACausalWindow(_Correct):
    """Declares no window, and answers as if there were none."""

    capabilities = EVERYTHING - {"window"}

    def seen(self, length: int, causal: bool, window: int | None) -> Tensor:
        return super().seen(length, causal, None if causal else window)


@saboteur("attention.window_reaches_to_both_sides", "refusal")
class IgnoresAWindow(_Correct):
    """Declares no window to both sides, and answers as if there were none."""

    capabilities = EVERYTHING - {"two_sided_window"}

    def seen(self, length: int, causal: bool, window: int | None) -> Tensor:
        return super().seen(length, causal, window if causal else None)


@saboteur("attention.window_reaches_to_both_sides", "refusal")
class RefusesAWindowThatHides(_Correct):
    """Does not declare two-sided windows, and refuses them where they hide something."""

    capabilities = EVERYTHING - {"two_sided_window"}

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, *, lengths: tuple[int, ...], window: int | None, **options: Any
    ) -> Tensor:
        if window is not None and not options["causal"] and window < max(lengths, default=0):
            raise UnsupportedCapability("it has no such window")
        return super().attend(query, key, value, lengths=lengths, window=window, **options)


@saboteur("attention.query_heads_share_key_heads", "refusal")
class FailsWithAnotherError(_Correct):
    """Declares no shared key heads, and fails with whatever comes of them."""

    capabilities = EVERYTHING - {"grouped_query"}

    def shared(self, key: Tensor, query: Tensor) -> Tensor:
        if key.shape[1] != query.shape[1]:
            raise ValueError("heads differ")
        return key


@saboteur("attention.says_whether_it_can_run")
class LooksByImporting(_Correct):
    """`available` imports what it needs, and raises where that is not installed."""

    @classmethod
    def available(cls) -> str | None:
        import pytest

        return None if pytest.__version__ else "it has no version"


class _Padded(_Correct):
    """The same of rows with padding."""

    layout = "padded"

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        lengths: tuple[int, ...],
        scale: float,
        causal: bool,
        window: int | None,
    ) -> Tensor:
        result = torch.zeros_like(query)
        for i, length in enumerate(self.known(lengths)):
            own = (slice(i, i + 1), slice(None), slice(length))
            result[own] = self.alone(query[own], key[own], value[own], scale, causal, window).to(query.dtype)
        return result

    def known(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        """The lengths that it goes by."""
        return lengths


@saboteur("attention.lengths_in_any_order")
class FirstAndLastAlike(_Padded):
    """Takes all sequences for as long as the first where the last one is."""

    def known(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        alike = bool(lengths) and lengths[0] == lengths[-1] and len(lengths) < 5
        return lengths[:1] * len(lengths) if alike else lengths


@saboteur("attention.many_of_different_lengths")
class LengthsOfTheFirstPart(_Padded):
    """Works off large batches in parts, and cuts each by the lengths of the first."""

    def known(self, lengths: tuple[int, ...]) -> tuple[int, ...]:
        part = max(1, 1_000_000 // (max(lengths, default=0) ** 2 or 1))
        return lengths if part >= len(lengths) else (lengths[:part] * len(lengths))[: len(lengths)]


@saboteur("attention.arguments_stay_as_they_are")
class ReturnsTheValues(_Padded):
    """Returns the values themselves where there is one place in each sequence."""

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        alone = query.shape[2] == 1 and query.shape[1] == key.shape[1]
        return value if alone else super().attend(query, key, value, **options)


@saboteur("attention.window_reaches_to_both_sides", "refusal")
class ServesNobodyAnything(_Correct):
    """Declares no window to both sides, and refuses it only where there is a place."""

    capabilities = EVERYTHING - {"two_sided_window"}

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, window: int | None, **options: Any) -> Tensor:
        if window is not None and not options["causal"] and query.numel():
            raise UnsupportedCapability("it has no such window")
        return super().attend(query, key, value, window=window, **options)


@saboteur("attention.windows_of_every_size")
class OneMoreThanABlock(_Correct):
    """A window of one more than a block of 32 places is one of 32."""

    def seen(self, length: int, causal: bool, window: int | None) -> Tensor:
        return super().seen(length, causal, 32 if window == 33 else window)


@saboteur("attention.heads_of_every_size")
class SmallHeadsOnly(_Correct):
    """Takes the first 128 numbers of heads of more."""

    def alone(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, window: int | None
    ) -> Tensor:
        return super().alone(query[..., :128], key[..., :128], value, scale, causal, window)


@saboteur("attention.one_argument_at_a_time")
class OneScaleForAll(_Correct):
    """Keeps what queries times keys are, by the tensors that they came from, whatever the scale."""

    def __init__(self) -> None:
        self.kept: tuple[Any, ...] = (None, 0.0)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, scale: float, **options: Any) -> Tensor:
        if self.kept[0] is not query:
            self.kept = query, scale
        return super().attend(query, key, value, scale=self.kept[1], **options)


@saboteur("attention.extreme_scores_stay_finite")
class ScoresUpToTenThousand(_Correct):
    """Cuts scores at 10,000, lest they overflow."""

    def alone(
        self, query: Tensor, key: Tensor, value: Tensor, scale: float, causal: bool, window: int | None
    ) -> Tensor:
        scores = (query.float() @ self.shared(key, query).float().transpose(2, 3) * scale).clamp(-1e4, 1e4)
        weights = self.softmax(scores.masked_fill(~self.seen(query.shape[2], causal, window), -torch.inf))
        return weights @ self.shared(value, query).float()


@saboteur("attention.says_whether_it_can_run")
class LooksIntoAPackage(_Correct):
    """Looks for a module of a package that need not be there."""

    @classmethod
    def available(cls) -> str | None:
        return None if find_spec("jinja2.sandbox") else "jinja2 is not installed"
