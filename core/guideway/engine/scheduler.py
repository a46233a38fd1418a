"""Continuous batching: sequences join and leave at every step.

Invariant while a step runs: the cache holds all of a running sequence's tokens but the last, and so for its
companions. A step that does not end, because a KeyboardInterrupt came between, has not happened: the next one rewinds
what had moved on and does it again. That draws the same tokens, for random numbers depend on the position alone. What
an interrupted start or end leaves behind is freed by the next step or end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import ExitStack, suppress

from guideway.api.errors import GuidewayError, PluginError
from guideway.api.steps import Need, Outcome, StepBatch
from guideway.api.types import FinishReason, GenerationResult
from guideway.constraints.runtime import Runtime
from guideway.engine.drafter import prompt_lookup
from guideway.engine.kv_cache import KVCacheError
from guideway.engine.sequence import Sequence, reason_of
from guideway.engine.worker import Worker
from guideway.pipeline import accepted_tokens

__all__ = ["Scheduler"]

log = logging.getLogger(__name__)


class Scheduler:
    """Which sequences run, and what each step does. Driven by one thread."""

    def __init__(
        self,
        runtime: Runtime,
        worker: Worker,
        *,
        max_prefill_tokens: int,
        num_draft_tokens: int,
        on_finish: Callable[[Sequence, GenerationResult], None],
    ) -> None:
        self._runtime = runtime
        self._worker = worker
        self._cache = worker.cache
        self._max_prefill_tokens = max_prefill_tokens
        self._num_draft_tokens = num_draft_tokens
        self._on_finish = on_finish
        # dicts for their order, and because an entry is removed from anywhere without a search
        self._waiting: dict[Sequence, None] = {}
        self._running: dict[Sequence, None] = {}
        self._torn = False
        """Whether a start or an end has begun and is not done: if it is not going on, it failed or was interrupted."""

    def add(self, sequence: Sequence) -> None:
        """Let a sequence join as soon as its constraint is compiled and a slot is free."""
        self._waiting[sequence] = None

    def has_work(self) -> bool:
        """Whether any sequence has not ended."""
        return bool(self._waiting or self._running)

    def end(self, sequence: Sequence, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End a sequence now, with what it has: its slots and states are free, its result is set. Without effect if
        it has ended."""
        if self._torn:
            self._reclaim()
        if sequence.result is not None:
            return
        strategy: str | None = None
        unenforced: tuple[str, ...] = ()
        slots = sequence.slots
        if slots:
            strategy, unenforced = self._runtime.strategy(slots[0]), self._runtime.unenforced(slots[0])
        self._torn = True
        result = sequence.finish(reason, error=error, strategy=strategy, unenforced=unenforced)
        self._running.pop(sequence, None)
        self._waiting.pop(sequence, None)
        if slots:
            self._runtime.release(slots[0])
        else:
            self._runtime.abandon(sequence.admission)
        for slot in slots:
            self._cache.release(slot)
        self._torn = False
        self._on_finish(sequence, result)

    def end_all(self, reason: FinishReason) -> None:
        """End every sequence."""
        with ExitStack() as each:
            for sequence in [*self._waiting, *self._running]:
                each.callback(self.end, sequence, reason)

    def step(self) -> None:
        """Let waiting sequences join, and bring every running one forward. Waits for a compilation only if nothing
        can run."""
        if self._torn:
            self._reclaim()
        for sequence in list(self._running):
            self._settle(sequence)
        self._join()
        if self._running:
            self._decode(list(self._running))
        elif self._waiting:
            compiling = [s.admission.compilation for s in self._waiting if s.admission.compilation is not None]
            wait(compiling, return_when=FIRST_COMPLETED)

    # Joining

    def _join(self) -> None:
        """Start, in order of arrival, whatever is ready and fits; what is still compiling blocks nobody."""
        budget = self._max_prefill_tokens
        if not self._cache.capacity():
            return
        for sequence in list(self._waiting):
            if sequence.result is not None or not sequence.admission.ready():
                continue
            length = sum(len(prompt) for prompt in sequence.prompts)
            too_long = length > budget and budget < self._max_prefill_tokens
            if too_long or self._cache.capacity() < len(sequence.prompts):
                return
            self._start(sequence)
            budget -= length

    def _start(self, sequence: Sequence) -> None:
        """Give `sequence` its slots and states, or end it."""
        self._torn = True
        slots: list[int] = []
        try:
            for _ in sequence.prompts:
                slots.append(self._cache.allocate())
            self._runtime.start(sequence.admission, slots[0])
        except BaseException as error:
            failure = _failure("the request could not be started", error)
            self.end(sequence, reason_of(failure), failure)  # reclaims the slots
            if not isinstance(error, Exception):
                raise
            return
        # nothing is called here, so an interrupt finds all of it or nothing
        sequence.slots = slots
        self._running[sequence] = None
        del self._waiting[sequence]
        self._torn = False

    def _reclaim(self) -> None:
        """Free what belongs to no sequence that goes on."""
        for sequence in [sequence for sequence in self._waiting if sequence.result is not None]:
            self._runtime.abandon(sequence.admission)
            del self._waiting[sequence]
        self._running = {sequence: None for sequence in self._running if sequence.result is None}
        owned = {slot for sequence in self._running for slot in sequence.slots}
        for slot in set(range(self._cache.num_slots)) - owned:
            with suppress(ValueError):  # the runtime has nothing there
                self._runtime.release(slot)
            with suppress(KVCacheError):  # it is free
                self._cache.release(slot)
        self._torn = False

    # One step

    def _settle(self, sequence: Sequence) -> None:
        """Undo for `sequence` what an interrupted step has done, and forget refused drafts."""
        if sequence.ending is not None:  # interrupted just before it ended
            self.end(sequence, sequence.ending)
        elif not sequence.settled:
            self._rewind(sequence)
        for slot, prompt in zip(sequence.slots, sequence.prompts, strict=False):  # it has none if it has ended
            length = len(prompt) + len(sequence.output) - 1 if sequence.output else 0
            if self._cache.length(slot) != length:
                self._cache.truncate(slot, length)

    def _rewind(self, sequence: Sequence) -> None:
        """Make the states anew as they were when `output` ended: a matcher may have been left anywhere."""
        self._runtime.journal(sequence.slots[0]).rewind(len(sequence.output))
        self._runtime.rebuild(sequence.slots[0])
        sequence.settled = True

    def _decode(self, running: list[Sequence]) -> None:
        try:
            finals, outcomes = self._advance(running)
        except Exception as error:  # not one request's doing: all of this step's requests end, the engine goes on
            log.exception("a step failed; its %d requests end", len(running))
            failure = _failure("the engine's step failed", error)
            for sequence in running:
                self.end(sequence, FinishReason.INTERNAL_ERROR, failure)
            return
        for sequence, ids, outcome in zip(running, finals, outcomes, strict=True):
            if sequence.result is None:  # an observer of one that ended just now may have ended it
                self._conclude(sequence, ids, outcome)

    def _advance(self, running: list[Sequence]) -> tuple[list[list[int]], list[Outcome]]:
        """One pass through model and pipeline: each sequence's final tokens, and what its modifiers say to them."""
        for sequence in running:
            sequence.settled = False
        drafts = [self._draft(sequence) for sequence in running]
        positions = [len(s.request.prompt_token_ids) + len(s.output) for s in running]
        batch = StepBatch.build([s.slots[0] for s in running], positions, drafts)
        entries, rows = self._entries(running, drafts)
        forward = self._worker.forward(entries, rows, hidden_states=self._runtime.uses(Need.HIDDEN_STATES))
        step = self._runtime.prepare(batch)  # beside the forward pass, where that runs on a device of its own
        output = self._worker.sample(forward, step)
        drawn = accepted_tokens(batch, output.token_ids)
        finals = [sequence.cut(ids) for sequence, ids in zip(running, drawn, strict=True)]
        return finals, self._runtime.accept(batch, finals, output)

    def _entries(
        self, running: list[Sequence], drafts: list[list[int]]
    ) -> tuple[list[tuple[int, list[int]]], list[int]]:
        """What each slot appends and how many rows of logits it needs: sequences first, then their companions."""
        own: list[tuple[int, list[int]]] = []
        companions: list[tuple[int, list[int]]] = []
        companion_rows: list[int] = []
        for sequence, ahead in zip(running, drafts, strict=True):
            new = [[sequence.output[-1]] if sequence.output else list(prompt) for prompt in sequence.prompts]
            first, *others = [(slot, ids + ahead) for slot, ids in zip(sequence.slots, new, strict=True)]
            own.append(first)
            companions += others
            companion_rows += [1 + len(ahead)] * len(others)
        return own + companions, [1 + len(ahead) for ahead in drafts] + companion_rows

    def _draft(self, sequence: Sequence) -> list[int]:
        room = min(self._num_draft_tokens, sequence.max_tokens - len(sequence.output) - 1)
        if room <= 0 or not sequence.output:
            return []
        drafts = prompt_lookup([*sequence.request.prompt_token_ids, *sequence.output], room)
        return drafts[: self._runtime.validate(sequence.slots[0], drafts)] if drafts else drafts

    def _conclude(self, sequence: Sequence, ids: list[int], outcome: Outcome) -> None:
        if outcome.action == "fail":
            fault = self._runtime.fault(sequence.slots[0])
            error = PluginError(outcome.message, plugin=fault.plugin if fault else "")
            self.end(sequence, FinishReason.INTERNAL_ERROR, error)
            return
        ending: FinishReason | None = None
        if outcome.action == "finish" or (ids and ids[-1] in sequence.stop_token_ids):
            ending = FinishReason.STOP
        elif len(sequence.output) + len(ids) >= sequence.max_tokens:
            ending = FinishReason.LENGTH
        sequence.append(ids, self._runtime.context.vocabulary, ending)
        if ending is not None:
            self.end(sequence, ending)


def _failure(what: str, error: BaseException) -> GuidewayError:
    """`error` as one of guideway's own, which says what had been tried."""
    if isinstance(error, GuidewayError):
        return error
    failure = GuidewayError(f"{what}: {type(error).__name__}: {error}")
    failure.__cause__ = error
    return failure
