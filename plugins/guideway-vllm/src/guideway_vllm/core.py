"""The engine core: the runtime beside vLLM's scheduler, from admission to release.

vLLM's scheduler keeps the queues; the runtime keeps what guideway knows of each sequence. A sequence takes a slot when
it is first sampled. Where more sequences have begun than may run, because some were preempted, one that does not run
gives its slot up and keeps its journal, from which it goes on later.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from threading import Lock, get_ident
from typing import Any, cast

import numpy as np
from guideway.api import Fault, GuidewayError, PluginError, Stage, StepBatch, UnsupportedCapability
from guideway.api.bitmask import allow_only, num_words
from guideway.errors import contain, passable, text_of
from guideway.plugins import Plugins
from guideway.runtime import Admission, Journal, Runtime
from numpy.typing import NDArray

from guideway_vllm.bans import bans_of, without_bans
from guideway_vllm.config import GuestConfig
from guideway_vllm.parts import build_runtime, markers_for
from guideway_vllm.requests import PREFIX, carries_only, request_of
from guideway_vllm.steps import GuestOutput, GuestStep, Part, select

__all__ = ["Core", "Pending", "RequestState"]

log = logging.getLogger("vllm.guideway")


@dataclass(slots=True)
class RequestState:
    """The state of one of vLLM's requests for the guest, each of which is one sequence."""

    admission: Admission
    slot: int | None = None
    journal: Journal | None = None
    """The journal of a request that has begun and has no slot."""
    fault: Fault | None = None
    """Why it must end, where the runtime does not know it."""
    refusal: str | None = None
    """Why it is not served, where vLLM ends it by itself."""
    draws: bool = False
    """True if guideway draws its tokens."""
    shaped: bool = False
    """True if modifiers act on it."""
    in_flight: int = 0
    """The number of its steps that are computed and whose output has not come yet."""
    sits_out: bool = False
    """True if it takes part in no step, because its masks were late."""


@dataclass(slots=True)
class Pending:
    """A step whose tokens are still to come."""

    request_ids: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    """First row of each, in the whole step."""
    parts: list[tuple[Part, list[int]]] = field(default_factory=list)
    """Each with the places of its sequences in `request_ids`."""
    late: list[str] = field(default_factory=list)
    """The requests whose masks were not ready, and that did not sit out already: nothing drawn for them is final."""


