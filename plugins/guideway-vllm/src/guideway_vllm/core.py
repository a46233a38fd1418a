"""The guest in the engine core, called by vLLM's scheduler from admission to release.

vLLM's scheduler keeps the queues; the runtime keeps guideway's state of each sequence. A sequence takes a slot when it
is first sampled. If preemption has led to more started sequences than slots, one that is not running gives its slot up
and keeps its journal, from which it continues later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from threading import Lock, get_ident
from typing import Any, cast

import numpy as np
from guideway.api import (
    CONTINUE,
    Fault,
    GuidewayError,
    PluginError,
    Records,
    Stage,
    StepBatch,
    UnsupportedCapability,
)
from guideway.api.bitmask import allow_only, num_words
from guideway.errors import contain, passable, text_of
from guideway.plugins import Plugins
from guideway.runtime import Admission, Journal, Runtime
from numpy.typing import NDArray

from guideway_vllm.bans import bans_of, without_bans
from guideway_vllm.config import GuestConfig
from guideway_vllm.drafts import are_ours, can_draft
from guideway_vllm.parts import build_runtime, markers_for
from guideway_vllm.requests import PREFIX, carries_only, request_of, short_budget_of
from guideway_vllm.steps import GuestOutput, GuestStep, Part, select

__all__ = ["Core", "Pending", "RequestState"]

log = logging.getLogger("vllm.guideway")


@dataclass(slots=True)
class RequestState:
    """The guest's state of one vLLM request, which is one sequence."""

    admission: Admission
    slot: int | None = None
    journal: Journal | None = None
    """Journal of a started request without a slot."""
    fault: Fault | None = None
    """Fault for which it must end, if the runtime does not know it."""
    refusal: str | None = None
    """Error with which vLLM itself ends it."""
    draws: bool = False
    """True if guideway draws its tokens."""
    shaped: bool = False
    """True if modifiers act on it, or it is recorded."""
    sits_out: bool = False
    """True if it takes part in no step, because its masks were late."""


@dataclass(slots=True, eq=False)
class Pending:
    """A step whose tokens have not arrived."""

    request_ids: list[str] = field(default_factory=list)
    parts: list[tuple[Part, list[int]]] = field(default_factory=list)
    """Parts, each with the positions of its sequences in `request_ids`."""
    batch: StepBatch | None = None
    """The batch, if only constraints act on it, one row each. Steps of the same requests keep the first one's: its
    positions are not theirs, but constraints do not read them."""
    late: list[str] = field(default_factory=list)
    """Requests whose masks were not ready in this step; tokens drawn for them are not final."""


