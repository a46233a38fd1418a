"""The host-neutral runtime: everything between a host's scheduler and its worker that is not the model.

A host (guideway's engine, vLLM, a test of eighty lines) drives it like this::

    admission = runtime.admit(request)                 # raises InvalidRequest, or starts compiling
    runtime.start(admission, slot)                     # once admission.ready()
    loop:
        batch = StepBatch.build(slots, positions, drafts)
        step = runtime.prepare(batch)                  # during the forward pass; sent to the worker
        output = pipeline.run(logits, step)            # in the worker; sent back
        finals = accepted_tokens(batch, output.token_ids)
        outcomes = runtime.accept(batch, finals, output)
    runtime.release(slot)                              # once per start or fork, however the sequence ended
"""

from __future__ import annotations

import copy
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
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
    Losses,
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
from guideway.runtime.admission.admission import (
    Admission,
    check_companions,
    check_edit,
    freeze_request,
    run_validators,
    validate_request,
)
from guideway.runtime.admission.checking import Checker, completed_future
from guideway.runtime.admission.open_requests import OpenRequests, ShortBudget
from guideway.runtime.constraints.bans import Bans, with_restrictions
from guideway.runtime.constraints.closing import Lexicon
from guideway.runtime.constraints.compiler import Compiled, Compiler, RequestCompiler, SearchParameters, Shortest
from guideway.runtime.constraints.forced import ForcedTokens
from guideway.runtime.constraints.grammar_mask import GrammarMask, check_names
from guideway.runtime.constraints.home import Home
from guideway.runtime.constraints.mask_rows import StrategyBlock
from guideway.runtime.constraints.reasoning import GateState, ReasoningGate, refuse_reasoning
from guideway.runtime.constraints.steady import SteadyBatch
from guideway.runtime.elsewhere import Hosts
from guideway.runtime.modifiers.modifier_set import ActiveSequence, ModifierSet, check_served
from guideway.runtime.modifiers.opening import Opening, TokenTexts
from guideway.runtime.modifiers.own_tokens import ask_for_most_likely, is_own
from guideway.runtime.modifiers.rows import companion_rows, feedback_of, history_rows, in_row_order, sequence_of_row
from guideway.runtime.modifiers.warp_builder import WarpBuilder, banned_by
from guideway.runtime.sequences.journal import Journal
from guideway.runtime.sequences.slots import Slots
from guideway.runtime.work.metrics import CLOSED_EARLY, LATE_ROWS
from guideway.runtime.work.quarantine import Quarantine
from guideway.runtime.work.shared_work import PluginUses
from guideway.runtime.work.step_clock import StepClock
from guideway.runtime.work.steps import run
from guideway.runtime.work.stopwatch import Stopwatch
from guideway.runtime.work.threads import ADMISSION_THREADS, Deadline, Threads

__all__ = ["Runtime"]

log = logging.getLogger(__name__)


CONSTRAINT, CLOSING = "constraint", "closing"
"""Names in `unenforced`: the constraint never began; the output was cut at its budget before it was complete."""


