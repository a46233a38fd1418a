"""Work of sequences in a decoding step, and the forward pass built from it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from guideway.api.forward import Append, ForwardStep, Score
from guideway.api.steps import Need
from guideway.runtime.runtime import Runtime

from guideway_engine.scheduling.kv_cache import KVCache
from guideway_engine.scheduling.sequence import SequenceState

__all__ = ["DecodeSteps", "Work"]


@dataclass(slots=True)
class Work:
    """Work of one sequence in a step."""

    sequence: SequenceState
    appends: list[list[int]]
    """Tokens to compute for each of its slots, drafts included; may be empty."""
    drafts: list[int]
    samples: bool
    """True if its next token is drawn: then each append ends at the end of the sequence and its drafts."""
    num_scored: int
    """Number of the last tokens of its own append whose next token, a known prompt token, is scored."""

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.appends))


class DecodeSteps:
    """Step builder: turns the scheduler's decisions into forward passes. It does not change sequences."""

    def __init__(self, runtime: Runtime, cache: KVCache) -> None:
        self._runtime = runtime
        self._cache = cache

    def pending(self, sequence: SequenceState) -> int:
        """Return the number of tokens to compute before the next one can be drawn, excluding the last of each slot."""
        pending = 0
        for which, slot in enumerate(sequence.slots):
            pending += sequence.length(which) - 1 - self._cache.length(slot)
        return pending

    def decode(self, sequence: SequenceState, drafts: list[int]) -> Work:
        """Return the work that draws the next token of a sequence with nothing pending, and verifies `drafts`."""
        appends = [[sequence.last_token(which), *drafts] for which in range(len(sequence.slots))]
        return Work(sequence, appends, drafts, samples=True, num_scored=0)

    def prefill(self, sequence: SequenceState, budget: int, drafts: list[int]) -> Work:
        """Return work on at most `budget` pending tokens. If all of them fit, it also draws the next token and verifies
        drafts."""
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
                # the token after position p is scored at p; tokens before `scored` were scored before a preemption
                num_scored = max(0, end - max(start, len(sequence.group.prompt_logprobs or ()) - 1))
            appends.append(sequence.tokens(which, start, end))
            budget -= end - start
        if not samples:
            return Work(sequence, appends, [], samples, num_scored)
        drafts = drafts[: budget // len(appends)]
        return Work(sequence, [[*token_ids, *drafts] for token_ids in appends], drafts, samples, num_scored)

    def build(self, works: list[Work]) -> ForwardStep:
        """Build the forward pass of a step. Rows of sequences that sample come first, in the order of `works`."""
        first: list[tuple[Append, SequenceState]] = []
        companions: list[tuple[Append, SequenceState]] = []
        scores: list[tuple[Append, SequenceState]] = []
        silent: list[tuple[Append, SequenceState]] = []
        targets: list[int] = []
        for work in works:
            num_rows = 1 + len(work.drafts) if work.samples else 0
            for which, (slot, token_ids) in enumerate(zip(work.sequence.slots, work.appends, strict=True)):
                if not token_ids:
                    continue
                if which == 0 and work.num_scored:
                    append = self._cache.append(slot, token_ids, work.num_scored)
                    scores.append((append, work.sequence))
                    end = append.length + len(token_ids)
                    targets += work.sequence.tokens(0, end - work.num_scored + 1, end + 1)
                    continue
                append = self._cache.append(slot, token_ids, num_rows)
                of_its_kind = silent if not num_rows else first if which == 0 else companions
                of_its_kind.append((append, work.sequence))
        scored = [work for work in works if work.num_scored]
        ordered = [*first, *companions, *scores, *silent]
        first_move, moves = self._cache.moves()
        return ForwardStep(
            appends=[append for append, _ in ordered],
            sequence_ids=[sequence.id for _, sequence in ordered],
            slots=[sequence.slots[0] for _, sequence in ordered],
            moves=moves,
            first_move=first_move,
            hidden_states=any(work.samples for work in works) and self._runtime.uses(Need.HIDDEN_STATES),
            score=Score(
                np.array(targets, dtype=np.int32),
                max(work.sequence.request.params.prompt_logprobs or 0 for work in scored),
            )
            if scored
            else None,
        )

    def _scores(self, sequence: SequenceState) -> bool:
        """Return whether tokens of its prompt must still be scored."""
        scored = sequence.group.prompt_logprobs
        return sequence.index == 0 and scored is not None and len(scored) < len(sequence.group.prompts[0])
