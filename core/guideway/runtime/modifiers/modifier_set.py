"""The modifiers of a host and their per-sequence states. Each call is guarded: a failure while a sequence runs ends
only that sequence."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from numpy.typing import NDArray

from guideway.api.bitmask import num_words
from guideway.api.grammar import CompiledGrammar
from guideway.api.modifier import LogitModifier, ModifierContext, Sampler
from guideway.api.steps import (
    CONTINUE,
    Fault,
    Feedback,
    Need,
    Outcome,
    Payload,
    Stage,
    StepBatch,
    fail,
)
from guideway.api.types import Companion, Request, SamplingParams, SequenceInfo
from guideway.errors import (
    ConformanceError,
    InvalidConfiguration,
    InvalidRequest,
    LimitExceeded,
    PluginError,
    UnsupportedCapability,
    blame,
    contain,
)
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.bans import MaskBans
from guideway.runtime.elsewhere import Hosts
from guideway.runtime.modifiers.answers import read_count, read_edit, read_ids, read_key, read_names, read_report
from guideway.runtime.modifiers.opening import Opening
from guideway.runtime.modifiers.rows import check_bitmask, check_payload, keep_unchanged, lend_feedback
from guideway.runtime.sequences.journal import Journal
from guideway.runtime.work.metrics import DEADLINES_MISSED
from guideway.runtime.work.step_clock import StepClock
from guideway.runtime.work.stopwatch import Stopwatch
from guideway.runtime.work.threads import Deadline

__all__ = ["ActiveSequence", "ModifierSet", "check_served"]

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ActiveSequence:
    """The runtime's state of one running sequence."""

    journal: Journal
    compiled: Mapping[str, Any]
    """By modifier name the value compiled for its request."""
    states: list[Any]
    """Aligned with the modifiers; None where a modifier does not act."""
    acting: list[tuple[LogitModifier[Any], Any]]
    """The modifiers that act on the sequence, each with its state."""
    stateful: list[tuple[LogitModifier[Any], Any]]
    """The acting modifiers that accept tokens: all that are not `derived`."""
    unenforced: dict[str, None]
    """Names of requested parts that are not enforced; a dict for its order."""
    companions: Sequence[str] = ()
    """For each companion sequence, the modifier that asked for it."""
    ends_at: float = float("inf")
    """Deadline on the monotonic clock, in seconds."""
    bans: MaskBans | None = None
    """Bans applied to its masks, if the host asked for that."""
    opening: Opening | None = None
    """What its output must begin with, if a modifier edited the prompt."""
    fault: Fault | None = None
    broken: bool = False
    """True if a call on its states raised or was interrupted, so that they may be inconsistent."""


MOST_TOGETHER = 3.0
"""Most time one `prepare` may take for all sequences, in deadlines of one sequence, before each is called alone."""


