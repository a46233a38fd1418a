"""Logit modifiers. The grammar mask is a modifier too, and declares its requirements on a worker as any transform may:
`LogitTransform.bitmask`, `LogitTransform.hard`, `LogitTransform.idempotent`.

A modifier has two halves. `LogitModifier` runs with the scheduler, keeps one state per sequence and turns the states
into a `Payload` each step. `LogitTransform` runs in the worker, has no state and applies the payload to the logits.
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
    """Facts about the host, passed to a modifier's constructor."""

    vocabulary: Vocabulary
    max_num_sequences: int
    max_model_len: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Facts about the worker, passed to a transform's constructor."""

    device: DeviceBackend
    vocabulary_size: int
    logits_width: int
    """Columns of the logits, at least `vocabulary_size`. Columns past the vocabulary hold arbitrary values until they
    are forbidden at `Stage.MASK`."""


@dataclass(frozen=True, slots=True)
class Example:
    """A request for conformance runs that makes a modifier act within the first dozen tokens. The suite chooses fields
    that are None. In the suite's vocabulary the first 256 token ids are the bytes; token ids that a run's vocabulary
    lacks are dropped."""

    options: Mapping[str, Any]
    """The value of ``params.modifiers[name]``."""
    prompt_token_ids: tuple[int, ...] | None = None
    """The prompt, at least one token id."""
    generated: tuple[int, ...] | None = None
    """The first tokens to generate, as long as they are allowed. Ignored for rows that a `Sampler` draws."""
    logits: Mapping[int, float] | None = None
    """Logits of every row, by token id; the suite chooses the others."""


class Step(Protocol):
    """The data that a transform may read while it is applied. Except for `ops` and `positions`, reading data that the
    modifier does not declare in `needs` raises `UnsupportedCapability`. `rows` is ``int32[m]``, usually
    ``payload.rows``. Each method call returns a new array; `positions` and `companion_rows` are shared and must not be
    changed."""

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
        """``int32[num_rows, c]``: the logits row of the j-th companion of each row's sequence. All companions that
        `LogitModifier.companions` returned for a request run in each step; -1 where it returned fewer, and for
        sequences without this modifier. (`Need.COMPANIONS`)"""
        ...

    def hidden_states(self, rows: Array) -> Array:
        """Return ``float[m, hidden]``: the model's last hidden states in the model's dtype, float32, float16 or
        bfloat16; sums of squares may overflow. (`Need.HIDDEN_STATES`)"""
        ...

    def bitmask(self, rows: Array) -> Array:
        """Return ``bool[m, width]``: the tokens that the grammar and every other modifier with a
        `LogitTransform.bitmask` allow; all True if there is none. (`Need.BITMASK`)"""
        ...

    def history(self, rows: Array) -> Array:
        """Return ``int32[m, history_length]``: the token ids before each row (prompt, output and earlier drafts), the
        nearest last, -1 where the sequence is shorter. (`Need.HISTORY`)"""
        ...

    def uniform(self, purpose: str, rows: Array, width: int = 1) -> Array:
        """Return ``float32[m, width]`` in (0, 1), which depends only on seed, sequence index, position and purpose,
        not on call order. Modifiers may use the same `purpose` without getting the same numbers. (`Need.UNIFORM`)"""
        ...

    def emit(self, name: str, array: Array) -> None:
        """Send one of the transform's `emits` back to the scheduler; leading axis as `Payload.rows`.
        (`Need.FEEDBACK`)"""
        ...


