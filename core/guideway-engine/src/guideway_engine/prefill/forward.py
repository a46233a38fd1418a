"""Forward pass of many whole prompts as one ragged row, without padding.

All layers but attention treat tokens independently, positions restart with each sequence, and the attention backend
keeps the sequences apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from guideway.errors import InvalidConfiguration, InvalidRequest, LimitExceeded
from guideway.plugins.manager import Plugins
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from guideway_engine.attention.choosing import AUTO, choose_attention
from guideway_engine.attention.ragged import RaggedStep
from guideway_engine.linear import use_onednn
from guideway_engine.prefill.heads import POOLINGS, Head, Pooling, logits
from guideway_engine.prefill.profile import Profile, last_hidden_state, probe, unsupported

__all__ = ["Forward", "Output", "Ragged"]

MAX_ROW_ON_CPU = 2048
"""Maximum number of tokens in a row on a CPU, unless one sequence is longer: the data passed between layers then stays
in the CPU's cache. Rows of 8192 tokens of a small encoder took 1.6 times as long."""

PROBE_LENGTHS = (7, 4)
"""Lengths of the sequences used to check a model."""

CLOSE = {torch.float32: 1e-3, torch.float16: 5e-2, torch.bfloat16: 2e-1}
"""Maximum difference of results in that check, relative to the largest value. Wrong results differ by about 100 %."""


@dataclass(frozen=True, slots=True)
class Ragged:
    """Many sequences of tokens, one after the other."""

    token_ids: NDArray[np.int64]
    """``int64[total]``"""
    lengths: NDArray[np.int32]
    """``int32[n]``: number of tokens of each sequence, at least 1."""
    token_types: NDArray[np.int64] | None = None
    """``int64[total]``: the text of a pair that each token belongs to; None: all to the first."""

    def check_lengths(self) -> None:
        """Raise `InvalidRequest` for lengths that do not match the tokens, and for a sequence without a token."""
        total, types = int(self.lengths.sum()), self.token_types
        if total != len(self.token_ids) or (types is not None and len(types) != len(self.token_ids)):
            raise InvalidRequest(
                f"lengths that add up to {total} do not fit {len(self.token_ids)} token ids"
                + ("" if types is None else f" and {len(types)} token types"),
                field="token_ids",
            )
        if len(self.lengths) and int(self.lengths.min()) < 1:
            raise InvalidRequest(f"sequence {int(self.lengths.argmin())} has no token", field="token_ids")


@dataclass(frozen=True, slots=True)
class Output:
    """Results of one forward pass, with sequences and tokens in their original order."""

    hidden: Tensor | None
    """``float32[total, width]``: vectors of the last layer; None for a model with a classification head."""
    logits: Tensor | None
    """``float32[n, labels]``; None for a model without a head."""


