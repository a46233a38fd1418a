"""The grammar mask, one logit modifier among others: strategies fill rows on the CPU, the device applies them.

This module owns the constraint. The runtime calls what only a constraint has (compiling, where it begins, whether a
text completes it); all else it asks of any modifier.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import FULL, Bitmask, allow_only, empty_rows, is_allowed, num_words
from guideway.api.grammar import CompiledGrammar, FillJob, GrammarStrategy
from guideway.api.modifier import LogitModifier, LogitTransform, ModifierContext, Step
from guideway.api.steps import (
    CONTINUE,
    FINISH,
    GRAMMAR_MASK,
    Array,
    Fault,
    Feedback,
    Outcome,
    Payload,
    Stage,
    StepBatch,
    fail,
)
from guideway.api.types import Constraint, Request, SamplingParams, SequenceInfo
from guideway.errors import ConformanceError, InvalidConfiguration, InvalidRequest, PluginError, blame, contain
from guideway.runtime.bans import Bans, MaskBans
from guideway.runtime.candidates import Candidate, CandidateCache, enforcing_all
from guideway.runtime.closing import Budget, Closer, Lexicon, Record, Reserve
from guideway.runtime.compiler import Compilation, Compiler, Shortest, Wanted
from guideway.runtime.forced import Forcing
from guideway.runtime.grammar_hosts.strategy import HostedMatcher, HostedStrategy
from guideway.runtime.journal import Journal
from guideway.runtime.mask_block import GUARD, Late, fill_between_guards
from guideway.runtime.metrics import FILL_SECONDS
from guideway.runtime.replay import new_matcher, recycle
from guideway.runtime.stopwatch import Stopwatch

__all__ = ["GrammarMask", "GrammarState", "check_names"]

log = logging.getLogger(__name__)

NO_BANS = Bans()


class MaskTransform(LogitTransform):
    """Applies the bitmask of each row where the logits live."""

    bitmask = "bitmask"
    hard = True
    idempotent = True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return self.context.device.apply_bitmask(logits, payload.arrays["bitmask"], payload.rows)


@dataclass(slots=True, eq=False)
class GrammarState:
    """One sequence's matcher."""

    candidate: Candidate
    grammar: CompiledGrammar
    job: FillJob
    """Holds the matcher."""
    stop_token_ids: frozenset[int]
    reserve: Reserve | None = None
    """The reserve that its output needs at its end; None: it may end anywhere."""
    bans: Bans = NO_BANS
    """The tokens and texts that a completion of its output does without where it can."""
    accepted: list[int] = field(default_factory=list)
    """Every token the matcher accepted."""
    num_live_drafts: int = 0
    """The number of the last step's drafts that led to a state with a legal token, or to the end."""
    num_open_rows: int = 0
    """The number of the last step's rows that came before the constraint was known to begin."""
    terminated: bool = False
    begins_in: int | None = 0
    """The number of tokens that are still to come before the constraint begins; None: not known yet."""
    budget: Budget | None = None
    """Within which its output is to be complete; None: it need not, or it has not begun."""
    closer: Closer | None = None
    """None also where the strategy lives in hosts."""
    shortest: int | None = None
    """The number of tokens of the shortest output that was found, where it was looked for."""
    first_closed: int | None = None
    """The first of the last step's rows that does not allow all that the constraint does."""
    closed_early: bool = False
    """True if a token was drawn from such a row."""
    hosted: bool = False
    """True if its matcher lives in a host."""
    canonical: tuple[int, ...] = ()
    """The tokens that the next step's drafts begin with, where nothing else is to be drawn in their place."""
    first_row: int = 0
    """The first of its rows in the last step's bitmask; not the job's, which is in the hands of the strategy."""
    num_rows: int = 1

    @property
    def rows(self) -> slice:
        """Its rows of the last step's bitmask."""
        return slice(self.first_row, self.first_row + self.num_rows)

    @property
    def end(self) -> Record | None:
        """The knowledge of the end of its output."""
        if self.hosted:
            return cast("HostedMatcher", self.job.matcher).end
        return None if self.closer is None else self.closer.record


