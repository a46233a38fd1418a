"""The grammar mask, one logit modifier among others: strategies fill rows on the CPU, the device applies them.

This module owns the constraint. The runtime calls it directly for things that only constraints have (compiling, their
start, whether a text completes them) and otherwise treats it as any modifier.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from guideway.api.bitmask import num_words
from guideway.api.grammar import CompiledGrammar, FillJob, GrammarStrategy
from guideway.api.modifier import LogitModifier, ModifierContext
from guideway.api.steps import (
    CONTINUE,
    FINISH,
    GRAMMAR_MASK,
    Feedback,
    Outcome,
    Payload,
    StepBatch,
    fail,
)
from guideway.api.types import Constraint, Losses, Request, SamplingParams, SequenceInfo
from guideway.errors import InvalidConfiguration, InvalidRequest, PluginError, blame, contain
from guideway.runtime.constraints.bans import Bans, MaskBans
from guideway.runtime.constraints.candidates import Candidate, CandidateCache, enforcing_all
from guideway.runtime.constraints.closing import Budget, Record
from guideway.runtime.constraints.compiler import Compilation, Compiler, SearchParameters, Shortest
from guideway.runtime.constraints.forced import ForcedTokens
from guideway.runtime.constraints.forecast import Forecast
from guideway.runtime.constraints.grammar_state import GrammarState
from guideway.runtime.constraints.home import Home
from guideway.runtime.constraints.mask_rows import MaskRows
from guideway.runtime.constraints.worker_half import WorkerMask
from guideway.runtime.sequences.journal import Journal
from guideway.runtime.sequences.replay import new_matcher, recycle
from guideway.runtime.work.step_clock import StepClock
from guideway.runtime.work.steps import Steps
from guideway.runtime.work.stopwatch import Stopwatch

__all__ = ["GrammarMask", "check_names"]

ROWS_TOGETHER = 2048
"""Rows for which hosts are asked for forced tokens at once: half of the memory that they share."""

log = logging.getLogger(__name__)


class GrammarMask(WorkerMask[GrammarState]):
    """The modifier that enforces constraints: one bitmask row per row of the sequence. `MaskRows` documents how long
    rows stay valid."""

    def __init__(
        self,
        strategies: Mapping[str, GrammarStrategy],
        homes: Mapping[str, Home],
        compiler: Compiler,
        shortest: Shortest,
        context: ModifierContext,
        stopwatch: Stopwatch,
        clock: StepClock,
        *,
        isolates_tenants: bool = False,
        forced_tokens: ForcedTokens = "off",
        num_forced_tokens: int = 0,
    ) -> None:
        super().__init__({}, context)
        self._stopwatch = stopwatch
        self.candidates = CandidateCache(strategies, homes, isolates_tenants=isolates_tenants)
        """Cache of the candidates of recent constraints."""
        self.mask_rows = MaskRows(num_words(context.vocabulary.logits_width), stopwatch, clock)
        self._compiler = compiler
        self._shortest = shortest
        self._elsewhere = next((home for home in homes.values() if home.waits), None)
        """The home of any strategy in hosts. All of them use the same hosts."""
        self._forced_tokens = forced_tokens
        self._num_forced = num_forced_tokens

    def compile_constraint(
        self, constraint: Constraint, request: Request, search: SearchParameters | None
    ) -> Steps[Compilation | None]:
        """Return the steps that compile the constraint of a request and, with `search`, search for its shortest output.
        Raises `UnsupportedGrammar` if no strategy takes it, or none enforces all of it under
        ``on_unenforced="refuse"``."""
        chosen = self.candidates.of(request.tenant).chosen(constraint)
        in_full = request.params.on_unenforced == "refuse"
        candidates = enforcing_all(chosen, constraint) if in_full else chosen.candidates
        return self._compile(candidates, constraint, request.tenant, search)

    def _compile(
        self, candidates: Sequence[Candidate], constraint: Constraint, tenant: str, search: SearchParameters | None
    ) -> Steps[Compilation | None]:
        error, compiled = yield from self._compiler.compile(candidates, constraint, tenant)
        if compiled is None or search is None:
            return error, compiled
        return (yield from self._shortest.find(compiled, search, tenant))

    def search_parameters(
        self, params: SamplingParams, room: int, bans: Bans | None, *, refuses: bool, always: bool
    ) -> SearchParameters:
        """Return the parameters of the search for a request's shortest output in `room` tokens, which `refuses` it if
        it does not fit. Set `always` if the budget may still shrink, as it does while the request reasons."""
        own = _bans(params)
        bans = own if bans is None else replace(bans, stop=own.stop)
        return SearchParameters(room, refuses, always, self._stop_token_ids(params), bans)

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
        state.shortest, state.beginnings = compiled.shortest, compiled.beginnings
        if self._forced_tokens in ("auto", "exact"):
            state.forecast = Forecast(compiled.runs, stop_token_ids, saves=self._forced_tokens == "auto")
        return state

    def ban(self, state: GrammarState | None, bans: Bans) -> MaskBans | None:
        """Set the bans of a sequence before it begins, in addition to its stop strings. Completions avoid them if
        possible. Return the bans for the host to apply to the masks, or None."""
        if state is None:
            return None
        state.bans = replace(bans, stop=state.bans.stop)
        return MaskBans(bans, state.stop_token_ids, self.mask_rows.words) if bans.of_masks else None

    def release(self, state: GrammarState | None) -> None:
        if state is not None:
            self.mask_rows.late.discard(state)
            self.mask_rows.closing.discard(state)

    def recycle(self, state: GrammarState | None) -> None:
        """Give the matcher of a sequence that ended without a failure back to its strategy for reuse."""
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
        """Start the constraint after `num_tokens` more tokens, with `room` tokens for its own output; None: not known
        yet. `end` is the latest closing record."""
        if state is None:
            return
        state.begins_in = num_tokens
        if num_tokens is None or state.reserve is None:
            return
        state.budget = Budget(room, state.reserve, state.bans)
        ending = state.candidate.home.ending
        state.closer = ending(state.job.matcher, state.stop_token_ids, state.budget, end, state.beginnings)

    def takes(self, state: GrammarState | None, token_ids: Sequence[int]) -> bool:
        """Return whether the constraint, which has begun, allows these tokens next; True without one."""
        return state is None or state.job.matcher.validate(token_ids) == len(token_ids)

    def start_again(self, state: GrammarState | None) -> None:
        """Undo the tokens that the constraint accepted, because it has not begun after all."""
        if state is None:
            return
        self.mask_rows.closing.discard(state)
        old, state.job = (
            state.job.matcher,
            FillJob(new_matcher(state.candidate.strategy, state.grammar, state.stop_token_ids)),
        )
        state.accepted, state.begins_in, state.budget, state.closer = [], None, None, None
        state.closed_early, state.canonical = False, ()
        state.forecast = state.forecast and state.forecast.restart()
        recycle(state.grammar, old)

    def fits(self, state: GrammarState | None, room: int) -> bool:
        """Return whether `room` tokens are enough for a whole output, or the output may be cut."""
        if state is None or state.reserve is None:
            return True
        enough = state.reserve.level + state.reserve.growth
        return room > enough or (enough if state.shortest is None else state.shortest) <= room

    def is_closed(self, state: GrammarState | None) -> bool:
        """Return whether the output of a sequence is complete where it is cut, or may be cut. False also if the
        constraint has not begun, or the strategy fails."""
        if state is None or state.terminated or state.reserve is None:
            return True
        try:
            # a number of JSON that is cut is another number
            return not state.reserve.is_json and state.begins_in == 0 and state.job.matcher.is_accepting()
        except BaseException as error:
            contain(error)
            log.warning("grammar.%s failed when asked for the end", state.candidate.name, exc_info=True)
            return False

    def first_closed(self, state: GrammarState | None) -> int | None:
        """Return the first row of a sequence in the last step from which closing took tokens; None if there is none."""
        return None if state is None or state.begins_in != 0 else state.first_closed

    def note_own(self, state: GrammarState | None) -> None:
        """Record that the tokens of the last step, which are about to be accepted, would also have been drawn without
        closing."""
        if state is not None:
            state.first_closed = None

    def record_end(self, state: GrammarState | None, journal: Journal) -> None:
        """Append the closing record of a sequence to its journal."""
        if state is not None:
            self.mask_rows.record_end(state, journal)

    def is_late(self, state: GrammarState | None) -> bool:
        """Return whether the rows of a sequence were not ready in the last step."""
        return state in self.mask_rows.late

    def is_ready(self, state: GrammarState | None) -> bool:
        """Return whether rows that were late may be ready now."""
        return state is None or state.candidate.home.is_ready(state.job.matcher)

    def strategy(self, state: GrammarState | None) -> str | None:
        """Return the name of the strategy that serves a sequence."""
        return None if state is None else state.candidate.name

    def unenforced(self, state: GrammarState) -> Sequence[str]:
        return state.candidate.unenforced

    def losses(self, state: GrammarState | None) -> Losses:
        """Return the keywords that a rewritten schema does not express."""
        return Losses() if state is None else state.candidate.losses

    def plugin_of(self, state: GrammarState | None) -> str:
        return super().plugin_of(state) if state is None else f"grammar.{state.candidate.name}"

    def prepare(self, batch: StepBatch, states: Sequence[GrammarState | None]) -> Payload | None:
        return self.mask_rows.fill(batch, states)

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
        state.learn_forced()
        began = time.monotonic()
        count = matcher.accept(ours)
        if state.candidate.home.waits:  # the call may have waited for its host
            self._stopwatch.leave_out(began, waited=True)
        if count != len(ours):
            return self._refusal(state, token_ids, num_before, num_before + count)
        state.accepted += ours
        if state.forecast is not None:
            state.forecast.accept(ours, 0 if num_before else len(state.job.draft_token_ids))
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
        home, forecast = state.candidate.home, state.forecast
        if forecast is None:
            return (home.forced(state.job.matcher, state.stop_token_ids, limit) or ())[:limit]
        if home.waits:
            state.learn_forced()
        elif forecast.searches():
            forecast.learn(home.forced(state.job.matcher, state.stop_token_ids, self._num_forced) or ())
        return (forecast.run or ())[:limit]

    def look_ahead(self, states: Sequence[GrammarState | None], limits: Sequence[int]) -> None:
        """Start filling the rows of these sequences in hosts for the next `prepare`, with at most ``limits[i]``
        expected forced tokens as drafts."""
        drafts = [
            (state.forecast.run or ())[:limit] if state is not None and state.forecast is not None else ()
            for state, limit in zip(states, limits, strict=True)
        ]
        self.foresee(states, drafts)

    @property
    def foresees(self) -> bool:
        """True if `foresee` has any effect."""
        return self._elsewhere is not None and not self._elsewhere.is_ahead

    def foresee(self, states: Sequence[GrammarState | None], drafts: Sequence[Sequence[int]]) -> None:
        """Start filling the rows of these sequences and drafts in hosts for the next `prepare`, if that does not wait.
        For a sequence without drafts and without a forecast, the hosts search for forced tokens."""
        home, jobs, limits = None, list[FillJob](), list[int]()
        for state, token_ids in zip(states, drafts, strict=True):
            if _is_elsewhere(state):
                home = state.candidate.home
                job = state.job
                jobs.append(FillJob(job.matcher, tuple(token_ids)) if token_ids or job.draft_token_ids else job)
                searches = not token_ids and state.forecast is not None and state.forecast.searches()
                limits.append(self._num_forced if searches else 0)
        if home is not None:
            home.foresee(jobs, limits if any(limits) else ())  # any home will do, because all use the same hosts

    def hear(self) -> None:
        """Read the answer of the hosts to `look_ahead` if it has arrived, for `forced`."""
        if self._elsewhere is not None:
            self._elsewhere.hear(waits=False)

    def ask_forced(self, states: Sequence[GrammarState | None], limit: int) -> None:
        """Wait until the hosts have found the forced tokens of these sequences, so that `forced` returns them."""
        asked = [FillJob(state.job.matcher) for state in states if _is_elsewhere(state)]
        num_together = max(1, ROWS_TOGETHER // (1 + limit))
        for i in range(0, len(asked) if self._elsewhere is not None else 0, num_together):
            assert self._elsewhere is not None
            some = asked[i : i + num_together]
            self._elsewhere.foresee(some, [limit] * len(some), waits=True)
            self._elsewhere.hear(waits=True)

    def keep_to(self, state: GrammarState | None, token_ids: Sequence[int]) -> None:
        """Restrict the next step to these forced tokens, up to the first that differs from its drafts."""
        if state is not None and state.begins_in == 0:
            state.canonical = tuple(token_ids)

    def validate(self, state: GrammarState, token_ids: Sequence[int]) -> int:
        if state.candidate.home.is_slow(state.job.matcher):
            return 0  # drafts are guesses
        num_before = len(token_ids) if state.begins_in is None else state.begins_in
        if num_before >= len(token_ids):
            return len(token_ids)
        return 0 if state.terminated else num_before + state.job.matcher.validate(token_ids[num_before:])

    def completes(self, state: GrammarState | None, journal: Journal, text: str) -> bool:
        """Return whether `text`, a prefix of the output, satisfies the constraint; True without one. The state does not
        change. False also if the constraint has not begun, or the strategy fails."""
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
            # the rest may begin inside a character: then it cannot be encoded without the text before it
            token_ids = vocabulary.encode(data) if rest is None else [*state.accepted[:whole], *rest]
        return _is_whole(state.candidate, state.grammar, state.stop_token_ids, token_ids)

    def satisfies(self, compiled: Compilation, params: SamplingParams, text: str) -> bool:
        """Return whether `text` satisfies a constraint. False also if the strategy fails."""
        token_ids = self.context.vocabulary.encode(text.encode())
        return _is_whole(compiled.candidate, compiled.grammar, self._stop_token_ids(params), token_ids)

    def own_text(self, journal: Journal, text: str) -> str:
        """Return the part of `text`, a prefix of the output, that belongs to the constraint: the text after the
        reasoning."""
        return self._own_bytes(journal, text).decode(errors="replace")

    def _own_bytes(self, journal: Journal, text: str) -> bytes:
        before = self.context.vocabulary.decode(journal.token_ids[: journal.constraint_start])
        return text[len(before.decode(errors="replace")) :].encode()

    def fork(self, state: GrammarState) -> GrammarState:
        copy = GrammarState(state.candidate, state.grammar, FillJob(state.job.matcher.fork()), state.stop_token_ids)
        copy.accepted = list(state.accepted)
        copy.terminated = state.terminated
        copy.begins_in = state.begins_in
        copy.reserve, copy.bans = state.reserve, state.bans
        copy.budget, copy.closed_early, copy.shortest = state.budget, state.closed_early, state.shortest
        copy.beginnings = state.beginnings
        copy.forecast = state.forecast and state.forecast.fork()
        if state.closer is not None:
            copy.closer = state.closer.fork(copy.job.matcher)
        return copy

    def _stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        return self.context.vocabulary.stop_token_ids | frozenset(params.stop_token_ids)

    def _refusal(self, state: GrammarState, token_ids: Sequence[int], num_before: int, count: int) -> Outcome:
        """Return the outcome for a step whose token after the first `count` was refused. `num_before` is the number of
        tokens of this step before the constraint began, 0 if it had begun before."""
        token_id = token_ids[count]
        if num_before:
            return fail(
                f"token {token_id} was drawn before the start of the constraint was known, and the constraint "
                "forbids it"
            )
        if self.mask_rows.forbade(state, token_ids[: count + 1]):
            return fail(f"token {token_id} was drawn although the mask forbids it", was_forbidden=True)
        if count > state.num_live_drafts:
            return fail(f"DeadEnd: after token {token_ids[count - 1]} no token is legal")
        return fail(f"it refused token {token_id}, which its own mask allowed")


def _is_elsewhere(state: GrammarState | None) -> TypeGuard[GrammarState]:
    """Return whether another process fills the rows of a state, and the state's next step has rows to fill."""
    return state is not None and state.candidate.home.waits and state.begins_in == 0 and not state.terminated


def _is_whole(
    candidate: Candidate,
    grammar: CompiledGrammar,
    stop_token_ids: frozenset[int],
    token_ids: Sequence[int] | None,
) -> bool:
    """Return whether a grammar accepts these tokens as a whole output. None means that the text has no tokens."""
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
    """Raise `InvalidConfiguration` if a configured modifier has the mask's name."""
    if any(modifier.name == GRAMMAR_MASK for modifier in modifiers):
        raise InvalidConfiguration(
            f"a logit modifier is named {GRAMMAR_MASK!r}, but that name is reserved for the grammar mask; rename it",
            field="modifiers",
        )
