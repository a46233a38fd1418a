"""One step through workers and runtime: from what each sequence is to compute to its final tokens."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from guideway.api.forward import Append, ForwardStep, Score
from guideway.api.provisional import Executor
from guideway.api.steps import Fault, Logprobs, Need, Outcome, StepBatch, fail
from guideway.api.types import TokenLogprobs
from guideway.pipeline import accepted_tokens
from guideway.runtime.rows import token_logprobs
from guideway.runtime.runtime import Runtime

from guideway_engine.scheduling.kv_cache import KVCache
from guideway_engine.scheduling.sequence import SequenceState

__all__ = ["SequenceOutput", "Stepper", "Work"]

RESTS = 0.005
"""Seconds after a step that all its sequences sat out."""


@dataclass(slots=True)
class Work:
    """The work of one sequence in a step."""

    sequence: SequenceState
    appends: list[list[int]]
    """For each of its slots the tokens that pass through the model, drafts included; some may be empty."""
    drafts: list[int]
    samples: bool
    """True if its next token is drawn: then every append ends where the sequence and its drafts end."""
    num_scored: int
    """For how many of its own append's last tokens the one after it is scored, being known: a prompt's."""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.appends))


@dataclass(slots=True)
class SequenceOutput:
    """The output of a step for one sequence."""

    sequence: SequenceState
    token_ids: tuple[int, ...]
    """Final tokens, up to what ends the sequence."""
    logprobs: list[TokenLogprobs]
    """One for each of them, if asked for; else empty."""
    outcome: Outcome
    """The answer of its modifiers to them."""


class Stepper:
    """Turns the scheduler's decisions into forward passes. It changes no sequence but by scores of its prompt."""

    def __init__(self, runtime: Runtime, executor: Executor, cache: KVCache) -> None:
        self._runtime = runtime
        self._executor = executor
        self._cache = cache

    def pending(self, sequence: SequenceState) -> int:
        """Count the tokens to be computed before the next one can be drawn, besides the last of each slot."""
        pending = 0
        for which, slot in enumerate(sequence.slots):
            pending += sequence.length(which) - 1 - self._cache.length(slot)
        return pending

    def decode(self, sequence: SequenceState, drafts: list[int]) -> Work:
        """The next token of a sequence with nothing pending, and of its drafts."""
        appends = [[sequence.last_token(which), *drafts] for which in range(len(sequence.slots))]
        return Work(sequence, appends, drafts, samples=True, num_scored=0)

    def prefill(self, sequence: SequenceState, budget: int, drafts: list[int]) -> Work:
        """At most `budget` of the pending tokens, and the next one's draw, with those of its drafts, where all fits."""
        pending = self.pending(sequence)
        scores = self._scores(sequence)
        samples = pending + len(sequence.slots) <= budget and not scores
        appends = []
        num_scored = 0
        for which, slot in enumerate(sequence.slots):
            start, end = self._cache.length(slot), sequence.length(which) - (0 if samples else 1)
            if scores and which == 0:
                end = min(end, len(sequence.group.prompts[0]) - 1)
            end = min(end, start + budget)
            if scores and which == 0:
                # the token after position p is scored at p; those before `scored` were, before a preemption
                num_scored = max(0, end - max(start, len(sequence.group.prompt_logprobs or ()) - 1))
            appends.append(sequence.tokens(which, start, end))
            budget -= end - start
        if not samples:
            return Work(sequence, appends, [], samples, num_scored)
        drafts = drafts[: budget // len(appends)]
        return Work(sequence, [[*token_ids, *drafts] for token_ids in appends], drafts, samples, num_scored)

    def run(self, works: list[Work]) -> list[SequenceOutput]:
        """The step; what those that sample have come to. Raises what the workers raise."""
        sampled = [work for work in works if work.samples]
        scored = [work for work in works if work.num_scored]
        for work in sampled:
            work.sequence.in_step = True
        forward = self._forward(works, sampled, scored)
        launched = self._executor.submit("forward", forward)
        step = batch = None
        if sampled:  # beside the forward pass, where that runs elsewhere
            sequences = [work.sequence for work in sampled]
            positions = [sequence.length(0) for sequence in sequences]
            batch = StepBatch.build([s.slots[0] for s in sequences], positions, [work.drafts for work in sampled])
            step = self._runtime.prepare(batch)
        sampling = self._executor.submit("sample", step)
        launched.result()
        outputs = sampling.results()
        output = outputs[0]
        self._cache.executed(forward.first_move + len(forward.moves))
        for work in works:
            for slot, token_ids in zip(work.sequence.slots, work.appends, strict=True):
                if token_ids:
                    self._cache.advance(slot, token_ids)
        if output.prompt is not None:
            self._keep_scores(scored, forward.score, output.prompt)
        failed = self._failed(works, outputs)
        if batch is None:
            return failed
        vocabulary = self._runtime.context.vocabulary
        drawn = accepted_tokens(batch, output.step.token_ids)
        late = [self._runtime.is_late(work.sequence.slots[0]) for work in sampled]
        finals = [
            () if waits else work.sequence.cut(ids, vocabulary)
            for work, ids, waits in zip(sampled, drawn, late, strict=True)
        ]
        if all(late):  # else the next step would come too early, too
            time.sleep(RESTS)
        outcomes = self._runtime.accept(batch, finals, output.step)
        logprobs = self._logprobs(sampled, finals, batch, output.step.logprobs)
        return [
            SequenceOutput(work.sequence, ids, found, outcome)
            for work, ids, found, outcome in zip(sampled, finals, logprobs, outcomes, strict=True)
        ] + failed

    def _failed(self, works: list[Work], outputs: list[Any]) -> list[SequenceOutput]:
        """Tell the runtime of sequences of which a mixin of any worker says that they cannot go on: it ends those that
        sample, and what is returned the others."""
        faults: dict[str, Fault] = {}
        for output in outputs:
            faults |= output.faults
        found = []
        for work in works if faults else ():
            if (fault := faults.get(work.sequence.id)) is not None:
                self._runtime.fail(work.sequence.slots[0], fault)
                if not work.samples:
                    found.append(SequenceOutput(work.sequence, (), [], fail(str(fault))))
        return found

    def _scores(self, sequence: SequenceState) -> bool:
        """Return whether tokens of its prompt are still to be scored."""
        scored = sequence.group.prompt_logprobs
        return sequence.index == 0 and scored is not None and len(scored) < len(sequence.group.prompts[0])

    def _forward(self, works: list[Work], sampled: list[Work], scored: list[Work]) -> ForwardStep:
        first: list[tuple[Append, str]] = []
        companions: list[tuple[Append, str]] = []
        scores: list[tuple[Append, str]] = []
        silent: list[tuple[Append, str]] = []
        targets: list[int] = []
        for work in works:
            num_rows = 1 + len(work.drafts) if work.samples else 0
            for which, (slot, token_ids) in enumerate(zip(work.sequence.slots, work.appends, strict=True)):
                if not token_ids:
                    continue
                if which == 0 and work.num_scored:
                    append = self._cache.append(slot, token_ids, work.num_scored)
                    scores.append((append, work.sequence.id))
                    end = append.length + len(token_ids)
                    targets += work.sequence.tokens(0, end - work.num_scored + 1, end + 1)
                    continue
                append = self._cache.append(slot, token_ids, num_rows)
                of_its_kind = silent if not num_rows else first if which == 0 else companions
                of_its_kind.append((append, work.sequence.id))
        ordered = [*first, *companions, *scores, *silent]
        first_move, moves = self._cache.moves()
        return ForwardStep(
            appends=[append for append, _ in ordered],
            sequence_ids=[sequence_id for _, sequence_id in ordered],
            moves=moves,
            first_move=first_move,
            hidden_states=bool(sampled) and self._runtime.uses(Need.HIDDEN_STATES),
            score=Score(
                np.array(targets, dtype=np.int32),
                max(work.sequence.request.params.prompt_logprobs or 0 for work in scored),
            )
            if scored
            else None,
        )

    def _keep_scores(self, scored: list[Work], score: Score | None, logprobs: Logprobs) -> None:
        assert score is not None
        row = 0
        for work in scored:
            found = work.sequence.group.prompt_logprobs
            assert found is not None
            token_ids = score.token_ids[row : row + work.num_scored].tolist()
            found += token_logprobs(logprobs, row, token_ids, work.sequence.request.params.prompt_logprobs or 0)
            row += work.num_scored

    def _logprobs(
        self, sampled: list[Work], finals: list[tuple[int, ...]], batch: StepBatch, logprobs: Logprobs | None
    ) -> list[list[TokenLogprobs]]:
        if logprobs is None:
            return [[] for _ in sampled]
        found: list[list[TokenLogprobs]] = []
        for i, (work, token_ids) in enumerate(zip(sampled, finals, strict=True)):
            asked = work.sequence.logprobs is not None
            k = work.sequence.request.params.logprobs or 0
            found.append(token_logprobs(logprobs, int(batch.row_start[i]), token_ids, k) if asked else [])
        return found
