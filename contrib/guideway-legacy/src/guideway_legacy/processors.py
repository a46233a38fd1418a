"""The processors that run, in their order: the operator's options, and the objects that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any, Literal

from guideway.api import InvalidConfiguration, parse_options

__all__ = ["Processor", "is_batch_level", "make", "processors_of", "vllm_target"]


@dataclass(frozen=True, slots=True)
class Processor:
    """An existing logits processor, and how to call it."""

    kind: Literal["callable", "transformers", "vllm"]
    """``callable``: ``f(token_ids, logits) -> logits``, a list of int and a tensor float32[width].
    ``transformers``: ``p(input_ids, scores) -> scores``, tensors int64[1, n] and float32[1, width].
    ``vllm``: a V1 processor, per request (a subclass of ``AdapterLogitsProcessor``) or batch-level (``update_state``
    and ``apply``)."""
    target: Any
    """The object, or its import path: ``module:attribute``. A class is called to construct the processor."""
    kwargs: Mapping[str, Any] | None = None
    """Keyword arguments to call `target` with, if given; the result is the processor."""
    per_sequence: bool = False
    """Call `target` once per sequence: its result may keep state. Not needed for ``vllm``, where it always is so."""
    prompt: bool = True
    """True if the token ids of a ``callable`` begin with the prompt; false if they are the generated ones only."""

    @property
    def stateful(self) -> bool:
        """True if each sequence has its own processor, which may keep state."""
        return self.per_sequence or self.kind == "vllm"

    @property
    def label(self) -> str:
        """The name of the processor in messages."""
        if isinstance(self.target, str):
            return self.target
        named = self.target if hasattr(self.target, "__qualname__") else type(self.target)
        return f"{named.__module__}:{named.__qualname__}"


@dataclass(frozen=True, slots=True)
class _Options:
    processors: tuple[dict, ...]  # type: ignore[type-arg]  # `parse_options` reads plain classes


@dataclass(frozen=True, slots=True)
class _Written:
    """A `Processor` as written in options."""

    kind: Literal["callable", "transformers", "vllm"]
    target: str
    kwargs: dict | None = None  # type: ignore[type-arg]
    per_sequence: bool = False
    prompt: bool = True


@dataclass(frozen=True, slots=True)
class _NoOptions:
    pass


def processors_of(declared: Sequence[Processor], options: Mapping[str, Any], where: str) -> tuple[Processor, ...]:
    """Return the declared processors of a class, or else those in the operator's options. Raises
    `InvalidConfiguration`."""
    if declared:
        parse_options(_NoOptions, options, where=where)
        found = tuple(declared)
    else:
        found = tuple(
            _read(written, f"{where}.processors[{i}]")
            for i, written in enumerate(parse_options(_Options, options, where=where).processors)
        )
    if not found:
        raise InvalidConfiguration(f"{where} lists no processor", field=f"{where}.processors")
    for i, processor in enumerate(found):
        _check(processor, f"{where}.processors[{i}]")
    return found


def make(processor: Processor, where: str) -> Any:
    """Return the processor, or with `per_sequence` the callable that makes one. Raises `InvalidConfiguration`."""
    target = _resolve(processor, where)
    if processor.kind == "vllm":
        return vllm_target(processor, where)
    if processor.per_sequence or (processor.kwargs is None and not isinstance(target, type)):
        made = target
    else:
        try:
            made = target(**(processor.kwargs or {}))
        except Exception as error:
            raise InvalidConfiguration(
                f"{processor.label} could not be made with {dict(processor.kwargs or {})}: "
                f"{type(error).__name__}: {error}",
                field=f"{where}.kwargs",
            ) from error
    if not callable(made):
        raise InvalidConfiguration(f"{processor.label} is no callable but {made!r}", field=f"{where}.target")
    return made


def vllm_target(processor: Processor, where: str) -> Any:
    """Return the class or instance of a V1 processor; for a batch-level one, the class. Raises `InvalidConfiguration`
    for every other interface."""
    target = _resolve(processor, where)
    if hasattr(target, "new_req_logits_processor") or (is_batch_level(target) and isinstance(target, type)):
        return target
    if is_batch_level(target):
        reason = "it is an object, and a batch-level processor is made anew for each sequence; name its class"
    elif hasattr(target, "add_request"):
        reason = (
            "it has the interface of vLLM's V2 model runner alone (add_request, apply_staged_writes), which guideway "
            "does not call; there vLLM itself runs it beside guideway: name it with --logits-processors"
        )
    else:
        reason = "it has neither new_req_logits_processor nor update_state"
    raise InvalidConfiguration(f"{processor.label} cannot run here: {reason}", field=f"{where}.target")


def is_batch_level(target: Any) -> bool:
    """Return whether `target` has only V1's interface for batches, not the one for requests."""
    return not hasattr(target, "new_req_logits_processor") and hasattr(target, "update_state")


def _read(written: Mapping[str, Any], where: str) -> Processor:
    fields = parse_options(_Written, written, where=where)
    return Processor(fields.kind, fields.target, fields.kwargs, fields.per_sequence, fields.prompt)


def _check(processor: Processor, where: str) -> None:
    if processor.kind != "callable" and not processor.prompt:
        raise InvalidConfiguration(f"prompt = false is for kind 'callable', not {processor.kind!r}", field=f"{where}")
    if processor.kind == "vllm" and processor.kwargs is not None:
        raise InvalidConfiguration("vLLM makes its processors without kwargs; leave them out", field=f"{where}.kwargs")


def _resolve(processor: Processor, where: str) -> Any:
    if not isinstance(processor.target, str):
        return processor.target
    module, colon, attributes = processor.target.partition(":")
    if not colon or not attributes:
        raise InvalidConfiguration(f"a target is 'module:attribute', not {processor.target!r}", field=f"{where}.target")
    try:
        return reduce(getattr, attributes.split("."), import_module(module))
    except Exception as error:
        raise InvalidConfiguration(
            f"{processor.target!r} cannot be imported: {type(error).__name__}: {error}", field=f"{where}.target"
        ) from error
