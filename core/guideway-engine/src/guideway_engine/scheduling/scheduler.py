"""Continuous batching: which sequences have a part in each step, and where they live in the KV cache.

A sequence waits, starts (it gets slots, and its modifiers' states begin), is computed chunk by chunk, decodes and ends.
Between start and end it may be preempted: the keys and values of its tokens are dropped and computed again later, while
its slots and states stay. Who is more important (`Sequence.rank`: priority, then arrival) is never preempted for who is
less, so the most important sequence always comes forward, and with it the whole.

A step that does not end, because a KeyboardInterrupt came between, has not happened: the next one rewinds what had
moved on and does it again. That draws the same tokens, for random numbers depend on the position alone. What an
interrupted start or end leaves behind is freed by the next step or end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from operator import attrgetter
from typing import Any

from guideway.api.types import FinishReason
from guideway.errors import (
    GuidewayError,
    LimitExceeded,
    PluginError,
    UnsupportedCapability,
    WorkerLost,
    contain,
    text_of,
)
from guideway.runtime.runtime import Runtime

from guideway_engine.scheduling.drafter import PromptLookup
from guideway_engine.scheduling.kv_cache import KVCache, KVCacheError, KVCacheFull
from guideway_engine.scheduling.recovery import Recovery
from guideway_engine.scheduling.sequence import RequestGroup, Sequence, reason_of
from guideway_engine.scheduling.stepper import Advance, Stepper, Work
from guideway_engine.scheduling.waiting import WaitingQueue

__all__ = ["Scheduler"]

log = logging.getLogger(__name__)

BY_RANK = attrgetter("rank")


class Scheduler:
    """Decides, step by step. Driven by one thread.

    `on_finish` hears of every request whose last sequence has ended; `restart` makes lost workers anew.
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
        on_finish: Callable[[RequestGroup], None],
        restart: Callable[[], None],
    ) -> None:
        self._runtime = runtime
        self._stepper = stepper
        self._cache = cache
        self._max_num_seqs = max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._num_speculative_tokens = num_speculative_tokens
        self._on_finish = on_finish
        self._recovery = Recovery(restart)
        self._waiting = WaitingQueue()
        self._running: dict[Sequence, None] = {}
        """Those that have slots, active or preempted; a dict because any may end."""
        self._torn = False
        """Whether a start or an end has begun and is not done: if it is not going on, it failed or was interrupted."""
        self._concluded: list[RequestGroup] = []
        """Requests whose end nobody has heard of yet."""

    @property
    def num_waiting(self) -> int:
        """How many sequences have not started."""
        return len(self._waiting)

    def num_waiting_at(self, priority: int) -> int:
        """How many of them have this priority or a better one."""
        return self._waiting.count(priority)

    def add(self, group: RequestGroup) -> None:
        """Let the sequences of a request join as soon as they are ready and there is room."""
        for sequence in group.sequences:
            self._waiting.add(sequence)

    def has_work(self) -> bool:
        """Whether any sequence has not ended."""
        return bool(len(self._waiting) or self._running)

    def fork(self, sequence: Sequence) -> Sequence:
        """A further sequence of the same request, with the same past. Raises `UnsupportedCapability` if `sequence` does
        not run or a modifier cannot fork, and `LimitExceeded` if there is no slot for it."""
        group = sequence.group
        if group.request.params.best_of is not None:
            raise UnsupportedCapability("with best_of the number of outputs is settled", field="fork")
        if not sequence.slots:
            what = "has not started" if sequence.completion is None else "has ended"
            raise UnsupportedCapability(f"a sequence that {what} cannot be forked", field="fork")
        if not sequence.settled:
            self._settle(sequence)
        if self._cache.capacity() < len(sequence.slots):
            raise LimitExceeded(
                f"all {self._cache.num_slots} slots are in use; let a sequence end first, or set a larger max_num_seqs",
                field="fork",
            )
        self._torn = True
        try:
            child = sequence.fork(max(s.index for s in group.sequences) + 1)
            slots = [self._allocate(child, which) for which in range(len(group.prompts))]
            self._runtime.fork(sequence.slots[0], slots[0], index=child.index)
        except BaseException:
            self._reclaim()
            raise
        # only from here on is it anybody's
        child.slots = slots
        self._running[child] = None
        group.sequences.append(child)
        self._torn = False
        self._waiting.enter(child)
        self._let_join(child)
        return child

    # The end

    def end(self, sequence: Sequence, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End a sequence now, with what it has: its slots and states are free, and with the last of its request the
        result is set. Without effect if it has ended."""
        if self._torn:
            self._reclaim()
        if sequence.completion is not None:
            return
        strategy: str | None = None
        unenforced: tuple[str, ...] = ()
        slots = sequence.slots
        if slots:
            strategy, unenforced = self._runtime.strategy(slots[0]), self._runtime.unenforced(slots[0])
            if reason is FinishReason.STOP and not self._runtime.completes(slots[0], sequence.generated()):
                unenforced = (*unenforced, "constraint")
        self._torn = True
        sequence.finish(reason, error=error, strategy=strategy, unenforced=unenforced)
        if slots:
            self._runtime.release(slots[0])
        else:
            self._runtime.abandon(sequence.group.admission)
            sequence.abandoned = True
        for slot in slots:
            self._cache.release(slot, keep=error is None)
        self._forget(sequence)
        self._torn = False
        self._tell()

    def _forget(self, sequence: Sequence) -> None:
        """One that has ended is here no more. Calling it twice is fine."""
        if sequence.group.conclude() is not None:
            self._concluded.append(sequence.group)
        self._waiting.leave(sequence)
        self._running.pop(sequence, None)

    def _tell(self) -> None:
        """Tell of every request that has ended."""
        while self._concluded:
            self._on_finish(self._concluded.pop(0))

    def end_group(self, group: RequestGroup, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End every sequence of a request."""
        with ExitStack() as each:
            for sequence in reversed(group.sequences):
                each.callback(self.end, sequence, reason, error)

    def end_all(self, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End every sequence."""
        with ExitStack() as each:
            for sequence in [*self._waiting, *self._running]:
                each.callback(self.end, sequence, reason, error)

    # A step

    def step(self) -> None:
        """Let waiting sequences join, and bring running ones forward. Waits for nothing: see `compilations`."""
        if self._torn:
            self._reclaim()
        self._tell()
        self.ensure_workers()
        for sequence in list(self._running):
            self._settle(sequence)
        while (candidate := self._candidate()) is not None and self._let_join(candidate):
            pass
        works = self._plan()
        if works:
            self._advance(works)

    def note_loss(self) -> None:
        """The workers were lost beside a step, which is nobody's doing."""
        self._recovery.lose([])

    def ensure_workers(self) -> None:
        """New workers in place of lost ones. If there can be none, every request ends and that is logged."""
        if self._recovery.lost:
            self._make_workers()

    def compilations(self) -> list[Future[Any]]:
        """What has to be waited for before a step can bring anything; empty if nothing has."""
        if self._running:
            return []
        compilations = [s.group.admission.compilation for s in self._waiting]
        pending = [c for c in compilations if c is not None and not c.done()]
        return pending if len(pending) == len(compilations) else []

    # Joining

    def _candidate(self) -> Sequence | None:
        """Who joins next: by priority; of equals those that were preempted first. One that waits for slots gives way to
        those that were preempted, for it is their end that frees slots."""
        preempted = min((s for s in self._running if not s.active), key=BY_RANK, default=None)
        waiting = self._waiting.best() if len(self._waiting) else None
        if waiting is not None and self._cache.capacity() < len(waiting.group.prompts):
            waiting = None
        if preempted is None or waiting is None:
            return preempted or waiting
        return preempted if preempted.priority <= waiting.priority else waiting

    def _let_join(self, candidate: Sequence) -> bool:
        """Make `candidate` active, or end it if it cannot start. False if there is no room for it now."""
        num_slots = len(candidate.group.prompts)
        while sum(len(s.slots) for s in self._running if s.active) + num_slots > self._max_num_seqs:
            if not self._preempt_below(candidate.priority):
                return False
        if not candidate.slots:
            self._start(candidate)
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

    def _end_too_large(self, sequence: Sequence) -> None:
        """It has the whole cache and does not fit: one sequence always would, but companions need room too."""
        num_tokens = sum(sequence.length(which) for which in range(len(sequence.slots)))
        error = LimitExceeded(
            f"the {num_tokens} tokens of this request and its companions do not fit into the KV cache of "
            f"{self._cache.num_cells} tokens; set a larger kv_cache_tokens",
            field="kv_cache_tokens",
        )
        self.end(sequence, FinishReason.INTERNAL_ERROR if sequence.output else FinishReason.REFUSED, error)

    def _start(self, sequence: Sequence) -> None:
        """Give `sequence` its slots and states, or end it."""
        self._torn = True
        slots: list[int] = []
        group = sequence.group
        try:
            for which in range(len(group.prompts)):
                slots.append(self._allocate(sequence, which))
            self._runtime.start(group.admission, slots[0], index=sequence.index)
        except Exception as error:
            failure = _failure("the request could not be started", error)
            self.end(sequence, reason_of(failure), failure)  # reclaims the slots
            return
        except BaseException:  # an interrupt: it goes on waiting
            if slots:
                with suppress(ValueError):
                    self._runtime.release(slots[0], ended=False)
            self._reclaim()
            raise
        # nothing is called here that can fail half way, so an interrupt finds all of it or nothing
        sequence.slots = slots
        self._running[sequence] = None
        self._waiting.discard(sequence)
        self._torn = False

    def _allocate(self, sequence: Sequence, which: int) -> int:
        """A slot, which begins with what another one has in common; a prompt that is to be scored has to be
        computed."""
        group, scored = sequence.group, sequence.group.prompt_logprobs
        if which == 0 and sequence.index == 0 and scored is not None and len(scored) < len(group.prompts[0]):
            return self._cache.allocate()
        siblings = [sibling.slots[which] for sibling in group.sequences if sibling.slots]
        return self._cache.allocate(sequence.tokens(which, 0, sequence.length(which)), siblings)

    def _reclaim(self) -> None:
        """Free what belongs to no sequence that goes on."""
        for sequence in list(self._waiting):
            if sequence in self._running:
                self._waiting.discard(sequence)
                continue
            sequence.slots = []
            if sequence.completion is not None and not sequence.abandoned:
                self._runtime.abandon(sequence.group.admission)
                sequence.abandoned = True
        owned = {slot for sequence in self._running for slot in sequence.slots}  # one that has ended has none
        for slot in set(range(self._cache.num_slots)) - owned:
            with suppress(ValueError):  # the runtime has nothing there
                self._runtime.release(slot)
            with suppress(KVCacheError):  # it is free
                self._cache.release(slot)
        for sequence in [*self._waiting, *self._running]:
            if sequence.completion is not None:
                self._forget(sequence)
        self._torn = False

    # Preemption

    def _preempt(self, sequence: Sequence) -> None:
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

    def _make_room(self, sequence: Sequence, num_tokens: int) -> bool:
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

    def _settle(self, sequence: Sequence) -> None:
        """Undo for `sequence` what an interrupted step has done, and forget refused drafts."""
        if sequence.completion is not None:  # by an observer of another one's end
            return
        if sequence.ending is not None:  # interrupted just before it ended
            self.end(sequence, sequence.ending)
            return
        if not sequence.settled:
            # a matcher may have been left anywhere: make the states anew as they were when `output` ended
            self._runtime.journal(sequence.slots[0]).rewind(len(sequence.output))
            self._runtime.rebuild(sequence.slots[0])
            sequence.settled = True
        for which, slot in enumerate(sequence.slots):
            length = self._cache.length(slot)
            if not sequence.active:  # preempting it, or its joining, was interrupted
                self._cache.truncate(slot, 0)
            elif length >= sequence.length(which):
                self._cache.truncate(slot, sequence.length(which) - 1)

    def _plan(self) -> list[Work]:
        """What each active sequence computes: those that decode first, then as much of prompts as fits."""
        decoding: list[Sequence] = []
        computing: list[Sequence] = []
        alone = self._recovery.alone()
        for sequence in sorted((s for s in self._running if s.active), key=BY_RANK):
            # one of a better rank may have preempted it meanwhile
            if not sequence.active or (alone is not None and sequence is not alone):
                continue
            if self._stepper.pending(sequence):
                computing.append(sequence)
            elif self._make_room(sequence, 1):
                decoding.append(sequence)
        budget = self._max_num_batched_tokens - sum(len(sequence.slots) for sequence in decoding)
        computing = [s for s in computing if s.active]
        computing.sort(key=lambda s: (s.priority, self._waiting.served(s.tenant), s.rank))
        # drafts are guesses: where there are prompts to compute, these come first
        works = []
        for sequence in decoding:
            drafts = self._draft(sequence, budget if not computing else 0)
            budget -= len(drafts) * len(sequence.slots)
            works.append(self._stepper.decode(sequence, drafts))
        for sequence in computing:
            if budget <= 0:
                break
            work = self._stepper.prefill(sequence, budget)
            budget -= work.num_tokens
            works.append(work)
        return works

    def _draft(self, sequence: Sequence, budget: int) -> list[int]:
        if not self._num_speculative_tokens or not sequence.output:
            return []
        room = min(self._num_speculative_tokens, sequence.group.max_tokens - len(sequence.output) - 1)
        room = min(room, budget // len(sequence.slots))
        if room <= 0:
            return []
        if sequence.lookup is None:
            sequence.lookup = PromptLookup(sequence.request.prompt_token_ids)
        drafts = sequence.lookup.draft(sequence.output, room)
        drafts = drafts[: self._runtime.validate(sequence.slots[0], drafts)] if drafts else drafts
        try:
            for slot in sequence.slots:
                self._cache.reserve(slot, 1 + len(drafts))
        except KVCacheFull:  # nobody is preempted for a guess
            return []
        return drafts

    def _advance(self, works: list[Work]) -> None:
        try:
            advances = self._stepper.run(works)
        except WorkerLost as error:
            self._recover(works, error)
            return
        except BaseException as error:  # not one request's doing: all of this step's requests end, the engine goes on
            contain(error)
            log.exception("a step failed; its %d sequences end", len(works))
            failure = _failure("the engine's step failed", error)
            for work in works:
                self.end(work.sequence, FinishReason.INTERNAL_ERROR, failure)
            return
        self._recovery.survived(work.sequence for work in works if work.samples)
        for work in works:
            self._waiting.charge(work.sequence.tenant, work.num_tokens)
        for advance in advances:
            if advance.sequence.completion is None:  # an observer of one that ended just now may have ended it
                self._conclude(advance)

    def _recover(self, works: list[Work], error: WorkerLost) -> None:
        """The workers are lost: everything is computed again by new ones. Who loses them alone in a step ends."""
        log.error("%s; restarting the workers", error)
        culprit = self._recovery.lose([work.sequence for work in works])
        if culprit is not None:
            self.end(culprit, FinishReason.INTERNAL_ERROR, error)
        self._make_workers()

    def _make_workers(self) -> None:
        """New workers, which hold nothing; if that is interrupted, the next step does it again."""
        for sequence in self._running:
            sequence.active = False
        self._cache.forget()
        try:
            self._recovery.make_workers()
        except BaseException as error:
            contain(error)
            log.exception("the workers could not be restarted; every request ends")
            failure = _failure("the workers could not be restarted", error)
            self.end_all(FinishReason.INTERNAL_ERROR, failure)

    def _conclude(self, advance: Advance) -> None:
        sequence, outcome = advance.sequence, advance.outcome
        if outcome.action == "fail":
            fault = self._runtime.fault(sequence.slots[0])
            error = PluginError(outcome.message, plugin=fault.plugin if fault else "")
            self.end(sequence, FinishReason.INTERNAL_ERROR, error)
            return
        finished = outcome.action == "finish"
        sequence.append(
            advance.token_ids, self._runtime.context.vocabulary, finished=finished, logprobs=advance.logprobs
        )
        if sequence.ending is not None:
            self.end(sequence, sequence.ending)


def _failure(what: str, error: BaseException) -> GuidewayError:
    """`error` as one of guideway's own, which says what had been tried."""
    if isinstance(error, GuidewayError):
        return error
    failure = GuidewayError(f"{what}: {text_of(error)}")
    failure.__cause__ = error
    return failure
