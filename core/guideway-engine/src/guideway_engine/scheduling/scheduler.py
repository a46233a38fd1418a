"""Continuous batching: which sequences take part in each step, and when they have room in the KV cache.

A sequence waits, starts (it gets slots, and its modifiers' states begin), is computed chunk by chunk, decodes and ends.
Between start and end it may be preempted: the keys and values of its tokens are dropped and computed again later, while
its slots and states stay. A sequence is never preempted for a lower-ranked one (`SequenceState.rank`: priority, then
arrival), so the highest-ranked sequence always makes progress and the engine cannot livelock.

If a KeyboardInterrupt interrupts a step, the next step first undoes its changes, then repeats it. It draws the same
tokens, because random numbers depend on the position alone.
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
"""Seconds to wait for new workers before checking again."""


class Scheduler:
    """Plans and runs one step after another. Used by one thread.

    `on_finish` is called with each request once its last sequence has ended. `restart` starts new workers, one call at
    a time.
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
        """Number of sequences that have not started."""
        return len(self._table.waiting)

    def num_waiting_at(self, priority: int) -> int:
        """Return the number of waiting sequences with this priority or a higher one."""
        return self._table.waiting.count(priority)

    def check_health(self) -> None:
        """Raise `Unhealthy` if workers are lost and could not be restarted. May be called from any thread."""
        if (failure := self._recovery.failure) is not None:
            raise Unhealthy(str(failure))

    def add(self, group: SequenceGroup) -> None:
        """Queue the sequences of a request; they start once they are ready and there is room."""
        self._table.add(group)

    def has_work(self) -> bool:
        """Return whether any request has not ended."""
        return bool(self._table.waiting or self._running or self._table.is_judging)

    def fork(self, sequence: SequenceState) -> SequenceState:
        """Return a new running sequence of the same request with the same tokens. Raises `UnsupportedCapability` if
        `sequence` is not running or a modifier cannot fork, and `LimitExceeded` if no slot is free."""
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
        """End every sequence of a request with its present output. Ended sequences stay as they are."""
        self._table.end_group(group, reason, error)

    def end_all(self, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End every sequence."""
        self._table.end_all(reason, error)

    # A step

    def step(self) -> None:
        """Start waiting sequences and run one step. Never blocks: see `awaited`."""
        self._table.repair()
        try:
            if not self._advance_workers(0.0):
                return
        except WorkerLost:  # all requests have ended
            return
        for sequence in list(self._running):
            self._rewind(sequence)
        while (candidate := self._candidate()) is not None and self._activate(candidate):
            pass
        works = self._plan()
        if works:
            self._run(works)

    def record_worker_loss(self, error: WorkerLost) -> None:
        """Record that the workers were lost outside a step, so no sequence is suspect."""
        self._recovery.record_loss(error, [])

    def await_workers(self) -> None:
        """Wait for new workers in place of lost ones. Raises `WorkerLost` if none can be started; every request has
        ended then."""
        while not self._advance_workers(WAIT_SECONDS):
            pass

    def awaited(self) -> list[Future[Any]]:
        """Return the futures to wait for before a step can make progress: new workers, or compilations and verdicts.
        Empty if a step can run now."""
        if self._recovery.workers_lost:
            return [self._recovery.workers]
        if self._running:
            return []
        compilations = [s.group.admission.compilation for s in self._table.waiting]
        pending = [c for c in compilations if c is not None and not c.done()]
        return [*pending, *self._table.verdicts()] if len(pending) == len(compilations) else []

    # Which sequences run

    def _candidate(self) -> SequenceState | None:
        """Choose the next sequence to activate, by priority; preempted sequences before waiting ones of the same
        priority. While a waiting sequence has no free slots, preempted sequences run first, because their end frees
        slots."""
        preempted = min((s for s in self._running if not s.active), key=BY_RANK, default=None)
        waiting = self._table.next_waiting()
        if waiting is not None and self._cache.capacity() < len(waiting.group.prompts):
            waiting = None
        if preempted is None or waiting is None:
            return preempted or waiting
        return preempted if preempted.priority <= waiting.priority else waiting

    def _activate(self, candidate: SequenceState) -> bool:
        """Make `candidate` active, or end it if it cannot start. Return False if there is no room for it now."""
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
        candidate.active = True  # last, because an active sequence must have room
        return True

    def _end_too_large(self, sequence: SequenceState) -> None:
        """End a sequence that does not fit though it has the whole cache. This happens only with companions, which need
        room too."""
        num_tokens = sum(sequence.length(which) for which in range(len(sequence.slots)))
        error = LimitExceeded(
            f"the {num_tokens} tokens of this request and its companions do not fit into the KV cache of "
            f"{self._cache.num_cells} tokens; set a larger kv_cache_tokens",
            field="kv_cache_tokens",
        )
        self._table.end(sequence, FinishReason.INTERNAL_ERROR if sequence.output else FinishReason.REFUSED, error)

    # Preemption

    def _preempt(self, sequence: SequenceState) -> None:
        """Free the room of `sequence`. It keeps slots and states, and is activated again when there is room."""
        sequence.active = False
        for slot in sequence.slots:
            self._cache.truncate(slot, 0)

    def _preempt_below(self, priority: int) -> bool:
        """Preempt the least important active sequence if its priority is below `priority`. Return whether it was."""
        victim = max((s for s in self._running if s.active), key=BY_RANK, default=None)
        if victim is None or victim.priority <= priority:
            return False
        self._preempt(victim)
        return True

    def _make_room(self, sequence: SequenceState, num_tokens: int) -> bool:
        """Reserve room for `num_tokens` more in each slot of `sequence`, preempting the least important sequences.
        Return False if `sequence` itself had to be preempted."""
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

    # Running a step

    def _rewind(self, sequence: SequenceState) -> None:
        """Undo the changes of an interrupted step to `sequence`, and drop refused drafts."""
        if sequence.completion is not None:  # ended by the observer of another sequence's end
            return
        if sequence.ending is not None:  # interrupted just before it ended
            self._table.end(sequence, sequence.ending)
            return
        if sequence.in_step:
            # a matcher may be anywhere: rebuild the states at the end of `output`
            self._runtime.journal(sequence.slots[0]).rewind(len(sequence.output))
            self._runtime.rebuild(sequence.slots[0])
            sequence.in_step = False
        for which, slot in enumerate(sequence.slots):
            length = self._cache.length(slot)
            if not sequence.active:  # it was interrupted while being preempted or activated
                self._cache.truncate(slot, 0)
            elif length >= sequence.length(which):
                self._cache.truncate(slot, sequence.length(which) - 1)

    def _plan(self) -> list[Work]:
        """Plan the tokens that each active sequence computes: decoding sequences first, then as much of prompts as
        fits."""
        decoding: list[SequenceState] = []
        computing: list[SequenceState] = []
        suspect = self._recovery.next_suspect()
        for sequence in sorted((s for s in self._running if s.active), key=BY_RANK):
            # a sequence of a better rank may have preempted it meanwhile
            if not sequence.active or (suspect is not None and sequence is not suspect):
                continue
            if self._steps.pending(sequence):
                computing.append(sequence)
            elif self._make_room(sequence, 1):
                decoding.append(sequence)
        forced = self._find_forced([s for s in (*decoding, *computing) if s.active])
        for sequence, token_ids in forced.items():
            if self._ends_unseen(sequence, token_ids):
                self._end_unseen(sequence, token_ids)
        # observers of ended requests may have ended others
        decoding = [s for s in decoding if s.completion is None]
        budget = self._max_num_batched_tokens - sum(len(sequence.slots) for sequence in decoding)
        computing = [s for s in computing if s.active and s.completion is None]
        computing.sort(key=lambda s: (s.priority, self._table.served(s.tenant), s.rank))
        # drafts are guesses: prompts that wait to be computed come first
        works = []
        for sequence in decoding:
            drafts = self._draft(sequence, forced.get(sequence, ()), budget, guess=not computing)
            budget -= len(drafts) * len(sequence.slots)
            works.append(self._steps.decode(sequence, drafts))
        for sequence in computing:
            if budget <= 0:
                break
            work = self._steps.prefill(sequence, budget, self._reserve(sequence, list(forced.get(sequence, ()))))
            budget -= work.num_tokens
            works.append(work)
        return works

    def _look_ahead(self, sequences: list[SequenceState]) -> None:
        """Let hosts work for the next step of these sequences from now on."""
        limits = {s.slots[0]: self._room_for_forced(s) for s in sequences if s.completion is None and s.active}
        self._runtime.look_ahead(limits)

    def _room_for_forced(self, sequence: SequenceState) -> int:
        """Return how many forced tokens a step of a sequence may have."""
        return max(0, min(self._num_forced_tokens, sequence.group.max_tokens - len(sequence.output) - 1))

    def _find_forced(self, sequences: list[SequenceState]) -> dict[SequenceState, Sequence[int]]:
        """Return the tokens that are probably forced next for each sequence that draws in this step."""
        if not self._num_forced_tokens:
            return {}
        limits = {}
        for sequence in sequences:
            room = self._room_for_forced(sequence)
            late = self._runtime.is_late(sequence.slots[0])
            if room > 0 and not late and self._steps.pending(sequence) < self._max_num_batched_tokens:
                limits[sequence] = room
        found = self._runtime.forced({sequence.slots[0]: limit for sequence, limit in limits.items()})
        return {sequence: found[sequence.slots[0]] for sequence in limits}

    def _ends_unseen(self, sequence: SequenceState, forced: Sequence[int]) -> bool:
        """Return whether only the stop token is allowed, and no modifier or parameter needs the logits for it."""
        at_end = len(forced) == 1 and forced[0] in sequence.group.stop_token_ids
        unmeasured = sequence.logprobs is None and sequence.records is None
        return at_end and unmeasured and self._runtime.may_end_unseen(sequence.slots[0])

    def _end_unseen(self, sequence: SequenceState, token_ids: Sequence[int]) -> None:
        """Append the forced stop token without a forward pass."""
        sequence.in_step = True
        outcome = self._runtime.accept_one(sequence.slots[0], 0, token_ids)
        self._apply(SequenceOutput(sequence, tuple(token_ids), [], outcome))

    def _draft(self, sequence: SequenceState, forced: Sequence[int], budget: int, *, guess: bool) -> list[int]:
        """Return the forced tokens, or with `guess` the looked-up ones if they extend the forced ones and are valid
        further."""
        drafts = list(forced[: max(0, budget // len(sequence.slots))])
        room = min(self._num_speculative_tokens, sequence.group.max_tokens - len(sequence.output) - 1)
        room = min(room, budget // len(sequence.slots))
        if guess and room > len(drafts) and sequence.output and not self._runtime.is_late(sequence.slots[0]):
            if sequence.lookup is None:
                sequence.lookup = PromptLookup(sequence.request.prompt_token_ids)
            guesses = sequence.lookup.draft(sequence.output, room)
            if len(guesses) > len(drafts) and guesses[: len(drafts)] == drafts:
                drafts = guesses[: max(len(drafts), self._runtime.validate(sequence.slots[0], guesses))]
        return self._reserve(sequence, drafts)

    def _reserve(self, sequence: SequenceState, drafts: list[int]) -> list[int]:
        """Return `drafts` if there is room for them without preempting a sequence, else an empty list."""
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
        # no single request is to blame: all requests of this step end, the engine continues
        except BaseException as error:
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
            if output.sequence.completion is None:  # an observer of another sequence's end may have ended it
                self._apply(output)
        if self._num_forced_tokens:
            self._look_ahead([output.sequence for output in outputs])

    def _recover(self, works: list[Work], error: WorkerLost) -> None:
        """Record the loss of the workers; new workers compute everything again. End a sequence that they are lost with
        in its steps alone."""
        culprit = self._recovery.record_loss(error, [work.sequence for work in works])
        if culprit is not None:
            reason = f"{error}; it is the third such loss in a step of this request, and the second while it ran alone"
            self._table.end(culprit, FinishReason.INTERNAL_ERROR, WorkerLost(reason))

    def _advance_workers(self, seconds: float) -> bool:
        """Restart lost workers, waiting at most `seconds`, and mark all cells as empty. Return whether they are
        running. If every attempt fails, log it, end every request and raise `WorkerLost`."""
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
        sequence.append(
            output.token_ids,
            self._runtime.context.vocabulary,
            finished=finished,
            logprobs=output.logprobs,
            records=output.records,
        )
        if sequence.ending is not None:
            self._table.end(sequence, sequence.ending)
