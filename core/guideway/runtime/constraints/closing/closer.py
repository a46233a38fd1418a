"""Closing of one output: near the end of its budget, exclude tokens after which no completion fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import Bitmask, is_allowed, pack
from guideway.api.grammar import Matcher
from guideway.errors import UnsupportedCapability
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing.avoiding import Avoided, Avoiding
from guideway.runtime.constraints.closing.judging import Judge
from guideway.runtime.constraints.closing.lexicon import MOST, Lexicon
from guideway.runtime.constraints.closing.positions import Position
from guideway.runtime.constraints.closing.reserve import Reserve
from guideway.runtime.constraints.closing.search import Search
from guideway.runtime.constraints.closing.ways import Prover, Way, continuations

__all__ = ["Beginnings", "Budget", "Closer", "Record"]

LONGEST = 4096
"""Most tokens of a completion in a search without a budget, and most tokens that `_follow` validates."""
WORK = 16_000
"""Work of a search, in tokens tried or validated. A time limit would make its result depend on the machine."""
WORK_PER_TOKEN = 48
"""Work of a search per token that the completion may have, in the unit of `WORK`."""
PART = 8
"""Divisor of the work of a search that follows another one: it still finds nearly all completions. The search after one
judged token takes at most this part of what is left for the mask."""
MOST_WORSE = 1
"""Most worse tries in the completion after one judged token. It may join a known way, so it needs few."""
MOST_TAGS = 32
"""Most tags that may begin at one place to search for a completion of each."""
MOST_AVOIDED = 32
"""Most banned tokens to avoid in one text. Each of them needs another spelling of the text."""
MOST_BEGINNINGS = 64
"""Most entries of `Beginnings` to keep for one grammar."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The tokens that an output may have, its stop token included, with the estimates and bans for its completion."""

    num_tokens: int
    reserve: Reserve
    bans: Bans = Bans()  # noqa: RUF009
    """Tokens and texts that a completion avoids if it can."""


