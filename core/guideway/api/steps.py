"""The data that scheduler and worker exchange once per step: arrays and small plain values.

A row is not a sequence. A sequence with k draft tokens owns 1 + k rows of the logits: its first row predicts the
token after its final tokens, row 1 + i the token after draft i. All per-step data are arrays over rows, built once
per step and shared by every modifier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from guideway.api.records import Records
from guideway.api.types import SamplingParams
from guideway.errors import GuidewayError, failure_of, text_of

__all__ = [
    "CONTINUE",
    "FINISH",
    "Array",
    "Fault",
    "Feedback",
    "Logprobs",
    "Need",
    "Outcome",
    "Payload",
    "Stage",
    "StepBatch",
    "StepInput",
    "StepOutput",
    "Warp",
    "fail",
]

Array: TypeAlias = Any
"""An array of the device's library: NumPy, torch, jax, ..."""

Feedback: TypeAlias = Mapping[str, NDArray[Any]]
"""Arrays that a transform emitted, by name; the leading axis counts tokens."""

GRAMMAR_MASK = "grammar"
"""The name of the grammar mask among modifiers and payloads; no other modifier may have it."""

MAX_FEEDBACK_BYTES_PER_ROW = 4096
"""Maximum bytes of feedback per row; feedback is copied back with the token ids and journaled."""

MAX_REPORT_BYTES = 4096
"""Maximum bytes of a modifier's report of a sequence, as JSON."""


class Stage(Enum):
    """The point in the processing of a row of logits at which a modifier acts. Stages run in the order of their
    definition.

    Between MASK and POST_WARP a host applies bias, penalties, temperature, top-k, top-p and min-p, as far as it
    supports them.
    """

    PRE_WARP = "pre_warp"
    """Gets raw logits."""
    MASK = "mask"
    """The stage at which the grammar forbids tokens; other modifiers that only forbid may act here too."""
    POST_WARP = "post_warp"
    """Gets log-probabilities of the distribution to draw from, in at least float32."""
    SAMPLE = "sample"
    """Draws the tokens; the transform is a `Sampler`."""


class Need(Enum):
    """An input that a modifier needs in addition to logits, payload, ops and positions. A host declares which of these
    it offers, and refuses at admission, with the reason, requests that use a modifier with other needs."""

    HIDDEN_STATES = "hidden_states"
    """`Step.hidden_states`: the model's last hidden states."""
    BITMASK = "bitmask"
    """`Step.bitmask`: the tokens that the grammar, and every other transform with a `LogitTransform.bitmask`,
    allows."""
    HISTORY = "history"
    """`Step.history`: token ids before each row, as many as the transform's `history_length`."""
    COMPANIONS = "companions"
    """`Step.companion_rows`: logits of the companions of each sequence (`LogitModifier.companions`)."""
    EDIT_PROMPT = "edit_prompt"
    """`LogitModifier.edit_prompt`: the host lets the modifier change the prompt, and begins the output as it says."""
    UNIFORM = "uniform"
    """`Step.uniform`: random numbers that depend only on seed, sequence, position and purpose."""
    DRAFTS = "drafts"
    """`Sampler.verify`: the sampler decides which draft tokens are kept."""
    FEEDBACK = "feedback"
    """`Step.emit`: small arrays sent back to `LogitModifier.accept`."""
    SCHEDULER_DRAW = "scheduler_draw"
    """The scheduler chooses among candidates that the worker emits. Provisional: no host offers it yet."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A modifier's decision about a sequence after the final tokens of a step."""

    action: Literal["continue", "finish", "fail"]
    message: str = ""
    was_forbidden: bool = False
    """With ``fail``: True if a token was drawn that this modifier's payload had forbidden. The host then blames the
    last modifier at `Stage.POST_WARP` or `Stage.SAMPLE` that acted on the row, if there is one."""

    def __post_init__(self) -> None:
        if self.action not in ("continue", "finish", "fail"):
            raise ValueError(f"an outcome is 'continue', 'finish' or 'fail', not {self.action!r}")


CONTINUE = Outcome("continue")
FINISH = Outcome("finish")


