"""Closing of one output: near the end of its budget, exclude tokens after which no completion fits."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import BITS_PER_WORD, Bitmask, is_allowed, pack
from guideway.api.grammar import Matcher
from guideway.errors import ConformanceError, UnsupportedCapability
from guideway.json_schema.cursor import START, JsonCursor
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing.judging import Judge
from guideway.runtime.constraints.closing.lexicon import MOST, Lexicon
from guideway.runtime.constraints.closing.reserve import Reserve
from guideway.runtime.constraints.closing.search import WORK, brings_about, find_completion
from guideway.runtime.constraints.closing.ways import Prover, Way

__all__ = ["SEARCH_SECONDS", "Beginnings", "Budget", "Closer", "Record"]

LONGEST = 4096
"""Most tokens of a completion in a search without a budget, and most tokens that `_follow` validates."""
MOST_PROVED = 2048
"""Work of judging the tokens of one mask by known ways, and again of searches for them, in the unit of `WORK`."""
WORK_PER_TOKEN = 48
"""Work of a search per token that the completion may have, in the unit of `WORK`."""
BRIDGE_WORK = 320
"""Work of the search for a completion after one judged token, in the unit of `WORK`."""
SEARCH_SECONDS = 4.0
"""CPU seconds of a step after which its searches stop. The limit on work usually stops them long before. It is below
the CPU time that a host grants a matcher, so a slow matcher loses its completion but not its request."""
NO_BANS = Bans()
MOST_AVOIDED = 32
"""Most banned tokens to avoid in one text. Each of them needs another spelling of the text."""
MOST_BEGINNINGS = 64
"""Most entries of `Beginnings` to keep for one grammar."""
MOST_SHORTER = 3
"""Most searches for a completion that is shorter than the one found before."""
PART = 8
"""Divisor of the work for searches that are not thorough: they still find nearly all completions."""
AGAIN = 2
"""Divisor of the remaining tokens: after a failed search, this share of them is drawn before the next search."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The tokens that an output may have, its stop token included, with the estimates and bans for its completion."""

    num_tokens: int
    reserve: Reserve
    bans: Bans = NO_BANS
    """Tokens and texts that a completion avoids if it can."""


@dataclass(frozen=True, slots=True)
class Record:
    """State of closing for one output. With the output's tokens it determines all later masks, so a replay needs it."""

    free_until: int = 0
    """Number of accepted tokens below which `restrict` has nothing to do."""
    at: int = 0
    """Number of accepted tokens when the record was made. The texts continue the output from there."""
    texts: tuple[bytes, ...] = ()
    """Texts that each complete the first `at` tokens; empty if none is known. The first text decides when the masks are
    judged."""
    lifts_bans: bool = False
    """True if the first text contains banned tokens or texts, because no other was found."""
    bans_at: int = 0
    """Number of accepted tokens below which no completion without bans is searched for again."""

    @property
    def found_none(self) -> bool:
        """True if the last search found no completion."""
        return self.free_until > 0 and not self.texts

    def to_json(self) -> list[Any]:
        """Return the record as JSON values, for a message."""
        texts = [text.decode("latin-1") for text in self.texts]
        return [self.free_until, self.at, texts, self.lifts_bans, self.bans_at]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Record:
        """Return the record from the JSON values that `to_json` returned."""
        free_until, at, texts, lifts_bans, bans_at = values
        texts = tuple(text.encode("latin-1") for text in texts)
        return cls(int(free_until), int(at), texts, bool(lifts_bans), int(bans_at))


Beginnings: TypeAlias = dict[tuple[Budget, frozenset[int]], Record]
"""Records of one grammar before the first token, by budget and stop tokens. All outputs of the grammar share them."""