class Forward:
    """A model that runs ragged batches: an encoder, a decoder without its head, or a sequence classifier.

    It permanently replaces the model's attention, and on a CPU the multiplication in its linear layers by a faster one;
    the weights stay unchanged. `attention` is the name of a backend or ``auto``. Used by one thread.

    Raises `InvalidConfiguration` for a model that cannot run this way, with the reason: its attention does not use the
    interface of `transformers`, or sees anything but all tokens, all up to its own or the nearest few; or the result
    differs from the model's own, for example because another layer looks at neighboring tokens. This is checked by
    running a few tokens, so no architecture has to be known. Raises `PluginNotFound` or `PluginUnavailable` for a
    backend that does not exist or cannot run the model here; the message lists those that can.
    """

    attention: str
    """Name of the attention backend."""
    reason: str
    """Short reason for choosing it."""

    def __init__(self, model: PreTrainedModel, attention: str = AUTO, *, plugins: Plugins | None = None) -> None:
        self._model = model
        self._base = cast("PreTrainedModel", model.base_model)
        self._head = _head(model)
        embeddings: Any = self._base.get_input_embeddings()
        self._vocabulary_size: int = embeddings.num_embeddings
        alone = self._alone()
        self._profile: Profile = probe(self._base)
        needs = self._profile.needs | {str(model.dtype).removeprefix("torch.")}
        self._backend, self.reason = choose_attention(attention, model.device, needs, plugins or Plugins())
        self.attention = self._backend.name
        self._pooling: Pooling = "first"
        self._check(alone)
        if model.device.type == "cpu":
            use_onednn(model)

    @property
    def max_length(self) -> int | None:
        """Maximum number of tokens of a sequence; None if no limit is known."""
        return self._profile.max_length

    @torch.inference_mode()
    def __call__(self, batch: Ragged) -> Output:
        """Run the model. Raises `InvalidRequest` for unknown token ids, sequences without a token, or token types that
        the model does not take, and `LimitExceeded` for a sequence that is too long."""
        self._validate(batch)
        order = np.argsort(batch.lengths, kind="stable")  # equal lengths become neighbors, which backends can batch
        starts = np.cumsum(batch.lengths, dtype=np.int64) - batch.lengths
        outputs, places = [], []
        for members in self._rows(batch.lengths, order):
            lengths = batch.lengths[members].astype(np.int64)
            tokens = np.repeat(starts[members] - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
            types = None if batch.token_types is None else batch.token_types[tokens]
            hidden = self._hidden(batch.token_ids[tokens], lengths, types)
            if self._head is None:
                outputs.append(hidden)
                places.append(tokens)
            else:
                outputs.append(self._logits(self._head, hidden, batch.token_ids[tokens], lengths, self._pooling))
                places.append(members)
        if not outputs:
            return self._empty()
        joined = torch.cat(outputs).float()
        result = torch.empty_like(joined)
        result[torch.from_numpy(np.concatenate(places)).to(joined.device)] = joined
        return Output(result, None) if self._head is None else Output(None, result)

    def close(self) -> None:
        """Close the attention backend."""
        self._backend.close()

    def _rows(self, lengths: NDArray[np.int32], order: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Split `order` into rows of at most `MAX_ROW_ON_CPU` tokens on a CPU."""
        if not len(order):
            return
        if self._model.device.type != "cpu":
            yield order
            return
        first = total = 0
        for i, length in enumerate(lengths[order].tolist()):
            if total and total + length > MAX_ROW_ON_CPU:
                yield order[first:i]
                first, total = i, 0
            total += length
        yield order[first:]

    def _hidden(
        self, token_ids: NDArray[np.int64], lengths: NDArray[np.int64], token_types: NDArray[np.int64] | None
    ) -> Tensor:
        """Return ``[total, width]`` for one row."""
        device, profile = self._model.device, self._profile
        types = None if token_types is None else torch.from_numpy(token_types).to(device)
        arguments = profile.arguments(
            torch.from_numpy(token_ids).to(device),
            torch.from_numpy(_positions(token_ids, lengths, profile.padding_id)).to(device),
            types if profile.takes_types else None,
        )
        step = RaggedStep(self._backend, profile.sights, tuple(lengths.tolist()))
        return last_hidden_state(self._base(**arguments, guideway_step=step))[0]

    def _logits(
        self,
        head: Head,
        hidden: Tensor,
        token_ids: NDArray[np.int64],
        lengths: NDArray[np.int64],
        pooling: Pooling,
    ) -> Tensor:
        ends = np.cumsum(lengths)
        last = ends - 1
        padding_id = self._model.config.get_text_config().pad_token_id
        if pooling == "last" and padding_id is not None:
            # as decoders choose their last token: ignore padding within a text, and use the first token if there is
            # nothing else
            real = np.where(token_ids != padding_id, np.arange(len(token_ids)), -1)
            last = np.maximum(np.maximum.reduceat(real, ends - lengths), ends - lengths)
        device = hidden.device
        return logits(head, hidden, torch.from_numpy(lengths).to(device), torch.from_numpy(last).to(device), pooling)

    def _validate(self, batch: Ragged) -> None:
        batch.check_lengths()
        token_ids, lengths, types = batch.token_ids, batch.lengths, batch.token_types
        if not len(lengths):
            return
        limit = self._profile.max_length
        if limit is not None and int(lengths.max()) > limit:
            raise LimitExceeded(
                f"sequence {int(lengths.argmax())} has {int(lengths.max())} tokens; {type(self._model).__name__} takes "
                f"at most {limit}",
                field="token_ids",
            )
        low, high = int(token_ids.min()), int(token_ids.max())
        if low < 0 or high >= self._vocabulary_size:
            raise InvalidRequest(
                f"there is no token {low if low < 0 else high}; the model has {self._vocabulary_size} tokens",
                field="token_ids",
            )
        if types is not None and not self._profile.takes_types and types.any():
            raise InvalidRequest(f"{type(self._model).__name__} takes no token types", field="token_types")

    def _empty(self) -> Output:
        config: Any = self._model.config
        if self._head is None:
            return Output(torch.empty(0, config.get_text_config().hidden_size), None)
        return Output(None, torch.empty(0, config.num_labels))

    def _sample(self) -> list[NDArray[np.int64]]:
        """Return token sequences for checking the model, without padding tokens."""
        middle = self._vocabulary_size // 2
        unwanted = self._model.config.get_text_config().pad_token_id
        ids = [i for i in range(middle, middle + sum(PROBE_LENGTHS) + 1) if i != unwanted]
        ends = np.cumsum(PROBE_LENGTHS)
        return [np.array(ids[end - length : end]) for end, length in zip(ends, PROBE_LENGTHS, strict=True)]

    @torch.inference_mode()
    def _alone(self) -> list[Tensor]:
        """Run each sequence of the sample through the unchanged model."""
        results = []
        for token_ids in self._sample():
            try:
                output = self._model(input_ids=torch.from_numpy(token_ids)[None].to(self._model.device))
            except Exception as error:  # any error of the model's code
                raise unsupported(
                    self._model, f"a few tokens sent through it failed with {type(error).__name__}: {error}"
                ) from error
            results.append(output.logits if self._head is not None else _base_output(self._base, token_ids))
        return [result[0].float() for result in results]

    @torch.inference_mode()
    def _check(self, alone: list[Tensor]) -> None:
        """Determine how the classifier pools. Raises `InvalidConfiguration` if the sample as one row does not give the
        results of each sequence `alone`."""
        sample = self._sample()
        lengths = np.array(PROBE_LENGTHS, dtype=np.int64)
        token_ids = np.concatenate(sample)
        hidden = self._hidden(token_ids, lengths, None)
        limit = CLOSE.get(hidden.dtype, 1e-3)
        if self._head is None:
            if _distance(hidden, torch.cat(alone)) > limit:
                raise unsupported(
                    self._model,
                    "sequences side by side in one row give other results than each alone; "
                    "something beside its attention looks at neighboring tokens or at positions",
                )
            return
        head, wanted = self._head, torch.stack(alone)
        distances = {p: _distance(self._logits(head, hidden, token_ids, lengths, p), wanted) for p in POOLINGS}
        self._pooling = min(POOLINGS, key=lambda pooling: distances[pooling])
        if distances[self._pooling] > limit:
            raise unsupported(
                self._model,
                "its head gives other results on the first token, the last or the mean of a sequence in a row than on "
                "the sequence alone",
            )


def _head(model: PreTrainedModel) -> Head | None:
    """Return the head of a classifier, or None for a model that returns the vectors of its last layer."""
    if type(model).__name__.endswith("ForSequenceClassification"):
        return Head(model)
    if model.base_model is model or model.get_output_embeddings() is not None:  # type: ignore[no-untyped-call]
        return None
    raise InvalidConfiguration(
        f"the engine cannot run {type(model).__name__} on whole prompts: it is neither a model without a head, nor a "
        "language model, nor a sequence classifier",
        field="model",
    )


def _base_output(base: PreTrainedModel, token_ids: NDArray[np.int64]) -> Tensor:
    return last_hidden_state(base(input_ids=torch.from_numpy(token_ids)[None].to(base.device)))


def _positions(token_ids: NDArray[np.int64], lengths: NDArray[np.int64], padding_id: int | None) -> NDArray[np.int64]:
    """Return ``int64[total]``: each token's position in its sequence."""
    starts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    if padding_id is None:
        return np.arange(len(token_ids)) - starts
    # as in RoBERTa: a padding token within a text has the padding's own position and is not counted
    real = token_ids != padding_id
    counted = np.cumsum(real)
    before = np.repeat((counted - real)[np.cumsum(lengths) - lengths], lengths)
    return np.where(real, counted - before, 0) + padding_id


def _distance(found: Tensor, wanted: Tensor) -> float:
    """Return the largest difference relative to the largest value; infinite with NaN."""
    difference = (found.float() - wanted).abs().nan_to_num(torch.inf).max()
    return float(difference / wanted.abs().max().clamp(min=1e-6))
