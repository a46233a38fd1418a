"""Calls of a processor, of any interface, on one row, with checks of the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from guideway.api import ConformanceError, GuidewayError

from guideway_legacy.processors import Processor
from guideway_legacy.watch import Watch

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["Call", "Past", "ProcessorFailed", "bound", "checked", "in_order", "shared", "vllm_call"]


class Past(NamedTuple):
    """The token ids before a row: prompt, output and earlier drafts."""

    token_ids: list[int]
    num_prompt: int

    @property
    def prompt(self) -> list[int]:
        return self.token_ids[: self.num_prompt]

    @property
    def generated(self) -> list[int]:
        return self.token_ids[self.num_prompt :]


Call: TypeAlias = Callable[[Past, "Tensor"], "Tensor"]
"""Returns the row float32[width] after a processor, which may change the given row and its token ids in place."""


class ProcessorFailed(GuidewayError):
    """A legacy processor raised an exception, or cannot be called as required."""


def in_order(calls: list[Call], past: Past, row: Tensor) -> Tensor:
    """Return `row` after all `calls`."""
    for call in calls:
        row = call(Past(list(past.token_ids), past.num_prompt), row)
    return row


def bound(processor: Processor, target: Any) -> Call:
    """Return a call of `target` for its kind, with errors that name it."""
    if processor.kind == "transformers":
        return checked(processor.label, lambda past, row: _scores(target, past, row))
    if processor.prompt:
        return checked(processor.label, lambda past, row: target(past.token_ids, row))
    return checked(processor.label, lambda past, row: target(past.generated, row))


def shared(processor: Processor, target: Any) -> Call:
    """Return a call of `target` for all sequences. Once `target` is seen to keep state, every call raises."""
    call, watch = bound(processor, target), Watch(target)
    changed: list[str] = []

    def watched(past: Past, row: Tensor) -> Tensor:
        if not changed:
            watch.begin()
            result = call(past, row)
            if (name := watch.changed()) is None:
                return result
            changed.append(name)
        raise ConformanceError(
            f"{processor.label} keeps state between calls ({changed[0]!r} changed), but all sequences share it; "
            "configure it with per_sequence = true"
        )

    return watched


def vllm_call(processor: Processor, target: Any) -> Call:
    """Return a call of the result of ``new_req_logits_processor``, as vLLM's AdapterLogitsProcessor calls it."""
    if len(inspect.signature(target).parameters) == 3:
        return checked(processor.label, lambda past, row: target(past.prompt, past.generated, row))
    return checked(processor.label, lambda past, row: target(past.generated, row))


def checked(label: str, call: Call) -> Call:
    """Return `call` with errors that name the processor, and with checks that the result is a row of numbers."""

    def named(past: Past, row: Tensor) -> Tensor:
        import torch

        try:
            result = call(past, row)
        except Exception as error:
            raise ProcessorFailed(f"{label} raised {type(error).__name__}: {error}") from error
        if not isinstance(result, torch.Tensor) or result.shape != row.shape or result.dtype != row.dtype:
            raise ConformanceError(f"{label} must return logits, {_describe(row)}; it returned {_describe(result)}")
        if not bool((result < torch.inf).all()):
            raise ConformanceError(f"{label} returned NaN or +inf")
        return result

    return named


def _scores(target: Any, past: Past, row: Tensor) -> Any:
    """Call a ``transformers`` processor with a batch of one."""
    import torch

    input_ids = torch.tensor([past.token_ids], dtype=torch.int64, device=row.device)
    scores = target(input_ids, row[None])
    return scores[0] if isinstance(scores, torch.Tensor) and scores.shape[:1] == (1,) else scores


def _describe(value: object) -> str:
    shape = getattr(value, "shape", None)
    if shape is None:
        return f"a {type(value).__name__}"
    return f"a {type(value).__name__} of {getattr(value, 'dtype', '?')} and shape {list(shape)}"
