"""Continuous batching: sequences join and leave at every step.

Invariant between steps: the cache holds all of a running sequence's tokens but the last, and so for its companions.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, wait

from guideway.api.errors import GuidewayError, PluginError
from guideway.api.steps import Need, Outcome, StepBatch
from guideway.api.types import FinishReason, GenerationResult
from guideway.constraints.runtime import Runtime
from guideway.engine.drafter import prompt_lookup
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
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        """Let a sequence join as soon as its constraint is compiled and a slot is free."""
        self._waiting.append(sequence)

    def has_work(self) -> bool:
        """Whether any sequence has not ended."""
        return bool(self._waiting or self._running)

    def end(self, sequence: Sequence, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """End a sequence now, with what it has; without effect if it has ended."""
        if sequence.result is None:
            self._end(sequence, reason, error)

    def step(self) -> None:
        """Let waiting sequences join, and bring every running one forward. Waits for a compilation only if nothing
        can run."""
        self._join()
        if self._running:
            self._decode()
        elif self._waiting:
            compiling = [s.admission.compilation for s in self._waiting if s.admission.compilation is not None]
            wait(compiling, return_when=FIRST_COMPLETED)

    # Joining

    def _join(self) -> None:
        """Start, in order of arrival, whatever is ready and fits; what is still compiling blocks nobody."""
        budget = self._max_prefill_tokens
        for sequence in list(self._waiting):
            if not sequence.admission.ready():
                continue
            companions = sequence.admission.companions
            length = len(sequence.request.prompt_token_ids) + sum(len(c.prompt_token_ids) for c in companions)
            too_long = length > budget and budget < self._max_prefill_tokens
            if too_long or self._cache.capacity() < 1 + len(companions):
                return
            self._waiting.remove(sequence)
            self._start(sequence)
            budget -= length

    def _start(self, sequence: Sequence) -> None:
        """Give `sequence` its slots and states, or end it."""
        slot = self._cache.allocate()
        try:
            self._runtime.start(sequence.admission, slot)
        except GuidewayError as error:
            self._cache.release(slot)
            self._on_finish(sequence, sequence.finish(reason_of(error), error=error))
            return
        sequence.slot = slot
        sequence.companion_slots = [self._cache.allocate() for _ in sequence.admission.companions]
        self._running.append(sequence)

    # One step

    def _decode(self) -> None:
        running = list(self._running)
        drafts = [self._draft(sequence) for sequence in running]
        positions = [len(s.request.prompt_token_ids) + len(s.output) for s in running]
        batch = StepBatch.build([s.slot for s in running], positions, drafts)
        entries, rows = self._entries(running, drafts)
        try:
            forward = self._worker.forward(entries, rows, hidden_states=self._runtime.uses(Need.HIDDEN_STATES))
            step = self._runtime.prepare(batch)  # beside the forward pass, where that runs on a device of its own
            output = self._worker.sample(forward, step)
        except Exception as error:  # not one request's doing: all of this step's requests end, the engine goes on
            log.exception("a step failed; its %d requests end", len(running))
            failure = GuidewayError(f"the engine's step failed: {type(error).__name__}: {error}")
            failure.__cause__ = error
            for sequence in running:
                self._end(sequence, FinishReason.INTERNAL_ERROR, failure)
            return
        drawn = accepted_tokens(batch, output.token_ids)
        finals = [sequence.cut(ids) for sequence, ids in zip(running, drawn, strict=True)]
        outcomes = self._runtime.accept(batch, finals, output)
        for sequence, ids, outcome in zip(running, finals, outcomes, strict=True):
            self._conclude(sequence, ids, outcome)

    def _entries(
        self, running: list[Sequence], drafts: list[list[int]]
    ) -> tuple[list[tuple[int, list[int]]], list[int]]:
        """What each slot appends and how many rows of logits it needs: sequences first, then their companions."""
        entries: list[tuple[int, list[int]]] = []
        rows: list[int] = []
        companions: list[tuple[int, list[int]]] = []
        companion_rows: list[int] = []
        for sequence, ahead in zip(running, drafts, strict=True):
            prompt = list(sequence.request.prompt_token_ids)
            new = [sequence.output[-1]] if sequence.output else prompt
            entries.append((sequence.slot, new + ahead))
            rows.append(1 + len(ahead))
            for slot, companion in zip(sequence.companion_slots, sequence.admission.companions, strict=True):
                new = [sequence.output[-1]] if sequence.output else list(companion.prompt_token_ids)
                companions.append((slot, new + ahead))
                companion_rows.append(1 + len(ahead))
        return entries + companions, rows + companion_rows

    def _draft(self, sequence: Sequence) -> list[int]:
        room = min(self._num_draft_tokens, sequence.max_tokens - len(sequence.output) - 1)
        if room <= 0 or not sequence.output:
            return []
        drafts = prompt_lookup([*sequence.request.prompt_token_ids, *sequence.output], room)
        return drafts[: self._runtime.validate(sequence.slot, drafts)] if drafts else drafts

    def _conclude(self, sequence: Sequence, ids: list[int], outcome: Outcome) -> None:
        if outcome.action == "fail":
            fault = self._runtime.fault(sequence.slot)
            error = PluginError(outcome.message, plugin=fault.plugin if fault else "")
            self._end(sequence, FinishReason.INTERNAL_ERROR, error)
            return
        sequence.append(ids, self._runtime.context.vocabulary)
        if outcome.action == "finish" or (ids and ids[-1] in sequence.stop_token_ids):
            self._end(sequence, FinishReason.STOP)
        elif len(sequence.output) >= sequence.max_tokens:
            self._end(sequence, FinishReason.LENGTH)
        else:
            self._forget_refused_drafts(sequence)

    def _forget_refused_drafts(self, sequence: Sequence) -> None:
        length = len(sequence.request.prompt_token_ids) + len(sequence.output) - 1
        surplus = self._cache.length(sequence.slot) - length
        if surplus:
            for slot in (sequence.slot, *sequence.companion_slots):
                self._cache.truncate(slot, self._cache.length(slot) - surplus)

    def _end(self, sequence: Sequence, reason: FinishReason, error: GuidewayError | None = None) -> None:
        """The sequence has ended: slots and states are free, the result is set."""
        strategy: str | None = None
        unenforced: tuple[str, ...] = ()
        if sequence.slot >= 0:
            strategy = self._runtime.strategy(sequence.slot)
            unenforced = self._runtime.unenforced(sequence.slot)
            self._runtime.release(sequence.slot)
            for slot in (sequence.slot, *sequence.companion_slots):
                self._cache.release(slot)
            sequence.slot, sequence.companion_slots = -1, []
            self._running.remove(sequence)
        else:
            self._waiting.remove(sequence)
            self._runtime.abandon(sequence.admission)
        result = sequence.finish(reason, error=error, strategy=strategy, unenforced=unenforced)
        self._on_finish(sequence, result)