def fail(message: str, *, was_forbidden: bool = False) -> Outcome:
    """Return the outcome that ends the sequence with `FinishReason.INTERNAL_ERROR` and `message`."""
    return Outcome("fail", message, was_forbidden)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one step, shared by every modifier and sent to every worker.

    Sequence ``i`` of ``n`` owns rows ``row_start[i]`` up to ``row_start[i + 1]`` and has one draft fewer than rows.
    Companion sequences are not sampled: their rows follow after ``num_rows`` in the logits. The arrays are read-only,
    and the host may reuse them after the call they were passed to.
    """

    slots: NDArray[np.int32]
    """``int32[n]``: the slot of each sequence, constant from its start to its release."""
    row_start: NDArray[np.int32]
    """``int32[n + 1]``: first row of each sequence; the last entry is `num_rows`."""
    draft_token_ids: NDArray[np.int32]
    """``int32[num_rows - n]``: the drafts of all sequences, one after the other."""
    positions: NDArray[np.int32]
    """``int32[num_rows]``: index in its sequence (prompt included) of the token each row predicts."""

    def __post_init__(self) -> None:
        for array in (self.slots, self.row_start, self.draft_token_ids, self.positions):
            array.setflags(False)  # twice as fast as `write=False`

    @property
    def num_sequences(self) -> int:
        """The number of sequences."""
        return len(self.slots)

    @property
    def num_rows(self) -> int:
        """The number of sampled rows: one per sequence and one per draft."""
        return len(self.positions)

    def drafts(self, index: int) -> NDArray[np.int32]:
        """Return the draft token ids of the `index`-th sequence of the batch."""
        return self.draft_token_ids[self.row_start[index] - index : self.row_start[index + 1] - index - 1]

    def following(self) -> NDArray[np.int32]:
        """Return ``int32[num_rows]``: the draft token after each row, -1 after the last row of a sequence."""
        found = np.full(self.row_start[-1], -1, dtype=np.int32)
        has_draft = np.ones(len(found), dtype=np.bool_)
        has_draft[self.row_start[1:] - 1] = False
        found[has_draft] = self.draft_token_ids
        return found

    def select(self, states: Sequence[object]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the rows of all sequences whose state is not None, ``int32[m]``, and each row's sequence,
        ``int64[m]``. Most modifiers' `prepare` begins with this."""
        has_state = np.array([state is not None for state in states], dtype=np.bool_)
        sequences = np.repeat(np.arange(self.num_sequences), np.diff(self.row_start))
        rows = np.flatnonzero(has_state[sequences]).astype(np.int32)
        return rows, sequences[rows]

    @staticmethod
    def build(slots: list[int], positions: list[int], drafts: list[list[int]] | None = None) -> StepBatch:
        """Build the batch in which ``slots[i]`` predicts the token at ``positions[i]`` and one more per draft."""
        first = np.array(positions, dtype=np.int32)
        slot_array = np.array(slots, dtype=np.int32)
        if drafts is None or not any(drafts):
            return StepBatch(slot_array, np.arange(len(slots) + 1, dtype=np.int32), np.empty(0, dtype=np.int32), first)
        num_rows = np.array([1 + len(ids) for ids in drafts], dtype=np.int32)
        row_start = np.zeros(len(slots) + 1, dtype=np.int32)
        np.cumsum(num_rows, out=row_start[1:])
        within = np.arange(row_start[-1], dtype=np.int32) - np.repeat(row_start[:-1], num_rows)
        flat = np.array([token_id for ids in drafts for token_id in ids], dtype=np.int32)
        return StepBatch(slot_array, row_start, flat, np.repeat(first, num_rows) + within)


@dataclass(frozen=True, slots=True)
class Payload:
    """One modifier's data for one step, from `LogitModifier.prepare` to `LogitTransform.apply`.

    Holds plain NumPy arrays of numbers, which pickle, until a device uploads it; then device arrays of the same
    shapes. A host may apply it in several calls on disjoint rows (chunked verification, sharded sampling, fault
    isolation), so a transform must treat each entry separately. A modifier may reuse the arrays two `prepare` calls
    later: a host that keeps a payload longer copies it.
    """

    rows: NDArray[np.int32] | Array
    """``int32[m]``: the logits rows that the payload is for, each at most once."""
    arrays: Mapping[str, Array] = field(default_factory=dict)
    """Named arrays whose leading axis is ``m``, aligned with `rows`."""
    shared: Mapping[str, Array] = field(default_factory=dict)
    """Named arrays all rows share."""
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """The failures of sequences whose rows could not be prepared, by slot. The host ends these sequences and does not
    send faults to the worker; their rows must still allow a token."""

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: NDArray[np.int32]) -> Payload:
        """Return the entries whose row is in `rows`, in this payload's order, with unchanged row numbers. For host
        (NumPy) payloads, before the upload."""
        keep = np.isin(self.rows, rows)
        return replace(self, rows=self.rows[keep], arrays={k: v[keep] for k, v in self.arrays.items()})


@dataclass(frozen=True, slots=True)
class Fault:
    """A plugin's failure at one sequence."""

    plugin: str
    """``kind.name``, such as ``grammar.reference`` or ``modifier.kgw``."""
    phase: str
    """The contract method it failed in: ``fill_bitmask``, ``apply``, ..."""
    message: str
    row: int = -1
    """Index among the rows of the sequence in its step. The fault counts only if the row's token is final, unless this
    is -1."""

    @staticmethod
    def of(plugin: str, phase: str, error: BaseException) -> Fault:
        """Return the fault for an exception."""
        return Fault(plugin, phase, text_of(error))

    def error(self) -> GuidewayError:
        """Return the error that the sequence ends with: a `PluginError`, or `LimitExceeded` if memory ran out."""
        return failure_of(self.plugin, str(self))

    def __str__(self) -> str:
        return f"{self.plugin} failed in {self.phase}: {self.message}"