class LogitTransform(ABC):
    """The worker's half of a modifier. Pure: its results depend only on its arguments."""

    arrays: ClassVar[frozenset[str]] = frozenset()
    """Array libraries that the transform calls directly (``{"torch"}``); empty: it uses only `Step.ops` and runs on
    every device."""
    emits: ClassVar[Mapping[str, tuple[tuple[int, ...], str]]] = {}
    """Feedback by name: shape per row and dtype, at most 4 KiB per row in all."""
    history_length: ClassVar[int] = 0
    """The number of earlier token ids that `Step.history` holds."""
    bitmask: ClassVar[str | None] = None
    """The name of a payload array that is a bitmask, ``int32[m, num_words(logits_width)]`` as in
    `guideway.api.bitmask`, if `apply` only applies this bitmask at `Stage.MASK`. The host may then use an equivalent
    operation of the device instead of `apply`, also fused with other work, and `Step.bitmask` combines these arrays.
    Such a transform emits nothing."""
    hard: ClassVar[bool] = False
    """True for a hard constraint. If the modifiers together forbid every token of a row, the row is drawn under the
    hard ones only, and the result's `unenforced` names the others. A hard transform may be applied twice in a step, so
    it emits nothing.
    """
    idempotent: ClassVar[bool] = False
    """True if applying it again, after a call that succeeded or failed halfway, has the same result as one call. The
    host then keeps no copy of the rows to restore on failure."""

    def __init__(self, context: WorkerContext, options: Mapping[str, Any]) -> None:
        self.context = context
        self.options = options

    @abstractmethod
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        """Return the logits (or log-probabilities, at `Stage.POST_WARP`) ``float[rows, width]`` with the rows of
        `payload` modified and all others unchanged. Must not wait for the device, loop over rows, or make -inf
        finite."""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Called once, when the worker shuts down or fails to start, before the device closes; the transform is not
        used later. Exceptions are logged."""


class Sampler(LogitTransform):
    """A transform that draws the tokens of its payload's rows. At most one sampler draws a row."""

    @abstractmethod
    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        """Return ``int[len(payload)]``: the token drawn for each entry. `logprobs` is ``float[rows, width]``, after
        every other stage, normalized, in at least float32; a token whose log-probability is -inf must not be drawn.
        With draft tokens every row is drawn, and drafts are kept up to the first that differs from its draw, so they
        never change the distribution."""

    def verify(self, logprobs: Array, payload: Payload, drafts: Array, step: Step) -> Array:
        """Do `sample` with a say in what becomes of drafts: ``drafts``, ``int32[len(payload)]``, is the draft token
        after the row of each entry, -1 where there is none. A draft is kept if it is the token returned for its row,
        so return it to accept it and another token to refuse it. An entry without a draft gets what `sample` gives.

        A host that offers `Need.DRAFTS`, which a class that overrides this needs, calls it in place of `sample` in
        steps with drafts. The default ignores them, so that drafts never change a text. With another, a text depends on
        the drafts that a host made, and its distribution is what this method makes of it: accepting a draft with its
        own probability, and else drawing among the other tokens, keeps the distribution.
        """
        return self.sample(logprobs, payload, step)

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        """Return the logits unchanged."""
        return logits


