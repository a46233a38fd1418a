"""The host-neutral runtime: everything between a host's scheduler and its worker that is not the model.

A host (guideway's engine, vLLM, a test of eighty lines) drives it so::

    admission = runtime.admit(request)                 # InvalidRequest, or compiling begins
    runtime.start(admission, slot)                     # once admission.ready()
    loop:
        batch = StepBatch.build(slots, positions, drafts)
        step = runtime.prepare(batch)                  # beside the forward pass; goes down to the worker
        output = pipeline.run(logits, step)            # in the worker; comes back up
        finals = accepted_tokens(batch, output.token_ids)
        outcomes = runtime.accept(batch, finals, output)
    runtime.release(slot)                              # once per start or fork, however the sequence ended
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from guideway.api.grammar import GrammarStrategy
from guideway.api.hooks import ValidationContext
from guideway.api.modifier import Example, LogitModifier, ModifierContext
from guideway.api.reasoning import ReasoningConfig
from guideway.api.steps import CONTINUE, Fault, Feedback, Need, Outcome, Payload, StepBatch, StepInput, StepOutput
from guideway.api.types import (
    JsonObject,
    JsonSchema,
    OnUnenforced,
    Request,
    SamplingParams,
    SequenceInfo,
    Submission,
    Whitespace,
)
from guideway.errors import (
    GuidewayError,
    InvalidRequest,
    LimitExceeded,
    PluginError,
    Unhealthy,
    blame,
    close_each,
    contain,
    record_progress,
    text_of,
)
from guideway.pipeline.context import combined_bitmask
from guideway.plugins.hooks import Validator
from guideway.plugins.limits import Limits
from guideway.runtime.admission import Admission, check_companions, run_validators, validate_request
from guideway.runtime.bans import Bans, with_bans
from guideway.runtime.checking import Checker, known
from guideway.runtime.compiler import Compiled, Compiler, RequestCompiler, Shortest, Wanted
from guideway.runtime.grammar_hosts.hosts import GrammarHosts
from guideway.runtime.grammar_mask import GrammarMask, check_names
from guideway.runtime.journal import Journal
from guideway.runtime.metrics import LATE_ROWS
from guideway.runtime.modifier_hosts.hosts import ModifierHosts
from guideway.runtime.modifier_hosts.modifier import class_of
from guideway.runtime.modifier_set import ActiveSequence, ModifierSet, check_served
from guideway.runtime.open_requests import OpenRequests
from guideway.runtime.quarantine import Quarantine
from guideway.runtime.reasoning import GateState, ReasoningGate, without_gate
from guideway.runtime.rows import companion_rows, feedback_of, history_rows, in_row_order, sequence_of_row
from guideway.runtime.shared_work import AtWork
from guideway.runtime.slots import Slots
from guideway.runtime.stopwatch import Stopwatch
from guideway.runtime.threads import ADMISSION_THREADS, Deadline, Threads
from guideway.runtime.warping import Warping, banned_by

__all__ = ["Runtime"]

log = logging.getLogger(__name__)


CONSTRAINT, CLOSING = "constraint", "closing"
"""In `unenforced`: the output was cut where its budget ended."""


class Runtime:
    """Admission, compilation, per-sequence states, payloads down, feedback up, journal and replay.

    `strategies` come in order of preference, by the name the configuration gives them. `offers` is what the host's
    worker can provide to transforms. One scheduler thread drives it; `admit` and `abandon` may be called from any
    thread, and compiling has threads of its own.
    """

    def __init__(
        self,
        context: ModifierContext,
        *,
        strategies: Mapping[str, GrammarStrategy],
        modifiers: Sequence[LogitModifier[Any]] = (),
        validators: Mapping[type, Sequence[tuple[str, Validator]]] | None = None,
        offers: frozenset[Need] = frozenset(),
        model: str = "",
        cache_bytes: int = 512 << 20,
        compile_threads: int = 2,
        limits: Limits | None = None,
        grammar_hosts: GrammarHosts | None = None,
        whitespace: Whitespace = "bounded",
        short_budget: Literal["refuse", "cut"] = "refuse",
        reasoning: ReasoningConfig | None = None,
        on_unenforced: OnUnenforced = "report",
        modifier_hosts: ModifierHosts | None = None,
        canonical: bool = False,
        isolate_tenants: bool = False,
    ) -> None:
        self.context = context
        self._whitespace = whitespace
        self._refuses_short = short_budget == "refuse"
        self._on_unenforced = on_unenforced
        self._canonical = canonical
        self._strategies = strategies
        self._at_work = AtWork()
        self._grammar_hosts = grammar_hosts
        self._hosts = [hosts for hosts in (grammar_hosts, modifier_hosts) if hosts is not None]
        limits = limits or Limits()
        self.checker = Checker(limits)
        """For a host that knows the text of an output, and not the slot."""
        self._validators = validators or {}
        named = (name for each in self._validators.values() for name, _ in each)
        self._quarantine = Quarantine(named)
        self.admission_threads = Threads(
            "guideway-admission",
            ADMISSION_THREADS,
            deadline=Deadline(limits.admission_seconds),
            quarantine=self._quarantine,
        )
        """For a host that calls `check` and `admit`, and tokenises, beside the thread that decodes or an event loop."""
        compiling = Deadline.of_processor(limits.compile_seconds, limits)
        self._threads = Threads("guideway-compile", compile_threads, reserve=True, deadline=compiling)
        self._modifier_threads = Threads("guideway-modifiers", compile_threads, reserve=True, deadline=compiling)
        """Threads of their own, so that no request waits for another one's constraint."""
        stopwatch = Stopwatch(Deadline.of_processor(limits.step_seconds, limits))
        compiler = Compiler(self._threads, self._at_work, cache_bytes, isolates_tenants=isolate_tenants)
        shortest = Shortest(self._threads, self._at_work, context, isolates_tenants=isolate_tenants)
        self._mask = GrammarMask(strategies, compiler, shortest, context, stopwatch, isolates_tenants=isolate_tenants)
        check_names(modifiers)
        waiting = frozenset(modifier_hosts.modifiers if modifier_hosts is not None else ())
        waiting |= {ReasoningGate.name} if grammar_hosts is not None else set()
        self._gate = None
        if reasoning is not None and reasoning.has_marker:
            self._gate = ReasoningGate(reasoning, self._mask, context)
        self._own = [self._mask] if self._gate is None else [self._gate, self._mask]
        self._modifiers = ModifierSet([*self._own, *modifiers], context, offers, limits, stopwatch, waiting)
        self._request_seconds = limits.request_seconds
        self._compiler = RequestCompiler(
            self._modifiers, self._mask.name, self._modifier_threads, self._at_work, isolates_tenants=isolate_tenants
        )
        self._by_name = {m.name: m for m in modifiers}
        self._validation = ValidationContext(
            model=model,
            max_model_len=context.max_model_len,
            vocabulary_size=len(context.vocabulary),
            grammars=tuple(strategies),
            modifiers=tuple(self._by_name),
        )
        self._closed = False
        vocabulary = context.vocabulary
        warping = Warping(context.max_num_sequences, len(vocabulary), vocabulary.stop_token_ids)
        self._slots = Slots(context.max_num_sequences, warping)
        self._late: frozenset[int] = frozenset()
        """The slots of sequences that sit the last step out."""
        self._open = OpenRequests(context.max_model_len)

    def modifier_classes(self) -> list[tuple[type[LogitModifier[Any]], Mapping[str, Any]]]:
        """Return what a worker's `Pipeline` is built from: each modifier's class and options. Picklable."""
        return [(class_of(m), m.options) for m in self._modifiers.all]

    def check_health(self) -> None:
        """Raise `Unhealthy` if requests are refused that nothing is wrong with: no thread is left to admit or compile
        in, or no host of plugins can be started. May be called from any thread."""
        pools = (self.admission_threads, self._threads, self._modifier_threads)
        wrong = [why for pool in pools if (why := pool.why_none()) is not None]
        wrong += [failure for hosts in self._hosts if (failure := hosts.failure) is not None]
        if wrong:
            raise Unhealthy("; ".join(wrong))

    # Requests

    def check(self, submission: Submission) -> None:
        """Let the hooks see what came, before its prompt is tokenised. Raises `InvalidRequest`. May be called from any
        thread, by several at once."""
        run_validators(self._validators, submission, self._validation, self._quarantine)

    def admit(self, request: Request, bans: Bans | None = None) -> Admission:
        """Let a request in, or raise `InvalidRequest`, or `PluginError` if a plugin failed over it; nothing else is
        disturbed either way. May be called from any thread, by several at once.

        Where the host draws by itself, under the masks alone, `bans` are what the request bans beside its constraint:
        its masks have them, no row is empty for it, and what did not hold for that is in `unenforced`. The pipeline
        sees to the bans of `request.params` without it.
        """
        try:
            with self._at_work.using("admission"):
                if self._closed:
                    raise GuidewayError("the runtime is closed and admits no more requests")
                return self._admit(request, bans)
        except GuidewayError:
            raise
        except BaseException as error:  # whatever else a value of any type can raise when it is looked at
            contain(error)
            raise InvalidRequest(f"the request cannot be read: {text_of(error)}") from error

    def _admit(self, request: Request, bans: Bans | None) -> Admission:
        self._open.check_new(request)
        request = self._validated(request)
        request = without_gate(request) if self._gate is None else self._gate.settled(request)
        params = request.params
        chosen = [self._by_name[name] for name in params.modifiers]
        for modifier in chosen:
            self._modifiers.check_needs(modifier)
            check_served(modifier)
        self._modifiers.check_samplers(chosen, params)
        run_validators(self._validators, request, self._validation, self._quarantine)
        request = replace(request, seed=secrets.randbits(63) if params.seed is None else params.seed)
        companions = self._modifiers.companions(request)
        check_companions(companions, self.context.vocabulary, self._validation, self.context.max_num_sequences)
        constraint = params.constraint
        grammar = None
        if constraint is not None:
            prompts = [companion.prompt_token_ids for _, companion in companions]
            grammar = self._mask.compile_constraint(constraint, request, self._wanted(request, prompts, bans))
        compilation = self._compiler.submit(request, grammar)
        self._open.open(request, compilation, [companion.prompt_token_ids for _, companion in companions], bans)
        return Admission(
            request, compilation, tuple(companion for _, companion in companions), tuple(name for name, _ in companions)
        )

    def abandon(self, admission: Admission) -> None:
        """One of the sequences of a request will never be started. Each of its `SamplingParams.num_sequences`, and
        each fork, ends with `release` or, if it was not started, with this."""
        self._open.sequence_ended(admission.request)

    def expect_another(self, admission: Admission) -> None:
        """One more sequence of a request that is not over will be started, or abandoned."""
        self._open.expect_another(admission.request)

    def start_hosts(self) -> None:
        """Start the grammar hosts beside what else is done. The first constraint waits for them otherwise, for as long
        as its library takes to be imported; for a server, once nothing more is forked from its process."""
        if self._grammar_hosts is not None:
            self._grammar_hosts.start_soon()

    def close(self) -> None:
        """Release every sequence that still runs, stop compiling, and close strategies and modifiers; what a thread is
        using, at the end of that. Closing twice is fine."""
        if self._closed:
            return
        self._closed = True
        releases = [("runtime", partial(self.release, slot)) for slot in self._slots.taken()]
        parts = [("runtime", self._compiler.close), ("runtime", self.checker.close)]
        close_each([*releases, *parts, (f"modifier.{self._mask.name}", self._mask.close)])
        for threads in (self.admission_threads, self._threads, self._modifier_threads):
            threads.close()
        self._at_work.end("admission", self._close_plugins)

    def _close_plugins(self) -> None:
        plugins = {f"grammar.{name}": strategy.close for name, strategy in self._strategies.items()}
        plugins |= {f"modifier.{name}": modifier.close for name, modifier in self._by_name.items()}
        for plugin, close in plugins.items():
            self._at_work.end(plugin, partial(close_each, [(plugin, close)]))

    # Sequences

    def start(
        self,
        admission: Admission,
        slot: int,
        *,
        index: int = 0,
        attempt: int = 0,
        journal: Journal | None = None,
    ) -> None:
        """Begin the `index`-th sequence of a request in a free slot, the first time or in another `attempt`; or, with
        the journal of one of its sequences, go on with that one.

        Waits for the compilation. Raises `InvalidRequest` if the request turns out not to be servable and
        `PluginError` if a plugin failed; the slot is then free still. Raises ValueError for a slot that is not free
        and a journal of another request.
        """
        self._slots.check_free(slot)
        request = admission.request
        if journal is None:
            seed = _seed_of(request.seed, attempt)
            info = SequenceInfo(index=index, seed=seed, prompt_token_ids=request.prompt_token_ids)
            past = Journal(request, info)
        elif journal.request.request_id == request.request_id:
            past = journal.fork(journal.sequence)
        else:
            raise ValueError(f"the journal is of request {journal.request.request_id!r}, not {request.request_id!r}")
        compiled = {} if admission.compilation is None else admission.compilation.result()
        sequence = self._begin(past, compiled)
        sequence.companions = admission.companion_owners
        if self._request_seconds is not None:
            sequence.ends_at = admission.admitted_at + self._request_seconds
        self._slots.occupy(slot, sequence)

    def fork(self, slot: int, new_slot: int, *, index: int) -> None:
        """Continue the sequence of `slot` in `new_slot` as well, as its request's `index`-th. Raises
        `UnsupportedCapability` if a modifier cannot fork, ValueError if `new_slot` is not free; nothing has changed
        then."""
        self._slots.check_free(new_slot)
        parent = self._slots[slot]
        info = replace(parent.journal.sequence, index=index)
        child = self._modifiers.fork(parent, info)
        child.ends_at = parent.ends_at
        self._ban(child)
        self._open.expect_another(parent.journal.request)
        self._slots.occupy(new_slot, child)

    def rebuild(self, slot: int) -> None:
        """Make the states of a sequence anew from its journal, and let go of the old ones. If that fails, the sequence
        has a fault from then on."""
        old = self._slots[slot]
        try:
            sequence = self._begin(old.journal, old.compiled)
        except GuidewayError as error:
            plugin = error.plugin if isinstance(error, PluginError) else "runtime"
            old.fault = Fault.of(plugin, "rebuild", error)
            return
        sequence.companions, sequence.ends_at = old.companions, old.ends_at
        self._slots.occupy(slot, sequence)
        self._modifiers.release(old.states)

    def release(self, slot: int, *, ended: bool = True) -> None:
        """The sequence in `slot` has ended; the slot is free. Not `ended`: it is as if it had never started, and may be
        started anew."""
        sequence = self._slots[slot]
        try:
            self._slots.vacate(slot)
            self._modifiers.release(sequence.states)
            if sequence.fault is None and not sequence.broken:
                self._mask.recycle(self._modifiers.state(sequence, self._mask))
        finally:  # also if it was interrupted
            if ended:
                self._open.sequence_ended(sequence.journal.request)

    def journal(self, slot: int) -> Journal:
        """Return what happened to the sequence in `slot`; `start` rebuilds it from this, here or in another process."""
        return self._slots[slot].journal

    def strategy(self, slot: int) -> str | None:
        """The grammar strategy that serves the sequence in `slot`."""
        return self._mask.strategy(self._modifiers.state(self._slots[slot], self._mask))

    def acting(self, slot: int) -> tuple[str, ...]:
        """The configured modifiers that act on the sequence in `slot`, in the order they act in."""
        return tuple(m.name for m, _ in self._slots[slot].acting if m.name in self._by_name)

    def may_act(self, admission: Admission) -> tuple[str, ...]:
        """The configured modifiers that may act on a request of which not all is compiled yet: those that compile for
        it, and of the others those that say so. For a host that has to know before. Raises as `start` does."""
        request = admission.request
        info = SequenceInfo(index=0, seed=request.seed, prompt_token_ids=request.prompt_token_ids)
        return tuple(m.name for m in self._by_name.values() if self._modifiers.may_act(m, request, info))

    def unenforced(self, slot: int) -> tuple[str, ...]:
        """Return what was asked for the sequence in `slot` and is not enforced, by name, if it ends now."""
        sequence = self._slots[slot]
        state = self._modifiers.state(sequence, self._mask)
        journal = sequence.journal
        is_full = len(journal.token_ids) >= self._open.room(journal.request)
        found = [CONSTRAINT] if state is not None and journal.constraint_start is None else []
        if is_full and not self._mask.is_closed(state):
            found.append(CLOSING)
        return (*sequence.unenforced, *found)

    def closed_early(self, slot: int) -> bool:
        """Return whether the output in `slot` was kept from going on as the model would, so that it is complete."""
        if CLOSING in self.unenforced(slot):
            return False
        sequence = self._slots[slot]
        gate = self._gate_of(sequence)
        return sequence.journal.closed_early or (gate is not None and gate.at.is_over and gate.at.was_cut)

    def answer_start(self, slot: int) -> int | None:
        """Return after how many tokens of the output in `slot` its answer begins; None: that is not decided yet."""
        sequence = self._slots[slot]
        gate = self._gate_of(sequence)
        return None if gate is not None and gate.is_undecided else sequence.journal.constraint_start

    def completes(self, slot: int, text: str) -> bool:
        """Return whether `text`, which the output in `slot` begins with, is all that its constraint asks for; True
        without one. For a host that may end an output where no stop token stands, as stop strings do."""
        sequence = self._slots[slot]
        return self._mask.completes(self._modifiers.state(sequence, self._mask), sequence.journal, text)

    def satisfies(self, request: Request, text: str) -> bool:
        """Return whether `text` is all that the constraint of a request asks for, as `completes` does where no sequence
        has a slot; False also where that constraint is compiled no more. May be called from any thread. Raises
        `InvalidRequest`."""
        with self._at_work.using("admission"):
            request = self._validated(request)
            constraint = request.params.constraint
            if self._closed or constraint is None:
                return not self._closed
            compilation = self._mask.compile_constraint(constraint, request, None)
            if not compilation.done():
                compilation.cancel()
                return False
            compiled = compilation.result()
            with self._at_work.using(f"grammar.{compiled.candidate.name}"):
                return self._mask.satisfies(compiled, request.params, text)

    def judge(self, slot: int, text: str) -> Future[bool | None] | None:
        """Return whether `text`, the whole output in `slot`, is what its constraint asks for; the future holds None
        where that cannot be found out. None: nobody asked for it. JSON is judged as text, by its schema; of other
        constraints the matcher says it, where its strategy enforces all of them."""
        sequence = self._slots[slot]
        journal, state = sequence.journal, self._modifiers.state(sequence, self._mask)
        params = journal.request.params
        if params.on_unenforced != "check" or state is None:
            return None
        if isinstance(params.constraint, JsonSchema | JsonObject):
            own = self._mask.own_text(journal, text)
            names = self._mask.unenforced(state)
            return self.checker.judge(
                params.constraint, own, enforces_formats=not any(name.startswith("format") for name in names)
            )
        if not self._mask.completes(state, journal, text):
            return known(False)
        return known(None if self._mask.unenforced(state) else True)

    def reports(self, slot: int) -> Mapping[str, Mapping[str, Any]]:
        """Return what modifiers tell the user of the sequence in `slot`, by name. For a host to ask once, when it has
        ended and neither failed nor was given up; it may have a `fault` afterwards."""
        return self._modifiers.reports(self._slots[slot])

    def fault(self, slot: int) -> Fault | None:
        """Why the sequence in `slot` must end, with its `Fault.error`."""
        return self._slots[slot].fault

    def fail(self, slot: int, fault: Fault) -> None:
        """The sequence in `slot` must end, for a reason its own states do not know."""
        sequence = self._slots[slot]
        sequence.fault = sequence.fault or fault

    # Steps

    def example_steps(self) -> list[StepInput]:
        """A step of one sequence for each of the modifiers' examples: what a worker whose device compiles for each
        shape runs before the first request, over logits of each shape. To be called while no slot is taken. A modifier
        that fails over an example is logged; an example that it refuses, or leaves alone, has no step."""
        steps = []
        for modifier in self._by_name.values():
            for example in modifier.examples:
                try:
                    self._modifiers.check_needs(modifier)
                    with blame(f"modifier.{modifier.name}", "examples", passing=(GuidewayError,)):
                        steps += self._example_step(modifier, example)
                except GuidewayError as error:
                    if isinstance(error, InvalidRequest) and not isinstance(error, LimitExceeded):
                        continue
                    log.warning("modifier %r could not be warmed up: %s", modifier.name, error)
        return steps

    def _example_step(self, modifier: LogitModifier[Any], example: Example) -> list[StepInput]:
        """The step of one example, if there is one."""
        given = example.prompt_token_ids or ()
        prompt = tuple(i for i in given if i < len(self.context.vocabulary))[: self.context.max_model_len - 1] or (0,)
        params = SamplingParams(temperature=1.0, seed=0, modifiers={modifier.name: example.options})
        request = Request(request_id="example", prompt_token_ids=prompt, params=params)
        companions = self._modifiers.companions(request)
        owners = tuple(name for name, _ in companions)
        compilation = self._compiler.submit(request, None)
        self.start(Admission(request, compilation, tuple(companion for _, companion in companions), owners), 0)
        try:
            step = self.prepare(StepBatch.build([0], [len(prompt)]))
            fault = self.fault(0)
        finally:
            self.release(0, ended=False)
        if fault is not None:
            raise PluginError(str(fault), plugin=fault.plugin)
        if modifier.name not in step.payloads:
            return []
        # a modifier may use its arrays again for the next example
        return [replace(step, payloads={name: copy.deepcopy(payload) for name, payload in step.payloads.items()})]

    def uses(self, need: Need) -> bool:
        """Return whether any running sequence has a modifier that declares `need`."""
        pairs = zip(self._modifiers.all, self._slots.acting(len(self._modifiers.all)), strict=True)
        return any(acting and need in modifier.needs for modifier, acting in pairs)

    def foresee(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """Say what the next `prepare` is for: by slot the drafts, if there are any. What lives in hosts begins then,
        beside what the caller does meanwhile, as a forward pass. No tokens may be accepted in between; what `prepare`
        is not asked for after all has no effect."""
        states = [self._modifiers.state(self._slots[slot], self._mask) for slot in drafts]
        self._mask.foresee(states, list(drafts.values()))

    def prepare(self, batch: StepBatch) -> StepInput:
        """Everything the worker needs for `batch`. A modifier that fails costs the sequences it fails for: `accept`
        ends them."""
        sequences = self._slots.running(batch)
        if self._request_seconds is not None:
            self._end_overdue(sequences, self._request_seconds)
        owners = None if batch.num_rows == batch.num_sequences else sequence_of_row(batch)
        payloads: dict[str, Payload] = {}
        acting = self._slots.acting(len(self._modifiers.all))
        for i, modifier in enumerate(self._modifiers.all):
            if acting[i]:
                states = tuple([sequence.states[i] for sequence in sequences])
                payload = self._modifiers.prepare(modifier, batch, states, sequences, owners)
                if payload is not None:
                    payloads[modifier.name] = payload
        masks = payloads.get(self._mask.name)
        if self._gate is not None and masks is not None:
            gates = [self._gate_of(sequence) for sequence in sequences]
            payloads[self._mask.name] = self._gate.with_opening(masks, batch, gates)
        self._late = self._sitting_out(batch, sequences) if self._mask.mask_rows.late else frozenset()
        banned = {i: (s.bans, s.journal.token_ids) for i, s in enumerate(sequences) if s.bans is not None}
        if banned:
            words = self._mask.mask_rows.words
            payloads[self._mask.name] = with_bans(payloads.get(self._mask.name), batch, banned, words)
        per_row = batch.slots if owners is None else batch.slots[owners]
        companions = [sequence.companions for sequence in sequences]
        return StepInput(
            batch,
            payloads,
            self._slots.temperatures[per_row],
            self._slots.seeds[per_row],
            self._slots.indices[per_row],
            self._history(batch, payloads, sequences),
            companion_rows(batch, companions) if any(companions) else {},
            self._slots.warping.warp(batch, per_row),
            self._slots.warping.num_logprobs(per_row),
        )

    def is_late(self, slot: int) -> bool:
        """Return whether the sequence in `slot` sits out the step that was prepared last: nothing drawn for it is
        final, and the next step asks for the same again. False where the host's plan does not say that it can."""
        return slot in self._late

    def is_ready(self, slot: int) -> bool:
        """Return whether the rows may come now for which the sequence in `slot` sat steps out: for a host that leaves
        it out of its steps until then."""
        return self._mask.is_ready(self._modifiers.state(self._slots[slot], self._mask))

    def accept(
        self, batch: StepBatch, token_ids: Sequence[Sequence[int]], output: StepOutput | None = None
    ) -> list[Outcome]:
        """Give every modifier the final tokens of each sequence of `batch`; what is to become of each.

        `token_ids` ends at the first stop token and at the host's limits; those of a sequence that sits the step out
        are not looked at. A sequence whose outcome is ``fail`` has its `fault`, and its tokens of this step are not
        final.
        """
        outcomes = self._accept_step(batch, token_ids, output)
        record_progress()
        return outcomes

    def _accept_step(
        self, batch: StepBatch, token_ids: Sequence[Sequence[int]], output: StepOutput | None
    ) -> list[Outcome]:
        sequences, first_rows = self._slots.running(batch), batch.row_start.tolist()
        if not self._late:
            return self._accept(sequences, first_rows, token_ids, output)
        waits = [slot in self._late and self.fault(slot) is None for slot in batch.slots.tolist()]
        left = [i for i, late in enumerate(waits) if not late]
        outcomes = iter(
            self._accept(
                [sequences[i] for i in left], [first_rows[i] for i in left], [token_ids[i] for i in left], output
            )
        )
        return [CONTINUE if late else next(outcomes) for late in waits]

    def accept_one(
        self, slot: int, first_row: int, token_ids: Sequence[int], output: StepOutput | None = None
    ) -> Outcome:
        """Do what `accept` does, for one sequence and its first row of the step's batch: for a host that settles its
        sequences one by one."""
        sequence = self._slots[slot]
        if output is not None or self._gate is not None or sequence.bans is not None or self.has_hosted_modifiers:
            return self._accept([sequence], [first_row], [token_ids], output)[0]
        outcome = self._modifiers.accept(sequence, token_ids, None)
        if self._mask.mask_rows.closing:
            self._mask.record_end(self._modifiers.state(sequence, self._mask), sequence.journal)
        return outcome

    def announce(self, steps: Sequence[tuple[int, int, Sequence[int], StepOutput | None]]) -> None:
        """Announce what `accept_one` is about to be called with, for each of some sequences: modifiers in hosts take it
        in one command for all. What it is not called with after all, or not with these tokens, has no effect."""
        sequences = [self._slots[slot] for slot, *_ in steps]
        feedback = []
        for _, first_row, ids, output in steps:
            emitted = in_row_order(output.feedback) if output is not None and output.feedback else {}
            feedback.append(feedback_of(emitted, first_row, len(ids)))
        self._modifiers.announce(sequences, [ids for _, _, ids, _ in steps], feedback)

    @property
    def has_hosted_modifiers(self) -> bool:
        """True if `announce` is of use."""
        return self._modifiers.has_hosted

    def forced(self, limits: Mapping[int, int]) -> dict[int, Sequence[int]]:
        """By slot at most so many tokens that must come next, as all its modifiers agree: drafts that the draw
        confirms, or replaces where it cuts the same text into other tokens. Where the runtime is `canonical`, and no
        modifier or ban beside the constraint could want others, the next step draws them as they are."""
        found: dict[int, Sequence[int]] = dict.fromkeys(limits, ())
        sequences = {slot: self._slots[slot] for slot in limits}
        # what may still open the reasoning has another way
        sequences = {slot: s for slot, s in sequences.items() if not ((gate := self._gate_of(s)) and gate.is_undecided)}
        states = [self._modifiers.state(sequence, self._mask) for sequence in sequences.values()]
        self._mask.ask_forced(states, max(limits.values(), default=0))
        for (slot, sequence), state in zip(sequences.items(), states, strict=True):
            found[slot] = run = self._modifiers.forced(sequence, limits[slot])
            if self._canonical and self._is_plain(sequence):
                self._mask.keep_to(state, run)
        return found

    def may_end_unseen(self, slot: int) -> bool:
        """Return whether a stop token that alone may come next needs no row of logits: there is no modifier beside the
        constraint, and no parameter that bans stop tokens."""
        return self._is_plain(self._slots[slot])

    def validate(self, slot: int, token_ids: Sequence[int]) -> int:
        """Return how many of these drafts every modifier of `slot` would let pass. Where the runtime looks for the end
        of the reasoning, a host has to ask: drafts must not go past it."""
        return self._modifiers.validate(self._slots[slot], token_ids)

    def bitmask(self, step: StepInput) -> Payload | None:
        """Return what the grammar mask, and whatever else of a step is a bitmask, allows, as the array ``bitmask``; for
        a host that applies it by itself."""
        return combined_bitmask(step.payloads, self._modifiers.bitmasks)

    # Parts

    def _wanted(self, request: Request, others: Sequence[Sequence[int]], bans: Bans | None) -> Wanted | None:
        """Return what the shortest output of a request is looked for with, where that may be asked for; `others` are
        the prompts of its companions."""
        params = request.params
        reasons = self._gate is not None and params.reasoning is not False
        if not params.close or not (self._refuses_short or reasons):
            return None
        return self._mask.wanted(params, self._open.room_beside(request, others) - 1, bans, always=reasons)

    def _validated(self, request: Request) -> Request:
        return validate_request(
            request,
            self.context.vocabulary,
            self._validation,
            self._mask.known.of(request.tenant),
            self._whitespace,
            self._on_unenforced,
        )

    def _is_plain(self, sequence: ActiveSequence) -> bool:
        """Return whether no modifier acts on its next token but the constraint, and no ban."""
        journal = sequence.journal
        alone = all(modifier in self._own for modifier, _ in sequence.acting)
        return alone and sequence.bans is None and not banned_by(journal.request.params, len(journal.token_ids))

    def _begin(self, journal: Journal, compiled: Compiled) -> ActiveSequence:
        sequence = self._modifiers.start(journal, compiled)
        try:
            for modifier, _ in sequence.acting:
                if modifier.name in self._by_name:  # one may act where it was not asked for
                    check_served(modifier)
            room, state = self._open.room(journal.request), self._modifiers.state(sequence, self._mask)
            self._ban(sequence)
            gate = self._gate_of(sequence)
            start = None if gate is not None and gate.reasons else 0
            if start is None:
                journal.constraint_start = None
            if self._refuses_short and not journal.token_ids:
                # where it is not enough for both, the marker is forced at once
                marker = 0 if start == 0 or self._gate is None else len(self._gate.marker.endings[0])
                self._mask.check_room(state, max(0, room - marker))
            self._mask.begin_after(state, start, room, journal.end)
            if self._gate is not None and gate is not None:
                self._gate.begin(gate, room, state)
                with blame(self._gate.plugin_of(gate), "validate", passing=(PluginError,)):
                    self._pass_gate(sequence, journal.token_ids, 0)
            self._modifiers.replay(sequence)
        except BaseException:
            self._modifiers.release(sequence.states)
            raise
        return sequence

    def _ban(self, sequence: ActiveSequence) -> None:
        """Give a sequence the bans of its request."""
        if (bans := self._open.bans(sequence.journal.request)) is not None:
            sequence.bans = self._mask.ban(self._modifiers.state(sequence, self._mask), bans)

    def _gate_of(self, sequence: ActiveSequence) -> GateState | None:
        """The reasoning of a sequence of which the runtime looks for the end."""
        return None if self._gate is None else self._modifiers.state(sequence, self._gate)

    def _pass_gate(self, sequence: ActiveSequence, token_ids: Sequence[int], num_before: int) -> None:
        """Let the constraint begin where the reasoning ends among tokens that are about to be accepted, after
        `num_before` others, and not before, where they open it."""
        gate = self._gate_of(sequence)
        if self._gate is None or gate is None:
            return
        journal, state = sequence.journal, self._modifiers.state(sequence, self._mask)
        if self._gate.opens(gate, token_ids, partial(self._mask.takes, state)):
            if journal.constraint_start == 0:
                journal.closed_early = False
                journal.ends.clear()
            journal.constraint_start = None
            self._mask.start_again(state)
        elif not gate.reasons:
            journal.constraint_start = 0
        if (count := self._gate.end_among(gate, token_ids)) is not None:
            journal.constraint_start = num_before + count
            room = self._open.room(journal.request) - num_before - count
            self._mask.begin_after(state, count, room, journal.end)

    def _accept(
        self,
        sequences: list[ActiveSequence],
        first_rows: list[int],
        token_ids: Sequence[Sequence[int]],
        output: StepOutput | None,
    ) -> list[Outcome]:
        accept = self._modifiers.accept
        if output is not None and (output.faults or output.overruled):
            for sequence, first_row, ids in zip(sequences, first_rows, token_ids, strict=False):
                self._note(sequence, output, first_row, len(ids))
        for sequence, ids in zip(sequences, token_ids, strict=False):
            if sequence.bans is not None:
                self._overrule(sequence, sequence.bans.overruled(len(ids)))
        feedback: list[Mapping[str, Feedback] | None] = [None] * len(sequences)
        if output is not None and output.feedback:
            emitted = in_row_order(output.feedback)
            pairs = zip(first_rows, token_ids, strict=False)
            feedback = [feedback_of(emitted, first_row, len(ids)) for first_row, ids in pairs]
        if self._gate is not None:
            for sequence, ids in zip(sequences, token_ids, strict=False):
                if sequence.fault is None:
                    try:
                        self._pass_gate(sequence, ids, len(sequence.journal.token_ids))
                    except BaseException as error:
                        contain(error)
                        plugin = self._gate.plugin_of(self._gate_of(sequence))
                        sequence.broken, sequence.fault = True, Fault.of(plugin, "validate", error)
        self._modifiers.announce(sequences, token_ids, feedback)
        outcomes = [accept(*step) for step in zip(sequences, token_ids, feedback, strict=False)]
        if self._mask.mask_rows.closing:
            for sequence in sequences:
                self._mask.record_end(self._modifiers.state(sequence, self._mask), sequence.journal)
        return outcomes

    def _end_overdue(self, sequences: list[ActiveSequence], seconds: float) -> None:
        now = time.monotonic()
        for sequence in sequences:
            if now > sequence.ends_at and sequence.fault is None:
                error = LimitExceeded(f"it took longer than {seconds:g} s since its admission (limits.request_seconds)")
                sequence.fault = Fault.of("runtime", "request", error)

    def _sitting_out(self, batch: StepBatch, sequences: list[ActiveSequence]) -> frozenset[int]:
        pairs = zip(batch.slots.tolist(), [self._modifiers.state(each, self._mask) for each in sequences], strict=True)
        late = {slot: state for slot, state in pairs if self._mask.is_late(state)}
        for state in late.values():
            LATE_ROWS.labels(self._mask.strategy(state)).inc()
        return frozenset(late)

    def _note(self, sequence: ActiveSequence, output: StepOutput, first_row: int, num_tokens: int) -> None:
        """Faults and what was overruled in the rows whose tokens are final; a refused draft's rows never were."""
        params, num_before = sequence.journal.request.params, len(sequence.journal.token_ids)
        for j in range(max(1, num_tokens)):
            sequence.fault = sequence.fault or output.faults.get(first_row + j)
            found = output.overruled.get(first_row + j, ())
            banning = banned_by(params, num_before + j) if found else ()
            self._overrule(sequence, [name for name in found if name.startswith("modifier.") or name in banning])

    def _overrule(self, sequence: ActiveSequence, names: Sequence[str]) -> None:
        """These did not hold for a sequence."""
        sequence.unenforced |= dict.fromkeys(names)
        sequence.journal.overruled |= dict.fromkeys(names)

    def _history(
        self, batch: StepBatch, payloads: Mapping[str, Payload], sequences: list[ActiveSequence]
    ) -> NDArray[np.int32] | None:
        reading = [m.transform for m in self._modifiers.all if m.name in payloads and Need.HISTORY in m.needs]
        length = max((transform.history_length for transform in reading), default=0)
        if length == 0:
            return None
        past = [(s.journal.sequence.prompt_token_ids, s.journal.token_ids) for s in sequences]
        return history_rows(batch, past, length)


def _seed_of(seed: int, attempt: int) -> int:
    """The seed of a sequence which is drawn again; the first attempt has the request's."""
    if attempt == 0:
        return seed
    return int.from_bytes(sha256(f"{seed}/{attempt}".encode()).digest()[:8]) >> 1