class Core:
    """The guest of one engine core.

    `admit` may be called from another thread than the rest, and waits for no plugin there: requests are admitted in
    threads of the guest's own, so that one over which a plugin thinks long holds up neither the thread in which vLLM
    reads requests nor a step. vLLM keeps their order of arrival.
    """

    def __init__(self, config: GuestConfig, vllm_config: Any, reasoning_parser: type[Any] | None) -> None:
        plugins = Plugins(settings=config.plugins)
        self.plan = config.plan(plugins)
        reasoning, self._unmarked = markers_for(reasoning_parser, vllm_config)
        self.runtime: Runtime = build_runtime(config, plugins, vllm_config, front_end=False, reasoning=reasoning)
        self._entering: dict[str, Future[RequestState]] = {}
        """The values that `admit` has returned, of requests whose admission has not ended and that were not released.
        """
        self._lock = Lock()
        """Held while a request leaves `_entering`."""
        self._stepping = get_ident()
        """The thread that takes the steps."""
        self._states: dict[str, RequestState] = {}
        self._free = list(range(self.runtime.context.max_num_sequences))[::-1]
        self._late = {
            cls.name for cls, _ in self.runtime.modifier_classes() if cls.stage in (Stage.POST_WARP, Stage.SAMPLE)
        }
        self._shapes = bool(config.modifiers)
        """True if modifiers, which may read how tokens are drawn, can act."""
        vocabulary = self.runtime.context.vocabulary
        self._words = num_words(vocabulary.logits_width)
        self._stop_token_id = min(vocabulary.stop_token_ids)
        self._closed: dict[frozenset[int], NDArray[np.int32]] = {}
        self._refused: dict[str, str] = {}
        """Why requests that were not admitted were refused."""
        self._outputs: dict[str, tuple[int, Any]] = {}
        """By request: its first row in a part of the step just taken, and that part's output."""
        self.sitting_out: set[str] = set()
        """The requests that do; each keeps its place among those that run."""
        self.finished: dict[str, None] = {}
        """Requests a modifier finished, and vLLM does not know yet."""

    # Requests

    def admit(self, request: Any, may_reason: Callable[[], bool]) -> Future[RequestState]:
        """Begin with one of vLLM's requests: what its grammar is to be, or the error that ends it. What a constrained
        one bans is guideway's from then on. `may_reason` says whether its prompt leaves room for reasoning."""
        params, ready = request.sampling_params, Future[RequestState]()
        if not carries_only(params):
            request.sampling_params = without_bans(params)
        self._entering[request.request_id] = ready
        if get_ident() == self._stepping:
            # all of vLLM is one process, as for batches that are the same each time: no step waits, and to hand it to
            # another thread and wait takes a twentieth of the time of short outputs. The front end there does the same
            self._admit(request, params, may_reason, ready)
            return ready
        try:
            admitted = self.runtime.admission_threads.submit(partial(self._admit, request, params, may_reason, ready))
        except GuidewayError as error:  # closed, or the system has no thread for it
            self._refuse(request.request_id, ready, error)
            return ready
        admitted.add_done_callback(partial(self._too_late, request.request_id, ready))
        return ready

    def release(self, request_id: str, *, orderly: bool) -> dict[str, Any] | None:
        """The request has ended; `orderly`: it neither failed nor was given up. Its `report`, with what modifiers say
        of it."""
        reports = self._reports(request_id) if orderly else {}
        report = self.report(request_id)
        if reports:
            report = {**(report or {}), "reports": dict(reports)}
        self._outputs.pop(request_id, None)
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
        """By what strategy a request is served, what of it is not enforced, and what failed; None if that is
        nothing."""
        state = self._states.get(request_id)
        if state is None:
            return {"error": self._refused[request_id]} if request_id in self._refused else None
        report: dict[str, Any] = {} if state.refusal is None else {"error": state.refusal}
        if state.slot is not None:
            if strategy := self.runtime.strategy(state.slot):
                report["strategy"] = strategy
            if unenforced := self.runtime.unenforced(state.slot):
                report["unenforced"] = [passable(str(name)) for name in unenforced]
            if self.runtime.closed_early(state.slot):
                report["closed_early"] = True
        if (fault := self._fault(state)) is not None:
            report["error"] = passable(str(fault))
        return report or None

    def report_so_far(self, request_id: str) -> dict[str, Any] | None:
        """`report` of a request that may end without the core: its front end looks for its stop strings."""
        state = self._states.get(request_id)
        return self.report(request_id) if state is not None and state.admission.request.params.stop else None

    def _reports(self, request_id: str) -> Mapping[str, Any]:
        state = self._states.get(request_id)
        if state is None or state.slot is None or state.refusal is not None or self._fault(state) is not None:
            return {}
        return self.runtime.reports(state.slot)

    def close(self) -> None:
        """Stop admitting and compiling, and close strategies and modifiers. Closing twice is fine."""
        self.runtime.close()

    # Steps

    def foresee(self, request_ids: Iterable[str], drafts: Mapping[str, list[int]]) -> None:
        """The step that `prepare` is asked for next is of these requests, and perhaps of others: their masks begin."""
        states = ((request_id, self._states.get(request_id)) for request_id in request_ids)
        self.runtime.foresee(
            {
                state.slot: _real(drafts.get(request_id, ()))
                for request_id, state in states
                if state is not None and state.slot is not None and not state.sits_out
            }
        )

    def prepare(
        self, requests: Mapping[str, Any], request_ids: list[str], drafts: Mapping[str, list[int]]
    ) -> tuple[GuestStep, Pending]:
        """Prepare what the workers need for a step."""
        states = [self._states[request_id] for request_id in request_ids]
        for state in states:
            state.in_flight += 1
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
        step = self.runtime.prepare(batch)
        late = [i for i in running if self._is_late(states[i])]
        void = [*late, *(i for i, state in enumerate(states) if state.sits_out)]
        place = _rows_of(running, starts)
        rows, bitmask = np.empty(0, dtype=np.int32), np.empty((0, self._words), dtype=np.int32)
        if (payload := self.runtime.bitmask(step)) is not None:
            rows, bitmask = place[payload.rows], payload.arrays["bitmask"]
        faulty = {i for i, state in enumerate(states) if self._fault(state) is not None}
        faulty.update(void)
        for i in faulty:  # tokens of this step are not final: nothing but an end
            rows, bitmask = _replaced(rows, bitmask, _rows_of([i], starts), self._closing_mask(states[i]))
        pending = Pending(request_ids, starts[:-1].tolist(), late=[request_ids[i] for i in late])
        healthy = [(j, i) for j, i in enumerate(running) if states[i].shaped and i not in faulty]
        for draws in (False, True):
            if chosen := [(j, i) for j, i in healthy if states[i].draws is draws]:
                some, its_rows = select(step, [j for j, _ in chosen])
                pending.parts.append((Part(some, place[its_rows], draws), [i for _, i in chosen]))
        parts = tuple(part for part, _ in pending.parts)
        masked, masks = _outside(rows, bitmask, parts) if parts else (rows, bitmask)
        guest = GuestStep(
            self.plan.fingerprint,
            self._stop_token_id,
            request_ids,
            num_rows,
            masked,
            masks,
            parts,
            [request_ids[i] for i in void],
        )
        return guest, pending

    def take_output(self, pending: Pending, output: GuestOutput | None) -> None:
        """Take what the workers made of a step, before its tokens are accepted."""
        self._outputs = {}
        for request_id in pending.request_ids:
            if (state := self._states.get(request_id)) is not None:
                state.in_flight -= 1
        if output is None:
            return
        if output.failure is not None:
            for request_id in pending.request_ids:
                if (state := self._states.get(request_id)) is not None:
                    state.refusal = output.failure
            return
        for (part, places), result in zip(pending.parts, output.parts, strict=True):
            for place, row in zip(places, part.step.batch.row_start.tolist(), strict=False):
                self._outputs[pending.request_ids[place]] = (row, result)
        for row, fault in output.faults.items():
            request_id = pending.request_ids[bisect_right(pending.starts, row) - 1]
            if (state := self._states.get(request_id)) is not None:
                state.fault = state.fault or fault

    def sit_out(self, request_id: str) -> None:
        """The request was taken out of vLLM's batch, because its masks were late."""
        if (state := self._states.get(request_id)) is not None:
            state.sits_out = True
            self.sitting_out.add(request_id)

    def may_run(self, request_id: str) -> bool | None:
        """Return whether a request that sits out may be scheduled again: its masks may be ready, and no step is under
        way that it was in. None: it does not sit out."""
        state = self._states.get(request_id)
        if state is None or not state.sits_out:
            return None
        waits = state.slot is not None and state.fault is None and not self.runtime.is_ready(state.slot)
        state.sits_out = state.in_flight > 0 or waits
        if not state.sits_out:
            self.sitting_out.discard(request_id)
        return not state.sits_out

    def only_waits(self) -> bool:
        """Return whether there are requests that sit out, and no step with one of them is under way."""
        states = [self._states.get(request_id) for request_id in self.sitting_out]
        return bool(states) and not any(state is not None and state.in_flight for state in states)

    def announce(self, token_ids: Mapping[str, Sequence[int]]) -> None:
        """Announce what `accept` is about to be called with, as far as vLLM does not cut it: modifiers in hosts take it
        in one command for all requests."""
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

    def accept(self, request_id: str, token_ids: Sequence[int]) -> bool:
        """Take the final tokens of a request. False: it has to end with an error."""
        state = self._states.get(request_id)
        if state is None:
            return False
        if state.slot is None and state.fault is None:
            # it was preempted and gave its slot up while a step of its own was under way
            state.fault = Fault("host.vllm", "accept", "tokens came for a sequence that had given its slot up")
        if state.slot is None or state.fault is not None or state.refusal is not None:
            return False
        row, output = self._outputs.get(request_id, (0, None))
        outcome = self.runtime.accept_one(state.slot, row, list(token_ids), output)
        if outcome.action == "finish":
            self.finished[request_id] = None
        return outcome.action != "fail"

    def validate(self, request_id: str, token_ids: Sequence[int]) -> int:
        """Return how many of these drafts every modifier of a request would let pass."""
        state = self._states.get(request_id)
        if state is None or state.slot is None or state.sits_out:
            return 0
        return self.runtime.validate(state.slot, token_ids)

    def forced(self, request_ids: Sequence[str], limit: int) -> dict[str, Sequence[int]]:
        """At most `limit` tokens of each request that its constraint leaves no choice about."""
        states = {request_id: self._states.get(request_id) for request_id in request_ids}
        slots = {
            state.slot: request_id
            for request_id, state in states.items()
            if state is not None and state.slot is not None and not state.sits_out and self._fault(state) is None
        }
        return {slots[slot]: run for slot, run in self.runtime.forced(dict.fromkeys(slots, limit)).items()}

    def fail(self, request_id: str, fault: Fault) -> None:
        """The request has to end, for a reason outside of guideway's plugins."""
        if (state := self._states.get(request_id)) is not None:
            state.fault = state.fault or fault

    # Parts

    def _admit(self, request: Any, params: Any, may_reason: Callable[[], bool], ready: Future[RequestState]) -> None:
        """Nothing comes of it once the request is released."""
        request_id = request.request_id
        if self._entering.get(request_id) is not ready:
            return
        try:
            self._check_mark(params.structured_outputs._backend)
            prompt = request.prompt_token_ids or (0,)
            reasons = not carries_only(params) and may_reason()
            if reasons and self._unmarked:
                raise UnsupportedCapability(self._unmarked, field="structured_outputs")
            ours = request_of(request_id, prompt, params, samples=self._shapes, may_reason=reasons)
            admission = self.runtime.admit(ours, None if carries_only(params) else bans_of(params))
        except BaseException as error:  # whatever it is, vLLM must hear of it, and expects no other than an Exception
            self._refuse(request_id, ready, error if isinstance(error, Exception) else GuidewayError(text_of(error)))
            contain(error)  # in the thread that takes the steps it may be a Ctrl-C
            return
        state, compilation = RequestState(admission), admission.compilation
        with self._lock:
            if wanted := self._entering.get(request_id) is ready:
                del self._entering[request_id]
                self._states[request_id] = state
        if not wanted:
            self.runtime.abandon(admission)
        elif compilation is None:
            ready.set_result(state)
        else:
            compilation.add_done_callback(lambda done: _settle(done, ready, state, request_id))

    def _too_late(self, request_id: str, ready: Future[RequestState], admitted: Future[None]) -> None:
        """Refuse a request whose admission did not end."""
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
        with suppress(InvalidStateError):  # it was refused, because its admission took too long
            ready.set_exception(error)

    def _check_mark(self, mark: Any) -> None:
        if isinstance(mark, str) and mark.startswith(PREFIX) and not mark.endswith(f".{self.plan.fingerprint}"):
            raise PluginError(
                "front end and engine core do not run the same plugins: their files, versions or options differ; "
                "install the same packages everywhere and start the server anew",
                plugin="host.vllm",
            )

    def _slot(self, request_id: str) -> int:
        slot = self._states[request_id].slot
        assert slot is not None
        return slot

    def _begin(self, state: RequestState, scheduled: list[str]) -> None:
        """A slot for a request that runs and has none."""
        slot = self._free.pop() if self._free else self._preempted_slot(scheduled)
        if slot is None:
            state.fault = Fault("host.vllm", "start", "every slot is held by a sequence whose step is under way")
            return
        try:
            self.runtime.start(state.admission, slot, journal=state.journal)
        except GuidewayError as error:
            self._free.append(slot)
            # a plugin's error says itself whose it is; its cause is what there is to add
            plugin, cause = (error.plugin, error.__cause__) if isinstance(error, PluginError) else ("host.vllm", None)
            state.fault = Fault.of(plugin, "start", cause or error)
            return
        state.slot, state.journal = slot, None
        acting = self.runtime.acting(slot)
        state.shaped = bool(acting)
        state.draws = not self._late.isdisjoint(acting)

    def _preempted_slot(self, scheduled: list[str]) -> int | None:
        """The slot of a sequence that does not run now, if there is one."""
        stays = set(scheduled)
        idle = (
            (r, s) for r, s in list(self._states.items()) if s.slot is not None and not s.in_flight and r not in stays
        )
        # one that sits out has work under way that would be lost
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
    """A step's drafts as tokens: the worker drops what comes after a placeholder, which is none."""
    return [max(0, token_id) for token_id in drafts]


def _message(error: BaseException) -> str:
    """The message of an error; guideway's own need no type before it."""
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
    """All rows of some of a step's sequences."""
    if len(sequences) == len(starts) - 1:
        return np.arange(int(starts[-1]), dtype=np.int32)
    parts = [np.arange(starts[i], starts[i + 1], dtype=np.int32) for i in sequences]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)


def _replaced(
    rows: NDArray[np.int32], bitmask: NDArray[np.int32], own: NDArray[np.int32], mask: NDArray[np.int32]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The masks, with `mask` in all of the rows `own`."""
    kept = ~np.isin(rows, own)
    closed = np.broadcast_to(mask, (len(own), bitmask.shape[1]))
    return np.concatenate([rows[kept], own]), np.concatenate([bitmask[kept], closed])


def _outside(
    rows: NDArray[np.int32], bitmask: NDArray[np.int32], parts: Sequence[Part]
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The masks of rows no part speaks of."""
    kept = ~np.isin(rows, np.concatenate([part.rows for part in parts]))
    return rows[kept], bitmask[kept]