class LogitModifier(ABC, Generic[State]):
    """The scheduler's half: one state per sequence, one payload per step.

    An operator lists it in ``EngineConfig(modifiers=("name",))``; modifiers of one stage act in the order of that
    list, at `Stage.MASK` after the grammar mask. A request uses it with ``SamplingParams(modifiers={"name": {...}})``.
    If it and the grammar together forbid every token of a row, the row is drawn without the modifier, and its name is
    in the result's `unenforced` (unless it is `LogitTransform.hard`, as the grammar mask is). So `accept` may get any
    token.

    Token ids are passed in tuples. The arrays of batch and feedback are read-only, and the host may reuse them after
    the step: keep copies. All results depend only on request, options, tokens and feedback, never on the clock: they
    are the same after forks and replays, hours later, and in another process. A `Request.request_id` may be used again,
    with other options. `options` come from the operator's configuration. Methods are called by one thread, unless their
    docstring says otherwise. An exception in a method ends only the request concerned, with
    `FinishReason.INTERNAL_ERROR`.
    """

    contract: ClassVar[str]
    """The version of the contract that the class was written for, such as ``"1.0"``. Every plugin's class sets it."""
    name: ClassVar[str]
    stage: ClassVar[Stage]
    needs: ClassVar[frozenset[Need]] = frozenset()
    transform: ClassVar[type[LogitTransform]]
    derived: ClassVar[bool] = False
    """True if the transform reads past tokens from `Step.history` and the state depends only on the request: `accept`
    and `fork` are never called, and forks share one state."""

    examples: ClassVar[Sequence[Example]] = (Example({}),)
    """Examples for conformance runs, at least one."""

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        self.options = options
        self.context = context

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        """Do the slow work for a request that selects this modifier, before its sequences start. The result is passed
        to each `start`.

        Not called in the decoding thread, but from several threads at once, in every process that admits the request
        or calls `start`. Depends only on the request and this modifier's options. `grammar` is the request's compiled
        constraint; None if it has none or this process does not hold it. Raises as `start` does.
        """
        return None

    def compile_key(self, request: Request) -> Hashable | None:
        """Return a key; requests with equal keys share one call of `compile` and its result. None: no sharing. Called
        for the same requests, and in the same processes, as `compile`, from several threads at once. A class that
        overrides this without `compile` is refused."""
        return None

    @abstractmethod
    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> State | None:
        """Return the state of a new sequence; None leaves its rows unchanged. Called once per sequence. A request that
        selects this modifier has its options in ``request.params.modifiers[name]``, a mapping. `compiled` is the result
        of `compile` for the request, None if it does not select this modifier. Raises `InvalidRequest` to refuse the
        request; an `InvalidConfiguration`, as `parse_options` raises, refuses it too."""

    def unenforced(self, state: State) -> Sequence[str]:
        """Return the names of requested things that will not be enforced for a started sequence; they are added to the
        result's `unenforced`."""
        return ()

    @abstractmethod
    def prepare(self, batch: StepBatch, states: Sequence[State | None]) -> Payload | None:
        """Return this step's payload; ``states[i]`` belongs to ``batch.slots[i]``. None: nothing to apply. Runs during
        the forward pass, after `accept` of all earlier final tokens, and must not change a state. Treat the row after a
        draft as if that draft were final (`StepBatch.drafts`); otherwise drafts would change the output. Report
        sequences that fail in `Payload.faults`; if this method raises, the host calls it again for each sequence
        separately, to find the failing ones."""

    def accept(self, state: State, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        """Update `state` with the final tokens of a step (never drafts), in order. `feedback` holds the arrays that
        the transform emitted at the rows of these tokens, with leading axis ``len(token_ids)``; None if the transform
        did not act on all of these rows."""
        return CONTINUE

    def forced(self, state: State, limit: int) -> Sequence[int]:
        """Return at most `limit` tokens that must come next, because the transform sets every other token to -inf: in
        the row before each, with the earlier ones as drafts. `validate` accepts them, so none of them ends the output;
        the state does not change. A host may process several of them in one step as drafts, which the draw confirms. A
        host that does not call this computes the same output."""
        return ()

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        """Return how many of these drafts this modifier would accept and go on after; the state does not change. A
        draft at which `accept` would return `FINISH` is not one of them: the host would draw a token after it, and all
        tokens of a step are final. If a modifier with a state does not override this, hosts draft no tokens that other
        modifiers force, since it might end the output among them."""
        return len(token_ids)

    def companions(self, request: Request) -> Sequence[Companion]:
        """Return the sequences to run along with each sequence of the request; none if this modifier does not act on
        the request. Called once at admission, from several threads at once. (`Need.COMPANIONS`)"""
        return ()

    def edit_prompt(self, request: Request) -> tuple[Sequence[int], bytes]:
        """Return the token ids to use as the prompt of a request that selects this modifier, and the bytes that its
        outputs begin with. The default changes nothing.

        The host lets only tokens come that write these bytes, of which the last may go on, and leaves the bytes out of
        the text: they are what was taken off the end of the prompt. Every other method gets the request with the new
        prompt. Called once at admission, before prefill, from several threads at once. Depends only on the request.
        Raises as `start` does. At most one modifier edits the prompt of a request. (`Need.EDIT_PROMPT`)
        """
        return request.prompt_token_ids, b""

    def fork(self, state: State) -> State:
        """Return an independent copy of `state`, or `state` itself if it is immutable. A modifier that does not
        implement this cannot fork."""
        raise UnsupportedCapability(f"modifier {self.name!r} cannot fork a sequence", field="fork")

    def report(self, state: State) -> Mapping[str, Any] | None:
        """Return this modifier's entry in `Completion.reports`, at most 4 KiB of JSON; None: no entry. Depends only on
        the state: a replayed state has the same report, and so has a fork until it diverges. Called once, before
        `release`, when a sequence ends that neither failed nor was aborted. If this fails, the request ends with
        `FinishReason.INTERNAL_ERROR` and keeps its text."""
        return None

    def release(self, state: State | None) -> None:
        """Release the state of a sequence. Called exactly once for each started or forked sequence, however it ends;
        `state` is None if `start` or `fork` raised or returned None. A preempted sequence is not released."""

    def close(self) -> None:
        """Called once, when the host no longer needs the modifier, also if another part failed to start: every
        sequence has been released, and the modifier is not used later. Exceptions are logged."""

    def plugin_of(self, state: State | None) -> str:
        """Return the ``kind.name`` of the plugin to blame for a failure at `state`, or at a sequence without one.
        Overridden by modifiers that use other plugins, as the grammar mask uses strategies."""
        return f"modifier.{self.name}"