class Runtime:
    """The scheduler side of guideway: admission, compilation, per-sequence states, payloads, feedback, journal and
    replay.

    `strategies` are in order of preference, by configured name. `offers` are the needs of transforms that the host's
    worker can meet. One scheduler thread drives the runtime; `admit` and `abandon` may be called from any thread, and
    compilation runs in its own threads.
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
        whitespace: Whitespace = "bounded",
        short_budget: Literal["refuse", "cut"] = "refuse",
        reasoning: ReasoningConfig | None = None,
        on_unenforced: OnUnenforced = "report",
        hosts: Hosts | None = None,
        forced_tokens: ForcedTokens = "off",
        num_forced_tokens: int = 16,
        isolate_tenants: bool = False,
    ) -> None:
        self.context = context
        self._whitespace = whitespace
        self._short_budget: ShortBudget = short_budget
        self._on_unenforced = on_unenforced
        self._canonical = forced_tokens == "canonical"
        self._strategies = strategies
        self._at_work = PluginUses()
        self._hosts = hosts
        limits = limits or Limits()
        self.checker = Checker(None if hosts is None else hosts.judge)
        """Judges an output by its text, for a host that no longer knows the slot."""
        self._validators = validators or {}
        named = (name for each in self._validators.values() for name, _ in each)
        self._quarantine = Quarantine(named)
        self.admission_threads = Threads(
            "guideway-admission",
            ADMISSION_THREADS,
            deadline=Deadline(limits.admission_seconds),
            quarantine=self._quarantine,
        )
        """Threads for hosts that call `check` and `admit`, and tokenise, outside the decoding thread or event loop."""
        compiling = Deadline.of_processor(limits.compile_seconds, limits)
        self._threads = Threads("guideway-compile", compile_threads, reserve=True, deadline=compiling)
        self._modifier_threads = Threads("guideway-modifiers", compile_threads, reserve=True, deadline=compiling)
        """Separate threads, so that no request waits for the compilation of another request's constraint."""
        stopwatch = Stopwatch(Deadline.of_processor(limits.step_seconds, limits))
        self.clock = StepClock()
        """Measures the steps. A host adds its own work for them to the parts of its `prepare` and `accept`."""
        compiler = Compiler(self._threads, self._at_work, cache_bytes, isolates_tenants=isolate_tenants)
        shortest = Shortest(self._threads, self._at_work, context, isolates_tenants=isolate_tenants)
        lexicon = Lexicon(context.vocabulary)
        homes = {name: Home(strategy, lexicon) for name, strategy in strategies.items()}
        homes |= {} if hosts is None else hosts.homes
        self._mask = GrammarMask(
            strategies,
            homes,
            compiler,
            shortest,
            context,
            stopwatch,
            self.clock,
            isolates_tenants=isolate_tenants,
            forced_tokens=forced_tokens,
            num_forced_tokens=num_forced_tokens,
        )
        check_names(modifiers)
        waiting = frozenset({ReasoningGate.name} if hosts is not None and hosts.homes else ())
        self._gate = None
        if reasoning is not None and reasoning.has_marker:
            self._gate = ReasoningGate(reasoning, self._mask, context)
        self._own = [self._mask] if self._gate is None else [self._gate, self._mask]
        self._modifiers = ModifierSet(
            [*self._own, *modifiers], context, offers, limits, stopwatch, self.clock, hosts, waiting
        )
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
        warps = WarpBuilder(context.max_num_sequences, len(vocabulary), vocabulary.stop_token_ids)
        self._slots = Slots(context.max_num_sequences, warps)
        self._token_texts = TokenTexts(vocabulary)
        self._late: frozenset[int] = frozenset()
        """Slots of the sequences that skip the last prepared step."""
        self._open = OpenRequests(context.max_model_len)
        self._stopwatch = stopwatch
        self._steady: SteadyBatch | None = None
        """The sequences of the last step, while nothing but their constraints has acted on them."""

    def modifier_classes(self) -> list[tuple[type[LogitModifier[Any]], Mapping[str, Any]]]:
        """Return each modifier's class and options, from which a worker builds its `Pipeline`. Picklable."""
        return [(self._modifiers.class_of(m), m.options) for m in self._modifiers.all]

    @property
    def places(self) -> dict[str, Literal["process", "inline"]]:
        """Where each strategy runs: in hosts, or in this process."""
        hosted = () if self._hosts is None else self._hosts.homes
        return {name: "process" if name in hosted else "inline" for name in self._strategies}

    def check_health(self) -> None:
        """Raise `Unhealthy` if valid requests would be refused, because a pool has no thread left to admit or compile
        in, or plugin hosts cannot be started. May be called from any thread."""
        pools = (self.admission_threads, self._threads, self._modifier_threads)
        wrong = [why for pool in pools if (why := pool.why_none()) is not None]
        wrong += [] if self._hosts is None or (why := self._hosts.failure) is None else [why]
        if wrong:
            raise Unhealthy("; ".join(wrong))

    # Requests

    def check(self, submission: Submission) -> None:
        """Run the hooks that validate a submission, before its prompt is tokenised. Raises `InvalidRequest`. May be
        called from any thread, concurrently."""
        run_validators(self._validators, submission, self._validation, self._quarantine)

    def admit(
        self,
        request: Request,
        bans: Bans | None = None,
        *,
        verdict: str | None = None,
        short_budget: ShortBudget | None = None,
    ) -> Admission:
        """Admit a request. Raises `InvalidRequest`, or `PluginError` if a plugin failed; other requests are not
        affected. May be called from any thread, concurrently.

        Pass `bans` if the host draws from the masks alone: the masks then exclude the request's banned tokens too. No
        row becomes empty, and `unenforced` names the bans that did not hold. Other hosts leave `bans` out, and the
        pipeline applies the bans of `request.params`. Pass the `verdict` of another runtime with the same plugins,
        options and vocabulary that has admitted it: what that one has checked or decided is then not done again.
        `short_budget` replaces the plan's for this request.
        """
        try:
            with self._at_work.using("admission"):
                if self._closed:
                    raise GuidewayError("the runtime is closed and admits no more requests")
                return self._admit(request, bans, verdict, short_budget or self._short_budget)
        except GuidewayError:
            raise
        except BaseException as error:  # reading values of arbitrary types can raise anything
            contain(error)
            raise InvalidRequest(f"the request cannot be read: {text_of(error)}") from error

    def _admit(self, request: Request, bans: Bans | None, verdict: str | None, short_budget: ShortBudget) -> Admission:
        self._open.check_new(request)
        if verdict is None:
            request = self._validate(request)
        else:
            request = freeze_request(request, self._whitespace, self._on_unenforced)
            if request.params.constraint is not None:
                self._mask.candidates.of(request.tenant).learn(request.params.constraint, verdict)
        request = refuse_reasoning(request) if self._gate is None else self._gate.resolve_reasoning(request)
        params = request.params
        chosen = [self._by_name[name] for name in params.modifiers]
        for modifier in chosen:
            self._modifiers.check_needs(modifier)
            check_served(modifier)
        self._modifiers.check_samplers(chosen, params)
        run_validators(self._validators, request, self._validation, self._quarantine)
        request = replace(request, seed=secrets.randbits(63) if params.seed is None else params.seed)
        request, opening = self._edit_prompt(request)
        companions = self._modifiers.companions(request)
        check_companions(companions, self.context.vocabulary, self._validation, self.context.max_num_sequences)
        constraint = params.constraint
        grammar = None
        if constraint is not None:
            prompts = [companion.prompt_token_ids for _, companion in companions]
            grammar = self._mask.compile_constraint(
                constraint, request, self._search_parameters(request, prompts, bans, short_budget)
            )
        compilation = self._compiler.submit(request, grammar)
        prompts = [companion.prompt_token_ids for _, companion in companions]
        self._open.open(request, compilation, prompts, bans, opening)
        return Admission(
            request,
            compilation,
            tuple(companion for _, companion in companions),
            tuple(name for name, _ in companions),
            b"" if opening is None else opening.prefix,
        )

    def verdict(self, admission: Admission) -> str:
        """Return what was decided of a request, for `admit` in another runtime."""
        request = admission.request
        constraint = request.params.constraint
        return "" if constraint is None else self._mask.candidates.of(request.tenant).chosen(constraint).text

    def _edit_prompt(self, request: Request) -> tuple[Request, Opening | None]:
        """Let a modifier edit the prompt. Return the request with the new prompt, and what its outputs begin with."""
        name, token_ids, prefix = self._modifiers.edit_prompt(request)
        if not name or (token_ids == request.prompt_token_ids and not prefix):
            return request, None
        check_edit(name, request, token_ids, prefix, self.context.vocabulary, self._validation)
        opening = Opening(prefix, self._token_texts) if prefix else None
        return replace(request, prompt_token_ids=tuple(token_ids)), opening

    def abandon(self, admission: Admission) -> None:
        """Declare that one sequence of a request will never be started. Each of its `SamplingParams.num_sequences`, and
        each fork, ends with `release` or, if it was not started, with this call."""
        self._open.end_sequence(admission.request)

    def expect_another(self, admission: Admission) -> None:
        """Declare that one more sequence of an open request will be started, or abandoned."""
        self._open.expect_another(admission.request)

    def start_hosts(self) -> None:
        """Start the grammar hosts in the background. Otherwise the first constraint waits for them, for as long as
        importing its library takes. A server calls this once its process forks no more children."""
        if self._hosts is not None:
            self._hosts.start_soon()

    def close(self) -> None:
        """Release all running sequences, stop compiling, and close strategies and modifiers. A plugin that a thread is
        using is closed when that use ends. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.clock.begin_step()
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
        """Start the `index`-th sequence of a request in a free slot. `attempt` counts redraws. With the `journal` of
        one of the request's sequences, continue that sequence.

        Waits for the compilation. Raises `InvalidRequest` if the request turns out not to be servable and `PluginError`
        if a plugin failed; the slot is still free then. Raises ValueError if the slot is not free or the journal is
        another request's.
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
        `UnsupportedCapability` if a modifier cannot fork and ValueError if `new_slot` is not free; nothing has changed
        then."""
        self._slots.check_free(new_slot)
        parent = self._sequence(slot)
        info = replace(parent.journal.sequence, index=index)
        child = self._modifiers.fork(parent, info)
        child.ends_at = parent.ends_at
        self._ban(child)
        self._open.expect_another(parent.journal.request)
        self._slots.occupy(new_slot, child)

    def rebuild(self, slot: int) -> None:
        """Replace the states of a sequence by new ones rebuilt from its journal. On failure the sequence has a
        fault."""
        old = self._sequence(slot)
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
        """Free `slot`, whose sequence has ended. With ``ended=False`` the sequence may be started again."""
        sequence, strategy, may_differ = self._sequence(slot), None, False
        try:
            if ended:
                strategy, may_differ = self.strategy(slot), self.closed_early(slot)
        except BaseException as error:
            contain(error)
            log.warning("an output was not counted", exc_info=True)
        if strategy is not None and may_differ:
            CLOSED_EARLY.labels(strategy).inc()
        try:
            self._slots.vacate(slot)
            self._modifiers.release(sequence.states)
            if sequence.fault is None and not sequence.broken:
                self._mask.recycle(self._modifiers.state(sequence, self._mask))
        finally:  # also if it was interrupted
            if ended:
                self._open.end_sequence(sequence.journal.request)

    def journal(self, slot: int) -> Journal:
        """Return the journal of the sequence in `slot`; `start` rebuilds the sequence from it, here or in another
        process."""
        return self._sequence(slot).journal

    def strategy(self, slot: int) -> str | None:
        """Return the name of the grammar strategy that serves the sequence in `slot`."""
        return self._mask.strategy(self._modifiers.state(self._slots[slot], self._mask))

    def acting(self, slot: int) -> tuple[str, ...]:
        """Return the configured modifiers that act on the sequence in `slot`, in the order in which they act."""
        return tuple(m.name for m, _ in self._slots[slot].acting if m.name in self._by_name)

    def may_act(self, admission: Admission) -> tuple[str, ...]:
        """Return the configured modifiers that may act on a request before its compilation has ended: selected
        modifiers that compile, and others whose `start` says so. Raises as `start` does."""
        request = admission.request
        info = SequenceInfo(index=0, seed=request.seed, prompt_token_ids=request.prompt_token_ids)
        return tuple(m.name for m in self._by_name.values() if self._modifiers.may_act(m, request, info))

    def unenforced(self, slot: int) -> tuple[str, ...]:
        """Return the names of the parts of the request that are not enforced if the sequence in `slot` ends now."""
        sequence = self._slots[slot]
        if self._steady is not None:
            self._steady.settle_one(sequence)
        state = self._modifiers.state(sequence, self._mask)
        journal = sequence.journal
        is_full = len(journal.token_ids) >= self._open.room(journal.request)
        found = [CONSTRAINT] if state is not None and journal.constraint_start is None else []
        if is_full and not self._mask.is_closed(state):
            found.append(CLOSING)
        return (*sequence.unenforced, *found)

    def losses(self, slot: int) -> Losses:
        """Return the keywords that the rewritten schema of the sequence in `slot` does not express."""
        return self._mask.losses(self._modifiers.state(self._slots[slot], self._mask))

    def closed_early(self, slot: int) -> bool:
        """Return whether closing may have changed the output in `slot`, so that it could be completed."""
        sequence = self._slots[slot]
        gate = self._gate_of(sequence)
        may_differ = sequence.journal.closed_early or (gate is not None and gate.at.is_over and gate.at.was_cut)
        return may_differ and CLOSING not in self.unenforced(slot)

    def answer_start(self, slot: int) -> int | None:
        """Return the number of tokens before the answer in `slot`; None while that is undecided."""
        sequence = self._slots[slot]
        gate = self._gate_of(sequence)
        return None if gate is not None and gate.is_undecided else sequence.journal.constraint_start

    def completes(self, slot: int, text: str) -> bool:
        """Return whether `text`, a prefix of the output in `slot`, satisfies its constraint; True without one. For a
        host that may end an output without a stop token, as stop strings do."""
        sequence = self._sequence(slot)
        return self._mask.completes(self._modifiers.state(sequence, self._mask), sequence.journal, text)

    def satisfies(self, request: Request, text: str) -> bool:
        """Return whether `text` satisfies the constraint of a request whose sequences have no slot. False also if the
        constraint is no longer compiled. May be called from any thread. Raises `InvalidRequest`."""
        with self._at_work.using("admission"):
            request = self._validate(request)
            constraint = request.params.constraint
            if self._closed or constraint is None:
                return not self._closed
            compilation = run(self._mask.compile_constraint(constraint, request, None))
            if not compilation.done():
                compilation.cancel()
                return False
            compiled = compilation.result()
            assert compiled is not None
            with self._at_work.using(f"grammar.{compiled.candidate.name}"):
                return self._mask.satisfies(compiled, request.params, text)

    def judge(self, slot: int, text: str, read: Callable[[str], object] | None = None) -> Future[bool | None] | None:
        """Return a future that says whether `text`, the whole output in `slot`, satisfies its constraint. Its result is
        None if that cannot be decided. Returns None unless the request sets ``on_unenforced="check"`` or there is a
        `read`. JSON text is validated against its schema; other constraints are checked with the matcher, if the
        strategy enforces all of them. `read` converts the answer to an object of a type, and raises an exception for an
        answer that the type refuses."""
        sequence = self._sequence(slot)
        journal, state = sequence.journal, self._modifiers.state(sequence, self._mask)
        params = journal.request.params
        checks = params.on_unenforced == "check"
        if state is None or (not checks and read is None):
            return None
        if isinstance(params.constraint, JsonSchema | JsonObject):
            own = self._mask.own_text(journal, text)
            names = self._mask.unenforced(state)
            return self.checker.judge(
                params.constraint if checks else None,
                own,
                enforces_formats=not any(name.startswith("format") for name in names),
                read=read,
            )
        if not self._mask.completes(state, journal, text):
            return completed_future(False)
        return completed_future(None if self._mask.unenforced(state) else True)

    def reports(self, slot: int) -> Mapping[str, Mapping[str, Any]]:
        """Return by modifier the reports about the sequence in `slot` for the user. Call it once, after a sequence that
        neither failed nor was canceled has ended; the call may set its `fault`."""
        return self._modifiers.reports(self._sequence(slot))

    def fault(self, slot: int) -> Fault | None:
        """Return the fault for which the sequence in `slot` must end, with its `Fault.error`."""
        return self._slots[slot].fault

    def fail(self, slot: int, fault: Fault) -> None:
        """Set the fault of the sequence in `slot`, for a cause outside its own states. An earlier fault stays."""
        sequence = self._sequence(slot)
        sequence.fault = sequence.fault or fault

    # Steps

    def example_steps(self) -> list[StepInput]:
        """Return a step of one sequence for each example of the modifiers. A worker whose device compiles per shape
        runs them before the first request, over logits of each shape. No slot may be taken. An error of a modifier is
        logged; examples that it refuses, or does not act on, have no step."""
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
        """Return the step of one example as a list; empty if the modifier does not act."""
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
        # modifiers may reuse their arrays for the next example
        return [replace(step, payloads={name: copy.deepcopy(payload) for name, payload in step.payloads.items()})]

    def uses(self, need: Need) -> bool:
        """Return whether any running sequence has a modifier that declares `need`."""
        pairs = zip(self._modifiers.all, self._slots.acting(len(self._modifiers.all)), strict=True)
        return any(acting and need in modifier.needs for modifier, acting in pairs)

    @property
    def foresees(self) -> bool:
        """True if `foresee` has any effect: there are grammar hosts, which have not begun with the next step."""
        return self._mask.foresees

    @property
    def is_steady(self) -> bool:
        """True if only constraints act on the sequences of the step prepared last, which all are healthy and have one
        row each, and nothing but its `accept` has happened since."""
        return self._steady is not None and self._steady.is_whole

    def foresee(self, drafts: Mapping[int, Sequence[int]]) -> None:
        """Announce the next `prepare`: its slots with their drafts. Hosts start filling while the caller runs the
        forward pass. No tokens may be accepted in between; slots that `prepare` leaves out are unaffected."""
        if self.foresees:
            with self.clock.prepare:
                states = self._modifiers.states(self._slots.running(list(drafts)), self._mask)
                self._mask.foresee(states, list(drafts.values()))

    def look_ahead(self, limits: Mapping[int, int]) -> None:
        """Announce the slots of the next step before it is planned, so that hosts start filling and searching for at
        most ``limits[slot]`` forced tokens, for `forced`. The rules of `foresee` hold."""
        if self.foresees and not self._canonical:
            with self.clock.draft:
                states = [self._modifiers.state(self._slots[slot], self._mask) for slot in limits]
                self._mask.look_ahead(states, list(limits.values()))

    def prepare(self, batch: StepBatch) -> StepInput:
        """Return the worker's input for `batch`. If a modifier fails for a sequence, `accept` ends that sequence."""
        self.clock.begin_step()
        with self.clock.prepare:
            return self._prepare(batch)

    def _prepare(self, batch: StepBatch) -> StepInput:
        if self._steady is not None:
            if self._steady.is_of(batch) or self._change_steady(batch):
                steady = self._steady.prepare(batch)
                if steady is not None:
                    return steady
            self._leave_steady()
        sequences = self._slots.running(batch.slots.tolist())
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
        self._late = self._find_late(batch, sequences) if self._mask.mask_rows.late else frozenset()
        banned = {i: (s.bans, s.journal.token_ids) for i, s in enumerate(sequences) if s.bans is not None}
        if banned:
            words = self._mask.mask_rows.words
            payloads[self._mask.name] = with_restrictions(payloads.get(self._mask.name), batch, banned, words)
        opening = {
            i: (s.opening, s.journal.token_ids)
            for i, s in enumerate(sequences)
            if s.opening is not None and not s.opening.is_over(s.journal.token_ids)
        }
        if opening:
            words = self._mask.mask_rows.words
            payloads[self._mask.name] = with_restrictions(payloads.get(self._mask.name), batch, opening, words)
        step = self._input(batch, payloads, sequences, batch.slots if owners is None else batch.slots[owners])
        blocks = self._mask.mask_rows.take_blocks()
        if owners is None and self._gate is None and len(payloads) == 1 and not self._late:
            masked = self._modifiers.states(sequences, self._mask)
            self._form_steady(step, sequences, masked, blocks)
        return step

    def is_late(self, slot: int) -> bool:
        """Return whether the sequence in `slot` skips the step prepared last: its drawn tokens are not final, and the
        next step repeats the request. Always False unless the host's plan sets `sits_out`."""
        return slot in self._late

    def is_ready(self, slot: int) -> bool:
        """Return whether rows that were late for the sequence in `slot` may be ready now, for a host that leaves late
        sequences out of its steps."""
        return self._mask.is_ready(self._modifiers.state(self._slots[slot], self._mask))

    def accept(
        self, batch: StepBatch, token_ids: Sequence[Sequence[int]], output: StepOutput | None = None
    ) -> list[Outcome]:
        """Pass the final tokens of each sequence of `batch` to its modifiers and return the outcomes.

        `token_ids` ends at the first stop token and at the host's limits; entries of sequences that skip the step are
        ignored. A sequence with the outcome ``fail`` has a `fault`, and its tokens of this step are not final.
        """
        outcomes = None
        with self.clock.accept:
            if self._steady is not None and self._steady.is_of(batch) and (output is None or output.is_plain):
                outcomes = self._steady.accept(token_ids)
            if outcomes is None:
                self._leave_steady()
                outcomes = self._accept_step(batch, token_ids, output)
        record_progress()
        return outcomes

    def _accept_step(
        self, batch: StepBatch, token_ids: Sequence[Sequence[int]], output: StepOutput | None
    ) -> list[Outcome]:
        slots, first_rows = batch.slots.tolist(), batch.row_start.tolist()
        if not self._late:
            return self._accept(slots, first_rows, token_ids, output)
        waits = [slot in self._late and self.fault(slot) is None for slot in slots]
        left = [i for i, late in enumerate(waits) if not late]
        outcomes = iter(
            self._accept([slots[i] for i in left], [first_rows[i] for i in left], [token_ids[i] for i in left], output)
        )
        return [CONTINUE if late else next(outcomes) for late in waits]

    def accept_one(
        self, slot: int, first_row: int, token_ids: Sequence[int], output: StepOutput | None = None
    ) -> Outcome:
        """Call `accept` for one sequence, given its first row in the step's batch."""
        with self.clock.accept:
            sequence = self._sequence(slot)
            if output is not None or self._gate is not None or sequence.bans is not None or self.has_hosted_modifiers:
                return self._accept([slot], [first_row], [token_ids], output)[0]
            return self._accept_alone(sequence, token_ids)

    def announce(self, steps: Sequence[tuple[int, int, Sequence[int], StepOutput | None]]) -> None:
        """Announce calls of `accept_one`, as (slot, first row, token ids, output), so that modifiers in hosts get one
        command for all sequences. Announcements without a matching call have no effect."""
        with self.clock.accept:
            sequences = [self._slots[slot] for slot, *_ in steps]
            feedback = []
            for _, first_row, ids, output in steps:
                emitted = in_row_order(output.feedback) if output is not None and output.feedback else {}
                feedback += feedback_of(emitted, [first_row], [len(ids)])
            self._modifiers.announce(sequences, [ids for _, _, ids, _ in steps], feedback)

    @property
    def has_hosted_modifiers(self) -> bool:
        """True if `announce` has any effect."""
        return self._modifiers.has_hosted

    def forced(self, limits: Mapping[int, int]) -> dict[int, Sequence[int]]:
        """Return by slot at most ``limits[slot]`` tokens that probably come next, as all modifiers agree. The host uses
        them as drafts; the draw may replace them by others. Only ``canonical`` waits for hosts: then they are forced,
        and if no modifier or ban except the constraint could want other tokens, the next step draws exactly these. A
        stop token is among them only if it must come."""
        with self.clock.draft:
            return self._forced(limits)

    def _forced(self, limits: Mapping[int, int]) -> dict[int, Sequence[int]]:
        found: dict[int, Sequence[int]] = dict.fromkeys(limits, ())
        sequences = {slot: self._slots[slot] for slot in limits}
        # reasoning may still be opened here
        sequences = {slot: s for slot, s in sequences.items() if not ((gate := self._gate_of(s)) and gate.is_undecided)}
        if self._canonical:
            self._leave_steady()
            states = [self._modifiers.state(sequence, self._mask) for sequence in sequences.values()]
            self._mask.ask_forced(states, max(limits.values(), default=0))
        else:
            self._mask.hear()
        for slot, sequence in sequences.items():
            found[slot] = run = self._modifiers.forced(sequence, limits[slot])
            if self._canonical and self._is_plain(sequence):
                self._mask.keep_to(self._modifiers.state(sequence, self._mask), run)
            if sequence.fault is not None:
                self._leave_steady()
        return found

    def may_end_unseen(self, slot: int) -> bool:
        """Return whether a forced stop token needs no row of logits: no other modifier acts, and no parameter bans stop
        tokens."""
        return self._is_plain(self._slots[slot])

    def validate(self, slot: int, token_ids: Sequence[int]) -> int:
        """Return how many of these drafts all modifiers of `slot` would accept. Hosts must call it if reasoning is
        configured, because drafts must not go past the end of the reasoning."""
        with self.clock.draft:
            return self._modifiers.validate(self._sequence(slot), token_ids)

    def bitmask(self, step: StepInput) -> Payload | None:
        """Return the grammar mask of a step, combined with its other bitmasks, as the array ``bitmask``; for a host
        that applies it itself."""
        return combined_bitmask(step.payloads, self._modifiers.bitmasks)

    # Parts

    def _search_parameters(
        self, request: Request, others: Sequence[Sequence[int]], bans: Bans | None, short_budget: ShortBudget
    ) -> SearchParameters | None:
        """Return the parameters of the search for the request's shortest output, or None if none is needed. `others`
        are the prompts of its companions."""
        params = request.params
        reasons, refuses = self._gate is not None and params.reasoning is not False, short_budget == "refuse"
        if not params.close or not (refuses or reasons):
            return None
        room = self._open.room_with(request, others)
        if self._gate is not None and params.reasoning:  # if both do not fit, the marker is forced at once
            room = max(0, room - len(self._gate.marker.endings[0]))
        return self._mask.search_parameters(params, room, bans, refuses=refuses, always=reasons)

    def _validate(self, request: Request) -> Request:
        return validate_request(
            request,
            self.context.vocabulary,
            self._validation,
            self._mask.candidates.of(request.tenant),
            self._whitespace,
            self._on_unenforced,
        )

    def _is_plain(self, sequence: ActiveSequence) -> bool:
        """Return whether nothing but the constraint decides the next token: no other modifier and no ban."""
        journal = sequence.journal
        alone = all(modifier in self._own for modifier, _ in sequence.acting)
        return alone and sequence.bans is None and not banned_by(journal.request.params, len(journal.token_ids))

    def _begin(self, journal: Journal, compiled: Compiled) -> ActiveSequence:
        sequence = self._modifiers.start(journal, compiled)
        try:
            for modifier, _ in sequence.acting:
                if modifier.name in self._by_name:  # a modifier may act without being selected
                    check_served(modifier)
            room, state = self._open.room(journal.request), self._modifiers.state(sequence, self._mask)
            self._ban(sequence)
            gate = self._gate_of(sequence)
            start = None if gate is not None and gate.reasons else 0
            if start is None:
                journal.constraint_start = None
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

    def _sequence(self, slot: int) -> ActiveSequence:
        """Return the sequence in `slot`, whose books are written, for a call that may change it."""
        sequence = self._slots[slot]
        if self._steady is not None:
            self._steady.leave(sequence)
        return sequence

    def _input(
        self,
        batch: StepBatch,
        payloads: Mapping[str, Payload],
        sequences: list[ActiveSequence],
        per_row: NDArray[np.int32],
    ) -> StepInput:
        """Return the worker's input for a step whose rows belong to the slots `per_row`."""
        companions = [sequence.companions for sequence in sequences]
        return StepInput(
            batch,
            payloads,
            self._slots.temperatures[per_row],
            self._slots.seeds[per_row],
            self._slots.indices[per_row],
            self._history(batch, payloads, sequences),
            companion_rows(batch, companions) if any(companions) else {},
            self._slots.warps.build(batch, per_row),
            self._ask_for_most_likely(batch, sequences, self._slots.warps.num_logprobs(per_row)),
            self._slots.warps.processed(per_row),
            self._slots.warps.records(per_row),
        )

    def _form_steady(
        self,
        step: StepInput,
        sequences: list[ActiveSequence],
        states: Sequence[Any],
        blocks: Sequence[StrategyBlock],
    ) -> bool:
        """Let the sequences of a step, one row each, be the steady batch, if that is possible. Return whether it is."""
        rows = self._mask.mask_rows
        steady = self._steady or SteadyBatch(rows, self._stopwatch, self._num_left, self._accept_alone)
        reads = self._slots.warps.reads_outputs(step.batch.slots.tolist())
        if not blocks or reads or not steady.takes(sequences, states):
            return False
        steady.enter(step, sequences, states, blocks)
        self._steady = steady
        return True

    def _change_steady(self, batch: StepBatch) -> bool:
        """Let the steady batch have the sequences of `batch`, if that is possible. Return whether it is."""
        if batch.num_rows != batch.num_sequences:
            return False
        sequences = self._slots.running(batch.slots.tolist())
        states = self._modifiers.states(sequences, self._mask)
        blocks, _ = self._mask.mask_rows.lay_out(batch, states)
        return self._form_steady(self._input(batch, {}, sequences, batch.slots), sequences, states, blocks)

    def _num_left(self, sequence: ActiveSequence) -> int:
        """Return how many more tokens a sequence, whose books are written, may have."""
        return self._open.room(sequence.journal.request) - len(sequence.journal.token_ids)

    def _accept_alone(self, sequence: ActiveSequence, token_ids: Sequence[int]) -> Outcome:
        """Accept the final tokens of a sequence on which no host has anything to say but the tokens."""
        (outcome,) = self._modifiers.accept([sequence], [token_ids], [None])
        if self._mask.mask_rows.closing:
            self._mask.record_end(self._modifiers.state(sequence, self._mask), sequence.journal)
        return outcome

    def _ask_for_most_likely(
        self, batch: StepBatch, sequences: list[ActiveSequence], num_logprobs: NDArray[np.int32] | None
    ) -> NDArray[np.int32] | None:
        """Return `StepInput.num_logprobs`, with what tells whether closing changes a draw."""
        if not self._mask.mask_rows.closing:
            return num_logprobs
        first = [self._mask.first_closed(self._modifiers.state(sequence, self._mask)) for sequence in sequences]
        return ask_for_most_likely(num_logprobs, batch, sequences, first, self._slots.warps)

    def _leave_steady(self) -> None:
        if self._steady is not None:
            self._steady.settle()
            self._steady = None

    def _ban(self, sequence: ActiveSequence) -> None:
        """Apply the request's bans and opening to the masks and completions of a sequence."""
        sequence.opening = self._open.opening(sequence.journal.request)
        if (bans := self._open.bans(sequence.journal.request)) is not None:
            sequence.bans = self._mask.ban(self._modifiers.state(sequence, self._mask), bans)

    def _gate_of(self, sequence: ActiveSequence) -> GateState | None:
        """Return the sequence's state in the reasoning gate; None without a gate."""
        return None if self._gate is None else self._modifiers.state(sequence, self._gate)

    def _pass_gate(self, sequence: ActiveSequence, token_ids: Sequence[int], num_before: int) -> None:
        """Start the constraint where the reasoning ends among `token_ids`, which are about to be accepted after
        `num_before` others, or take it back if they open the reasoning."""
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
        self, slots: list[int], first_rows: list[int], token_ids: Sequence[Sequence[int]], output: StepOutput | None
    ) -> list[Outcome]:
        sequences = self._slots.running(slots)
        if output is not None and (output.faults or output.overruled):
            for slot, first_row, ids in zip(slots, first_rows, token_ids, strict=False):
                self._record_faults(slot, output, first_row, max(1, len(ids)))
        for sequence, ids in zip(sequences, token_ids, strict=False):
            if sequence.bans is not None:
                self._overrule(sequence, sequence.bans.overruled(len(ids)))
        feedback: list[Mapping[str, Feedback] | None] = [None] * len(sequences)
        if output is not None and output.feedback:
            emitted = in_row_order(output.feedback)
            feedback = [*feedback_of(emitted, first_rows[: len(sequences)], [len(ids) for ids in token_ids])]
        if self._gate is not None:
            for sequence, ids in zip(sequences, token_ids, strict=False):
                if sequence.fault is None:
                    try:
                        self._pass_gate(sequence, ids, len(sequence.journal.token_ids))
                    except BaseException as error:
                        contain(error)
                        plugin = self._gate.plugin_of(self._gate_of(sequence))
                        sequence.broken, sequence.fault = True, Fault.of(plugin, "validate", error)
        if self._mask.mask_rows.closing and output is not None:
            for sequence, first_row, ids in zip(sequences, first_rows, token_ids, strict=False):
                state = self._modifiers.state(sequence, self._mask)
                first = self._mask.first_closed(state)
                if first is None:
                    continue
                try:
                    if is_own(output.logprobs, first_row, ids, first, partial(self._mask.takes, state)):
                        self._mask.note_own(state)
                except BaseException as error:  # then it is not known; what is broken fails when it accepts
                    contain(error)
        self._modifiers.announce(sequences, token_ids, feedback)
        outcomes = self._modifiers.accept(sequences, token_ids, feedback)
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

    def _find_late(self, batch: StepBatch, sequences: list[ActiveSequence]) -> frozenset[int]:
        pairs = zip(batch.slots.tolist(), [self._modifiers.state(each, self._mask) for each in sequences], strict=True)
        late = {slot: state for slot, state in pairs if self._mask.is_late(state)}
        for state in late.values():
            LATE_ROWS.labels(self._mask.strategy(state)).inc()
        return frozenset(late)

    def _record_faults(self, slot: int, output: StepOutput, first_row: int, num_rows: int) -> None:
        """Record the fault and overruled names of a sequence whose first `num_rows` rows have final tokens."""
        sequence, fault = self._slots[slot], output.faults.get(slot)
        if fault is not None and fault.row < num_rows:
            sequence.fault = sequence.fault or fault
        params, num_before = sequence.journal.request.params, len(sequence.journal.token_ids)
        for j in range(num_rows):
            found = output.overruled.get(first_row + j, ())
            banning = banned_by(params, num_before + j) if found else ()
            self._overrule(sequence, [name for name in found if name.startswith("modifier.") or name in banning])

    def _overrule(self, sequence: ActiveSequence, names: Sequence[str]) -> None:
        """Record names that did not hold for a sequence."""
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
    """Return the seed of an attempt; the first one has the request's."""
    if attempt == 0:
        return seed
    return int.from_bytes(sha256(f"{seed}/{attempt}".encode()).digest()[:8]) >> 1
