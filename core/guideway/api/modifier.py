"""Logit modifiers: the one concept the engine knows. The grammar mask is one of them, and what it needs of a worker it
declares as any transform may: `LogitTransform.bitmask`, `LogitTransform.hard`, `LogitTransform.idempotent`.

A modifier has two halves. `LogitModifier` lives with the scheduler, keeps one state per sequence and each step turns
states into a `Payload`. `LogitTransform` lives in the worker, holds no state and applies the payload to the logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar

from guideway.api.steps import CONTINUE, Array, Feedback, Need, Outcome, Payload, Stage, StepBatch
from guideway.api.types import Companion, Request, SequenceInfo
from guideway.errors import UnsupportedCapability

if TYPE_CHECKING:
    from guideway.api.device import ArrayOps, DeviceBackend
    from guideway.api.grammar import CompiledGrammar
    from guideway.api.vocabulary import Vocabulary

__all__ = ["Example", "LogitModifier", "LogitTransform", "ModifierContext", "Sampler", "Step", "WorkerContext"]

State = TypeVar("State")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModifierContext:
    """The facts that a modifier is built with."""

    vocabulary: Vocabulary
    max_num_sequences: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """The facts that a transform is built with."""

    device: DeviceBackend
    vocabulary_size: int
    logits_width: int
    """Columns of the logits: `vocabulary_size` or more. Those past it hold whatever the model gives, until they are
    forbidden at `Stage.MASK`."""


@dataclass(frozen=True, slots=True)
class Example:
    """A use of a modifier for conformance runs: what makes it act, within the first dozen tokens. What is None the
    suite chooses. In the suite's vocabulary the first 256 token ids are the bytes, and a token id that a run's
    vocabulary does not have is left out."""

    options: Mapping[str, Any]
    """A value that ``params.modifiers[name]`` may have."""
    prompt_token_ids: tuple[int, ...] | None = None
    """At least one."""
    generated: tuple[int, ...] | None = None
    """The first tokens that are generated, as far as they can be drawn; where a `Sampler` draws, it does."""
    logits: Mapping[int, float] | None = None
    """By token id, in every row; the other logits the suite chooses."""


class Step(Protocol):
    """The data that a transform may look at while it is applied. Everything but `ops` and `positions` is there exactly
    if the modifier declares it in `needs`; reading anything else raises `UnsupportedCapability`. `rows` is
    ``int32[m]``, usually ``payload.rows``. Every call of a method makes an array of the caller's own; `positions` and
    `companion_rows` are shared, and only to be read."""

    @property
    def ops(self) -> ArrayOps:
        """The device's array operations."""
        ...

    @property
    def positions(self) -> Array:
        """``int32[num_rows]``: index in its sequence of the token each row predicts."""
        ...

    @property
    def companion_rows(self) -> Array:
        """``int32[num_rows, c]``: the row of the logits of this modifier's j-th companion of each row's sequence,
        -1 where there is none: what `LogitModifier.companions` gave for a request runs in each step of its sequences,
        so it is -1 where that gave fewer, and for sequences that are not this modifier's. (`Need.COMPANIONS`)"""
        ...

    def hidden_states(self, rows: Array) -> Array:
        """``float[m, hidden]``: the model's last hidden states, in its own type: float32, float16 or bfloat16, whose
        sums of squares may overflow. (`Need.HIDDEN_STATES`)"""
        ...

    def bitmask(self, rows: Array) -> Array:
        """``bool[m, width]``: which tokens the grammar allows, and every other modifier whose transform declares a
        `LogitTransform.bitmask`; all True without one. (`Need.BITMASK`)"""
        ...

    def history(self, rows: Array) -> Array:
        """``int32[m, history_length]``: the token ids before each row (prompt, output and earlier drafts), the
        nearest last, -1 where the sequence is shorter. (`Need.HISTORY`)"""
        ...

    def uniform(self, purpose: str, rows: Array, width: int = 1) -> Array:
        """``float32[m, width]`` in (0, 1), a function of (seed, sequence index, position, purpose) alone, never of
        call order. Purposes of different modifiers do not meet. (`Need.UNIFORM`)"""
        ...

    def emit(self, name: str, array: Array) -> None:
        """Send one of the transform's `emits` back to the scheduler side; leading axis as `Payload.rows`.
        (`Need.FEEDBACK`)"""
        ...


