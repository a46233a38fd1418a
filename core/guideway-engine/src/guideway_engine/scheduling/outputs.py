"""Results of a decoding step for each sequence: its final tokens and their log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from guideway.api.forward import Score
from guideway.api.records import Records
from guideway.api.steps import Logprobs, Outcome, StepBatch, StepInput
from guideway.api.types import TokenLogprobs
from guideway.pipeline import accepted_tokens
from guideway.runtime.modifiers.rows import token_logprobs
from guideway.runtime.runtime import Runtime
from numpy.typing import NDArray

from guideway_engine.scheduling.sequence import RecordedTokens, SequenceState
from guideway_engine.scheduling.steps import Work

__all__ = ["DecodeOutputs", "SequenceOutput"]


@dataclass(slots=True)
class SequenceOutput:
    """Result of a step for one sequence."""

    sequence: SequenceState
    token_ids: tuple[int, ...]
    """Final tokens, up to the one that ends the sequence."""
    logprobs: list[TokenLogprobs]
    """Log-probabilities of each of `token_ids`, if requested; else empty."""
    outcome: Outcome
    """Answer of the sequence's modifiers to `token_ids`."""
    records: RecordedTokens | None = None
    """Records of `token_ids`, if requested."""


class DecodeOutputs:
    """Output processor: reads the tokens and scores that workers return."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def final_tokens(
        self, sampled: list[Work], late: list[bool], batch: StepBatch, token_ids: NDArray[np.int32]
    ) -> list[tuple[int, ...]]:
        """Return the final tokens of each sequence: accepted drafts and the drawn token, up to the one that ends the
        sequence. A `late` sequence, whose mask was not ready, has none and draws again."""
        vocabulary = self._runtime.context.vocabulary
        drawn = accepted_tokens(batch, token_ids)
        return [
            () if waits else work.sequence.cut(ids, vocabulary)
            for work, ids, waits in zip(sampled, drawn, late, strict=True)
        ]

    def logprobs(
        self, sampled: list[Work], finals: list[tuple[int, ...]], batch: StepBatch, logprobs: Logprobs | None
    ) -> list[list[TokenLogprobs]]:
        """Return the log-probabilities of each sequence's final tokens; an empty list for sequences that did not
        request them."""
        if logprobs is None:
            return [[] for _ in sampled]
        vocabulary = self._runtime.context.vocabulary
        starts = np.searchsorted(logprobs.rows, batch.row_start[:-1]).tolist()
        return [
            token_logprobs(logprobs, start, token_ids, work.sequence.request.params.logprobs or 0, vocabulary)
            if work.sequence.logprobs is not None
            else []
            for work, token_ids, start in zip(sampled, finals, starts, strict=True)
        ]

    def records(
        self, finals: list[tuple[int, ...]], step: StepInput, records: Records | None
    ) -> list[RecordedTokens | None]:
        """Return the records of each sequence's final tokens; None for sequences that did not request them."""
        starts = step.batch.row_start[:-1]
        if records is None or step.records is None:  # none, or the step failed
            return [None for _ in starts]
        asked: list[bool] = step.records[starts].tolist()
        places: list[int] = (np.cumsum(step.records) - step.records)[starts].tolist()
        return [
            (records, place, place + len(token_ids)) if asks else None
            for token_ids, place, asks in zip(finals, places, asked, strict=True)
        ]

    def keep_scores(self, scored: list[Work], score: Score, logprobs: Logprobs) -> None:
        """Append the prompt scores of a step to each request; entry i of `logprobs` is for token i of `score`."""
        start = 0
        for work in scored:
            found = work.sequence.group.prompt_logprobs
            assert found is not None
            token_ids = score.token_ids[start : start + work.num_scored].tolist()
            k = work.sequence.request.params.prompt_logprobs or 0
            found += token_logprobs(logprobs, start, token_ids, k, self._runtime.context.vocabulary)
            start += work.num_scored
