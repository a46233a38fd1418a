"""The grammar mask, seen as one logit modifier: strategies fill rows on the CPU, the device applies them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import FULL, Bitmask, empty_rows, is_allowed, num_words
from guideway.api.errors import ConformanceError
from guideway.api.grammar import FillJob, GrammarStrategy
from guideway.api.modifier import LogitModifier, LogitTransform, ModifierContext, Step
from guideway.api.steps import CONTINUE, FINISH, Array, Fault, Feedback, Outcome, Payload, Stage, StepBatch, fail
from guideway.api.types import Constraint, Request, SequenceInfo
from guideway.constraints.compiler import Candidate, Compilation, Compiler, choose
from guideway.constraints.replay import new_matcher

__all__ = ["GrammarMask", "GrammarState"]


class MaskTransform(LogitTransform):
    """Applies the bitmask of each row where the logits live."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return self.context.device.apply_bitmask(logits, payload.arrays["bitmask"], payload.rows)


class GrammarState:
    """One sequence's matcher."""

    __slots__ = ("candidate", "job", "matcher", "stop_token_ids")

    def __init__(self, candidate: Candidate, job: FillJob, stop_token_ids: frozenset[int]) -> None:
        self.candidate = candidate
        self.job = job
        self.matcher = job.matcher
        self.stop_token_ids = stop_token_ids