class LogitTransform(ABC):
    """The worker's half of a modifier. Pure: what it returns depends on its arguments alone."""

    arrays: ClassVar[frozenset[str]] = frozenset()
    """Array libraries it calls directly (``{"torch"}``); empty: only `Step.ops`, so it runs on every device."""
    emits: ClassVar[Mapping[str, tuple[tuple[int, ...], str]]] = {}
    """Feedback by name: shape per row and dtype, at most 4 KiB per row in all."""
    history_length: ClassVar[int] = 0
    """The number of earlier token ids that `Step.history` holds."""
    bitmask: ClassVar[str | None] = None
    """The payload array that is a bitmask, ``int32[m, num_words(logits_width)]`` as in `guideway.api.bitmask`, where
    all that `apply` does is to forbid what it forbids, at `Stage.MASK`. A host need not call `apply` then: it uses
    whichever operation of the device does the same, alone or together with other work, and `Step.bitmask` shows what
    all of these arrays allow. Such a transform emits nothing."""
    hard: ClassVar[bool] = False
    """True if it is a hard constraint. Where modifiers leave a row without a token, the row is drawn under the hard
    ones alone, and the others are in the result's `unenforced`. It may be applied twice in a step, so it emits nothing.
    """
    idempotent: ClassVar[bool] = False
    """True if applying it again, after a call that ended or that failed halfway, gives what one call gives. A host then
    keeps no copy of the rows to go back to when it fails."""

    def __init__(self, context: WorkerContext, options: Mapping[str, Any]) -> None:
        self.context = context
        self.options = options

    @abstractmethod
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        """The logits (or log-probabilities, at `Stage.POST_WARP`) ``float[rows, width]`` with the rows of `payload`
        modified and all others as they were. No wait for the device, no loop over rows, never -inf made finite."""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Once, when its worker shuts down or fails to start, before the device closes; it is not used later. What it
        raises is logged."""


class Sampler(LogitTransform):
    """A transform that owns the draw for the rows of its payload. A row has one owner."""

    @abstractmethod
    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        """``int[len(payload)]``: the token drawn for each entry. `logprobs` is ``float[rows, width]``, after every
        other stage, normalized, in at least float32; a token whose log-probability is -inf must not be drawn. With
        draft tokens every row is drawn and the longest prefix in which draft equals draw is kept, so drafts never
        change the distribution."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        """Return the logits as they are: a sampler leaves them alone."""
        return logits


class LogitModifier(ABC, Generic[State]):
    """The scheduler's half: one state per sequence, one payload per step.

    An operator lists it in ``EngineConfig(modifiers=("name",))``; those of one stage act in the order of that list, at
    `Stage.MASK` after the grammar mask. A request uses it with ``SamplingParams(modifiers={"name": {...}})``. Where it
    and the grammar together leave a row without a token, the row is drawn without the modifier, and its name is in the
    result's `unenforced` (unless it is `LogitTransform.hard` as the grammar mask is). So `accept` may hear any token.

    Token ids come in tuples, the arrays of batch and feedback are read-only, and the host may reuse them after the
    step: keep copies. What it does and answers is a function of request, options, tokens and feedback, never of the
    clock: the same after forks and replays, hours later, and in another process. A `Request.request_id` may come again,
    with other options. `options` are the operator's. Methods are called by one thread, but for those that say
    otherwise. An exception in any of them ends the one request it concerned with `FinishReason.INTERNAL_ERROR`.
    """

    contract: ClassVar[str]
    """The version of the contract it was written for, such as ``"1.0"``: each plugin's class states its own."""
    name: ClassVar[str]
    stage: ClassVar[Stage]
    needs: ClassVar[frozenset[Need]] = frozenset()
    transform: ClassVar[type[LogitTransform]]
    derived: ClassVar[bool] = False
    """The state is a function of request and token ids, read from `Step.history`: `accept` and `fork` are never
    called and one state serves every fork."""

    examples: ClassVar[Sequence[Example]] = (Example({}),)
    """Ways to use it in conformance runs, at least one."""

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        self.options = options
        self.context = context

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        """The slow part of a request that selects this modifier, before any of its sequences starts: what it returns is
        given to each `start`.

        Called off the thread that decodes, from several threads at once, in every process that admits the request or
        calls `start`; a function of the request and of this modifier's options alone. `grammar` is the request's
        compiled constraint, None where it has none or this process does not hold it. Raises what `start` may raise.
        """
        return None

    def compile_key(self, request: Request) -> Hashable | None:
        """Requests of equal keys share one call of `compile` and its value; None: each has a call of its own. Asked of
        the requests that `compile` will be called for, and where, from several threads at once. Goes with `compile`:
        alone it would do nothing, and is refused."""
        return None

    @abstractmethod
    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> State | None:
        """The state of a new sequence, once per sequence; None leaves its rows alone. A request that selects this
        modifier has its options in ``request.params.modifiers[name]``, a mapping. `compiled` is what `compile` returned
        for the request, None for one that does not select this modifier. Raises `InvalidRequest` to refuse it; an
        `InvalidConfiguration`, as `parse_options` raises, refuses it too."""

    def unenforced(self, state: State) -> Sequence[str]:
        """Names of what was asked for this sequence and will not be enforced, once it has started; they are in the
        result's `unenforced`."""
        return ()

    @abstractmethod
    def prepare(self, batch: StepBatch, states: Sequence[State | None]) -> Payload | None:
        """This step's payload; ``states[i]`` belongs to ``batch.slots[i]``. None: nothing to apply. Runs beside the
        forward pass, sees every earlier final token, and must not change a state. The row after a draft is treated as
        if that draft were final (`StepBatch.drafts`), or drafts would change the output. A sequence it fails for is in
        `Payload.faults`; if it raises, it is called again for each sequence alone, to find out whose failure it is."""

    def accept(self, state: State, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        """Take the final tokens of a step (never drafts), in order, with what the transform emitted at the rows
        that gave them: each array's leading axis is ``len(token_ids)``. `feedback` is None where the transform did
        not act on every one of these rows."""
        return CONTINUE

    def forced(self, state: State, limit: int) -> Sequence[int]:
        """At most `limit` tokens that must come next, because its transform leaves no other: in the row before each,
        with those before it as drafts, every other token is at -inf. `validate` lets them pass; the state does not
        move. A host may compute several of them in one step, as drafts which the draw confirms: what is forced is up to
        the transform, and a host that does not ask computes the same output."""
        return ()

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        """Return how many of these drafts this modifier would let pass; the state does not move. Where a modifier with
        a state does not override this, nothing is drafted that other modifiers force: it might end the output amid
        it."""
        return len(token_ids)

    def companions(self, request: Request) -> Sequence[Companion]:
        """Sequences to run beside each sequence of the request, asked once at its admission, from several threads at
        once; none for a request this modifier leaves alone. (`Need.COMPANIONS`)"""
        return ()

    def fork(self, state: State) -> State:
        """An independent copy of `state`. An immutable state is shared by returning it; a modifier that does not
        implement this refuses to fork."""
        raise UnsupportedCapability(f"modifier {self.name!r} cannot fork a sequence", field="fork")

    def report(self, state: State) -> Mapping[str, Any] | None:
        """Return what the user is told of a sequence in `Completion.reports`, by this modifier's name: JSON, at most 4
        KiB of it; None: nothing. A function of the state, as all else is: a replayed state tells the same, and a fork
        what its parent would, up to where they part. Asked once, when a sequence that neither failed nor was given up
        has ended, before `release`. If it fails, the request ends with `FinishReason.INTERNAL_ERROR` and keeps its
        text."""
        return None

    def release(self, state: State | None) -> None:
        """Let go of a sequence: exactly once for each one that was started or forked, however it ends, with its state,
        or None if `start` or `fork` raised or left it alone. Preemption is not release."""

    def close(self) -> None:
        """Once, when the host needs it no more, also where another part failed to start: every sequence is released,
        and nothing of it is used later. What it raises is logged."""

    def plugin_of(self, state: State | None) -> str:
        """``kind.name`` of the plugin to name when something fails over `state`, or over a sequence without one. For
        a modifier that has other plugins work for it, as the grammar mask has strategies."""
        return f"modifier.{self.name}"