class Core:
    """The guest of one engine core.

    `admit` may be called from another thread than the rest, and does not block: plugins run in the guest's own
    admission threads, so that a slow one delays neither the thread in which vLLM reads requests nor a step. vLLM keeps
    the order of arrival.
    """

    def __init__(self, config: GuestConfig, vllm_config: Any, reasoning_parser: type[Any] | None) -> None:
        plugins = Plugins(settings=config.plugins)
        self.plan = config.plan(plugins)
        reasoning, self._unmarked = markers_for(reasoning_parser, vllm_config)
        # in addition to n-grams, forced tokens are drafted without a setting
        forced = config.forced_tokens if are_ours(vllm_config.speculative_config) else "exact"
        self.drafts_forced = can_draft(vllm_config)
        """True if `forced` has any effect."""
        self.runtime: Runtime = build_runtime(
            config,
            plugins,
            vllm_config,
            front_end=False,
            reasoning=reasoning,
            forced_tokens=forced if self.drafts_forced else "off",
        )
        self._entering: dict[str, Future[RequestState]] = {}
        """Futures that `admit` returned, of requests that were not released and are still being admitted."""
        self._lock = Lock()
        """Held while a request leaves `_entering`."""
        self._stepping = get_ident()
        """The thread that runs the steps."""
        self._states: dict[str, RequestState] = {}
        self._free = list(range(self.runtime.context.max_num_sequences))[::-1]
        self._late = {
            cls.name for cls, _ in self.runtime.modifier_classes() if cls.stage in (Stage.POST_WARP, Stage.SAMPLE)
        }
        self._shapes = bool(config.modifiers)
        """True if modifiers, which may read sampling parameters, can act."""
        vocabulary = self.runtime.context.vocabulary
        self._words = num_words(vocabulary.logits_width)
        self._stop_token_id = min(vocabulary.stop_token_ids)
        self._closed: dict[frozenset[int], NDArray[np.int32]] = {}
        self._refused: dict[str, str] = {}
        """Errors of requests that were not admitted."""
        self._outputs: dict[str, tuple[int, Any]] = {}
        """By request, its first row in a part of the last step, and that part's output."""
        self._records: dict[str, tuple[Records, int]] = {}
        """By request that asks for them, the records of a part of the last step, and the index of its first row's."""
        self.recorded: dict[str, dict[str, Any]] = {}
        """By request, the records of the tokens accepted in this step, as lists."""
        self._outcomes: dict[str, bool] = {}
        """By request what `accept` returns for a token that `accept_step` has accepted."""
        self._last = Pending()
        """The last step that was prepared; forgotten when something happens to a request that the next must regard."""
        self._running: list[Pending] = []
        """The steps whose tokens have not arrived."""
        self.may_end_unseen: set[str] = set()
        """Requests that the front end may end by itself, at a stop string."""
        self.sitting_out: set[str] = set()
        """Requests that skip steps; each keeps its place among the running ones."""
        self.finished: dict[str, None] = {}
        """Requests that a modifier finished and vLLM has not ended yet."""

    # Requests

    def admit(self, request: Any, may_reason: Callable[[], bool]) -> Future[RequestState]:
        """Start admitting a vLLM request. The future gives its state, or the error that ends it. Bans of a constrained
        request are moved from vLLM's parameters to guideway. `may_reason` returns whether the output may begin with
        reasoning."""
        params, ready = request.sampling_params, Future[RequestState]()
        if not carries_only(params):
            request.sampling_params = without_bans(params)
        self._entering[request.request_id] = ready
        if get_ident() == self._stepping:
            # vLLM runs in one process, as for reproducible batches: no step waits, and handing the request to another
            # thread would take a twentieth of the time of short outputs. The front end does the same
            self._admit(request, params, may_reason, ready)
            return ready
        try:
            admitted = self.runtime.admission_threads.submit(partial(self._admit, request, params, may_reason, ready))
        except GuidewayError as error:  # closed, or no thread could be started
            self._refuse(request.request_id, ready, error)
            return ready
        admitted.add_done_callback(partial(self._too_late, request.request_id, ready))
        return ready

    def release(self, request_id: str, *, orderly: bool) -> dict[str, Any] | None:
        """End a request and return its `report`, with the modifiers' reports if `orderly`: it neither failed nor was
        aborted."""
        reports = self._reports(request_id) if orderly else {}
        report = self.report(request_id)
        if reports:
            report = {**(report or {}), "reports": dict(reports)}
        self._outputs.pop(request_id, None)
        self._outcomes.pop(request_id, None)
        self._last = Pending()  # does not keep it alive
        self.may_end_unseen.discard(request_id)
        self.finished.pop(request_id, None)
        self.sitting_out.discard(request_id)
        with self._lock:
            self._entering.pop(request_id, None)
            state = self._states.pop(request_id, None)
            self._refused.pop(request_id, None)
        if state is not None:
            if (fault := self._fault(state)) is not None:
                log.error("guideway: request %s ended with an error: %s", passable(request_id), passable(str(fault)))
            if state.slot is None:
                self.runtime.abandon(state.admission)
            else:
                self._free.append(state.slot)
                self.runtime.release(state.slot)
        return report

    def report(self, request_id: str) -> dict[str, Any] | None:
        """Return the strategy that serves a request, its unenforced parts and its error; None if there is nothing to
        report."""
        state = self._states.get(request_id)
        if state is None:
            return {"error": self._refused[request_id]} if request_id in self._refused else None
        report: dict[str, Any] = {} if state.refusal is None else {"error": state.refusal}
        if state.slot is not None:
            if strategy := self.runtime.strategy(state.slot):
                report["strategy"] = strategy
            if unenforced := self.runtime.unenforced(state.slot):
                report["unenforced"] = [passable(str(name)) for name in unenforced]
            if losses := self.runtime.losses(state.slot):
                report["losses"] = [list(map(passable, loss)) for loss in losses]
            if self.runtime.closed_early(state.slot):
                report["closed_early"] = True
        if (fault := self._fault(state)) is not None:
            report["error"] = passable(str(fault))
        return report or None

    def report_so_far(self, request_id: str) -> dict[str, Any] | None:
        """Return `report` for a request that the front end may end by itself; None for others."""
        return self.report(request_id) if request_id in self.may_end_unseen else None

    def _reports(self, request_id: str) -> Mapping[str, Any]:
        state = self._states.get(request_id)
        if state is None or state.slot is None or state.refusal is not None or self._fault(state) is not None:
            return {}
        return self.runtime.reports(state.slot)

    def close(self) -> None:
        """Stop admitting and compiling, and close strategies and modifiers. Idempotent."""
        self.runtime.close()

    # Steps

    def foresee(self, request_ids: Iterable[str], drafts: Mapping[str, list[int]]) -> None:
        """Start filling the masks of these requests, which are sampled, for the next `prepare`."""
        if not self.runtime.foresees:
            return
        scheduled, found = list(request_ids), dict[int, list[int]]()
        with self.runtime.clock.prepare:
            for request_id in scheduled:
                if (state := self._states.get(request_id)) is None:
                    continue
                if state.slot is None and state.fault is None:  # now, so that hosts get it with the others
                    self._begin(state, scheduled)
                if state.slot is not None and not state.sits_out:
                    found[state.slot] = _real(drafts.get(request_id, ()))
        self.runtime.foresee(found)

    def prepare(
        self, requests: Mapping[str, Any], request_ids: list[str], drafts: Mapping[str, list[int]]
    ) -> tuple[GuestStep, Pending]:
        """Return the workers' message for a step, and what to keep until its tokens arrive."""
        with self.runtime.clock.prepare:
            return self._prepare(requests, request_ids, drafts)

    def _prepare(
        self, requests: Mapping[str, Any], request_ids: list[str], drafts: Mapping[str, list[int]]
    ) -> tuple[GuestStep, Pending]:
        last, step = self._last, None
        if last.batch is not None and not drafts and request_ids == last.request_ids and self.runtime.is_steady:
            step = self.runtime.prepare(last.batch)
            payload = self.runtime.bitmask(step)
            if self.runtime.is_steady and payload is not None:
                self._running.append(last)
                num_rows = [1] * len(request_ids)
                return self._message(request_ids, num_rows, payload.rows, payload.arrays["bitmask"]), last
        states = [self._states[request_id] for request_id in request_ids]
        for state in states:
            if state.slot is None and state.fault is None:
                self._begin(state, request_ids)
        ahead = [_real(drafts.get(r, ())) for r in request_ids] if drafts else None
        num_rows = [1] * len(states) if ahead is None else [1 + len(ids) for ids in ahead]
        starts = np.array([0, *accumulate(num_rows)], dtype=np.int32)
        running = [i for i, state in enumerate(states) if state.slot is not None and not state.sits_out]
        batch = StepBatch.build(
            [cast("int", states[i].slot) for i in running],
            [requests[request_ids[i]].num_tokens for i in running],
            None if ahead is None else [ahead[i] for i in running],
        )
        step = step or self.runtime.prepare(batch)
        steady = self.runtime.is_steady and len(running) == len(states) and not any(state.fault for state in states)
        late = [] if steady else [i for i in running if self._is_late(states[i])]
        void = [*late, *(i for i, state in enumerate(states) if state.sits_out)]
        place = _rows_of(running, starts)
        rows, bitmask = np.empty(0, dtype=np.int32), np.empty((0, self._words), dtype=np.int32)
        if (payload := self.runtime.bitmask(step)) is not None:
            rows, bitmask = place[payload.rows], payload.arrays["bitmask"]
        faulty = set[int]() if steady else {i for i, state in enumerate(states) if self._fault(state) is not None}
        faulty.update(void)
        for i in faulty:  # tokens of this step are not final: allow only stop tokens
            rows, bitmask = _replace_masks(rows, bitmask, _rows_of([i], starts), self._closing_mask(states[i]))
        pending = Pending(request_ids, late=[request_ids[i] for i in late])
        healthy = [(j, i) for j, i in enumerate(running) if states[i].shaped and i not in faulty]
        for draws in (False, True):
            if chosen := [(j, i) for j, i in healthy if states[i].draws is draws]:
                some, its_rows = select(step, [j for j, _ in chosen])
                pending.parts.append((Part(some, place[its_rows], draws), [i for _, i in chosen]))
        if steady and not pending.parts:
            pending.batch = batch
        self._last = pending
        self._running.append(pending)
        parts = tuple(part for part, _ in pending.parts)
        masked, masks = _outside(rows, bitmask, parts) if parts else (rows, bitmask)
        void_ids = [request_ids[i] for i in void]
        return self._message(request_ids, num_rows, masked, masks, parts, void_ids), pending

    def _message(self, *fields: Any) -> GuestStep:
        return GuestStep(self.plan.fingerprint, self._stop_token_id, *fields)

    def take_output(self, pending: Pending, output: GuestOutput | None) -> None:
        """Take the workers' output of a step, before its tokens are accepted."""
        self._outputs, self._records, self.recorded = {}, {}, {}
        self._running.remove(pending)
        if output is None:
            return
        if output.failure is not None:
            self._last = Pending()
            for request_id in pending.request_ids:
                if (state := self._states.get(request_id)) is not None:
                    state.refusal = output.failure
            return
        for (part, places), result in zip(pending.parts, output.parts, strict=True):
            for place, row in zip(places, part.step.batch.row_start.tolist(), strict=False):
                self._outputs[pending.request_ids[place]] = (row, result)
                if result.records is not None and part.step.records is not None and part.step.records[row]:
                    first = int(part.step.records[:row].sum())
                    self._records[pending.request_ids[place]] = (result.records, first)

    def sit_out(self, request_id: str) -> None:
        """Mark a request that was taken out of vLLM's batch because its masks were late."""
        if (state := self._states.get(request_id)) is not None:
            self._last = Pending()
            state.sits_out = True
            self.sitting_out.add(request_id)

    def may_run(self, request_id: str) -> bool | None:
        """Return whether a request that skips steps may be scheduled again: its masks may be ready, and none of its
        steps is running. None if it does not skip steps."""
        state = self._states.get(request_id)
        if state is None or not state.sits_out:
            return None
        waits = state.slot is not None and state.fault is None and not self.runtime.is_ready(state.slot)
        state.sits_out = waits or self._runs(request_id)
        if not state.sits_out:
            self.sitting_out.discard(request_id)
        return not state.sits_out

    def only_waits(self) -> bool:
        """Return whether there are requests that skip steps, and none of their steps is running."""
        return bool(self.sitting_out) and not any(map(self._runs, self.sitting_out))

    def _runs(self, request_id: str) -> bool:
        """Return whether a step of a request is computed and its output has not arrived."""
        return any(request_id in pending.request_ids for pending in self._running)

    def announce(self, token_ids: Mapping[str, Sequence[int]]) -> None:
        """Announce calls of `accept`, unless vLLM cuts the tokens, so that modifiers in hosts get one command for all
        requests."""
        if not self.runtime.has_hosted_modifiers:
            return
        steps = []
        for request_id, ids in token_ids.items():
            state = self._states.get(request_id)
            if state is None or state.slot is None or state.sits_out or not len(ids):
                continue
            if state.fault is None and state.refusal is None:
                row, output = self._outputs.get(request_id, (0, None))
                steps.append((state.slot, row, [int(token_id) for token_id in ids], output))
        self.runtime.announce(steps)

    def accept_step(self, pending: Pending, token_ids: Sequence[Sequence[int]]) -> None:
        """Accept the final tokens of a step, one of each request, in one call, if only constraints act on them.
        `accept` then returns the outcomes, and `take_back` undoes those that it was not asked for."""
        batch = pending.batch
        if batch is None or pending is not self._last or not self.runtime.is_steady or set(map(len, token_ids)) != {1}:
            return
        with self.runtime.clock.accept:
            outcomes = self.runtime.accept(batch, token_ids)
            self._outcomes = dict.fromkeys(pending.request_ids, True)
            for request_id, outcome in zip(pending.request_ids, outcomes, strict=True):
                if outcome is not CONTINUE:
                    self._outcomes[request_id] = outcome.action != "fail"
                    if outcome.action == "finish":
                        self.finished[request_id] = None

    def take_back(self) -> None:
        """Undo what `accept_step` accepted for requests whose tokens vLLM dropped."""
        for request_id, accepted in self._outcomes.items():
            state = self._states.get(request_id)
            if accepted and state is not None and state.slot is not None:
                self.finished.pop(request_id, None)
                journal = self.runtime.journal(state.slot)
                journal.rewind(len(journal.token_ids) - 1)
                self.runtime.rebuild(state.slot)
        self._outcomes.clear()

    def accept(self, request_id: str, token_ids: Sequence[int]) -> bool:
        """Accept the final tokens of a request. Returns False if it must end with an error."""
        if (accepted := self._outcomes.pop(request_id, None)) is not None:
            return accepted
        state = self._states.get(request_id)
        if state is None:
            return False
        if state.slot is None and state.fault is None:
            # it was preempted and gave its slot up while one of its steps was running
            state.fault = Fault("host.vllm", "accept", "tokens came for a sequence that had given its slot up")
        if state.slot is None or state.fault is not None or state.refusal is not None:
            return False
        row, output = self._outputs.get(request_id, (0, None))
        outcome = self.runtime.accept_one(state.slot, row, list(token_ids), output)
        if (found := self._records.get(request_id)) is not None:
            records, first = found
            self.recorded[request_id] = Records.join([(records, first, first + len(token_ids))]).to_lists()
        if outcome.action == "finish":
            self.finished[request_id] = None
        return outcome.action != "fail"

    def validate(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Return how many of these drafts all modifiers of a request would accept."""
        state = self._states.get(request_id)
        if state is None or state.slot is None or state.sits_out:
            return 0
        return self.runtime.validate(state.slot, token_ids)

    def look_ahead(self, limits: Mapping[str, int]) -> None:
        """Announce the requests that go on with the next step, each with the number of forced tokens that it may
        have."""
        slots = self._slots_of(limits)
        self.runtime.look_ahead({slot: limits[request_id] for request_id, slot in slots.items()})

    def forced(self, limits: Mapping[str, int]) -> dict[str, Sequence[int]]:
        """Return at most ``limits[request_id]`` tokens of each request that are probably forced next."""
        slots = self._slots_of(limits)
        found = self.runtime.forced({slot: limits[request_id] for request_id, slot in slots.items()})
        return {request_id: found[slot] for request_id, slot in slots.items()}

    def _slots_of(self, request_ids: Iterable[str]) -> dict[str, int]:
        """Return by request the slots of those that are healthy and take part in the next step."""
        states = ((request_id, self._states.get(request_id)) for request_id in request_ids)
        return {
            request_id: state.slot
            for request_id, state in states
            if state is not None and state.slot is not None and not state.sits_out and self._fault(state) is None
        }

    def fail(self, request_id: str, fault: Fault) -> None:
        """Set the fault of a request, for a cause outside guideway's plugins."""
        if (state := self._states.get(request_id)) is not None:
            self._last = Pending()
            state.fault = state.fault or fault

    # Parts

    def _admit(self, request: Any, params: Any, may_reason: Callable[[], bool], ready: Future[RequestState]) -> None:
        """Admit a request, unless it was released."""
        request_id = request.request_id
        if self._entering.get(request_id) is not ready:
            return
        try:
            verdict = self._verdict(params.structured_outputs._backend)
            prompt = request.prompt_token_ids or (0,)
            reasons = not carries_only(params) and may_reason()
            if reasons and self._unmarked:
                raise UnsupportedCapability(self._unmarked, field="structured_outputs")
            ours = request_of(request_id, prompt, params, samples=self._shapes, may_reason=reasons)
            bans = None if carries_only(params) else bans_of(params)
            short = short_budget_of(params)
            admission = self.runtime.admit(ours, bans, verdict=verdict, short_budget=short)
        except BaseException as error:  # vLLM must get every error, and expects an Exception
            self._refuse(request_id, ready, error if isinstance(error, Exception) else GuidewayError(text_of(error)))
            contain(error)  # in the thread that runs the steps it may be a Ctrl-C
            return
        state, compilation = RequestState(admission), admission.compilation
        with self._lock:
            if wanted := self._entering.get(request_id) is ready:
                del self._entering[request_id]
                self._states[request_id] = state
                if admission.request.params.stop:
                    self.may_end_unseen.add(request_id)
        if not wanted:
            self.runtime.abandon(admission)
        elif compilation is None:
            ready.set_result(state)
        else:
            compilation.add_done_callback(lambda done: _settle(done, ready, state, request_id))

    def _too_late(self, request_id: str, ready: Future[RequestState], admitted: Future[None]) -> None:
        """Refuse a request whose admission missed its deadline."""
        with self._lock:
            wanted = self._entering.get(request_id) is ready
        if wanted and (error := admitted.exception()) is not None:
            self._refuse(request_id, ready, error if isinstance(error, Exception) else GuidewayError(text_of(error)))

    def _refuse(self, request_id: str, ready: Future[RequestState], error: Exception) -> None:
        log.warning("guideway: request %s is refused: %s", passable(request_id), passable(str(error)))
        with self._lock:
            if self._entering.get(request_id) is ready:
                del self._entering[request_id]
                self._refused[request_id] = _message(error)
        with suppress(InvalidStateError):  # it was already refused for missing its deadline
            ready.set_exception(error)

    def _verdict(self, mark: Any) -> str | None:
        """Return the verdict of a front end that has admitted the request, which follows its mark; None without one. No
        client can write a mark, and a front end overwrites those that it receives. Raises `PluginError` for a front end
        with other plugins."""
        if not isinstance(mark, str) or not mark.startswith(PREFIX):
            return None
        whose, _, verdict = mark.partition(" ")
        if not whose.endswith(f".{self.plan.fingerprint}"):
            raise PluginError(
                "front end and engine core do not run the same plugins: their files, versions or options differ; "
                "install the same packages everywhere and start the server anew",
                plugin="host.vllm",
            )
        return verdict

    def _slot(self, request_id: str) -> int:
        slot = self._states[request_id].slot
        assert slot is not None
        return slot

    def _begin(self, state: RequestState, scheduled: list[str]) -> None:
        """Start a request that is scheduled and has no slot."""
        slot = self._free.pop() if self._free else self._preempted_slot(scheduled)
        if slot is None:
            state.fault = Fault("host.vllm", "start", "every slot is held by a sequence whose step is under way")
            return
        try:
            self.runtime.start(state.admission, slot, journal=state.journal)
        except GuidewayError as error:
            self._free.append(slot)
            # a plugin's error already names the plugin; only its cause is missing
            plugin, cause = (error.plugin, error.__cause__) if isinstance(error, PluginError) else ("host.vllm", None)
            state.fault = Fault.of(plugin, "start", cause or error)
            return
        state.slot, state.journal = slot, None
        acting = self.runtime.acting(slot)
        records = state.admission.request.params.records
        state.shaped = bool(acting) or records
        state.draws = not self._late.isdisjoint(acting) or records

    def _preempted_slot(self, scheduled: list[str]) -> int | None:
        """Free and return the slot of a sequence that is not running, if there is one."""
        stays = set(scheduled).union(*(pending.request_ids for pending in self._running))
        idle = ((r, s) for r, s in list(self._states.items()) if s.slot is not None and r not in stays)
        # prefer others to one whose masks are being filled, which would be lost
        request_id, state = min(idle, key=lambda pair: pair[1].sits_out, default=(None, None))
        if request_id is None or state is None:
            return None
        slot = self._slot(request_id)
        state.fault = state.fault or self.runtime.fault(slot)
        state.journal, state.slot = self.runtime.journal(slot), None
        self.runtime.release(slot, ended=False)
        return slot

    def _is_late(self, state: RequestState) -> bool:
        return state.slot is not None and self.runtime.is_late(state.slot) and self._fault(state) is None

    def _fault(self, state: RequestState) -> Fault | None:
        return state.fault if state.slot is None else self.runtime.fault(state.slot) or state.fault

    def _closing_mask(self, state: RequestState) -> NDArray[np.int32]:
        vocabulary = self.runtime.context.vocabulary
        stops = vocabulary.stop_token_ids | frozenset(state.admission.request.params.stop_token_ids)
        if stops not in self._closed:
            self._closed[stops] = np.zeros((1, self._words), dtype=np.int32)
            allow_only(self._closed[stops], 0, stops)
        return self._closed[stops]


def _real(drafts: Sequence[int]) -> list[int]:
    """Return drafts as token ids; the worker drops those after a placeholder, which is negative."""
    return [max(0, token_id) for token_id in drafts]


def _message(error: BaseException) -> str:
    """Return the message of an error, with its type unless it is guideway's own."""
    return passable(str(error)) if isinstance(error, GuidewayError) else text_of(error)


def _settle(done: Future[Any], ready: Future[RequestState], state: RequestState, request_id: str) -> None:
    error = GuidewayError("the compilation was cancelled") if done.cancelled() else done.exception()
    if error is None:
        ready.set_result(state)
    else:
        log.warning("guideway: request %s cannot be served: %s", passable(request_id), passable(str(error)))
        state.refusal = _message(error)
        ready.set_exception(error)


def _rows_of(sequences: Sequence[int], starts: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return all rows of some sequences of a step."""
    if len(sequences) == len(starts) - 1:
        return np.arange(int(starts[-1]), dtype=np.int32)
    parts = [np.arange(starts[i], starts[i + 1], dtype=np.int32) for i in sequences]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def _replace_masks(
    rows: NDArray[np.int32], bitmask: NDArray[np.int32], own: NDArray[np.int32], mask: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the masks with `mask` in all rows of `own`."""
    kept = ~np.isin(rows, own)
    closed = np.broadcast_to(mask, (len(own), bitmask.shape[1]))
    return np.concatenate([rows[kept], own]), np.concatenate([bitmask[kept], closed])


def _outside(
    rows: NDArray[np.int32], bitmask: NDArray[np.int32], parts: Sequence[Part]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return the masks of the rows in no part."""
    kept = ~np.isin(rows, np.concatenate([part.rows for part in parts]))
    return rows[kept], bitmask[kept]
