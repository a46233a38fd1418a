"""The data that a scheduler sends to workers for one forward pass, and the runner that carries it out (provisional: it
may still change inside v1). What goes down are plain values that pickle; no tensors.

Keys and values live in cells, one per token, numbered through the whole cache. A sequence owns one region of
neighboring cells. The scheduler decides where; the worker moves and computes.
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
    """Cells from `start` on; `size` is a power of two, and `start` a multiple of it."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy the keys and values of `num_tokens` cells; source and target do not overlap."""

    source: int
    target: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Clear:
    """Set `num_tokens` cells to zero."""

    start: int
    num_tokens: int


Move: TypeAlias = Copy | Clear


class Append(NamedTuple):
    """New tokens of one sequence."""

    region: Region
    length: int
    """The number of tokens that the region holds before them."""
    token_ids: Sequence[int]
    """At least one."""
    num_rows: int
    """For how many of the last of them logits are wanted, each row predicting the token that follows."""


@dataclass(frozen=True, slots=True)
class Score:
    """Given tokens whose log-probabilities are wanted: those of a prompt."""

    token_ids: NDArray[np.int32]
    """``int32[m]``: what follows at each of the last m rows of logits."""
    num_logprobs: int
    """The number of most likely tokens to return beside each."""


@dataclass(frozen=True, slots=True)
class ForwardStep:
    """One forward pass. Rows of logits come in the order of `appends`: those of sampled sequences, then those of their
    companions, then those of `score`."""

    appends: Sequence[Append]
    moves: Sequence[Move] = ()
    """To be done in order before the pass, each exactly once: a worker counts those it has done, and of a step that
    is sent again does only the rest."""
    first_move: int = 0
    """The number of moves there have been before `moves`."""
    hidden_states: bool = False
    """True if the hidden states of each row are wanted too."""
    score: Score | None = None
    sequence_ids: Sequence[str] = ()
    """Whose each of `appends` is, for worker mixins: see `WorkerStep.sequence_ids`."""

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
    """The facts that a worker reports about the model it has loaded."""

    logits_width: int
    """The width of a row of logits, which may be more than the vocabulary holds."""
    max_context: int | None
    """The most tokens the model was made for; None if its configuration does not say."""
    stop_token_ids: tuple[int, ...]
    static_shapes: bool = False
    """True if its device compiles for each shape (`DeviceBackend.static_shapes`). Workers say so themselves."""


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """The results of one forward pass."""

    logits: Array
    """``float[rows, logits_width]``: the rows each append asked for, in the order of the appends, in any array library
    the device takes. For a device with `static_shapes` further rows that mean nothing follow, so that there are only
    few numbers of rows (`guideway.api.padded_size`)."""
    hidden_states: Array | None = None
    """``[rows, hidden size]`` in the model's dtype, if asked for: what the logits were computed from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """The sizes that a runner makes room for."""

    num_cells: int
    """The number of tokens that the keys and values have room for."""
    max_length: int
    """The most tokens of one sequence."""
    max_num_tokens: int
    """The most tokens that pass through the model in one step."""
    max_num_rows: int
    """The most rows of logits a step asks for, those of `Score` left aside."""


class ModelRunner(ABC):
    """Loads a model and runs its forward passes, with keys and values of its own.

    Its methods are called in this order: `load`, `start`, then `forward` for each step. `backend` is the device the
    logits go to, `device` its name in the words of the device's library. Of several workers that share the model this
    is number `rank`; a runner that cannot share raises `InvalidConfiguration`.
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
        """Load the model in `folder`, a model of ``transformers``; `dtype` as in ``EngineConfig.dtype``. Raises
        `InvalidConfiguration`."""

    @abstractmethod
    def start(self, limits: RunnerLimits) -> None:
        """Make room for keys and values. Raises `InvalidConfiguration`."""

    def dummy_steps(self) -> Iterable[ForwardStep]:
        """A step for each shape that has to be compiled before requests are served; the host runs them, and the
        pipeline after each. None where shapes do not matter. Their cells are not in use, and may be changed."""
        return ()

    @abstractmethod
    def forward(self, step: ForwardStep) -> ForwardOutput:
        """Carry out the moves of `step`, pass its tokens through the model, and return without waiting for the device.
        Whatever is raised, by the model or by an interrupt: doing the same step again computes the same."""

    def close(self) -> None:  # noqa: B027 (most have nothing to let go of)
        """Let go of everything. Closing twice is fine."""