@dataclass(frozen=True, slots=True)
class Record:
    """State of closing for one output. With the output's tokens it determines all later masks, so a replay needs it."""

    until: int = 0
    """Number of accepted tokens below which `restrict` has nothing to do, or does not search for a completion without
    bans if it `lifts_bans`."""
    at: int = 0
    """Number of accepted tokens when the record was made. The texts continue the output from there."""
    texts: tuple[bytes, ...] | None = None
    """Texts that each complete the first `at` tokens; None if none was searched for, empty if none was found. The first
    text decides when the masks are judged."""
    lifts_bans: bool = False
    """True if the texts contain banned tokens or texts, because no others were found."""

    def to_json(self) -> list[Any]:
        """Return the record as JSON values, for a message."""
        texts = None if self.texts is None else [text.decode("latin-1") for text in self.texts]
        return [self.until, self.at, texts, self.lifts_bans]

    @classmethod
    def from_json(cls, values: Sequence[Any]) -> Record:
        """Return the record from the JSON values that `to_json` returned."""
        until, at, texts, lifts_bans = values
        texts = None if texts is None else tuple(text.encode("latin-1") for text in texts)
        return cls(int(until), int(at), texts, bool(lifts_bans))


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
        self._avoided = Avoided(budget.bans, lexicon, stop_token_ids) if budget.bans.of_completion else None
        self.record = record or Record()
        self.records: list[Record] = []
        """By row of the last `restrict`: the record that applies after a token is drawn from the row."""
        self._accepted: list[int] = []
        self._positions = [budget.reserve.begin]
        """By number of accepted tokens: the position after them. Filled on demand."""
        self._ways: dict[bytes, Way] = {}
        """By text: ways of the record. Filled on demand."""
        self._far_from = self._far_until = 0
        """The end is too far to search below `_far_until` accepted tokens, as estimated at `_far_from`."""
        self._opened: dict[tuple[bytes, bytes, bytes], int] = {}
        """In free text, by mask and text since the trigger began: tokens of the shortest completion found after that
        text; `MOST` if none was found."""

    def fork(self, matcher: Matcher) -> Closer:
        """Return a closer for a copy of the sequence, with the same past. `matcher`, the copy's, is for hosts."""
        copied = copy(self)
        copied._accepted, copied._positions = list(self._accepted), list(self._positions)
        copied._ways = dict(self._ways)
        return copied

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
        del self._positions[num_tokens + 1 :]

    def rollback(self, num_tokens: int) -> None:
        """Remove the last `num_tokens` accepted tokens."""
        num_left = len(self._accepted) - num_tokens
        del self._accepted[num_left:], self._positions[num_left + 1 :]
        if num_left < self._far_from:  # more objects and arrays may have been open there
            self._far_from = self._far_until = 0

    @property
    def num_free(self) -> int:
        """Number of tokens that may be accepted one by one while `is_far(1)` stays True."""
        until = 0 if self.record.lifts_bans else self.record.until
        return max(self._far_until, until) - len(self._accepted) - 1

    def is_far(self, num_rows: int) -> bool:
        """Return whether the end is too far for `restrict` to change any of `num_rows` rows or the record.

        If so, the records of the last `restrict` are dropped.
        """
        if num_rows > 1 + self.num_free:
            return False
        self.records = []
        return True

    def restrict(self, matcher: Matcher, draft_token_ids: Sequence[int], rows: Bitmask) -> int | None:
        """Exclude from `rows` the tokens after which no completion is found that fits.

        The first row is the mask of the current state of `matcher`. The next ones are the masks after each draft token
        that it accepts; further rows stay as they are. Return the index of the first row that lost a token, or None.
        The state of the matcher does not change.
        """
        first, record, done = None, self.record, 0
        self.records = []
        try:
            for i, row in enumerate(rows[: 1 + len(draft_token_ids)]):
                if i:
                    draft = draft_token_ids[i - 1]
                    if (
                        draft in self._stop_token_ids
                        or not is_allowed(rows, i - 1, draft)  # excluded from the row before
                        or matcher.accept((draft,)) != 1
                    ):
                        break
                    self._accepted.append(draft)
                    done = i
                record, refused = self._decide(matcher, record, row)
                self.records.append(record)
                if refused is not None and refused.any():
                    kept = row & ~pack(refused[np.newaxis])[0]
                    if kept.any() and (kept != row).any():
                        row[:] = kept
                        first = i if first is None else first
        finally:
            if done:
                matcher.rollback(done)
                self.rollback(done)
        return first

    def _decide(
        self, matcher: Matcher, record: Record, row: NDArray[np.int32]
    ) -> tuple[Record, NDArray[np.bool_] | None]:
        """Return the record of the state, and ``bool[num_bits]``, True for tokens to exclude; None for none."""
        reserve, num_accepted = self._budget.reserve, len(self._accepted)
        if num_accepted < record.until and not record.lifts_bans:
            return record, None
        left = self._budget.num_tokens - num_accepted
        if record.texts is None and self._is_far():
            return record, None
        if reserve.triggers and matcher.is_accepting():
            return Record(0, num_accepted, (b"",)), self._judge_triggers(matcher, row, left - 1)
        # text that is complete needs no stop token while it stays complete; a number that is cut is another number
        is_whole = not reserve.is_json and matcher.is_accepting()
        may_begin = is_whole and bool(reserve.opens)
        record = (None if may_begin else self._follow(matcher, record, left)) or self._search(matcher, record)
        ways = self._known_ways(record)
        room = left - 1 - ways[0].cost() if ways else -1
        if room < 0:
            return record, None
        if room > reserve.growth:
            until = record.until if record.lifts_bans else num_accepted + room // (reserve.growth + 1)
            return replace(record, until=until), None
        past, lifts_bans = self._accepted, record.lifts_bans
        judge = Judge(
            lexicon=self._lexicon,
            prover=self._prover(matcher, lifts_bans, WORK // 2),
            position=self._position(num_accepted),
            limit=max(left - 1, int(is_whole)),
            ways=list(ways),
            apart=() if self._avoided is None or lifts_bans else self._avoided.groups(past),
            names=reserve.declared,
            find=partial(self._find_after, lifts_bans),
        )
        refused = judge.refused(row)
        return self._record_of(judge.ways, lifts_bans, record.until), refused

    def _is_far(self) -> bool:
        """Return whether the end is too far to search, by the estimates alone."""
        reserve, num_accepted = self._budget.reserve, len(self._accepted)
        json = self._position(num_accepted).json if reserve.is_json else None
        num_open = 1 if json is None else 1 + len(json.open)
        # an end without what is banned may be longer than the bound on any end
        level = reserve.level or (reserve.growth if self._avoided else 0)
        spare = self._budget.num_tokens - num_accepted - num_open * level - reserve.growth
        # the most that one token takes from `spare`
        each = 1 + (level * max(1, self._lexicon.most_opened) if reserve.is_json else 0)
        self._far_from, self._far_until = num_accepted, num_accepted - (-spare // each)
        return spare > 0

    def _position(self, num_tokens: int) -> Position:
        """Return the position after the first `num_tokens` accepted tokens."""
        positions = self._positions
        for token_id in self._accepted[len(positions) - 1 : num_tokens]:
            positions.append(positions[-1].after(self._lexicon.write([token_id])))
        return positions[num_tokens]

    def _judge_triggers(self, matcher: Matcher, row: NDArray[np.int32], limit: int) -> NDArray[np.bool_]:
        """Return ``bool[num_bits]``: True for tokens to exclude in free text, where the output is already complete:
        those that open a tag if no completion in at most `limit` further tokens is found."""
        lexicon, triggers = self._lexicon, [trigger.encode() for trigger in self._budget.reserve.triggers]
        past = lexicon.write(self._accepted[-max(map(len, triggers)) :])
        mask, refused, least = row.tobytes(), np.zeros(lexicon.num_bits, dtype=np.bool_), dict[int, int]()
        for trigger in triggers:
            for token_id, written in self._opening(trigger, past).items():
                if is_allowed(row[np.newaxis], 0, token_id):
                    rest = trigger[len(written) :] if trigger.startswith(written) else b""
                    key = mask, written, rest
                    if key not in self._opened:
                        self._opened[key] = self._find_cost(matcher, token_id, rest)
                    least[token_id] = min(least.get(token_id, MOST), self._opened[key])
        refused[[token_id for token_id, cost in least.items() if cost > limit]] = True
        return refused

    def _opening(self, trigger: bytes, past: bytes) -> dict[int, bytes]:
        """Return the tokens that complete a trigger, or its first line, each with its text from the trigger on.

        They follow the text `past`. Tokens that write the same text have the same cost.
        """
        lexicon, found = self._lexicon, dict[int, bytes]()
        _, line_end, others = trigger.lstrip().partition(b"\n")
        for mark in (trigger.removesuffix(line_end + others), trigger):
            found |= lexicon.opening(mark)
            for end in range(1, len(mark)):
                if past.endswith(mark[:end]):
                    found |= {i: mark[:end] + lexicon.tokens[i] for i in lexicon.which("begin", mark[end:])}
        return found

    def _find_cost(self, matcher: Matcher, token_id: int, rest: bytes) -> int:
        """Return the number of tokens of the shortest completion found after a token and the rest of a trigger, stop
        token included, and the rest's own.

        Return 0 if they complete the output or the matcher does not take them, `MOST` if no completion is found.
        """
        path = [token_id, *(self._lexicon.spell(rest) or ())]
        num_taken = matcher.accept(tuple(path))
        self._accepted += path[:num_taken]
        try:
            if num_taken < len(path) or matcher.is_accepting():
                return 0
            found = self.shortest(matcher)
            return MOST if found is None else len(path) - 1 + found
        finally:
            self.rollback(num_taken)
            matcher.rollback(num_taken)

    def _find_after(
        self, lifts_bans: bool, token_id: int, known: Sequence[Way], prover: Prover
    ) -> tuple[int, Way] | None:
        """Return the number of tokens of a completion after a token, and the way of both; None if none is found."""
        matcher, num_accepted = prover.matcher, len(self._accepted)
        if matcher.accept((token_id,)) != 1:
            return None
        self._accepted.append(token_id)
        others = prover.num_left - prover.num_left // PART
        prover.num_left -= others
        try:
            found = self._find(prover, self._budget.num_tokens - num_accepted - 1, known, MOST_WORSE)
        finally:
            prover.num_left = others + max(0, prover.num_left)
            self.rollback(1)
            matcher.rollback(1)
        if found is None:
            return None
        text = self._lexicon.tokens[token_id] + self._text(found)
        return len(found), self._spell(text, self._position(num_accepted), self._accepted, lifts_bans)

    def _prover(self, matcher: Matcher, lifts_bans: bool, work: int) -> Prover:
        if self._avoided is not None and not lifts_bans:
            matcher = Avoiding(matcher, self._avoided, self._accepted)
        return Prover(matcher, self._stop_token_ids, work)

    def _known_ways(self, record: Record) -> list[Way]:
        """Return the ways of a record, in the order of its texts. They begin after `record.at` tokens."""
        if not record.texts:
            return []
        begin, past = self._position(record.at), self._accepted[: record.at]
        for text in record.texts:
            if text not in self._ways:
                self._ways[text] = self._spell(text, begin, past, record.lifts_bans)
        return [self._ways[text] for text in record.texts]

    def _spell(self, text: bytes, begin: Position, past: Sequence[int], lifts_bans: bool) -> Way:
        """Return the way of a text that follows the tokens `past`.

        Try up to `MOST_AVOIDED` spellings for one without banned tokens. If there is none, the way contains them.
        """
        avoid: set[tuple[int, int]] = set()
        while self._avoided is not None and not lifts_bans and len(avoid) < MOST_AVOIDED:
            way = Way(text, begin, self._lexicon, self._avoided.allowed, avoid)
            if way.cost() >= MOST:
                break
            path = way.path()
            num_free = self._avoided.count_free(past, path)
            if num_free == len(path):
                return way
            at = sum(len(self._lexicon.tokens[i]) for i in path[:num_free])
            avoid.add((at, at + len(self._lexicon.tokens[path[num_free]])))
        return Way(text, begin, self._lexicon)

    def _record_of(self, ways: Sequence[Way], lifts_bans: bool = False, until: int = 0) -> Record:
        """Return the record for ways that complete the output after the accepted tokens."""
        self._ways = {} if self._avoided is not None else {way.text: way for way in ways}  # a replay spells them again
        texts = tuple(dict.fromkeys(way.text for way in ways))
        return Record(until if lifts_bans else 0, len(self._accepted), texts, lifts_bans)

    def _follow(self, matcher: Matcher, record: Record, left: int) -> Record | None:
        """Return the record of the current state if the matcher takes a way of `record`, or the rest of one.

        Return None if no way fits in `left` tokens, or if a search for a way without banned tokens is due.
        """
        num_accepted = len(self._accepted)
        if not record.texts or record.at > num_accepted or (record.lifts_bans and num_accepted >= record.until):
            return None
        if record.at == num_accepted:
            return record
        position = self._position(num_accepted)
        written = b"".join([self._lexicon.tokens[i] for i in self._accepted[record.at :]])
        ways, prover = self._known_ways(record), self._prover(matcher, record.lifts_bans, LONGEST)
        for way, at in continuations(ways, written, position.json):
            if way.cost(at) < left and prover.end(way.path(at)) is not None:
                if at == 0:  # the output is still in the string in which the ways begin
                    rests = [way, *ways]
                else:
                    on_way = [(other, to) for other in ways if (to := other.follow(written)) is not None]
                    others = on_way if (way, at) in on_way else []
                    rests = [other.rest(to, position) for other, to in [(way, at), *others]]
                return self._record_of(rests, record.lifts_bans, record.until)
        return None

    def _search(self, matcher: Matcher, record: Record) -> Record:
        """Return the record of the state after a search. Outputs of a grammar share the one before the first token."""
        if self._accepted:
            return self._searched(matcher, record)
        key = (self._budget, self._stop_token_ids)
        if key not in self._beginnings:
            if len(self._beginnings) >= MOST_BEGINNINGS:
                self._beginnings.clear()
            self._beginnings[key] = self._searched(matcher, record)
        return self._beginnings[key]

    def _searched(self, matcher: Matcher, record: Record) -> Record:
        num_accepted = len(self._accepted)
        left = self._budget.num_tokens - num_accepted
        again = num_accepted + max(1, left // 2)  # a failed search is repeated when half of the tokens are left
        known = self._known_ways(record) if record.at <= num_accepted else []
        for lifts_bans in self._lifts_to_try:
            if not lifts_bans and record.lifts_bans and num_accepted < record.until:
                continue
            part = PART if record.texts == () or record.lifts_bans else 1
            found = self._find(self._prover(matcher, lifts_bans, self._work(left) // part), left, known)
            if found is None and (not num_accepted or record.texts == (b"",)):
                # the number that an error names fits, or the one that allowed a tag to begin
                found = self._find_shortest(matcher, lifts_bans)
            if found is not None:
                texts = map(self._text, [found, *self._find_in_tags(matcher, found, left, lifts_bans)])
                begin = self._position(num_accepted)
                ways = [self._spell(text, begin, self._accepted, lifts_bans) for text in dict.fromkeys(texts)]
                if fit := sorted((way for way in ways if way.cost() < left), key=Way.cost):
                    return self._record_of(fit, lifts_bans, again)
                if not num_accepted:  # not even the shortest output fits: no later search would find one
                    again = self._budget.num_tokens
        return Record(again, num_accepted, ())

    def shortest(self, matcher: Matcher) -> int | None:
        """Return the number of tokens of the shortest completion found, regardless of the budget; None if none is
        found."""
        begin = self._position(len(self._accepted))
        for lifts_bans in self._lifts_to_try:
            if (found := self._find_shortest(matcher, lifts_bans)) is not None:
                return 1 + self._spell(self._text(found), begin, self._accepted, lifts_bans).cost()
        return None

    def _text(self, token_ids: Sequence[int]) -> bytes:
        """Return the text of a completion, given with its stop token."""
        return b"".join([self._lexicon.tokens[i] for i in token_ids[:-1]])

    @property
    def _lifts_to_try(self) -> tuple[bool, ...]:
        return (False,) if self._avoided is None else (False, True)

    def _work(self, limit: int) -> int:
        """Return the work of a search for a completion of at most `limit` tokens."""
        return WORK + WORK_PER_TOKEN * min(limit, self._budget.reserve.level or self._budget.reserve.growth)

    def _find_shortest(self, matcher: Matcher, lifts_bans: bool) -> Sequence[int] | None:
        """Return the shortest completion found, regardless of the budget; None if none is found."""
        following: dict[bytes, dict[bytes, int]] = {}
        found = self._find(self._prover(matcher, lifts_bans, self._work(LONGEST)), LONGEST, following=following)
        if found is None:
            return None
        found = min([found, *self._find_in_tags(matcher, found, len(found) - 1, lifts_bans)], key=len)
        # long texts, such as those of a pattern, may have fewer tokens than any example
        prover = self._prover(matcher, lifts_bans, self._work(len(found)) // PART)
        return self._find(prover, len(found) - 1, long_first=True, following=following) or found

    def _find_in_tags(
        self, matcher: Matcher, known: Sequence[int], limit: int, lifts_bans: bool
    ) -> Iterator[Sequence[int]]:
        """Yield completions of at most `limit` tokens, one for each tag that may begin where the `known` completion
        begins another one, or has begun it, or where it is empty. Any of them may be the one that the model wants."""
        opens = [text.encode() for text in self._budget.reserve.opens]
        past = self._lexicon.write(self._accepted[-max(map(len, opens), default=1) :])
        whole = past + self._text(known)
        places = {at: own for own in opens if (at := whole.find(own, max(0, len(past) - len(own) + 1))) >= 0}
        if len(known) == 1:  # a stop token: the output is complete, but a tag may begin
            places[len(past)] = b""
        texts = [whole[:at] + text for at, own in sorted(places.items()) for text in opens if text != own]
        for text in [text for text in texts if text.startswith(past)][:MOST_TAGS]:
            path = self._lexicon.spell(text[len(past) :]) or []
            num_taken = matcher.accept(tuple(path))
            self._accepted += path[:num_taken]
            try:
                if path and num_taken == len(path):
                    prover = self._prover(matcher, lifts_bans, self._work(limit) // PART)
                    if (found := self._find(prover, limit - num_taken)) is not None:
                        yield [*path, *found]
            finally:
                self.rollback(num_taken)
                matcher.rollback(num_taken)

    def _find(
        self,
        prover: Prover,
        limit: int,
        known: Sequence[Way] = (),
        most_worse: int = MOST,
        *,
        long_first: bool = False,
        following: dict[bytes, dict[bytes, int]] | None = None,
    ) -> Sequence[int] | None:
        """Return a completion of at most `limit` tokens, with its stop token; None if none is found."""
        try:
            told = prover.matcher.shortest_completion(limit)
        except UnsupportedCapability:
            position = self._position(len(self._accepted))
            learned = {} if following is None else following
            reserve = self._budget.reserve
            return Search(
                prover, self._lexicon, reserve, limit, position, known, most_worse, long_first, learned
            ).completion()
        if not told or len(told) > limit or told[-1] not in self._stop_token_ids:
            return None
        return told if prover.matcher.validate(tuple(told)) == len(told) else None
