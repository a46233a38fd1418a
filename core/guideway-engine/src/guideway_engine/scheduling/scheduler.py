"""Continuous batching: which sequences have a part in each step, and where they live in the KV cache.

A sequence waits, starts (it gets slots, and its modifiers' states begin), is computed chunk by chunk, decodes and ends.
Between start and end it may be preempted: the keys and values of its tokens are dropped and computed again later, while
its slots and states stay. A sequence is never preempted for a lower-ranked one (`SequenceState.rank`: priority, then
arrival), so the highest-ranked sequence always makes progress and the engine cannot livelock.

A step that does not end, because a KeyboardInterrupt came between, has not happened: the next one rewinds what had
moved on and does it again. That draws the same tokens, for random numbers depend on the position alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from operator import attrgetter
from typing import Any

from guideway.api.provisional import Call
from guideway.api.types import FinishReason
from guideway.errors import (
    GuidewayError,
    LimitExceeded,
    PluginError,
    Unhealthy,
    UnsupportedCapability,
    WorkerLost,
    contain,
)
from guideway.runtime.runtime import Runtime

from guideway_engine.scheduling.drafter import PromptLookup
from guideway_engine.scheduling.kv_cache import KVCache, KVCacheFull
from guideway_engine.scheduling.outputs import SequenceOutput
from guideway_engine.scheduling.recovery import Recovery
from guideway_engine.scheduling.sequence import SequenceGroup, SequenceState, reason_of
from guideway_engine.scheduling.stepper import Stepper
from guideway_engine.scheduling.steps import Work
from guideway_engine.scheduling.table import SequenceTable, failure

__all__ = ["Scheduler"]

log = logging.getLogger(__name__)

BY_RANK = attrgetter("rank")

WAIT_SECONDS = 1.0
"""The seconds for which new workers are waited for at a time."""


class Scheduler:
    """Decides, step by step. Driven by one thread.

    `on_finish` is called with every request whose last sequence has ended; `restart` makes lost workers anew, call by
    call.
    """

    def __init__(
        self,
        runtime: Runtime,
        stepper: Stepper,
        cache: KVCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        num_speculative_tokens: int,
        num_forced_tokens: int,
        on_finish: Callable[[SequenceGroup], None],
        restart: Callable[[], Iterator[Call]],
    ) -> None:
        self._runtime = runtime
        self._stepper = stepper
        self._steps = stepper.steps
        self._cache = cache
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._num_speculative_tokens = num_speculative_tokens
        self._num_forced_tokens = num_forced_tokens
        self._table = SequenceTable(runtime, cache, on_finish)
        self._running = self._table.running
        self._recovery = Recovery(restart)

    @property
    def num_waiting(self) -> int:
        """The number of sequences that have not started."""
        return len(self._table.waiting)

    def num_waiting_at(self, priority: int) -> int:
        """Return how many of them have this priority or a higher one."""
        return self._table.waiting.count(priority)

    def check_health(self) -> None:
        """Raise `Unhealthy` if workers are lost and could not be restarted. May be called from any thread."""
        if (failure := self._recovery.failure) is not None:
            raise Unhealthy(str(failure))

    def add(self, group: SequenceGroup) -> None:
        """Let the sequences of a request start as soon as they are ready and there is room."""
        self._table.add(group)

    def has_work(self) -> bool:
        """Return whether any request has not ended."""
        return bool(self._table.waiting or self._running or self._table.is_judging)

    def fork(self, sequence: SequenceState) -> SequenceState:
        """A further sequence of the same request, with the same past. Raises `UnsupportedCapability` if `sequence` does
        not run or a modifier cannot fork, and `LimitExceeded` if there is no slot for it."""
        if sequence.request.params.best_of is not None:
            raise UnsupportedCapability("with best_of the number of outputs is settled", field="fork")
        if not sequence.slots:
            what = "has not started" if sequence.completion is None else "has ended"
            raise UnsupportedCapability(f"a sequence that {what} cannot be forked", field="fork")
        if sequence.in_step:
            self._rewind(sequence)
        if self._cache.capacity() < len(sequence.slots):
            raise LimitExceeded(
                f"all {self._cache.num_slots} slots are in use; let a sequence end first, or set a larger max_num_seqs",
                field="fork",
            )
        child = self._table.fork(sequence)
        self._activate(child)
        return child

    def end_group(self, group: SequenceGroup, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End every sequence of a request now, with what it has. Without effect on those that have ended."""
        self._table.end_group(group, reason, error)

    def end_all(self, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End every sequence."""
        self._table.end_all(reason, error)

    # A step

    def step(self) -> None:
        """Let waiting sequences join, and bring running ones forward. Waits for nothing: see `awaited`."""
        self._table.repair()
        try:
            if not self._advance_workers(0.0):
                return
        except WorkerLost:  # every request has ended with it
            return
        for sequence in list(self._running):
            self._rewind(sequence)
        while (candidate := self._candidate()) is not None and self._activate(candidate):
            pass
        works = self._plan()
        if works:
            self._run(works)

    def record_worker_loss(self, error: WorkerLost) -> None:
        """The workers were lost beside a step, which no sequence has caused."""
        self._recovery.record_loss(error, [])

    def await_workers(self) -> None:
        """Wait for new workers in place of lost ones. Raises `WorkerLost` if there can be none; every request has ended
        then."""
        while not self._advance_workers(WAIT_SECONDS):
            pass

    def awaited(self) -> list[Future[Any]]:
        """Return what has to be waited for before a step can bring anything: new workers, or compilations and
        verdicts; empty if nothing has."""
        if self._recovery.workers_lost:
            return [self._recovery.workers]
        if self._running:
            return []
        compilations = [s.group.admission.compilation for s in self._table.waiting]
        pending = [c for c in compilations if c is not None and not c.done()]
        return [*pending, *self._table.verdicts()] if len(pending) == len(compilations) else []

    # Which sequences run

    def _candidate(self) -> SequenceState | None:
        """Choose which sequence joins next: by priority; of equals those that were preempted first. One that waits for
        slots gives way to those that were preempted, for it is their end that frees slots."""
        preempted = min((s for s in self._running if not s.active), key=BY_RANK, default=None)
        waiting = self._table.next_waiting()
        if waiting is not None and self._cache.capacity() < len(waiting.group.prompts):
            waiting = None
        if preempted is None or waiting is None:
            return preempted or waiting
        return preempted if preempted.priority <= waiting.priority else waiting

    def _activate(self, candidate: SequenceState) -> bool:
        """Make `candidate` active, or end it if it cannot start. False if there is no room for it now."""
        num_slots = len(candidate.group.prompts)
        while sum(len(s.slots) for s in self._running if s.active) + num_slots > self._max_num_seqs:
            if not self._preempt_below(candidate.priority):
                return False
        if not candidate.slots:
            self._table.start(candidate)
            if candidate.completion is not None:
                return True
        for which, slot in enumerate(candidate.slots):
            while True:
                try:
                    self._cache.reserve(slot, candidate.length(which) - self._cache.length(slot))
                    break
                except KVCacheFull:
                    if self._preempt_below(candidate.priority):
                        continue
                    self._preempt(candidate)
                    if any(sequence.active for sequence in self._running):
                        return False
                    self._end_too_large(candidate)
                    return True
        candidate.active = True  # last, for an active sequence has room
        return True

    def _end_too_large(self, sequence: SequenceState) -> None:
        """It has the whole cache and does not fit: one sequence always would, but companions need room too."""
        num_tokens = sum(sequence.length(which) for which in range(len(sequence.slots)))
        error = LimitExceeded(
            f"the {num_tokens} tokens of this request and its companions do not fit into the KV cache of "
            f"{self._cache.num_cells} tokens; set a larger kv_cache_tokens",
            field="kv_cache_tokens",
        )
        self._table.end(sequence, FinishReason.INTERNAL_ERROR if sequence.output else FinishReason.REFUSED, error)

    # Preemption

    def _preempt(self, sequence: SequenceState) -> None:
        """Take back the room of `sequence`; it keeps slots and states, and joins again when there is room."""
        sequence.active = False
        for slot in sequence.slots:
            self._cache.truncate(slot, 0)

    def _preempt_below(self, priority: int) -> bool:
        """Preempt the least important active sequence if its priority is worse."""
        victim = max((s for s in self._running if s.active), key=BY_RANK, default=None)
        if victim is None or victim.priority <= priority:
            return False
        self._preempt(victim)
        return True

    def _make_room(self, sequence: SequenceState, num_tokens: int) -> bool:
        """Room for `num_tokens` more in each of its slots, taken from the least important; False if that is
        `sequence` itself, which then is preempted."""
        for slot in sequence.slots:
            while True:
                try:
                    self._cache.reserve(slot, num_tokens)
                    break
                except KVCacheFull:
                    victim = max((s for s in self._running if s.active), key=BY_RANK)
                    self._preempt(victim)
                    if victim is sequence:
                        return False
        return True

    # What a step does

    def _rewind(self, sequence: SequenceState) -> None:
        """Undo for `sequence` what an interrupted step has done, and forget refused drafts."""
        if sequence.completion is not None:  # by an observer of another one's end
            return
        if sequence.ending is not None:  # interrupted just before it ended
            self._table.end(sequence, sequence.ending)
            return
        if sequence.in_step:
            # a matcher may have been left anywhere: make the states anew as they were when `output` ended
            self._runtime.journal(sequence.slots[0]).rewind(len(sequence.output))
            self._runtime.rebuild(sequence.slots[0])
            sequence.in_step = False
        for which, slot in enumerate(sequence.slots):
            length = self._cache.length(slot)
            if not sequence.active:  # preempting it, or its joining, was interrupted
                self._cache.truncate(slot, 0)
            elif length >= sequence.length(which):
                self._cache.truncate(slot, sequence.length(which) - 1)

    def _plan(self) -> list[Work]:
        """Plan what each active sequence computes: those that decode first, then as much of prompts as fits."""
        decoding: list[SequenceState] = []
        computing: list[SequenceState] = []
        suspect = self._recovery.next_suspect()
        for sequence in sorted((s for s in self._running if s.active), key=BY_RANK):
            # one of a better rank may have preempted it meanwhile
            if not sequence.active or (suspect is not None and sequence is not suspect):
                continue
            if self._steps.pending(sequence):
                computing.append(sequence)
            elif self._make_room(sequence, 1):
                decoding.append(sequence)
        forced = self._forced([s for s in (*decoding, *computing) if s.active])
        for sequence, token_ids in forced.items():
            if self._ends_unseen(sequence, token_ids):
                self._end_unseen(sequence, token_ids)
        # a request that ended may have ended others, by an observer
        decoding = [s for s in decoding if s.completion is None]
        budget = self._max_num_batched_tokens - sum(len(sequence.slots) for sequence in decoding)
        computing = [s for s in computing if s.active and s.completion is None]
        computing.sort(key=lambda s: (s.priority, self._table.served(s.tenant), s.rank))
        # drafts are guesses: where there are prompts to compute, these come first
        works = []
        for sequence in decoding:
            drafts = self._draft(sequence, forced.get(sequence, ()), budget, guess=not computing)
            budget -= len(drafts) * len(sequence.slots)
            works.append(self._steps.decode(sequence, drafts))
        for sequence in computing:
            if budget <= 0:
                break
            work = self._steps.prefill(sequence, budget, self._reserved(sequence, list(forced.get(sequence, ()))))
            budget -= work.num_tokens
            works.append(work)
        return works

    def _forced(self, sequences: list[SequenceState]) -> dict[SequenceState, Sequence[int]]:
        """Return what must come next, of those that draw in this step."""
        if not self._num_forced_tokens:
            return {}
        limits = {}
        for sequence in sequences:
            room = min(self._num_forced_tokens, sequence.group.max_tokens - len(sequence.output) - 1)
            late = self._runtime.is_late(sequence.slots[0])
            if room > 0 and not late and self._steps.pending(sequence) < self._max_num_batched_tokens:
                limits[sequence] = room
        found = self._runtime.forced({sequence.slots[0]: limit for sequence, limit in limits.items()})
        return {sequence: found[sequence.slots[0]] for sequence in limits}

    def _ends_unseen(self, sequence: SequenceState, forced: Sequence[int]) -> bool:
        """Return whether nothing but the end can come, and nobody asks what the model says to that."""
        at_end = len(forced) == 1 and forced[0] in sequence.group.stop_token_ids
        return at_end and sequence.logprobs is None and self._runtime.may_end_unseen(sequence.slots[0])

    def _end_unseen(self, sequence: SequenceState, token_ids: Sequence[int]) -> None:
        """Its last token, without a forward pass."""
        sequence.in_step = True
        outcome = self._runtime.accept_one(sequence.slots[0], 0, token_ids)
        self._apply(SequenceOutput(sequence, tuple(token_ids), [], outcome))

    def _draft(self, sequence: SequenceState, forced: Sequence[int], budget: int, *, guess: bool) -> list[int]:
        """Return what is forced; where it may `guess`, what is looked up, if that is not cut shorter."""
        drafts = list(forced[: max(0, budget // len(sequence.slots))])
        room = min(self._num_speculative_tokens, sequence.group.max_tokens - len(sequence.output) - 1)
        room = min(room, budget // len(sequence.slots))
        if guess and room > len(drafts) and sequence.output and not self._runtime.is_late(sequence.slots[0]):
            if sequence.lookup is None:
                sequence.lookup = PromptLookup(sequence.request.prompt_token_ids)
            guesses = sequence.lookup.draft(sequence.output, room)
            if len(guesses) > len(drafts) and guesses[: len(drafts)] == drafts:
                drafts = guesses[: max(len(drafts), self._runtime.validate(sequence.slots[0], guesses))]
        return self._reserved(sequence, drafts)

    def _reserved(self, sequence: SequenceState, drafts: list[int]) -> list[int]:
        """`drafts`, if there is room for them; none is preempted for that."""
        if not drafts:
            return drafts
        try:
            for which, slot in enumerate(sequence.slots):
                self._cache.reserve(slot, sequence.length(which) - self._cache.length(slot) + len(drafts))
        except KVCacheFull:
            return []
        return drafts

    def _run(self, works: list[Work]) -> None:
        try:
            outputs = self._stepper.run(works)
        except WorkerLost as error:
            self._recover(works, error)
            return
        except BaseException as error:  # not one request's doing: all of this step's requests end, the engine goes on
            contain(error)
            log.exception("a step failed; its %d sequences end", len(works))
            reason = failure("the engine's step failed", error)
            for work in works:
                self._table.end(work.sequence, FinishReason.INTERNAL_ERROR, reason)
            return
        self._recovery.clear(work.sequence for work in works if work.samples)
        for work in works:
            self._table.served.charge(work.sequence.tenant, work.num_tokens)
        for output in outputs:
            if output.sequence.completion is None:  # an observer of one that ended just now may have ended it
                self._apply(output)

    def _recover(self, works: list[Work], error: WorkerLost) -> None:
        """The workers are lost: everything is computed again by new ones. A sequence that they are lost with in its
        steps alone ends."""
        culprit = self._recovery.record_loss(error, [work.sequence for work in works])
        if culprit is not None:
            reason = f"{error}; it is the third such loss in a step of this request, and the second while it ran alone"
            self._table.end(culprit, FinishReason.INTERNAL_ERROR, WorkerLost(reason))

    def _advance_workers(self, seconds: float) -> bool:
        """Bring lost workers back, which hold nothing, waiting at most so long. Returns whether they are there. If no
        attempt succeeds, every request ends, that is logged, and `WorkerLost` is raised."""
        if not self._recovery.workers_lost:
            return True
        for sequence in self._running:
            sequence.active = False
        self._cache.forget()
        try:
            return self._recovery.advance(seconds)
        except WorkerLost as error:
            log.exception("every request ends, for there are no workers")
            self.end_all(FinishReason.INTERNAL_ERROR, error)
            raise

    def _apply(self, output: SequenceOutput) -> None:
        sequence, outcome = output.sequence, output.outcome
        if outcome.action == "fail":
            fault = self._runtime.fault(sequence.slots[0])
            error = fault.error() if fault else PluginError(outcome.message, plugin="")
            self._table.end(sequence, reason_of(error), error)
            return
        finished = outcome.action == "finish"
        sequence.append(output.token_ids, self._runtime.context.vocabulary, finished=finished, logprobs=output.logprobs)
        if sequence.ending is not None:
            self._table.end(sequence, sequence.ending)
