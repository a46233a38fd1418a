"""The data that a scheduler sends to workers for one forward pass, and the runner that executes it (provisional: it
may change within v1). The data are plain values that pickle, not tensors.

The KV cache consists of numbered cells, one per token. A sequence owns one region of contiguous cells. The scheduler
chooses the regions; the worker moves data and computes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from guideway.api.device import DeviceBackend
    from guideway.api.steps import Array

__all__ = [
    "Append",
    "Clear",
    "Copy",
    "ForwardOutput",
    "ForwardStep",
    "ModelInfo",
    "ModelRunner",
    "Move",
    "Region",
    "RunnerLimits",
    "Score",
]


@dataclass(frozen=True, slots=True)
class Region:
    """The `size` cells from `start`; `size` is a power of two, and `start` a multiple of it."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Copy:
    """An order to copy the keys and values of `num_tokens` cells; source and target do not overlap."""

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Clear:
    """An order to set `num_tokens` cells to zero."""

    start: int
    num_tokens: int


Move: TypeAlias = Copy | Clear


class Append(NamedTuple):
    """New tokens of one sequence."""

    region: Region
    length: int
    """The number of tokens in the region before these."""
    token_ids: Sequence[int]
    """The new tokens, at least one."""
    num_rows: int
    """The number of last tokens to return logits for; the row of a token predicts the next one."""


@dataclass(frozen=True, slots=True)
class Score:
    """Tokens of a prompt whose log-probabilities are requested."""

    token_ids: NDArray[np.int32]
    """``int32[m]``: the token that follows at each of the last m rows of logits."""
    num_logprobs: int
    """The number of most likely tokens to return for each position."""


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """One forward pass. The rows of logits are in the order of `appends`: rows of sampled sequences, then of their
    companions, then of `score`."""

    appends: Sequence[Append]
    moves: Sequence[Move] = ()
    """Moves to execute before the pass, in order, each exactly once: a worker counts executed moves, so if a step is
    sent again it executes only the remaining ones."""
    first_move: int = 0
    """The number of moves in all earlier steps."""
    hidden_states: bool = False
    """True to return the hidden states of each row too."""
    score: Score | None = None
    sequence_ids: Sequence[str] = ()
    """The sequence of each of `appends`, for worker mixins: see `WorkerStep.sequence_ids`."""
    slots: Sequence[int] = ()
    """The slot of each of these sequences, in which its faults are reported."""

    @property
    def num_sequences(self) -> int:
        return len(self.appends)

    @property
    def num_tokens(self) -> int:
        return sum(len(append.token_ids) for append in self.appends)

    @property
    def num_rows(self) -> int:
        return sum(append.num_rows for append in self.appends)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Facts that a worker reports about its model."""

    logits_width: int
    """The width of a row of logits, which may exceed the size of the vocabulary."""
    max_context: int | None
    """The model's maximum number of tokens; None if its configuration does not say."""
    stop_token_ids: tuple[int, ...]
    static_shapes: bool = False
    """`DeviceBackend.static_shapes` of the worker's device. Set by the worker, not by the runner."""


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The results of one forward pass."""

    logits: Array
    """``float[rows, logits_width]``: the requested rows of each append, in the order of the appends, in any array
    library that the device accepts. For a device with `static_shapes`, meaningless rows pad them to one of few shapes
    (`guideway.api.padded_size`)."""
    hidden_states: Array | None = None
    """``[rows, hidden size]`` in the model's dtype, if requested: the states that the logits were computed from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """The sizes that a runner allocates memory for."""

    num_cells: int
    """The number of tokens in the KV cache."""
    max_length: int
    """Maximum number of tokens of one sequence."""
    max_num_tokens: int
    """Maximum number of tokens that the model processes in one step."""
    max_num_rows: int
    """Maximum number of rows of logits that a step requests, not counting rows of `Score`."""


class ModelRunner(ABC):
    """A runner of a model's forward passes, with its own KV cache.

    Its methods are called in this order: `load`, `start`, then `forward` for each step. `backend` is the device for
    the logits. `rank` is the index among the `num_workers` workers that share the model; a runner that cannot share it
    raises `InvalidConfiguration`.
    """

    contract: ClassVar[str]
    """The version of the contract it was written for, such as ``"1.0"``: each plugin's class states its own."""
    name: ClassVar[str]
    model: Any = None
    """The model that `load` loaded, for worker mixins."""

    def __init__(self, backend: DeviceBackend, rank: int, num_workers: int) -> None:
        self.backend = backend
        self.rank = rank
        self.num_workers = num_workers

    @abstractmethod
    def load(self, folder: str, dtype: str) -> ModelInfo:
        """Load the ``transformers`` model in `folder`; `dtype` as in ``EngineConfig.dtype``. Raises
        `InvalidConfiguration`."""

    @abstractmethod
    def start(self, limits: RunnerLimits) -> None:
        """Allocate the KV cache. Raises `InvalidConfiguration`."""

    def dummy_steps(self) -> Iterable[ForwardStep]:
        """Return a step for each shape that must be compiled before requests are served; empty if shapes do not
        matter. The host runs each step, and then the pipeline. Their cells are free, so they may be overwritten."""
        return ()

    @abstractmethod
    def forward(self, step: ForwardStep) -> ForwardOutput:
        """Execute the moves of `step`, run its tokens through the model, and return without waiting for the device.
        After any exception, from the model or from an interrupt, repeating the step must give the same result."""

    def close(self) -> None:  # noqa: B027 (most have nothing to let go of)
        """Release everything. May be called twice."""