class ModifierSet:
    """Modifiers in the order in which the pipeline applies them: by stage, and in the given order within a stage."""

    def __init__(
        self,
        modifiers: Sequence[LogitModifier[Any]],
        context: ModifierContext,
        offers: frozenset[Need],
        limits: Limits,
        stopwatch: Stopwatch,
        clock: StepClock,
        hosts: Hosts | None = None,
        waiting: frozenset[str] = frozenset(),
    ) -> None:
        names = [modifier.name for modifier in modifiers]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InvalidConfiguration(
                f"two logit modifiers are named {twice!r}; rename one of them", field="modifiers"
            )
        stages = list(Stage)
        self.all: tuple[LogitModifier[Any], ...] = tuple(
            sorted(modifiers, key=lambda m: stages.index(m.stage))  # a stable sort keeps the given order within a stage
        )
        self._places = {id(modifier): i for i, modifier in enumerate(self.all)}
        """By the identity of a modifier its place in `all`."""
        self.bitmasks = {m.name: m.transform.bitmask for m in self.all if m.transform.bitmask is not None}
        """By modifier name the payload array that is a bitmask."""
        self._hosts = hosts
        self._classes: Mapping[str, type[LogitModifier[Any]]] = {} if hosts is None else hosts.classes
        """By name the classes of modifiers in hosts."""
        self._announced = [(i, m) for i, m in enumerate(self.all) if m.name in self._classes and not m.derived]
        """Modifiers in hosts that accept tokens, each with its index; they get the tokens of all sequences in one
        command."""
        self._words = num_words(context.vocabulary.logits_width)
        self._offers = offers
        self._start = Deadline.of_processor(limits.start_seconds, limits)
        """Deadline of `LogitModifier.start`, which delays the whole batch."""
        self._waiting = waiting.union(self._classes)
        """Names of modifiers that wait for other processes, which have deadlines of their own."""
        self._step_seconds = limits.step_seconds
        self._stopwatch = stopwatch
        """Measures `prepare` and `accept` of one sequence against their deadline."""
        self._clock = clock

    def state(self, sequence: ActiveSequence, modifier: LogitModifier[T]) -> T | None:
        """Return the state of `modifier` for a sequence; None if it does not act."""
        state: T | None = sequence.states[self._places[id(modifier)]]
        return state

    def states(self, sequences: Sequence[ActiveSequence], modifier: LogitModifier[T]) -> list[T | None]:
        """Return the states of `modifier` for sequences; None where it does not act."""
        place = self._places[id(modifier)]
        return [sequence.states[place] for sequence in sequences]

    def class_of(self, modifier: LogitModifier[Any]) -> type[LogitModifier[Any]]:
        """Return the plugin's class, from which a worker is built."""
        return self._classes.get(modifier.name) or type(modifier)

    def overrides(self, modifier: LogitModifier[Any], method: str) -> bool:
        """Return whether the plugin has its own `method`."""
        return getattr(self.class_of(modifier), method) is not getattr(LogitModifier, method)

    # Admission and compilation

    def check_needs(self, modifier: LogitModifier[Any]) -> None:
        """Raise `UnsupportedCapability` if the host lacks a need that `modifier` declares."""
        if missing := sorted(need.value for need in modifier.needs - self._offers):
            raise UnsupportedCapability(
                f"modifier {modifier.name!r} needs {', '.join(missing)}, which this host does not offer",
                field="modifiers",
            )

    def check_samplers(self, modifiers: Sequence[LogitModifier[Any]], params: SamplingParams) -> None:
        """Raise `InvalidRequest` if two of `modifiers` own the draw, or one does although the request is greedy."""
        owners = [modifier.name for modifier in modifiers if modifier.stage is Stage.SAMPLE]
        if len(owners) > 1:
            raise InvalidRequest(
                f"modifiers {' and '.join(repr(name) for name in owners)} both own the draw; select only one",
                field="modifiers",
            )
        if owners and params.temperature == 0:
            raise InvalidRequest(
                f"modifier {owners[0]!r} owns the draw, but at temperature 0 (greedy) nothing is drawn; set a "
                "temperature above 0, such as 1.0",
                field="temperature",
            )

    def companions(self, request: Request) -> list[tuple[str, Companion]]:
        """Return the companion sequences that modifiers ask for, each with its modifier's name."""
        found: list[tuple[str, Companion]] = []
        for modifier in self.all:
            if Need.COMPANIONS in modifier.needs:
                companions = self._call(modifier, None, "companions", request)
                if not isinstance(companions, list | tuple):
                    plugin = self._plugin(modifier, None)
                    raise PluginError(
                        f"{plugin} failed in companions: it must return a list, not {type(companions).__name__}",
                        plugin=plugin,
                    )
                found += [(modifier.name, companion) for companion in companions]
        return found

    def edit_prompt(self, request: Request) -> tuple[str, tuple[int, ...], bytes]:
        """Return the name of the modifier that edits the prompt of the request, the new prompt and what the output must
        begin with; no name if none does. Raises `InvalidRequest` if several do."""
        selected = [m for m in self.all if Need.EDIT_PROMPT in m.needs and m.name in request.params.modifiers]
        if len(selected) > 1:
            names = " and ".join(repr(modifier.name) for modifier in selected)
            raise InvalidRequest(f"modifiers {names} both edit the prompt; select only one", field="modifiers")
        for modifier in selected:
            token_ids, prefix = self._call(modifier, None, "edit_prompt", request, read=read_edit)
            return modifier.name, token_ids, prefix
        return "", request.prompt_token_ids, b""

    def compile_key(self, modifier: LogitModifier[Any], request: Request) -> Hashable | None:
        """Return `LogitModifier.compile_key`. Raises `InvalidRequest` or `PluginError`."""
        key: Hashable | None = self._call(modifier, None, "compile_key", request, read=read_key)
        return key

    def compile(self, modifier: LogitModifier[Any], request: Request, grammar: CompiledGrammar | None) -> Any:
        """Return `LogitModifier.compile`. Raises `InvalidRequest` or `PluginError`."""
        keeps_deadlines = modifier.name in self._classes
        return self._call(modifier, None, "compile", request, grammar, keeps_deadlines=keeps_deadlines)

    # Sequences

    def start(self, journal: Journal, compiled: Mapping[str, Any]) -> ActiveSequence:
        """Start the states of a sequence; call `replay` afterwards. If one fails, all are released. Raises
        `InvalidRequest` or `PluginError`."""
        request, info = journal.request, journal.sequence
        states: list[Any] = []
        unenforced: dict[str, None] = {}
        try:
            for modifier in self.all:
                states.append(None)  # so that a start that raises is released too
                began, processor = time.monotonic(), time.thread_time()
                states[-1] = state = self._call(modifier, None, "start", request, info, compiled.get(modifier.name))
                self._check_deadline(modifier, state, request, time.monotonic() - began, time.thread_time() - processor)
                if state is not None:
                    self.check_needs(modifier)
                    unenforced |= dict.fromkeys(self._call(modifier, state, "unenforced", state, read=read_names))
                elif modifier.name in request.params.modifiers:
                    unenforced[f"modifier.{modifier.name}"] = None
            sequence = self._sequence(journal, compiled, states, unenforced | journal.overruled)
            self.check_samplers([modifier for modifier, _ in sequence.acting], request.params)
        except BaseException:
            self.release(states)
            raise
        return sequence

    def _check_deadline(
        self, modifier: LogitModifier[Any], state: Any, request: Request, taken: float, processor: float
    ) -> None:
        """Raise `LimitExceeded` if `start` took too long, in seconds of wall or processor time. Hosts check this
        themselves."""
        if modifier.name in self._classes:
            return
        if taken <= self._start.wall_seconds and processor <= self._start.processor_seconds:
            return
        plugin = self._plugin(modifier, state)
        DEADLINES_MISSED.labels(plugin, "start").inc()
        raise LimitExceeded(
            f"{plugin} took {taken:.2f} s in start, and the whole batch waited; the limit is "
            f"{self._start.processor_seconds:g} s processor time and {self._start.wall_seconds:g} s wall time "
            "(do slow work in compile)",
            field=f"modifiers.{modifier.name}" if modifier.name in request.params.modifiers else "constraint",
        )

    def _deadline_error(self, modifier: LogitModifier[Any], state: Any, phase: str, taken: float) -> LimitExceeded:
        """Return the error for a sequence that exceeded the deadline of a step."""
        DEADLINES_MISSED.labels(self._plugin(modifier, state), phase).inc()
        return LimitExceeded(
            f"it took {taken:.2f} s for one sequence, and the batch waited; the limit for a step is "
            f"{self._step_seconds:g} s processor time"
        )

    def may_act(self, modifier: LogitModifier[Any], request: Request, info: SequenceInfo) -> bool:
        """Return whether `modifier` may act on a sequence whose request is still compiling. Raises as `start` does."""
        if modifier.name in request.params.modifiers and self.overrides(modifier, "compile"):
            return True
        state = None
        try:
            state = self._call(modifier, None, "start", request, info, None)
            return state is not None
        finally:
            self._release([(modifier, state)])

    def replay(self, sequence: ActiveSequence) -> None:
        """Replay the journal of a sequence that was just started."""
        for token_ids, feedback in sequence.journal.steps():
            keep_unchanged(feedback)
            for modifier, state in sequence.stateful:
                args = (state, tuple(token_ids), lend_feedback(feedback, modifier.name))
                outcome = self._call(modifier, state, "accept", *args)
                if outcome.action == "fail":
                    plugin = self._plugin(modifier, state)
                    raise PluginError(
                        f"{plugin} refused in replay what it had accepted before: {outcome.message}", plugin=plugin
                    )

    def fork(self, parent: ActiveSequence, info: SequenceInfo) -> ActiveSequence:
        """Return a second sequence with `parent`'s past. Raises `UnsupportedCapability` if a modifier cannot fork."""
        states = list(parent.states)
        forked: list[tuple[LogitModifier[Any], Any]] = []
        try:
            for i, (modifier, state) in enumerate(zip(self.all, parent.states, strict=True)):
                if state is not None and not modifier.derived:
                    forked.append((modifier, None))  # so that a fork that raises is released too
                    states[i] = self._call(modifier, state, "fork", state)
                    forked[-1] = (modifier, states[i])
        except BaseException:
            self._release(forked)
            raise
        child = self._sequence(parent.journal.fork(info), parent.compiled, states, dict(parent.unenforced))
        child.companions = parent.companions
        return child

    def release(self, states: list[Any]) -> None:
        """Release the states of the first ``len(states)`` modifiers, all of them even if one raises."""
        self._release(list(zip(self.all, states, strict=False)))

    # Steps: failures are not raised; they set the sequence's `fault`

    def prepare(
        self,
        modifier: LogitModifier[Any],
        batch: StepBatch,
        states: Sequence[Any],
        sequences: list[ActiveSequence],
        sequence_of_row: NDArray[Any] | None,
    ) -> Payload | None:
        """Return one modifier's payload, and set the `fault` of sequences for which it fails. `sequence_of_row` is None
        if each sequence has one row."""

        def attempt(some: Sequence[Any]) -> Payload | None:
            with self._clock.wait if modifier.name in self._classes else self._clock.prepare:
                payload = check_payload(modifier.prepare(batch, some), batch, some, sequence_of_row)
            if payload is not None and modifier.name in self.bitmasks:
                check_bitmask(payload, self.bitmasks[modifier.name], self._words)
            return payload

        def apply_faults(payload: Payload | None) -> Payload | None:
            if payload is None or not payload.faults:
                return payload
            for slot, sequence in zip(batch.slots.tolist(), sequences, strict=True):
                sequence.fault = payload.faults.get(slot, sequence.fault)
            return replace(payload, faults={}) if len(payload) else None

        own = [i for i, state in enumerate(states) if state is not None]
        try:
            began = self._stopwatch.start()
            payload = attempt(states)
            share = min(MOST_TOGETHER, 1 + (len(own) - 1) / 8)
            taken = 0.0 if modifier.name in self._waiting else self._stopwatch.overrun(began, share)
            if not taken:
                return apply_faults(payload)
        except BaseException as error:
            taken = 0.0
            for sequence in sequences:
                sequence.broken = True
            contain(error)
        for i in own:  # call sequences one by one to find which of them fail
            try:
                if not taken or len(own) > 1:
                    began = self._stopwatch.start()
                    attempt(tuple(state if j == i else None for j, state in enumerate(states)))
                    taken = 0.0 if modifier.name in self._waiting else self._stopwatch.overrun(began)
                if taken:
                    raise self._deadline_error(modifier, states[i], "prepare", taken)
            except BaseException as error:
                contain(error)
                sequences[i].fault = Fault.of(self._plugin(modifier, states[i]), "prepare", error)
        pairs = zip(states, sequences, strict=True)
        healthy = tuple(None if sequence.fault else state for state, sequence in pairs)
        try:
            return apply_faults(attempt(healthy)) if any(state is not None for state in healthy) else None
        except BaseException as error:  # each works alone, but not together
            contain(error)
            for state, sequence in zip(healthy, sequences, strict=True):
                if state is not None:
                    sequence.fault = Fault.of(self._plugin(modifier, state), "prepare", error)
            return None

    @property
    def has_hosted(self) -> bool:
        """True if `announce` has any effect."""
        return bool(self._announced)

    def announce(
        self,
        sequences: Sequence[ActiveSequence],
        token_ids: Sequence[Sequence[int]],
        feedback: Sequence[Mapping[str, Feedback] | None],
    ) -> None:
        """Announce calls of `accept`, so that each modifier in a host gets the tokens of all sequences in one
        command."""
        for i, modifier in self._announced:
            steps = [
                (sequence.states[i], tuple(ids), lend_feedback(emitted, modifier.name))
                for sequence, ids, emitted in zip(sequences, token_ids, feedback, strict=False)
                if sequence.fault is None and sequence.states[i] is not None
            ]
            assert self._hosts is not None
            with self._clock.wait:
                self._hosts.announce(modifier.name, steps)

    def accept(
        self,
        sequences: Sequence[ActiveSequence],
        token_ids: Sequence[Sequence[int]],
        feedback: Sequence[Mapping[str, Feedback] | None],
    ) -> list[Outcome]:
        """Pass the final tokens of a step to the modifiers, record them, and return the outcome for each sequence."""
        self._stopwatch.start()
        return [self._accept(*step) for step in zip(sequences, token_ids, feedback, strict=False)]

    def forced(self, sequence: ActiveSequence, limit: int) -> Sequence[int]:
        """Return at most `limit` tokens that one modifier forces next and the others accept."""
        for modifier, state in sequence.acting:
            ids = self._ask(sequence, modifier, state, "forced", limit, partial(read_ids, limit))
            if ids:
                others = [other for other, _ in sequence.stateful if other is not modifier]
                # a modifier that does not validate drafts might end the output among them
                if all(self.overrides(other, "validate") for other in others):
                    return ids[: self.validate(sequence, ids, says=modifier)]
        return ()

    def validate(
        self, sequence: ActiveSequence, token_ids: Sequence[int], *, says: LogitModifier[Any] | None = None
    ) -> int:
        """Return how many of these drafts all modifiers accept, except `says`, which proposed them."""
        count = len(token_ids)
        for modifier, state in sequence.acting:
            if modifier is says:
                continue
            ids = tuple(token_ids[:count])
            count = self._ask(sequence, modifier, state, "validate", ids, partial(read_count, len(ids))) or 0
        return count

    def reports(self, sequence: ActiveSequence) -> dict[str, Mapping[str, Any]]:
        """Return by modifier the reports about a sequence that has ended. A failing modifier sets its fault."""
        found: dict[str, Mapping[str, Any]] = {}
        for modifier, state in sequence.acting:
            try:
                if (report := modifier.report(state)) is not None:
                    found[modifier.name] = read_report(report)
            except BaseException as error:
                contain(error)
                sequence.fault = sequence.fault or Fault.of(self._plugin(modifier, state), "report", error)
        return found

    # Parts

    def _accept(self, sequence: ActiveSequence, ids: Sequence[int], feedback: Mapping[str, Feedback] | None) -> Outcome:
        """Do `accept` for one sequence."""
        if sequence.fault is not None:
            return fail(str(sequence.fault))
        verdict, token_ids = CONTINUE, tuple(ids)  # a copy, which modifiers cannot change
        for modifier, state in sequence.stateful:
            try:
                outcome = modifier.accept(
                    state, token_ids, lend_feedback(feedback, modifier.name) if feedback else None
                )
                if (taken := self._stopwatch.lap()) and modifier.name not in self._waiting:
                    raise self._deadline_error(modifier, state, "accept", taken)
                if outcome is CONTINUE:
                    continue
                if not isinstance(outcome, Outcome):
                    raise ConformanceError(f"accept must return an Outcome, not {type(outcome).__name__}")
            except BaseException as error:
                sequence.broken = True
                contain(error)
                sequence.fault = Fault.of(self._plugin(modifier, state), "accept", error)
                self._stopwatch.start()  # its time is not the next one's
                return fail(str(sequence.fault))
            if outcome.action == "fail":
                sequence.fault = self._refusal(sequence, modifier, state, outcome)
                return fail(str(sequence.fault))
            if outcome.action == "finish":
                verdict = outcome
        sequence.journal.record(token_ids, feedback)
        return verdict

    def _plugin(self, modifier: LogitModifier[Any], state: Any) -> str:
        """Return ``kind.name`` of the plugin behind a modifier's state."""
        try:
            return str(modifier.plugin_of(state))
        except BaseException as error:
            contain(error)
            return f"modifier.{modifier.name}"

    def _sequence(
        self, journal: Journal, compiled: Mapping[str, Any], states: list[Any], unenforced: dict[str, None]
    ) -> ActiveSequence:
        acting = [(m, state) for m, state in zip(self.all, states, strict=True) if state is not None]
        stateful = [pair for pair in acting if not pair[0].derived]
        return ActiveSequence(journal, compiled, states, acting, stateful, unenforced)

    def _release(self, states: list[tuple[LogitModifier[Any], Any]]) -> None:
        with ExitStack() as last_first:  # an interrupt is raised after the last release
            for modifier, state in reversed(states):
                last_first.callback(self._release_one, modifier, state)

    def _release_one(self, modifier: LogitModifier[Any], state: Any) -> None:
        try:
            modifier.release(state)
        except BaseException as error:
            contain(error)
            plugin = self._plugin(modifier, state)
            log.warning("%s failed in release; its sequence had ended", plugin, exc_info=True)

    def _refusal(self, sequence: ActiveSequence, modifier: LogitModifier[Any], state: Any, outcome: Outcome) -> Fault:
        """Return the fault of a sequence whose tokens `modifier` refused. If the mask had forbidden them, a modifier of
        a later stage is to blame."""
        late = [m for m, _ in sequence.acting if m.stage in (Stage.POST_WARP, Stage.SAMPLE)]
        if outcome.was_forbidden and late:
            phase = "sample" if late[-1].stage is Stage.SAMPLE else "apply"
            return Fault(f"modifier.{late[-1].name}", phase, outcome.message)
        return Fault(self._plugin(modifier, state), "accept", outcome.message)

    def _call(
        self,
        modifier: LogitModifier[Any],
        state: Any,
        phase: str,
        *args: Any,
        read: Callable[[Any], Any] | None = None,
        keeps_deadlines: bool = False,
    ) -> Any:
        """Call ``modifier.phase(*args)``. Unexpected exceptions become a `PluginError` that names plugin and phase."""
        try:
            with blame(
                self._plugin(modifier, state),
                phase,
                passing=(InvalidRequest, InvalidConfiguration, PluginError),
                keeps_deadlines=keeps_deadlines,
            ):
                answer = getattr(modifier, phase)(*args)
                return answer if read is None else read(answer)
        except InvalidConfiguration as error:  # `parse_options` raises it for a request's options
            raise InvalidRequest(str(error), field=f"modifiers.{modifier.name}") from error

    def _ask(
        self,
        sequence: ActiveSequence,
        modifier: LogitModifier[Any],
        state: Any,
        phase: str,
        argument: Any,
        read: Callable[[Any], T],
    ) -> T | None:
        """Return ``read(modifier.phase(state, argument))``. If that raises, set the sequence's fault and return
        None."""
        try:
            answer: T = read(getattr(modifier, phase)(state, argument))
            return answer
        except BaseException as error:
            sequence.broken = True
            contain(error)
            sequence.fault = Fault.of(self._plugin(modifier, state), phase, error)
            return None


def check_served(modifier: LogitModifier[Any]) -> None:
    """Raise `UnsupportedCapability` if the sampler of a modifier has a `verify` and does not declare it, for a host
    that cannot call it would ignore it."""
    transform = modifier.transform
    if issubclass(transform, Sampler) and transform.verify is not Sampler.verify and Need.DRAFTS not in modifier.needs:
        raise UnsupportedCapability(
            f"modifier {modifier.name!r} has {transform.__name__}.verify, but does not declare Need.DRAFTS",
            field="modifiers",
        )
