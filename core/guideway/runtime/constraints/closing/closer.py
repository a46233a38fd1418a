"""Closing an output: what its masks leave out as its budget ends, so that it is complete before."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias
from zlib import crc32

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
"""Tokens of a completion that is looked for whatever is left."""
MOST_PROVED = 2048
"""Tokens of completions that are validated in one step, to judge the tokens of its mask."""
WORK_PER_TOKEN = 48
"""Work of a search for each token that the completion may have."""
BRIDGE_WORK = 320
"""Work of a search for a completion after a token that is judged."""
SEARCH_SECONDS = 4.0
"""Processor time of a step after which a search gives up, which its work bounds long before: less than what a host may
take, so that a slow matcher loses the end of its output and not the request."""
NO_BANS = Bans()
MOST_AVOIDED = 32
"""Banned tokens that another spelling of a text is looked for without, one after another."""
MOST_BEGINNINGS = 64
"""The number of beginnings that are kept of one grammar."""
MOST_BACK = 256
"""Tokens that are rolled back to look for what completes the beginning."""
MOST_SHORTER = 4
"""Completions that are looked for, each shorter than the one before, to find the shortest."""
PART = 8
"""The part of the work of a thorough search that others take: nearly all that are found are found by it."""
AGAIN = 2
"""The part of the budget that is left after which a completion is looked for anew, where none was found."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The number of tokens that an output may have, its stop token included, and what is kept of them for its end."""

    num_tokens: int
    reserve: Reserve
    bans: Bans = NO_BANS
    """The tokens and texts that a completion does without if it can."""


@dataclass(frozen=True, slots=True)
class Record:
    """State of closing for one output. With its tokens it decides all later masks, so a replay needs it."""

    free_until: int = 0
    """So many tokens are drawn before anything has to be found out."""
    at: int = 0
    """It was found out after so many tokens."""
    texts: tuple[bytes, ...] = ()
    """Each completes those tokens, the one in fewest tokens first; empty: nothing is known that does."""
    lifts_bans: bool = False
    """True if the first has what is banned, because no other was found."""
    bans_at: int = 0
    """Before so many tokens no other is looked for."""

    @property
    def found_none(self) -> bool:
        """True if a completion was looked for in vain."""
        return self.free_until > 0 and not self.texts

    def to_json(self) -> list[Any]:
        """Return the record as values of JSON, for a message."""
        texts = [text.decode("latin-1") for text in self.texts]
        return [self.free_until, self.at, texts, self.lifts_bans, self.bans_at]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Record:
        """Return the record that `to_json` wrote."""
        free_until, at, texts, lifts_bans, bans_at = values
        texts = tuple(text.encode("latin-1") for text in texts)
        return cls(int(free_until), int(at), texts, bool(lifts_bans), int(bans_at))


Beginnings: TypeAlias = dict[tuple[Budget, frozenset[int]], Record]
"""The knowledge of the ends of one grammar's outputs before their first token, by budget and stop tokens: it is the
same for all of them."""