@dataclass(slots=True)
class Block:
    """The part of a step that is one strategy's: sequences of the batch, their states, and their rows of the bitmask,
    which follow one another."""

    sequences: list[int] = field(default_factory=list)
    states: list[GrammarState] = field(default_factory=list)
    start: int = 0
    end: int = 0


class GrammarMask(LogitModifier[GrammarState]):
    """Constraint in, one bitmask row per row of the sequence out.

    The bitmask of a payload is one of two buffers used in turn, so it holds until the second `prepare` after.
    """

    name = GRAMMAR_MASK
    stage = Stage.MASK
    transform = MaskTransform

    def __init__(
        self,
        strategies: Mapping[str, GrammarStrategy],
        compiler: Compiler,
        shortest: Shortest,
        context: ModifierContext,
        stopwatch: Stopwatch,
    ) -> None:
        super().__init__({}, context)
        self._stopwatch = stopwatch
        self.known = CandidateCache(strategies)
        """The constraints that came last."""
        self.late: set[GrammarState] = set()
        """Those whose rows were not ready in the last step: they are open, and nothing drawn from them is final."""
        self.closing: set[GrammarState] = set()
        """Those of whose ends anything is known that `record_end` is to keep. Before their tokens come, a host may
        prepare a step of others."""
        self._compiler = compiler
        self._shortest = shortest
        self._lexicon = Lexicon(context.vocabulary)
        self.words = num_words(context.vocabulary.logits_width)
        """The number of words of a row."""
        self._forcing = Forcing(context.vocabulary.tokens, self.words)
        self._buffers = [self._allocate(0) for _ in range(2)]
        """They grow with the batches: far fewer sequences may run than could. The first row of a buffer is a guard, as
        is the one after those in use."""

    def compile_constraint(
        self, constraint: Constraint, request: Request, wanted: Wanted | None
    ) -> Future[Compilation]:
        """Start compiling what a request asks for, and look for its shortest output then where that is `wanted`. Raises
        `UnsupportedGrammar` at once if no strategy will take it, or none enforces all of it and it is to be."""
        chosen = self.known.chosen(constraint)
        in_full = request.params.on_unenforced == "refuse"
        candidates = enforcing_all(chosen, constraint) if in_full else chosen.candidates
        compilation = self._compiler.submit(candidates, constraint, request.tenant)
        return compilation if wanted is None else self._shortest.submit(compilation, wanted, request.tenant)

    def wanted(self, params: SamplingParams, room: int, bans: Bans | None) -> Wanted:
        """Return what the shortest output of a request is looked for with, if it may have `room` for one: before the
        constraint of one that reasons begins, that may become less."""
        own = _bans(params)
        bans = own if bans is None else replace(bans, stop=own.stop)
        return Wanted(room, bool(params.reasoning), self._stop_token_ids(params), bans)

    def close(self) -> None:
        """Stop compiling."""
        self._shortest.close()
        self._compiler.close()

    def start(self, request: Request, sequence: SequenceInfo, compiled: Compilation | None) -> GrammarState | None:
        if compiled is None:
            return None
        stop_token_ids = self._stop_token_ids(request.params)
        candidate, grammar = compiled.candidate, compiled.grammar
        with blame(f"grammar.{candidate.name}", "matcher", passing=(InvalidRequest, PluginError)):
            matcher = new_matcher(candidate.strategy, grammar, stop_token_ids)
        reserve = compiled.reserve if request.params.close else None
        state = GrammarState(candidate, grammar, FillJob(matcher), stop_token_ids, reserve, _bans(request.params))
        state.hosted, state.shortest = isinstance(matcher, HostedMatcher), compiled.shortest
        return state

    def ban(self, state: GrammarState | None, bans: Bans) -> MaskBans | None:
        """Set what a sequence that is about to begin does without, beside the stop strings of its request: completions
        where they can, and its masks, as the host asks by what is returned. None: there is nothing for them."""
        if state is None:
            return None
        state.bans = replace(bans, stop=state.bans.stop)
        return MaskBans(bans, state.stop_token_ids, self.words) if bans.of_masks else None

    def release(self, state: GrammarState | None) -> None:
        if state is not None:
            self.late.discard(state)
            self.closing.discard(state)

    def recycle(self, state: GrammarState | None) -> None:
        """Give the matcher of a sequence back that ended without a failure."""
        if state is None:
            return
        try:
            recycle(state.grammar, state.job.matcher)
        except BaseException as error:
            contain(error)
            log.warning("grammar.%s failed in recycle; its sequence had ended", state.candidate.name, exc_info=True)

    def begin_after(
        self, state: GrammarState | None, num_tokens: int | None, room: int, end: Record | None = None
    ) -> None:
        """The constraint begins after so many more tokens, and may have `room` for its own then; None: not known yet.
        `end` is what is known of its end."""
        if state is None:
            return
        state.begins_in = num_tokens
        if num_tokens is None or state.reserve is None:
            return
        state.budget, matcher = Budget(room, state.reserve, state.bans), state.job.matcher
        if isinstance(matcher, HostedMatcher):
            matcher.budget, matcher.end = state.budget, end
        else:
            state.closer = Closer(self._lexicon, state.stop_token_ids, state.budget, end)

    def check_room(self, state: GrammarState | None, room: int) -> None:
        """Raise `InvalidRequest` if no output fits into so many tokens at the start of a sequence, which is proved."""
        if state is None or state.reserve is None or room >= state.reserve.fewest:
            return
        shortest, reserve = state.shortest, state.reserve
        if shortest is not None and shortest <= room:  # the strategy leaves something out
            return
        said = f"the shortest one has at least {reserve.fewest}"
        if shortest is not None:
            said = f"the shortest one found has {shortest}"
        raise InvalidRequest(
            f"no output of this constraint fits into the {room} tokens that are left for it: {said}, including the "
            "stop token; raise max_tokens, shorten the prompt, or set close=False to allow a cut output",
            field="max_tokens",
        )

    def fits(self, state: GrammarState | None, room: int) -> bool:
        """Return whether `room` tokens are enough for an output from its beginning, or it need not be complete."""
        if state is None or state.reserve is None:
            return True
        enough = state.reserve.level + state.reserve.growth
        return room > enough or (enough if state.shortest is None else state.shortest) <= room

    def is_closed(self, state: GrammarState | None) -> bool:
        """Return whether the output of a sequence is complete, or need not be."""
        return state is None or state.terminated or state.reserve is None

    def record_end(self, state: GrammarState | None, journal: Journal) -> None:
        """Keep what is known of the end of a sequence's output."""
        if state in self.closing:
            self.closing.discard(state)
            if state.end is not None and state.end not in journal.ends[-1:]:
                journal.ends.append(state.end)
            journal.closed_early |= state.closed_early

    def is_late(self, state: GrammarState | None) -> bool:
        """Return whether the rows of a sequence were not ready in the last step."""
        return state in self.late

    def is_ready(self, state: GrammarState | None) -> bool:
        """Return whether rows that were late may come now."""
        matcher = None if state is None else state.job.matcher
        return not isinstance(matcher, HostedMatcher) or matcher.is_ready()

    def strategy(self, state: GrammarState | None) -> str | None:
        """The name of the strategy that serves a sequence."""
        return None if state is None else state.candidate.name

    def unenforced(self, state: GrammarState) -> Sequence[str]:
        return state.candidate.unenforced

    def plugin_of(self, state: GrammarState | None) -> str:
        return super().plugin_of(state) if state is None else f"grammar.{state.candidate.name}"

    def prepare(self, batch: StepBatch, states: Sequence[GrammarState | None]) -> Payload | None:
        self.late.clear()
        # before the beginning and after the end all is open
        blocks: dict[str, Block] = {}
        name = block = None
        for i, state in enumerate(states):
            if state is not None and not state.terminated and (state.begins_in == 0 or self._begins(batch, i, state)):
                if block is None or state.candidate.name != name:
                    name = state.candidate.name
                    block = blocks.setdefault(name, Block())
                block.sequences.append(i)
                block.states.append(state)
        if not blocks:
            return None
        rows: list[int] = []
        for block in blocks.values():
            self._lay_out(block, batch, rows)
        buffer = self._buffer(len(rows))
        bitmask = buffer[1 : 1 + len(rows)]
        if batch.num_rows != batch.num_sequences:
            bitmask[:] = FULL  # rows no draft reaches stay open
        failed: dict[GrammarState, BaseException] = {}
        for block in blocks.values():
            failed |= self._fill(block, buffer)
        empty = empty_rows(bitmask)
        if empty.any():
            for block in blocks.values():
                for state in block.states:
                    if empty[state.rows].any():
                        failed[state] = ConformanceError("it filled a row that allows no token")
        faults = self._faults(states, failed, bitmask) if failed else {}
        return Payload(np.array(rows, dtype=np.int32), {"bitmask": bitmask}, faults=faults)

    def accept(self, state: GrammarState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        num_before, state.canonical = 0, ()
        if state.begins_in != 0:
            if state.begins_in is None or len(token_ids) <= state.begins_in:
                state.begins_in = None if state.begins_in is None else state.begins_in - len(token_ids)
                return CONTINUE
            num_before, state.begins_in = state.begins_in, 0
        if state.terminated:
            return FINISH
        matcher = state.job.matcher
        ours = token_ids[num_before:] if num_before else token_ids
        began = time.monotonic()
        count = matcher.accept(ours)
        if state.hosted:  # it may have asked its host
            self._stopwatch.leave_out(began, waited=True)
        if count != len(ours):
            return self._refusal(state, token_ids, num_before + count)
        state.accepted += ours
        if state.closer is not None:
            state.closer.accept(ours)
        state.closed_early |= state.first_closed is not None and len(ours) > state.first_closed
        if token_ids and token_ids[-1] in state.stop_token_ids and matcher.is_terminated():
            state.terminated = True
            return FINISH
        return CONTINUE

    def forced(self, state: GrammarState, limit: int) -> Sequence[int]:
        if state.begins_in != 0 or state.terminated:
            return ()
        matcher = state.job.matcher
        if isinstance(matcher, HostedMatcher):
            return (matcher.forced or ())[:limit]
        return self._forcing.run(matcher, state.stop_token_ids, limit)

    def ask_forced(self, states: Sequence[GrammarState | None], limit: int) -> None:
        """Let hosts say what is forced for these sequences, with one command for all: `forced` asks none."""
        asked: dict[str, list[GrammarState]] = {}
        for state in states:
            if state is not None and state.begins_in == 0 and not state.terminated:
                asked.setdefault(state.candidate.name, []).append(state)
        for some in asked.values():
            strategy = some[0].candidate.strategy
            if isinstance(strategy, HostedStrategy):
                strategy.ask_forced([state.job.matcher for state in some], limit)

    def keep_to(self, state: GrammarState | None, token_ids: Sequence[int]) -> None:
        """Let the next step draw these, which are forced, as far as they are among its drafts."""
        if state is not None and state.begins_in == 0:
            state.canonical = tuple(token_ids)

    def validate(self, state: GrammarState, token_ids: Sequence[int]) -> int:
        if isinstance(state.job.matcher, HostedMatcher) and state.job.matcher.is_slow():
            return 0  # drafts are guesses
        num_before = len(token_ids) if state.begins_in is None else state.begins_in
        if num_before >= len(token_ids):
            return len(token_ids)
        return 0 if state.terminated else num_before + state.job.matcher.validate(token_ids[num_before:])

    def completes(self, state: GrammarState | None, journal: Journal, text: str) -> bool:
        """Return whether `text`, which the output begins with, is all that the constraint asks for; True without one.
        The state does not move. False also where the constraint has not begun, or the strategy fails over it."""
        if state is None or state.terminated:
            return True
        if journal.constraint_start is None:
            return False
        vocabulary, whole, length = self.context.vocabulary, 0, 0
        data = self._own_bytes(journal, text)
        for token_id in state.accepted:
            length_after = length + len(vocabulary.tokens[token_id])
            if length_after > len(data):
                break
            whole, length = whole + 1, length_after
        token_ids: Sequence[int] | None = state.accepted[:whole]
        if length < len(data):
            rest = vocabulary.encode(data[length:])
            # what is left may begin inside a character, and then has no tokens of its own
            token_ids = vocabulary.encode(data) if rest is None else [*state.accepted[:whole], *rest]
        return _is_whole(state.candidate, state.grammar, state.stop_token_ids, token_ids)

    def satisfies(self, compiled: Compilation, params: SamplingParams, text: str) -> bool:
        """Return whether `text` is all that a constraint asks for. False also where the strategy fails over it."""
        token_ids = self.context.vocabulary.encode(text.encode())
        return _is_whole(compiled.candidate, compiled.grammar, self._stop_token_ids(params), token_ids)

    def own_text(self, journal: Journal, text: str) -> str:
        """Return what of `text`, which the output begins with, is the constraint's: what comes after the reasoning."""
        return self._own_bytes(journal, text).decode(errors="replace")

    def _own_bytes(self, journal: Journal, text: str) -> bytes:
        before = self.context.vocabulary.decode(journal.token_ids[: journal.constraint_start])
        return text[len(before.decode(errors="replace")) :].encode()

    def fork(self, state: GrammarState) -> GrammarState:
        copy = GrammarState(state.candidate, state.grammar, FillJob(state.job.matcher.fork()), state.stop_token_ids)
        copy.accepted, copy.hosted = list(state.accepted), state.hosted
        copy.terminated = state.terminated
        copy.begins_in = state.begins_in
        copy.reserve, copy.bans = state.reserve, state.bans
        copy.budget, copy.closed_early, copy.shortest = state.budget, state.closed_early, state.shortest
        if state.closer is not None:
            copy.closer = state.closer.fork()
        return copy

    def _begins(self, batch: StepBatch, sequence: int, state: GrammarState) -> bool:
        """Return whether the constraint of a sequence, which has not begun yet, begins among its drafts."""
        num_rows = int(batch.row_start[sequence + 1] - batch.row_start[sequence])
        state.num_open_rows = num_rows if state.begins_in is None else min(num_rows, state.begins_in)
        return state.num_open_rows < num_rows

    def _lay_out(self, block: Block, batch: StepBatch, rows: list[int]) -> None:
        """Give `block` the next rows of the bitmask; `rows`, the batch's row that each of them is for, grows by its
        own."""
        block.start = first = len(rows)
        guard = first - 1  # the strategy's row 0
        if batch.num_rows == batch.num_sequences:
            rows += block.sequences
            for row, state in enumerate(block.states, first):
                state.num_open_rows, state.num_rows, state.first_row = 0, 1, row
                state.job.first_row, state.job.draft_token_ids = row - guard, ()
        else:
            starts, drafts = batch.row_start.tolist(), batch.draft_token_ids.tolist()
            for i, state in zip(block.sequences, block.states, strict=True):
                start, end = starts[i], starts[i + 1]
                state.num_open_rows = num_open = state.begins_in or 0
                state.first_row, state.num_rows = len(rows) + num_open, end - start - num_open
                state.job.first_row = state.first_row - guard
                state.job.draft_token_ids = tuple(drafts[start - i + num_open : end - i - 1])
                rows += range(start, end)
        block.end = len(rows)

    def _allocate(self, num_rows: int) -> Bitmask:
        """Room for so many rows between two guards."""
        buffer = np.full((num_rows + 2, self.words), FULL, dtype=np.int32)
        buffer[0] = GUARD
        return buffer

    def _buffer(self, num_rows: int) -> Bitmask:
        """The other buffer, with a guard before and after so many rows. They are not cleared: every first row is
        overwritten by its fill or its fault."""
        self._buffers.reverse()
        if len(self._buffers[0]) < num_rows + 2:
            self._buffers[0] = self._allocate(max(num_rows, 2 * len(self._buffers[0])))
        self._buffers[0][num_rows + 1] = GUARD
        return self._buffers[0]

    def _fill(self, block: Block, buffer: Bitmask) -> dict[GrammarState, BaseException]:
        """Fill the rows of a block; by state why that failed."""
        strategy, jobs = block.states[0].candidate.strategy, tuple([state.job for state in block.states])
        began = time.monotonic()
        try:
            accepted = fill_between_guards(strategy.fill, jobs, buffer[block.start : block.end + 2])
        except BaseException as error:
            contain(error)
            log.warning("grammar.%s failed in fill; filling row by row", strategy.name, exc_info=True)
            accepted = self._fill_one_by_one(block, buffer)
        FILL_SECONDS.labels(block.states[0].candidate.name).observe(time.monotonic() - began)
        if isinstance(strategy, HostedStrategy):  # hosts have deadlines of their own
            self._stopwatch.leave_out(began, waited=True)
        failed: dict[GrammarState, BaseException] = {}
        counts = accepted.tolist()
        began = time.monotonic()
        for state, count in zip(block.states, counts, strict=True):
            state.num_live_drafts = count
            if count >= 0 and state.budget is not None and (why := self._close(state, count, buffer)) is not None:
                failed[state] = why
            if state.canonical and count > 0:
                self._keep_canonical(state, count, buffer)
        self._stopwatch.leave_out(began, waited=False)  # it is bounded in work
        if min(counts) < 0:
            for state, count in zip(block.states, counts, strict=True):
                if count < 0:
                    unsaid = ConformanceError("fill returned -1 without setting the job's error")
                    failed[state], state.job.error = state.job.error or unsaid, None
        return failed

    def _close(self, state: GrammarState, count: int, buffer: Bitmask) -> BaseException | None:
        """Keep the rows of a state, whose first `count` drafts were accepted, to what can be completed; why that
        failed."""
        if state.hosted:
            hosted = cast("HostedMatcher", state.job.matcher)
            state.first_closed = hosted.first_closed
            if hosted.end is not None or hosted.ends:
                self.closing.add(state)
        elif (closer := state.closer) is not None:
            if closer.is_far(count + 1):
                state.first_closed = None
                return None
            first = state.first_row + 1
            try:
                state.first_closed = closer.restrict(
                    state.job.matcher, state.job.draft_token_ids, buffer[first : first + min(count + 1, state.num_rows)]
                )
                self.closing.add(state)
            except BaseException as error:
                contain(error)
                return error
        return None

    def _keep_canonical(self, state: GrammarState, count: int, buffer: Bitmask) -> None:
        """Leave the rows of a state, whose first `count` drafts were accepted, no token but the draft, where that is
        what it is to be kept to."""
        rows = buffer[1:][state.rows]
        for row, (token_id, draft) in enumerate(zip(state.canonical, state.job.draft_token_ids[:count], strict=False)):
            if token_id != draft or not is_allowed(rows, row, token_id):  # what is closed early goes another way
                return
            allow_only(rows, row, (token_id,))

    def _fill_one_by_one(self, block: Block, buffer: Bitmask) -> NDArray[np.int32]:
        """The default fill after a batch fill broke, which may have left matchers and rows anywhere: matchers are made
        anew, and each job's neighbors are the guards of its rows."""
        accepted = np.full(len(block.states), -1, dtype=np.int32)
        buffer[1 + block.start : 1 + block.end] = FULL
        for i, state in enumerate(block.states):
            strategy, job = state.candidate.strategy, state.job
            rows = buffer[state.first_row : state.first_row + state.num_rows + 2]
            try:
                matcher = new_matcher(strategy, state.grammar, state.stop_token_ids)
                if matcher.accept(tuple(state.accepted)) != len(state.accepted):
                    raise ConformanceError("a new matcher refused tokens an equal one had accepted")
                job.matcher, job.first_row = matcher, 1
                accepted[i] = fill_between_guards(partial(GrammarStrategy.fill, strategy), (job,), rows)[0]
            except BaseException as error:
                contain(error)
                job.error = error
        return accepted

    def _faults(
        self, states: Sequence[GrammarState | None], failed: Mapping[GrammarState, BaseException], bitmask: Bitmask
    ) -> dict[int, Fault]:
        """`Payload.faults`. The rows of what failed, or is late, are opened, so that the draw stays finite."""
        faults = {}
        for i, state in enumerate(states):
            if state is None or state not in failed:
                continue
            bitmask[state.rows] = FULL
            if isinstance(failed[state], Late):
                self.late.add(state)
            else:
                faults[i] = Fault.of(f"grammar.{state.candidate.name}", "fill", failed[state])
        return faults

    def _stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        return self.context.vocabulary.stop_token_ids | frozenset(params.stop_token_ids)

    def _forbade(self, state: GrammarState, token_ids: Sequence[int]) -> bool:
        """Return whether the last step's mask forbade one of these tokens, all that were drawn then."""
        bitmask, masked = self._buffers[0][1:][state.rows], token_ids[state.num_open_rows :]
        pairs = zip(range(len(bitmask)), masked, strict=False)
        return any(not is_allowed(bitmask, row, token_id) for row, token_id in pairs)

    def _refusal(self, state: GrammarState, token_ids: Sequence[int], count: int) -> Outcome:
        """Why the token after the first `count` of a step was refused."""
        token_id = token_ids[count]
        if count < state.num_open_rows:
            return fail(
                f"token {token_id} was drawn before the start of the constraint was known, and the constraint "
                "forbids it"
            )
        if self._forbade(state, token_ids[: count + 1]):
            return fail(f"token {token_id} was drawn although the mask forbids it", was_forbidden=True)
        if count > state.num_open_rows + state.num_live_drafts:
            return fail(f"DeadEnd: after token {token_ids[count - 1]} no token is legal")
        return fail(f"it refused token {token_id}, which its own mask allowed")


def _is_whole(
    candidate: Candidate,
    grammar: CompiledGrammar,
    stop_token_ids: frozenset[int],
    token_ids: Sequence[int] | None,
) -> bool:
    """Return whether a grammar may end after these tokens; None: there are none for the text."""
    if token_ids is None:
        return False
    try:
        matcher = new_matcher(candidate.strategy, grammar, stop_token_ids)
        return matcher.accept(tuple(token_ids)) == len(token_ids) and matcher.is_accepting()
    except BaseException as error:
        contain(error)
        log.warning("grammar.%s failed when asked for the end", candidate.name, exc_info=True)
        return False


def _bans(params: SamplingParams) -> Bans:
    banned = frozenset(i for i, bias in params.logit_bias.items() if bias == -math.inf)
    return Bans(logit_bias=banned, stop=tuple(text.encode() for text in params.stop))


def check_names(modifiers: Sequence[LogitModifier[Any]]) -> None:
    """Raise `InvalidConfiguration` if one of the configured modifiers has the mask's name."""
    if any(modifier.name == GRAMMAR_MASK for modifier in modifiers):
        raise InvalidConfiguration(
            f"a logit modifier is named {GRAMMAR_MASK!r}, but that name is reserved for the grammar mask; rename it",
            field="modifiers",
        )
