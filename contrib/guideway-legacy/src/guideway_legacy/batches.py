"""Batch-level processors of vLLM V1 (``update_state``, ``apply``), one per sequence, each with a batch of one."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from guideway_legacy.calls import Past

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BatchOfOne", "config_of_one"]


@dataclass(frozen=True)
class BatchUpdate:
    """A stand-in for vLLM's class of this name, with its fields."""

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]]
    """For each new request: index, sampling parameters, ids of the prompt, and the list that receives its output
    ids."""
    moved: Sequence[tuple[int, int, Any]]


class BatchOfOne:
    """Calls a processor as vLLM does for a batch of one request to which nothing else happens."""

    def __init__(self, processor: Any, params: Any) -> None:
        self._processor = processor
        self._params = params
        self._output: list[int] | None = None

    def __call__(self, past: Past, row: Tensor) -> Any:
        update = None
        if self._output is None:
            self._output = past.generated
            update = BatchUpdate(1, (), ((0, self._params, past.prompt, self._output),), ())
        else:
            # extend the list that the processor was given
            self._output.extend(past.generated[len(self._output) :])
        self._processor.update_state(update)
        logits = self._processor.apply(row[None])
        return logits[0] if hasattr(logits, "shape") and logits.shape[:1] == (1,) else logits


class Partial(SimpleNamespace):
    """The part of a ``vllm_config`` that exists outside of vLLM."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"outside of vLLM, guideway has no {name!r} of vllm_config for a processor")


def config_of_one() -> Any:
    """Return the ``vllm_config`` of the vLLM process that is being set up, or a stand-in outside of vLLM; changed to
    one request at a time, so that no processor allocates room for more."""
    vllm = sys.modules.get("vllm.config")  # a vLLM process imported it long ago
    current = None if vllm is None else vllm.get_current_vllm_config_or_none()
    if current is None:
        return Partial(scheduler_config=Partial(max_num_seqs=1))
    config, scheduler = copy.copy(current), copy.copy(current.scheduler_config)
    object.__setattr__(scheduler, "max_num_seqs", 1)
    object.__setattr__(config, "scheduler_config", scheduler)
    return config