class Closer:
    """Keeps the masks of one sequence to what can still be completed.

    Far from the end it does nothing. As the budget ends it leaves out the tokens after which no completion is found
    that fits; one that ends the output is always allowed.
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
        """By row of the last `restrict` what is known once a token was drawn from it."""
        self._accepted: list[int] = []
        self._cursors: list[JsonCursor] = [START]
        """After each of the accepted tokens, as far as anybody asked."""
        self._ways: dict[bytes, Way] = {}
        """By text those of the record, as far as they were made."""
        self._until = math.inf
        """The processor time of the thread at which a search gives up."""
        self._far_from, self._far_until = 0, -1
        """Found out after so many tokens: up to so many, rows included, the end is far whatever they are."""
        self._opened: dict[tuple[int, bytes], int | None] = {}
        """In free text, by mask and what is written of a trigger: the tokens of the shortest way out of the tag; None
        if none was found."""

    def fork(self, matcher: Matcher) -> Closer:
        """Return a closer for a sequence with the same past, which has `matcher`."""
        copy = Closer(self._lexicon, self._stop_token_ids, self._budget, self.record, self._beginnings)
        copy._accepted, copy._cursors, copy.records = list(self._accepted), list(self._cursors), self.records
        copy._far_from, copy._far_until = self._far_from, self._far_until
        copy._ways, copy._opened = dict(self._ways), self._opened
        return copy

    def accept(self, token_ids: Sequence[int]) -> None:
        """Accept final tokens, each drawn from one row of the last `restrict`, in order."""
        if not token_ids:  # what is known stays: the rows of the last `restrict` may still be drawn from
            return
        if self.records:
            self.record = self.records[min(len(token_ids), len(self.records)) - 1]
        self.records = []
        self._accepted += token_ids

    def write(self, num_tokens: int, token_ids: Sequence[int]) -> None:
        """Replace the accepted tokens after the first `num_tokens`. `is_far` was True for each of the new ones."""
        self._accepted[num_tokens:] = token_ids

    @property
    def num_free(self) -> int:
        """Number of tokens that may be accepted one by one while `is_far(1)` stays True."""
        return max(self._far_until, self.record.free_until - 1) - len(self._accepted) - 1

    def _cursor(self) -> JsonCursor:
        """That after the accepted tokens."""
        cursors, tokens = self._cursors, self._lexicon.tokens
        for token_id in self._accepted[len(cursors) - 1 :]:
            cursors.append(cursors[-1].after(tokens[token_id]))
        return cursors[-1]

    def _position(self, num_tokens: int) -> JsonCursor | None:
        """The position in JSON after the first accepted tokens; None where they end in no JSON."""
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
        opened = begin.find(b"{")  # of the object that the tag's content is in, if any
        return START.after(begin[opened:] + rest if opened >= 0 else rest)

    def rollback(self, num_tokens: int) -> None:
        """Forget the last accepted tokens."""
        if num_tokens:
            del self._accepted[-num_tokens:]
            num_left = len(self._accepted)
            del self._cursors[num_left + 1 :]
            if num_left < self._far_from:  # more may have been open there
                self._far_from, self._far_until = 0, -1

    def is_far(self, num_rows: int) -> bool:
        """Return whether the end is so far that `restrict` would leave so many rows as they are, and learn nothing."""
        num_ahead = len(self._accepted) + num_rows
        if num_ahead <= self._far_until or num_ahead < self.record.free_until:
            self.records = []
            return True
        return False

    def restrict(self, matcher: Matcher, draft_token_ids: Sequence[int], rows: Bitmask) -> int | None:
        """Take from `rows`, the masks of the state of `matcher` and of those after each draft it accepts, what would
        not be completed in time; there may be more rows. Returns the first row that lost something. The matcher is left
        as it was."""
        first, record, done = None, self.record, 0
        self.records = []
        self._until = time.thread_time() + SEARCH_SECONDS
        try:
            for i, row in enumerate(rows[: 1 + len(draft_token_ids)]):
                if i:
                    draft = draft_token_ids[i - 1]
                    if (
                        self._is_far(record, len(rows))
                        or draft in self._stop_token_ids
                        or not is_allowed(rows, i - 1, draft)  # by what is left of the row before
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
        """Return whether nothing has to be found out for this state, and those after so many more tokens."""
        reserve, num_accepted = self._budget.reserve, len(self._accepted) + num_tokens
        if num_accepted < record.free_until:
            return True
        num_open = 1 + (num_tokens + len(self._cursor().open) if reserve.is_json else 0)
        spare = self._budget.num_tokens - num_accepted - num_open * reserve.level - reserve.growth
        if not num_tokens and spare > 1:
            # of it a token takes at most
            each = 1 + (reserve.level * max(1, self._lexicon.most_opened) if reserve.is_json else 0)
            self._far_from, self._far_until = num_accepted, num_accepted + (spare - 1) // each
        return spare > 0

    def _decide(
        self, matcher: Matcher, record: Record, row: NDArray[np.int32]
    ) -> tuple[Record, NDArray[np.int32] | None]:
        """Return what is known of the state, and the tokens its mask may keep; None: all."""
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
        """Return what is known of the state once its tokens are judged, and those its mask may keep; None: all."""
        banned, apart = ([], []) if record.lifts_bans else self._find_banned()
        judge = Judge(
            banned=banned,
            apart=apart,
            matcher=matcher,
            lexicon=self._lexicon,
            spell=partial(self._spell, record.lifts_bans),
            stop_token_ids=self._stop_token_ids,
            cursor=self._position(len(self._accepted)),
            limit=limit,
            ways=self._known_ways(record),
            prover=Prover(matcher, self._stop_token_ids, MOST_PROVED),
            searcher=Prover(matcher, self._stop_token_ids, MOST_PROVED),
            find=partial(self._find_after, matcher, record.lifts_bans),
            is_free=partial(self._is_free_way, record.lifts_bans),
        )
        refused = judge.refused(row)
        keep = _without(refused, self._lexicon.words)
        return self._record_of(judge.ways, record.lifts_bans, record.bans_at), keep if (row & keep).any() else None

    def _judge_triggers(self, matcher: Matcher, row: NDArray[np.int32], limit: int) -> NDArray[np.int32]:
        """Return the tokens that the mask of a state in free text, which is complete as it stands, may keep: all but
        those that open a tag which is not complete within `limit` further tokens."""
        past = self._lexicon.write(self._accepted[-MOST_BACK:])
        opening: dict[int, bytes] = {}
        """By token what it writes of a tag, from the trigger on: those that write the same need the same."""
        for trigger in map(str.encode, self._budget.reserve.triggers):
            opening |= self._lexicon.opening(trigger)
            for end in range(1, len(trigger)):
                if past.endswith(trigger[:end]):
                    tokens = self._lexicon.which("begins", trigger[end:])
                    opening |= {i: trigger[:end] + self._lexicon.tokens[i] for i in tokens}
        mask, refused = crc32(row.tobytes()), []
        for token_id, written in opening.items():
            if is_allowed(row[np.newaxis], 0, token_id):
                if (mask, written) not in self._opened:
                    self._opened[mask, written] = self._find_cost(matcher, token_id)
                if (cost := self._opened[mask, written]) is None or cost > limit:
                    refused.append(token_id)
        return _without(refused, self._lexicon.words)

    def _find_cost(self, matcher: Matcher, token_id: int) -> int | None:
        """Count the tokens of the shortest completion found after a token, a stop token included: 0 if the output is
        complete with it; None if none is found."""
        if matcher.accept((token_id,)) != 1:
            return 0
        self._accepted.append(token_id)
        try:
            if matcher.is_accepting():
                return 0
            found = self._find_shortest(matcher)
            return None if found is None else 1 + self._spell(found[1], found[0], None).cost()
        finally:
            self.rollback(1)
            matcher.rollback(1)

    def _find_banned(self) -> tuple[list[int], list[list[int]]]:
        """Return the tokens that bring about a stop string; and groups of those after which a completion may bring
        about a banned text, where it does not after others like them."""
        bans, tokens = self._budget.bans, self._lexicon.tokens
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
        self, matcher: Matcher, lifts: bool, token_id: int, known: Sequence[Way], prover: Prover
    ) -> Sequence[int] | None:
        """Look for a completion after a token that the matcher has accepted, with little work."""
        self._accepted.append(token_id)
        try:
            return self._find(
                matcher,
                work=BRIDGE_WORK,
                lifts=lifts,
                known=known,
                prover=prover,
            )
        finally:
            self.rollback(1)

    def _known_ways(self, record: Record) -> list[Way]:
        """The ways of a record of the state after `record.at` tokens."""
        begin = self._position(record.at)
        for text in record.texts:
            if text not in self._ways:
                self._ways[text] = self._spell(record.lifts_bans, text, begin, record.at)
        return [self._ways[text] for text in record.texts]

    def _spell(self, lifts: bool, text: bytes, begin: JsonCursor | None, num_accepted: int | None = None) -> Way:
        """Return the way of a text that goes on after the first accepted tokens; without what is banned, unless it
        `lifts` that, if a few other spellings show how."""
        bans, past = self._budget.bans, self._accepted[:num_accepted]
        if bans.of_completion and not lifts:
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
        """Return the knowledge that these ways complete the output."""
        self._ways = {way.text: way for way in ways}
        if self._budget.bans.of_completion:  # spelled as whoever gets the record spells them
            self._ways.clear()
        texts = tuple(dict.fromkeys(way.text for way in ways))
        return Record(0, len(self._accepted), texts, lifts_bans, bans_at)

    def _follow(self, matcher: Matcher, record: Record, left: int) -> Record | None:
        """Return the knowledge of the end where what completed the output before completes it still, or a part of it
        does from where the output stands now; None if no way does. None also for one with what is banned, unless no
        other was found of late."""
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
            is_free = self._is_free_way(False, ways[i], at)
            if not is_free and len(self._accepted) >= record.bans_at:
                continue
            if at == 0:  # the output stands in the string where the ways begin
                first = [ways[i], *(way for way in ways if way is not ways[i])]
                found = self._record_of(first, not is_free, record.bans_at)
            else:
                others = [ways[k].rest(to, cursor) for _, k, to in on_way if k != i] if (cost, i, at) in on_way else []
                found = self._record_of([ways[i].rest(at, cursor), *others], not is_free, record.bans_at)
            return found
        return None

    def _looked_for(self, matcher: Matcher, record: Record, left: int) -> Record:
        """Look for a completion; the knowledge of the end after it. Where nothing is known yet, one that goes back to
        that of the beginning, which all outputs share, takes a small part of a search."""
        if not self._accepted:
            return self._beginning(matcher)
        if not record.found_none and not record.texts and len(self._accepted) <= MOST_BACK:
            record = self._beginning(matcher)
            if found := self._follow(matcher, record, left):
                return found
        return self._searched(matcher, record, left)

    def _beginning(self, matcher: Matcher) -> Record:
        """The knowledge of the end before the first token, looked for once. The matcher is left as it was."""
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
        for lifts in (False, True) if self._budget.bans.of_completion else (False,):
            if num_accepted < record.bans_at and not lifts:
                continue
            quick = self._find(matcher, lifts=lifts, known=known)
            is_enough = quick is not None or record.found_none or record.lifts_bans
            found = quick if is_enough else self._find(matcher, lifts=lifts, known=known, is_thorough=True)
            if found is not None:
                text = b"".join([self._lexicon.tokens[i] for i in found[:-1]])
                way = self._spell(lifts, text, self._position(num_accepted))
                return self._record_of([way], lifts, again if lifts else 0)
        return Record(again, num_accepted)

    def shortest(self, matcher: Matcher) -> int | None:
        """Count the tokens of the shortest output that is found, however many may be left; None if none is."""
        found = self._find_shortest(matcher)
        return None if found is None else 1 + self._spell(found[1], found[0], self._position(0)).cost()

    def _find_shortest(self, matcher: Matcher) -> tuple[bytes, bool] | None:
        """Find the shortest completion, however many tokens are left: its text, and whether it has what is banned, as
        no other was found."""
        for lifts in (False, True) if self._budget.bans.of_completion else (False,):
            found, limit = None, LONGEST
            for _ in range(MOST_SHORTER):
                if (shorter := self._find(matcher, lifts=lifts, limit=limit, is_thorough=found is None)) is None:
                    break
                found, limit = shorter, len(shorter) - 1
            if found is not None:
                return b"".join([self._lexicon.tokens[i] for i in found[:-1]]), lifts
        return None

    def _find(
        self,
        matcher: Matcher,
        *,
        lifts: bool = False,
        limit: int | None = None,
        is_thorough: bool = False,
        work: int | None = None,
        known: Sequence[Way] = (),
        prover: Prover | None = None,
    ) -> Sequence[int] | None:
        """Find what completes the output in `limit` tokens, or in what is left, without what is banned, or, where it
        `lifts` that, with it."""
        reserve = self._budget.reserve
        if limit is None:
            limit = self._budget.num_tokens - len(self._accepted)
        if work is None:  # more where it may be long
            work = (WORK + WORK_PER_TOKEN * min(limit, reserve.level)) // (1 if is_thorough else PART)
        if (told := self._told(matcher, limit)) is not None and (lifts or not told or self._is_free(told[:-1])):
            return told or None
        return find_completion(
            matcher,
            self._lexicon,
            self._stop_token_ids,
            limit=limit,
            past=self._accepted,
            cursor=self._position(len(self._accepted)),
            witnesses=reserve.witnesses,
            ends=[end.encode() for end in reserve.ends],
            bans=NO_BANS if lifts else self._budget.bans,
            known=known,
            prover=prover,
            work=work,
            until=self._until,
        )

    def _told(self, matcher: Matcher, limit: int) -> Sequence[int] | None:
        """Return what the matcher itself says completes the output; empty if nothing does, None if it does not tell."""
        try:
            found = matcher.shortest_completion(limit)
        except UnsupportedCapability:
            return None
        if not found:
            return ()
        proved = len(found) <= limit and found[-1] in self._stop_token_ids and matcher.validate(found) == len(found)
        return found if proved else None

    def _is_free_way(self, lifts: bool, way: Way, at: int, *before: int) -> bool:
        return lifts or not self._budget.bans.of_completion or self._is_free((*before, *way.path(at)))

    def _is_free(self, token_ids: Sequence[int]) -> bool:
        """Return whether a completion without its stop token does without what is banned."""
        bans = self._budget.bans
        return not bans.of_completion or not brings_about(bans, self._accepted, token_ids, self._lexicon)


def _without(token_ids: Sequence[int], num_words: int) -> NDArray[np.int32]:
    """Return a row of a bitmask of all tokens but these."""
    found = np.ones(num_words * BITS_PER_WORD, dtype=np.bool_)
    found[token_ids] = False
    row: NDArray[np.int32] = pack(found[np.newaxis])[0]
    return row
