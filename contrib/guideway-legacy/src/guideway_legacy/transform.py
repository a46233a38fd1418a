"""The worker's half: processors are called row by row, and kept for each sequence while it exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from guideway.api import Array, ConformanceError, InvalidConfiguration, LogitTransform, Payload, Step, WorkerContext

from guideway_legacy.batches import BatchOfOne, config_of_one
from guideway_legacy.calls import Call, Past, ProcessorFailed, bound, checked, in_order, shared, vllm_call
from guideway_legacy.params import Lacking, VllmParams
from guideway_legacy.processors import Processor, is_batch_level, make, processors_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LegacyTransform", "Maker", "maker_of", "try_on"]

Maker: TypeAlias = Callable[[VllmParams], Call | None]
"""Makes the call for one sequence; None if the processor does not apply to it."""


class _Sequence:
    """The processors of one sequence, called exactly once for each of its tokens.

    A host may apply a step twice: after another row failed, or after an interrupt. The second time the first result is
    returned again, because a stateful processor must not see a token twice.
    """

    def __init__(self, calls: list[Call], num_prompt: int) -> None:
        self._calls = calls
        self._next = num_prompt
        self._seen: list[int] = []
        self._answer: Tensor | Exception | None = None

    def apply(self, past: Past, row: Tensor) -> Tensor:
        token_ids = past.token_ids
        if len(token_ids) == self._next - 1 and token_ids == self._seen:
            if self._answer is None:
                raise ProcessorFailed("a call was interrupted, so what the processors remember is not known")
            if isinstance(self._answer, Exception):
                raise self._answer
            return self._answer
        if len(token_ids) != self._next or token_ids[: len(self._seen)] != self._seen:
            raise ProcessorFailed(
                f"the processors of this sequence must hear of {self._next} tokens next, not of {len(token_ids)}: what "
                "they remember cannot be rebuilt"
            )
        self._seen, self._next, self._answer = token_ids, len(token_ids) + 1, None
        try:
            self._answer = in_order(self._calls, past, row).clone()
        except Exception as error:
            self._answer = error
            raise
        return self._answer


class LegacyTransform(LogitTransform):
    """Calls the processors on a float32 copy of each row and writes their results back, all rows or none."""

    arrays = frozenset({"torch"})
    processors: ClassVar[Sequence[Processor]] = ()
    where: ClassVar[str] = "modifier.legacy"

    def __init__(self, context: WorkerContext, options: Mapping[str, Any]) -> None:
        super().__init__(context, options)
        found = processors_of(self.processors, options, self.where)
        device = context.device.device
        self._makers = [maker_of(p, f"{self.where}.processors[{i}]", device) for i, p in enumerate(found)]
        self._stateless = None if any(p.stateful for p in found) else self._calls(VllmParams())
        """The processors for every sequence, if none is made per sequence."""
        self._sequences: dict[int, _Sequence] = {}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        import torch

        live = set(payload.shared["live"].tolist())
        self._sequences = {key: sequence for key, sequence in self._sequences.items() if key in live}
        before = step.ops.gather(logits, payload.rows).float()
        after = torch.empty_like(before)
        forbidden = torch.isneginf(before)  # computed first, because a processor may write to `before`
        names = ("token_ids", "num_tokens", "num_prompt", "key", "params")
        entries = zip(*(payload.arrays[name].tolist() for name in names), strict=True)
        for i, (padded, num_tokens, num_prompt, key, params) in enumerate(entries):
            past = Past(padded[:num_tokens], num_prompt)
            if self._stateless is not None:
                after[i] = in_order(self._stateless, past, before[i])
            else:
                after[i] = self._sequence(key, past, bytes(params).rstrip(b"\0")).apply(past, before[i])
        if bool((forbidden & ~torch.isneginf(after)).any()):
            raise ConformanceError("a processor allowed a token that was forbidden before it (made -inf finite)")
        if logits.dtype.itemsize < after.dtype.itemsize:  # a finite number out of range would become infinite
            most = torch.finfo(logits.dtype).max
            after = torch.where(after.isinf(), after, after.clamp(-most, most))
        return step.ops.where_rows(logits, payload.rows, True, after)

    def _sequence(self, key: int, past: Past, params: bytes) -> _Sequence:
        """Return the processors of a row's sequence; make them if this is its first token."""
        if key not in self._sequences:
            if len(past.token_ids) != past.num_prompt:
                raise ProcessorFailed(
                    "the processors of this sequence were lost with the worker they were in; what they remembered "
                    "cannot be rebuilt"
                )
            self._sequences[key] = _Sequence(self._calls(VllmParams.from_json(params)), past.num_prompt)
        return self._sequences[key]

    def _calls(self, params: VllmParams) -> list[Call]:
        return [call for maker in self._makers if (call := maker(params)) is not None]


def maker_of(processor: Processor, where: str, device: str) -> Maker:
    """Return the maker of a processor's call for a sequence. Raises `InvalidConfiguration`."""
    made = make(processor, where)
    if processor.kind == "vllm":
        make_one = _vllm_maker(made, device)
        first = _probe(processor, make_one, where)
        if is_batch_level(made):
            return lambda params: checked(processor.label, BatchOfOne(_make(processor, make_one), params))
        return lambda params: _vllm_call(processor, first.new_req_logits_processor, params)
    if processor.per_sequence:
        kwargs = dict(processor.kwargs or {})
        return lambda _: bound(processor, _make(processor, lambda: made(**kwargs)))
    call = shared(processor, made)
    return lambda _: call


def try_on(maker: Maker, params: VllmParams, past: Past, width: int) -> None:
    """Make the call of a sequence, and call it for a first row of `width` logits. Raises `Lacking` if the cause is a
    missing parameter. Other errors are ignored: they will occur again in a real call, or only a trial has them."""
    import torch

    try:
        if (call := maker(params)) is not None:
            call(past, torch.zeros(width))
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, Lacking):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None


def _vllm_maker(made: Any, device: str) -> Callable[[], Any]:
    import torch

    if not isinstance(made, type):
        return lambda: made
    config = config_of_one()
    return lambda: made(config, torch.device(device), False)  # as vLLM makes it


def _probe(processor: Processor, make_one: Callable[[], Any], where: str) -> Any:
    """Make a processor, and check that it can run. Raises `InvalidConfiguration`."""
    try:
        instance = make_one()
        invariant = instance.is_argmax_invariant()
    except Exception as error:
        raise InvalidConfiguration(
            f"{processor.label} could not be made: {type(error).__name__}: {error}", field=f"{where}.target"
        ) from error
    if invariant:
        raise InvalidConfiguration(
            f"{processor.label} says is_argmax_invariant, so vLLM applies it after the temperature; here it would "
            "see raw logits, and another distribution result. Write it as a LogitModifier of stage POST_WARP",
            field=f"{where}.target",
        )
    return instance


def _vllm_call(processor: Processor, new: Callable[[VllmParams], Any], params: VllmParams) -> Call | None:
    target = _make(processor, lambda: new(params))
    return vllm_call(processor, target) if target else None


def _make(processor: Processor, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        raise ProcessorFailed(
            f"{processor.label} raised {type(error).__name__} when it was made for a sequence: {error}"
        ) from error