class Closer:
    """Restriction of the masks of one sequence, so that its output is complete within its budget.

    Far from the end of the budget it does nothing. Near the end it excludes tokens after which no completion is found
    that fits. Legal tokens that end the output are always allowed.
    """

    def __init__(
        self,
        lexicon: Lexicon,
        stop_token_ids: frozenset[int],
        budget: Budget,
        record: Record | None = None,
        beginnings: Beginnings | None = None,
    ) -> None:
        self._lexicon = lexicon
        self._stop_token_ids = stop_token_ids
        self._budget = budget
        self._beginnings: Beginnings = {} if beginnings is None else beginnings
        self._regions = [(begin.encode(), end.encode()) for begin, end in budget.reserve.regions]
        self.record = record or Record()
        self.records: list[Record] = []
        """By row of the last `restrict`: the record that applies after a token is drawn from the row."""
        self._accepted: list[int] = []
        self._cursors: list[JsonCursor] = [START]
        """By number of accepted tokens: the position in JSON after them. Filled on demand."""
        self._ways: dict[bytes, Way] = {}
        """By text: ways of the record. Filled on demand."""
        self._until = math.inf
        """CPU time of the thread, in seconds, at which searches stop; 0: `SEARCH_SECONDS` after the first begins."""
        self._far_from, self._far_until = 0, -1
        """`_far_until` is the most tokens, rows included, for which the end is far with any tokens. `_far_from` is the
        number of accepted tokens when it was computed."""
        self._opened: dict[tuple[bytes, bytes], int | None] = {}
        """In free text, by mask and text since the trigger began: tokens of the shortest completion found after that
        text; None if none was found."""

    def fork(self, matcher: Matcher) -> Closer:
        """Return a closer for a copy of the sequence, with the same past. `matcher`, the copy's, is for hosts."""
        copy = Closer(self._lexicon, self._stop_token_ids, self._budget, self.record, self._beginnings)
        copy._accepted, copy._cursors, copy.records = list(self._accepted), list(self._cursors), self.records
        copy._far_from, copy._far_until = self._far_from, self._far_until
        copy._ways, copy._opened = dict(self._ways), self._opened
        return copy

    def accept(self, token_ids: Sequence[int]) -> None:
        """Accept final tokens. Each was drawn from one row of the last `restrict`, in order."""
        if not token_ids:  # keep the records: tokens may still be drawn from the rows of the last `restrict`
            return
        if self.records:
            self.record = self.records[min(len(token_ids), len(self.records)) - 1]
        self.records = []
        self._accepted += token_ids

    def write(self, num_tokens: int, token_ids: Sequence[int]) -> None:
        """Replace the accepted tokens after the first `num_tokens`. `is_far` must have been True for each new token, or
        it is one that was drawn after a `restrict`."""
        if self.records:
            self.record, self.records = self.records[0], []
        self._accepted[num_tokens:] = token_ids
        del self._cursors[num_tokens + 1 :]

    @property
    def num_free(self) -> int:
        """Number of tokens that may be accepted one by one while `is_far(1)` stays True."""
        return max(self._far_until, self.record.free_until - 1) - len(self._accepted) - 1

    def _cursor(self) -> JsonCursor:
        """Return the position in JSON after the accepted tokens."""
        cursors, tokens = self._cursors, self._lexicon.tokens
        for token_id in self._accepted[len(cursors) - 1 :]:
            cursors.append(cursors[-1].after(tokens[token_id]))
        return cursors[-1]

    def _position(self, num_tokens: int) -> JsonCursor | None:
        """Return the position in JSON after the first `num_tokens` accepted tokens; None if they do not end in JSON."""
        reserve = self._budget.reserve
        if reserve.is_json:
            self._cursor()
            return self._cursors[num_tokens]
        if not reserve.regions:
            return None
        text = self._lexicon.write(self._accepted[:num_tokens])
        at, begin, end = max(((text.rfind(begin), begin, end) for begin, end in self._regions), key=lambda it: it[0])
        rest = text[at + len(begin) :]
        if at < 0 or (end and end in rest):
            return None
        opened = begin.find(b"{")  # the object, if any, that contains the content of the tag
        return START.after(begin[opened:] + rest if opened >= 0 else rest)

    def rollback(self, num_tokens: int) -> None:
        """Remove the last `num_tokens` accepted tokens."""
        if num_tokens:
            del self._accepted[-num_tokens:]
            num_left = len(self._accepted)
            del self._cursors[num_left + 1 :]
            if num_left < self._far_from:  # more objects and arrays may have been open there
                self._far_from, self._far_until = 0, -1

    def is_far(self, num_rows: int) -> bool:
        """Return whether the end is too far for `restrict` to change any of `num_rows` rows or the record.

        If so, the records of the last `restrict` are dropped.
        """
        num_ahead = len(self._accepted) + num_rows
        if num_ahead <= self._far_until or num_ahead < self.record.free_until:
            self.records = []
            return True
        return False

    def restrict(self, matcher: Matcher, draft_token_ids: Sequence[int], rows: Bitmask) -> int | None:
        """Exclude from `rows` the tokens after which no completion is found that fits.

        The first row is the mask of the current state of `matcher`. The next ones are the masks after each draft token
        that it accepts; further rows stay as they are. Return the index of the first row that lost a token, or None.
        The state of the matcher does not change.
        """
        first, record, done = None, self.record, 0
        self.records = []
        self._until = 0.0  # most calls do not search, and reading the thread's clock takes longer than the rest
        try:
            for i, row in enumerate(rows[: 1 + len(draft_token_ids)]):
                if i:
                    draft = draft_token_ids[i - 1]
                    if (
                        self._is_far(record, len(rows))
                        or draft in self._stop_token_ids
                        or not is_allowed(rows, i - 1, draft)  # excluded from the row before
                        or matcher.accept((draft,)) != 1
                    ):
                        break
                    self._accepted.append(draft)
                    done = i
                record, keep = self._decide(matcher, record, row)
                self.records.append(record)
                if keep is not None and (row & ~keep).any():
                    row &= keep
                    first = i if first is None else first
        finally:
            if done:
                matcher.rollback(done)
                self.rollback(done)
        return first

    def _is_far(self, record: Record, num_tokens: int = 0) -> bool:
        """Return whether this state, and all states after up to `num_tokens` more tokens, need no search."""
        reserve, num_accepted = self._budget.reserve, len(self._accepted) + num_tokens
        if num_accepted < record.free_until:
            return True
        num_open = 1 + (num_tokens + len(self._cursor().open) if reserve.is_json else 0)
        # an end without what is banned may be longer than the bound on any end
        level = reserve.level or (reserve.growth if self._budget.bans.of_completion else 0)
        spare = self._budget.num_tokens - num_accepted - num_open * level - reserve.growth
        if not num_tokens and spare > 1:
            # the most that one token takes from `spare`
            each = 1 + (reserve.level * max(1, self._lexicon.most_opened) if reserve.is_json else 0)
            self._far_from, self._far_until = num_accepted, num_accepted + (spare - 1) // each
        return spare > 0

    def _decide(
        self, matcher: Matcher, record: Record, row: NDArray[np.int32]
    ) -> tuple[Record, NDArray[np.int32] | None]:
        """Return the record of the state, and a row of the tokens that its mask may keep; None for all."""
        if self._is_far(record):
            return record, None
        reserve, num_accepted = self._budget.reserve, len(self._accepted)
        left = self._budget.num_tokens - num_accepted
        if reserve.triggers and matcher.is_accepting():
            return Record(0, num_accepted, (b"",)), self._judge_triggers(matcher, row, left - 1)
        record = self._follow(matcher, record, left) or self._looked_for(matcher, record, left)
        if not record.texts:
            return record, None
        room = left - 1 - self._known_ways(record)[0].cost()
        if room < 0:
            return record, None
        if room > reserve.growth:
            return replace(record, free_until=num_accepted + room // (reserve.growth + 1)), None
        return self._judge(matcher, record, row, left - 1)

    def _judge(
        self, matcher: Matcher, record: Record, row: NDArray[np.int32], limit: int
    ) -> tuple[Record, NDArray[np.int32] | None]:
        """Judge the tokens of a mask. Return the new record, and a row of the tokens to keep; None for all."""
        bans = self._bans_of(record)
        banned, apart = self._find_banned(bans)
        judge = Judge(
            banned=banned,
            apart=apart,
            matcher=matcher,
            lexicon=self._lexicon,
            spell=partial(self._spell, bans),
            stop_token_ids=self._stop_token_ids,
            cursor=self._position(len(self._accepted)),
            limit=limit,
            ways=self._known_ways(record),
            prover=Prover(matcher, self._stop_token_ids, MOST_PROVED),
            searcher=Prover(matcher, self._stop_token_ids, MOST_PROVED),
            find=partial(self._find_after, matcher, bans),
            bans=bans,
            past=self._accepted,
        )
        refused = judge.refused(row)
        keep = _without(refused, self._lexicon.words)
        return self._record_of(judge.ways, record.lifts_bans, record.bans_at), keep if (row & keep).any() else None

    def _judge_triggers(self, matcher: Matcher, row: NDArray[np.int32], limit: int) -> NDArray[np.int32]:
        """Return a row of the tokens that the mask may keep in free text, where the output is already complete.

        Excluded are tokens that open a tag if no completion in at most `limit` further tokens is found.
        """
        triggers = [trigger.encode() for trigger in self._budget.reserve.triggers]
        past = self._lexicon.write(self._accepted[-max(map(len, triggers)) :])
        opening: dict[int, bytes] = {}
        """By token: the text that it writes from the trigger on. Tokens that write the same text have the same cost."""
        for trigger in triggers:
            opening |= self._lexicon.opening(trigger)
            for end in range(1, len(trigger)):
                if past.endswith(trigger[:end]):
                    tokens = self._lexicon.which("begins", trigger[end:])
                    opening |= {i: trigger[:end] + self._lexicon.tokens[i] for i in tokens}
        mask, refused = row.tobytes(), []
        for token_id, written in opening.items():
            if is_allowed(row[np.newaxis], 0, token_id):
                if (mask, written) not in self._opened:
                    self._opened[mask, written] = self._find_cost(matcher, token_id)
                if (cost := self._opened[mask, written]) is None or cost > limit:
                    refused.append(token_id)
        return _without(refused, self._lexicon.words)

    def _find_cost(self, matcher: Matcher, token_id: int) -> int | None:
        """Return the number of tokens of the shortest completion found after a token, stop token included.

        Return 0 if the token completes the output or the matcher does not take it, None if no completion is found.
        """
        if matcher.accept((token_id,)) != 1:
            return 0
        self._accepted.append(token_id)
        try:
            if matcher.is_accepting():
                return 0
            return self._shortest_cost(matcher, None)
        finally:
            self.rollback(1)
            matcher.rollback(1)

    def _find_banned(self, bans: Bans) -> tuple[list[int], list[list[int]]]:
        """Return the tokens that complete a stop string, and groups of tokens to judge separately within their shape.

        After a token of such a group, a completion may contain a banned text that it does not contain after others.
        """
        tokens = self._lexicon.tokens
        banned: list[int] = []
        apart = [[token_id] for word in bans.bad_words for token_id in word]
        for text in bans.stop:
            past = b"".join(tokens[i] for i in self._accepted[-len(text) :])
            banned += self._lexicon.which("holds", text)
            for end in range(1, len(text)):
                apart.append(self._lexicon.which("ends", text[:end]))
                if past.endswith(text[:end]):
                    banned += self._lexicon.which("begins", text[end:])
        return banned, apart

    def _find_after(
        self, matcher: Matcher, bans: Bans, token_id: int, known: Sequence[Way], prover: Prover
    ) -> Sequence[int] | None:
        """Return a completion after a token that the matcher has accepted; None if a short search finds none."""
        self._accepted.append(token_id)
        try:
            return self._find(matcher, bans, work=BRIDGE_WORK, known=known, prover=prover)
        finally:
            self.rollback(1)

    def _known_ways(self, record: Record) -> list[Way]:
        """Return the ways of a record, in the order of its texts. They begin after `record.at` tokens."""
        begin = self._position(record.at)
        for text in record.texts:
            if text not in self._ways:
                self._ways[text] = self._spell(self._bans_of(record), text, begin, record.at)
        return [self._ways[text] for text in record.texts]

    def _bans_of(self, record: Record) -> Bans:
        """Return the bans that hold for the completions of a record."""
        return NO_BANS if record.lifts_bans else self._budget.bans

    def _spell(self, bans: Bans, text: bytes, begin: JsonCursor | None, num_accepted: int | None = None) -> Way:
        """Return the way of a text that continues the first `num_accepted` accepted tokens; None for all of them.

        Try up to `MOST_AVOIDED` spellings for one without banned tokens. If there is none, the way contains them.
        """
        past = self._accepted[:num_accepted]
        if bans.of_completion:
            avoid: set[tuple[int, int]] = set()
            while len(avoid) < MOST_AVOIDED:
                way = Way(text, begin, self._lexicon, bans, avoid)
                if way.cost() >= MOST:
                    break
                path, at = way.path(), 0
                for i, token_id in enumerate(path):
                    end = at + len(self._lexicon.tokens[token_id])
                    if bans.forbids((*past, *path[:i]), (token_id,)):
                        avoid.add((at, end))
                        break
                    at = end
                else:
                    return way
        return Way(text, begin, self._lexicon)

    def _record_of(
        self,
        ways: Sequence[Way],
        lifts_bans: bool = False,
        bans_at: int = 0,
    ) -> Record:
        """Return the record for ways that complete the output after the accepted tokens."""
        self._ways = {way.text: way for way in ways}
        if self._budget.bans.of_completion:  # spell them again from the record, as a replay does
            self._ways.clear()
        texts = tuple(dict.fromkeys(way.text for way in ways))
        return Record(0, len(self._accepted), texts, lifts_bans, bans_at)

    def _follow(self, matcher: Matcher, record: Record, left: int) -> Record | None:
        """Return the record of the current state if the matcher takes a way of `record`, or the rest of one.

        Return None if no way fits in `left` tokens. Ways with banned tokens count only until `record.bans_at`: after
        that, a search for another one is due.
        """
        if not record.texts or record.at > len(self._accepted):
            return None
        if record.at == len(self._accepted):
            return record
        cursor = self._position(len(self._accepted))
        written = b"".join([self._lexicon.tokens[i] for i in self._accepted[record.at :]])
        ways, prover = self._known_ways(record), Prover(matcher, self._stop_token_ids, LONGEST)
        on_way = [(way.cost(at), i, at) for i, way in enumerate(ways) if (at := way.follow(written)) is not None]
        off_way = [(way.cost(at), i, at) for i, way in enumerate(ways) for at in way.joints(written, cursor)]
        for cost, i, at in [*sorted(on_way), *sorted(off_way)]:
            if cost >= left or not prover.proves(ways[i], at):
                continue
            is_free = not brings_about(self._budget.bans, self._accepted, ways[i].path(at), self._lexicon)
            if not is_free and len(self._accepted) >= record.bans_at:
                continue
            if at == 0:  # the output is still in the string in which the ways begin
                first = [ways[i], *(way for way in ways if way is not ways[i])]
                found = self._record_of(first, not is_free, record.bans_at)
            else:
                others = [(k, to) for _, k, to in on_way if k != i] if (cost, i, at) in on_way else []
                rests = [Way(ways[k].text[to:], cursor, self._lexicon) for k, to in [(i, at), *others]]
                found = self._record_of(rests, not is_free, record.bans_at)
            return found
        return None

    def _looked_for(self, matcher: Matcher, record: Record, left: int) -> Record:
        """Search for a completion and return the record of the state.

        If no search was made before, first try the rest of a completion from before the first token. All outputs share
        that one, and the try takes a small part of the work of a search.
        """
        if not self._accepted:
            return self._beginning(matcher)
        if not record.found_none and not record.texts:
            record = self._beginning(matcher)
            if found := self._follow(matcher, record, left):
                return found
        return self._searched(matcher, record, left)

    def _beginning(self, matcher: Matcher) -> Record:
        """Return the record before the first token, which all outputs share. Restore the state of the matcher."""
        key = (self._budget, self._stop_token_ids)
        if (known := self._beginnings.get(key)) is None:
            accepted, cursors = self._accepted, self._cursors
            matcher.rollback(len(accepted))
            self._accepted, self._cursors = [], [START]
            try:
                known = self._searched(matcher, Record(), self._budget.num_tokens)
            finally:
                self._accepted, self._cursors = accepted, cursors
                if matcher.accept(tuple(accepted)) != len(accepted):
                    raise ConformanceError("it refused tokens that it had accepted before they were rolled back")
            if len(self._beginnings) >= MOST_BEGINNINGS:
                self._beginnings.clear()
            self._beginnings[key] = known
        return known

    def _searched(self, matcher: Matcher, record: Record, left: int) -> Record:
        num_accepted = len(self._accepted)
        if self._budget.num_tokens < self._budget.reserve.fewest:
            return Record(self._budget.num_tokens, num_accepted)
        again = num_accepted + max(1, left // AGAIN)
        known = self._known_ways(record) if record.at <= num_accepted else []
        for bans in self._bans_to_try:
            if bans is self._budget.bans and num_accepted < record.bans_at:
                continue
            found = self._find(matcher, bans, known=known)
            if found is None and not record.found_none and not record.lifts_bans:
                found = self._find(matcher, bans, known=known, is_thorough=True)
            if found is None and not num_accepted:  # the number that an error names fits
                found = self._find_shortest(matcher, bans)
            if found is not None:
                way = self._spell(bans, self._text(found), self._position(num_accepted))
                if way.cost() < left:
                    lifts = bans is not self._budget.bans
                    return self._record_of([way], lifts, again if lifts else 0)
        return Record(again, num_accepted)

    def shortest(self, matcher: Matcher) -> int | None:
        """Return the number of tokens of the shortest output found, regardless of the budget; None if none is found."""
        return self._shortest_cost(matcher, self._position(0))

    def _shortest_cost(self, matcher: Matcher, begin: JsonCursor | None) -> int | None:
        """Return the number of tokens of the shortest completion found; None if none is found."""
        for bans in self._bans_to_try:
            if (found := self._find_shortest(matcher, bans)) is not None:
                return 1 + self._spell(bans, self._text(found), begin).cost()
        return None

    def _text(self, token_ids: Sequence[int]) -> bytes:
        """Return the text of a completion, given with its stop token."""
        return b"".join([self._lexicon.tokens[i] for i in token_ids[:-1]])

    @property
    def _bans_to_try(self) -> tuple[Bans, ...]:
        return (self._budget.bans, NO_BANS) if self._budget.bans.of_completion else (self._budget.bans,)

    def _find_shortest(self, matcher: Matcher, bans: Bans) -> Sequence[int] | None:
        """Return the shortest completion found, regardless of the budget; None if none is found."""
        found = self._find(matcher, bans, limit=LONGEST, is_thorough=True)
        shorter, num_left = found, MOST_SHORTER
        while shorter is not None and num_left:
            found, num_left = shorter, num_left - 1
            shorter = self._find(matcher, bans, limit=len(found) - 1)
        return shorter or found

    def _find(
        self,
        matcher: Matcher,
        bans: Bans,
        *,
        limit: int | None = None,
        is_thorough: bool = False,
        work: int | None = None,
        known: Sequence[Way] = (),
        prover: Prover | None = None,
    ) -> Sequence[int] | None:
        """Return a completion of at most `limit` tokens, by default the remaining ones; None if none is found.

        `work` limits the search, by default according to `limit` and `is_thorough`.
        """
        reserve, past = self._budget.reserve, self._accepted
        if limit is None:
            limit = self._budget.num_tokens - len(past)
        if work is None:  # more for a completion that may be long
            work = (WORK + WORK_PER_TOKEN * min(limit, reserve.level or reserve.growth)) // (1 if is_thorough else PART)
        told = self._told(matcher, limit)
        if told is not None and not brings_about(bans, past, told[:-1], self._lexicon):
            return told or None
        self._until = self._until or time.thread_time() + SEARCH_SECONDS
        return find_completion(
            matcher,
            self._lexicon,
            self._stop_token_ids,
            limit=limit,
            past=past,
            cursor=self._position(len(past)),
            witnesses=reserve.witnesses,
            names=reserve.names,
            ends=[end.encode() for end in reserve.ends],
            bans=bans,
            known=known,
            prover=prover,
            work=work,
            until=self._until,
        )

    def _told(self, matcher: Matcher, limit: int) -> Sequence[int] | None:
        """Return the completion that the matcher computes; empty if there is none, None if it cannot or errs."""
        try:
            found = matcher.shortest_completion(limit)
        except UnsupportedCapability:
            return None
        if not found:
            return ()
        proved = len(found) <= limit and found[-1] in self._stop_token_ids and matcher.validate(found) == len(found)
        return found if proved else None


def _without(token_ids: Sequence[int], num_words: int) -> NDArray[np.int32]:
    """Return a row of a bitmask that allows all tokens except `token_ids`."""
    found = np.ones(num_words * BITS_PER_WORD, dtype=np.bool_)
    found[token_ids] = False
    row: NDArray[np.int32] = pack(found[np.newaxis])[0]
    return row
