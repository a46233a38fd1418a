"""Waiting and running sequences, with their slots in the KV cache and their modifiers' states.

If a start, fork or end is interrupted, for example by KeyboardInterrupt, the next one or `SequenceTable.repair` frees
its remains.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

from guideway.api.types import FinishReason, Losses
from guideway.errors import GuidewayError, text_of, without_frames
from guideway.runtime.runtime import Runtime

from guideway_engine.scheduling.kv_cache import KVCache, KVCacheError
from guideway_engine.scheduling.sequence import SequenceGroup, SequenceState, reason_of
from guideway_engine.scheduling.waiting import ServedTokens, WaitingQueue

__all__ = ["SequenceTable", "failure"]


class SequenceTable:
    """Starts, forks and ends sequences. `on_finish` is called with each request once its last sequence has ended."""

    def __init__(self, runtime: Runtime, cache: KVCache, on_finish: Callable[[SequenceGroup], None]) -> None:
        self._runtime = runtime
        self._cache = cache
        self._on_finish = on_finish
        self.waiting: WaitingQueue[SequenceState] = WaitingQueue()
        self.running: dict[SequenceState, None] = {}
        """Sequences with slots, active or preempted; a dict because any may end."""
        self.served = ServedTokens()
        self._judging: dict[SequenceGroup, None] = {}
        """Requests whose sequences have ended and that wait for a verdict; a dict because any may be done first."""
        self._changing = False
        """True from the beginning to the end of a start, fork or end; still True afterwards if that failed or was
        interrupted."""
        self._ended: list[SequenceGroup] = []
        """Ended requests that `on_finish` has not been called with yet."""

    def add(self, group: SequenceGroup) -> None:
        """Queue the sequences of a request."""
        for sequence in group.sequences:
            self.served.enter(sequence)
            self.waiting.add(sequence)

    def next_waiting(self) -> SequenceState | None:
        """Return the ready sequence to start next: by priority, then from the tenant served least. Sequences that are
        still compiling do not block others."""
        return next((sequence for sequence in self.waiting.in_turn(self.served) if sequence.ready()), None)

    def start(self, sequence: SequenceState) -> None:
        """Give `sequence` its slots and states, or end it if that fails."""
        self._changing = True
        slots: list[int] = []
        group = sequence.group
        try:
            for which in range(len(group.prompts)):
                slots.append(self._allocate(sequence, which))
            self._runtime.start(group.admission, slots[0], index=sequence.index, attempt=sequence.attempt)
        except Exception as error:
            reason = failure("the request could not be started", error)
            self.end(sequence, reason_of(reason), reason)  # frees the slots
            return
        except BaseException:  # an interrupt: the sequence keeps waiting
            if slots:
                with suppress(ValueError):
                    self._runtime.release(slots[0], ended=False)
            self._free_orphans()
            raise
        # only assignments that cannot fail, so an interrupt leaves either all of the change or none
        sequence.slots = slots
        self.running[sequence] = None
        self.waiting.discard(sequence)
        self._changing = False

    def fork(self, sequence: SequenceState) -> SequenceState:
        """Return a new running sequence of the same request with the same tokens. Raises `UnsupportedCapability` if a
        modifier cannot fork."""
        group = sequence.group
        self._changing = True
        try:
            child = sequence.fork(max(s.index for s in group.sequences) + 1)
            slots = [self._allocate(child, which) for which in range(len(group.prompts))]
            self._runtime.fork(sequence.slots[0], slots[0], index=child.index)
        except BaseException:
            self._free_orphans()
            raise
        # nothing refers to the child before this point
        child.slots = slots
        self.running[child] = None
        group.sequences.append(child)
        self._changing = False
        self.served.enter(child)
        return child

    def end(self, sequence: SequenceState, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End a sequence with its present output and free its slots and states. After the last one of a request, its
        result is set. Does nothing if the sequence has ended."""
        if self._changing:
            self._free_orphans()
        if sequence.completion is not None:
            return
        strategy, closed_early, num_reasoning_tokens = None, False, 0
        unenforced: tuple[str, ...] = ()
        losses = Losses()
        reports: Mapping[str, Mapping[str, Any]] = {}
        verdict: Future[bool | None] | None = None
        slots = sequence.slots
        if slots:
            strategy, unenforced = self._runtime.strategy(slots[0]), self._runtime.unenforced(slots[0])
            losses = self._runtime.losses(slots[0])
            closed_early = self._runtime.closed_early(slots[0])
            start = self._runtime.journal(slots[0]).constraint_start
            num_reasoning_tokens = len(sequence.output[:start])
            if reason is FinishReason.STOP and not self._runtime.completes(slots[0], sequence.generated()):
                unenforced = tuple(dict.fromkeys([*unenforced, "constraint"]))
            if reason in (FinishReason.STOP, FinishReason.LENGTH):
                reports = self._runtime.reports(slots[0])
                if (fault := self._runtime.fault(slots[0])) is not None:
                    error = fault.error()
                    reason = reason_of(error)
                else:
                    read = sequence.group.parse if sequence.group.verifies else None
                    verdict = self._runtime.judge(slots[0], sequence.generated(), read)
        self._changing = True
        if verdict is not None and sequence.attempt < sequence.request.params.max_retries and not sequence.may_retry:
            self._runtime.expect_another(sequence.group.admission)
            sequence.may_retry = True
        sequence.finish(
            reason,
            error=None if error is None else without_frames(error),
            strategy=strategy,
            unenforced=unenforced,
            losses=losses,
            reasoning=self._runtime.context.vocabulary.decode(sequence.output[:num_reasoning_tokens]),
            num_reasoning_tokens=num_reasoning_tokens,
            closed_early=closed_early,
            reports=reports,
            verdict=verdict,
        )
        if slots:
            self._runtime.release(slots[0])
        else:
            self._runtime.abandon(sequence.group.admission)
            sequence.abandoned = True
        for slot in slots:
            self._cache.release(slot, keep=error is None)
        self._forget(sequence)
        self._changing = False
        self._report_ended()

    def end_group(self, group: SequenceGroup, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End every sequence of a request without waiting for verdicts."""
        with ExitStack() as each:
            for sequence in reversed(group.sequences):
                each.callback(self.end, sequence, reason, error)
            each.callback(self._stop_judging, [group])

    def end_all(self, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End every sequence without waiting for verdicts."""
        with ExitStack() as each:
            sequences = [*self.waiting, *self.running]
            for sequence in sequences:
                each.callback(self.end, sequence, reason, error)
            each.callback(self._stop_judging, [*self._judging, *(sequence.group for sequence in sequences)])

    def repair(self) -> None:
        """Free the remains of an interrupted start, fork or end, and report ended requests."""
        if self._changing:
            self._free_orphans()
        for group in list(self._judging):
            self._conclude(group)
        self._report_ended()

    @property
    def is_judging(self) -> bool:
        """True if a request waits only for the verdict on a text."""
        return bool(self._judging)

    def verdicts(self) -> list[Future[bool | None]]:
        """Return the verdicts that these requests wait for."""
        return [verdict for group in self._judging for verdict in group.verdicts()]

    def _allocate(self, sequence: SequenceState, which: int) -> int:
        """Allocate a slot that shares a prefix with other slots, except for a prompt to score, which has to be
        computed."""
        group, scored = sequence.group, sequence.group.prompt_logprobs
        if which == 0 and sequence.index == 0 and scored is not None and len(scored) < len(group.prompts[0]):
            return self._cache.allocate(tenant=sequence.tenant)
        siblings = [sibling.slots[which] for sibling in group.sequences if sibling.slots]
        return self._cache.allocate(sequence.tokens(which, 0, sequence.length(which)), siblings, sequence.tenant)

    def _forget(self, sequence: SequenceState) -> None:
        """Remove an ended sequence. Calling it twice is fine."""
        if not sequence.is_over():
            self._conclude(sequence.group)
        self.served.leave(sequence)
        self.waiting.discard(sequence)
        self.running.pop(sequence, None)

    def _conclude(self, group: SequenceGroup) -> None:
        if group.has_ended() and not group.verdicts():
            self._retry(group)
        if group.conclude() is not None:
            self._ended.append(group)
        if group.result is not None:
            self._judging.pop(group, None)
        elif group.has_ended():
            self._judging[group] = None
        else:
            self._judging.pop(group, None)

    def _retry(self, group: SequenceGroup) -> None:
        """Queue another attempt for each invalid output that may be retried."""
        for i, sequence in enumerate(group.sequences):
            if not sequence.may_retry:
                continue
            sequence.may_retry = False
            if sequence.verdict is None or sequence.verdict.result() is not False:
                self._runtime.abandon(group.admission)
                continue
            again = SequenceState(group, sequence.index, attempt=sequence.attempt + 1, text=group.prompt_text)
            group.sequences[i] = again
            self.served.enter(again)
            self.waiting.add(again)

    def _stop_judging(self, groups: Sequence[SequenceGroup]) -> None:
        """Drop the verdicts of requests that are not available yet, and their further attempts."""
        for group in groups:
            for sequence in group.sequences:
                if sequence.may_retry:
                    sequence.may_retry = False
                    self._runtime.abandon(group.admission)
                if sequence.verdict is not None and not sequence.verdict.done():
                    sequence.verdict = None
            self._conclude(group)
        self._report_ended()

    def _report_ended(self) -> None:
        while self._ended:
            group = self._ended.pop(0)
            self._on_finish(group)
            group.let_go()

    def _free_orphans(self) -> None:
        """Free all slots and states that belong to no live sequence."""
        for sequence in list(self.waiting):
            if sequence in self.running:
                self.waiting.discard(sequence)
                continue
            sequence.slots = []
            if sequence.completion is not None and not sequence.abandoned:
                self._runtime.abandon(sequence.group.admission)
                sequence.abandoned = True
        owned = {slot for sequence in self.running for slot in sequence.slots}  # an ended sequence has no slots
        for slot in set(range(self._cache.num_slots)) - owned:
            with suppress(ValueError):  # the runtime has no state in this slot
                self._runtime.release(slot)
            with suppress(KVCacheError):  # the slot is free
                self._cache.release(slot)
        for sequence in [*self.waiting, *self.running]:
            if sequence.completion is not None:
                self._forget(sequence)
        self._changing = False


def failure(what: str, error: BaseException) -> GuidewayError:
    """Return `error` as a `GuidewayError`, prefixed with `what` if it is not one already."""
    if isinstance(error, GuidewayError):
        return error
    wrapped = GuidewayError(f"{what}: {text_of(error)}")
    wrapped.__cause__ = error
    return wrapped