@dataclass(frozen=True, slots=True)
class Warp:
    """Bias, penalties and sampling parameters that change the logits of a step between `Stage.MASK` and
    `Stage.POST_WARP`. An array is None if no row needs it.

    The first two fields address single logits by row and column; a pair occurs at most once per field.
    """

    repeated: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]] | None = None
    """Rows, columns and repetition penalties ``p``, each ``[m]``: a logit x becomes ``x / p`` if x > 0, else
    ``x * p``."""
    added: tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float32]] | None = None
    """Rows, columns and addends, each ``[m]``, applied after the repetition penalties; -inf bans."""
    top_k: NDArray[np.int32] | None = None
    """``int32[num_rows]``; 0: no limit."""
    top_p: NDArray[np.float32] | None = None
    """``float32[num_rows]``; 1: no limit."""
    min_p: NDArray[np.float32] | None = None
    """``float32[num_rows]``; 0: no limit."""
    typical_p: NDArray[np.float32] | None = None
    """``float32[num_rows]``; 1: no limit."""


NUMBERS: Mapping[type, type[np.int32 | np.float32]] = {int: np.int32, float: np.float32}
FILTERS: Mapping[str, np.int32 | np.float32] = {
    each.name: NUMBERS[type(default := getattr(SamplingParams, each.name))](default) for each in fields(Warp)[2:]
}
"""The sampling parameters with an array in `Warp` that filter tokens, each with the value that changes nothing."""


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-probabilities at some rows, on the host."""

    rows: NDArray[np.int32]
    """``int32[m]``"""
    chosen: NDArray[np.float32]
    """``float32[m]``: the log-probability of the token drawn (or given) at each row."""
    top_ids: NDArray[np.int32]
    """``int32[m, k]``: the k most likely tokens of each row, descending; k is the largest number that a row asked
    for."""
    top: NDArray[np.float32]
    """``float32[m, k]``: their log-probabilities."""


@dataclass(frozen=True, slots=True)
class StepInput:
    """Everything that the scheduler sends to the workers for sampling in one step."""

    batch: StepBatch
    payloads: Mapping[str, Payload]
    """Payloads by modifier name; modifiers without work in this step are absent."""
    temperatures: NDArray[np.float32]
    """``float32[num_rows]``; 0: greedy."""
    seeds: NDArray[np.int64]
    """``int64[num_rows]``: each row's request seed."""
    sequence_indices: NDArray[np.int32]
    """``int32[num_rows]``: `SequenceInfo.index` of each row's sequence."""
    history: NDArray[np.int32] | None = None
    """``int32[num_rows, h]``: token ids before each row, nearest last, -1 where there are none; None if no transform
    with a payload reads it."""
    companion_rows: Mapping[str, NDArray[np.int32]] = field(default_factory=dict)
    """``int32[num_rows, c]`` by modifier name: the logits row of each companion, -1 where there is none."""
    warp: Warp | None = None
    """Changes of the logits; None if no row has any but its temperature."""
    num_logprobs: NDArray[np.int32] | None = None
    """``int32[num_rows]``: the number of most likely tokens whose log-probabilities to return with the drawn token's;
    -1: return none at all; None: -1 for all rows."""
    processed: NDArray[np.bool_] | None = None
    """``bool[num_rows]``: True where log-probabilities are of the distribution that the token is drawn from, False
    where they are of the raw logits; None: False for all rows."""
    records: NDArray[np.bool_] | None = None
    """``bool[num_rows]``: True for the rows to record; None: no row."""


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Everything that a worker returns for one step, on the host."""

    token_ids: NDArray[np.int32]
    """``int32[num_rows]``: the token drawn at each row."""
    feedback: Mapping[str, Payload] = field(default_factory=dict)
    """The rows and arrays that transforms emitted, by modifier name."""
    faults: Mapping[int, Fault] = field(default_factory=dict)
    """The first failure of each sequence in the worker, by slot. The tokens from its row on are meaningless."""
    overruled: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By row, the modifiers (``modifier.name``) and sampling parameters (``min_tokens``) that forbade every token the
    grammar allows, so the row was drawn without them."""
    logprobs: Logprobs | None = None
    """Log-probabilities of the rows that asked for them."""
    records: Records | None = None
    """One entry per row to record (`StepInput.records`), in their order; None if there are none."""

    @property
    def is_plain(self) -> bool:
        """True if there is nothing about modifiers: no feedback, no faults, and nothing was overruled."""
        return not (self.feedback or self.faults or self.overruled)