class GrammarMask(LogitModifier[GrammarState]):
    """Constraint in, one bitmask row per row of the sequence out.

    Requests are compiled by `compile` before `start`; `forget` drops a request. The bitmask of a payload is one of
    two buffers used in turn, so it holds until the second `prepare` after.
    """

    name = "grammar"
    stage = Stage.MASK
    transform = MaskTransform

    def __init__(self, strategies: Mapping[str, GrammarStrategy], compiler: Compiler, context: ModifierContext) -> None:
        super().__init__({}, context)
        self._strategies = strategies
        self._compiler = compiler
        self._compiled: dict[str, Future[Compilation]] = {}
        self.faults: list[tuple[GrammarState, Fault]] = []
        """Whose matcher failed in the last `prepare`, and how. Their rows are open, so that the draw stays finite;
        the host ends their requests."""
        self._words = num_words(context.vocabulary.logits_width)
        self._buffers = [self._allocate(context.max_num_sequences) for _ in range(2)]

    def compile(self, request: Request, constraint: Constraint) -> Future[Compilation]:
        """Start compiling. Raises `UnsupportedGrammar` at once if no strategy will take it."""
        future = self._compiler.submit(choose(constraint, self._strategies), constraint)
        self._compiled[request.request_id] = future
        return future

    def forget(self, request: Request) -> None:
        """The request is over, or never started."""
        future = self._compiled.pop(request.request_id, None)
        if future is not None:
            future.cancel()

    def start(self, request: Request, sequence: SequenceInfo) -> GrammarState | None:
        if request.params.constraint is None:
            return None
        compilation = self._compiled[request.request_id].result()
        stop_token_ids = self._stop_token_ids(request)
        candidate = compilation.candidate
        matcher = new_matcher(candidate.strategy, compilation.grammar, stop_token_ids)
        return GrammarState(candidate, FillJob(matcher), stop_token_ids)

    def prepare(self, batch: StepBatch, states: Sequence[GrammarState | None]) -> Payload | None:
        self.faults.clear()
        drafted = batch.num_rows != batch.num_sequences
        rows = self._lay_out_drafts(batch, states) if drafted else self._lay_out(states)
        if not len(rows):
            return None
        bitmask = self._buffer(len(rows))
        if drafted:
            bitmask[:] = FULL  # rows no draft reaches stay open
        self._fill([state for state in states if state is not None], bitmask)
        empty = empty_rows(bitmask)
        if empty.any():
            self._close_empty_rows(states, bitmask, empty)
        return Payload(rows, {"bitmask": bitmask})

    def accept(self, state: GrammarState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        matcher = state.matcher
        count = matcher.accept(token_ids)
        if count != len(token_ids):
            return fail(self._refusal(state, token_ids, count))
        if token_ids and token_ids[-1] in state.stop_token_ids and matcher.is_terminated():
            return FINISH
        return CONTINUE

    def forced(self, state: GrammarState, limit: int) -> Sequence[int]:
        return state.matcher.forced_tokens()[:limit]

    def validate(self, state: GrammarState, token_ids: Sequence[int]) -> int:
        return state.matcher.validate(token_ids)

    def fork(self, state: GrammarState) -> GrammarState:
        return GrammarState(state.candidate, FillJob(state.matcher.fork()), state.stop_token_ids)

    def _stop_token_ids(self, request: Request) -> frozenset[int]:
        """A stop token the caller added is the grammar's too, unless it stands for text the grammar may need."""
        vocabulary = self.context.vocabulary
        added = {i for i in request.params.stop_token_ids if not vocabulary.tokens[i]}
        return vocabulary.stop_token_ids | added

    def _lay_out(self, states: Sequence[GrammarState | None]) -> NDArray[np.int32]:
        rows: list[int] = []
        for i, state in enumerate(states):
            if state is not None:
                job = state.job
                job.first_row = len(rows)
                job.draft_token_ids = ()
                rows.append(i)
        return np.array(rows, dtype=np.int32)

    def _lay_out_drafts(self, batch: StepBatch, states: Sequence[GrammarState | None]) -> NDArray[np.int32]:
        starts, drafts = batch.row_start.tolist(), batch.draft_token_ids.tolist()
        first = 0
        for i, state in enumerate(states):
            if state is not None:
                start, end = starts[i], starts[i + 1]
                state.job.first_row = first
                state.job.draft_token_ids = drafts[start - i : end - i - 1]
                first += end - start
        return batch.select(states)[0]

    def _allocate(self, num_rows: int) -> Bitmask:
        return np.full((num_rows, self._words), FULL, dtype=np.int32)

    def _buffer(self, num_rows: int) -> Bitmask:
        """The other buffer. Rows are not cleared: every first row is overwritten by its fill or its fault."""
        self._buffers.reverse()
        if len(self._buffers[0]) < num_rows:
            self._buffers[0] = self._allocate(num_rows)
        return self._buffers[0][:num_rows]

    def _fill(self, states: list[GrammarState], bitmask: Bitmask) -> None:
        by_strategy: dict[str, list[GrammarState]] = {}
        for state in states:
            by_strategy.setdefault(state.candidate.name, []).append(state)
        for group in by_strategy.values():
            strategy, jobs = group[0].candidate.strategy, [state.job for state in group]
            try:
                accepted = strategy.fill(jobs, bitmask)
                whole = accepted.shape == (len(jobs),)
            except Exception:
                whole = False
            if not whole:  # the batch fill itself broke: the default one tells whose matcher it was
                accepted = GrammarStrategy.fill(strategy, jobs, bitmask)
            if accepted.min() < 0:
                for state, count in zip(group, accepted.tolist(), strict=True):
                    if count < 0:
                        self._fail(state, bitmask, state.job.error)

    def _fail(self, state: GrammarState, bitmask: Bitmask, error: BaseException | None) -> None:
        job = state.job
        bitmask[job.first_row : job.first_row + 1 + len(job.draft_token_ids)] = FULL
        cause = error or ConformanceError("fill returned -1 without setting the job's error")
        self.faults.append((state, Fault.of(f"grammar.{state.candidate.name}", "fill", cause)))
        job.error = None

    def _close_empty_rows(
        self, states: Sequence[GrammarState | None], bitmask: Bitmask, empty: NDArray[np.bool_]
    ) -> None:
        for state in states:
            if state is not None:
                job = state.job
                if empty[job.first_row : job.first_row + 1 + len(job.draft_token_ids)].any():
                    self._fail(state, bitmask, ConformanceError("it filled a row that allows no token"))

    def _refusal(self, state: GrammarState, token_ids: Sequence[int], count: int) -> str:
        """Why a final token was refused: the strategy contradicts its own mask, or something overrode the mask."""
        token_id, name = token_ids[count], state.candidate.name
        row = state.job.first_row + count
        mask = self._buffers[0]
        if count <= len(state.job.draft_token_ids) and not is_allowed(mask, row, token_id):
            return f"token {token_id} was drawn although the mask of grammar.{name} forbids it"
        return f"grammar.{name} refused token {token_id} that its own mask allowed"
