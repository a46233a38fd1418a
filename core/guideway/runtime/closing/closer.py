"""Closing an output: what its masks leave out as its budget ends, so that it is complete before."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import BITS_PER_WORD, Bitmask, is_allowed
from guideway.api.grammar import Matcher
from guideway.errors import ConformanceError, UnsupportedCapability
from guideway.json_schema.cursor import BLANKS, START, JsonCursor, Place
from guideway.runtime.bans import Bans
from guideway.runtime.closing.lexicon import Lexicon
from guideway.runtime.closing.reserve import Reserve
from guideway.runtime.closing.search import MAX_TRIED, brings_about, find_completion, go_back

__all__ = ["SEARCH_SECONDS", "Beginnings", "Budget", "Closer", "Record"]

MOST_TRIED = 128
"""So many tokens that are allowed, times those of the completion, are tried each."""
LONGEST = 4096
"""Tokens of a completion that is looked for whatever is left."""
FEW = 8
"""So many tokens are tried for each of a completion, to find one that is as short: nine of ten that are found take
fewer."""
FEW_MASKS = 8
"""And so many masks are filled."""
SAME = (Place.STRING, Place.SCALAR, Place.AFTER)
"""The sign that what completed the text before may complete it still."""
SEARCH_SECONDS = 4.0
"""Processor time of a step after which a search gives up, which its work bounds long before: less than what a host may
take, so that a slow matcher loses the end of its output and not the request."""
NO_BANS = Bans()
PART_FIRST = 8
"""The part of the work that a first search takes, and one that comes after a search in vain: nearly all that are found
are found by it."""
MOST_BACK = 256
"""Tokens that are rolled back to look for what completes the beginning."""
MOST_BEGINNINGS = 64
"""The number of beginnings that are kept of one grammar."""
AGAIN = 2
"""The part of the budget that is left after which a completion is looked for anew, where none was found."""
TOO_LONG = 2
"""Times what is left: where one was looked for in vain, and the first that comes has more tokens, it is not again."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The number of tokens that an output may have, its stop token included, and what is kept of them for its end."""

    num_tokens: int
    reserve: Reserve
    bans: Bans = NO_BANS
    """The tokens and texts that a completion does without if it can."""


@dataclass(frozen=True, slots=True)
class Record:
    """The knowledge of the end of one output. With its tokens it decides all that follows: who rebuilds a matcher hands
    it on."""

    free_until: int = 0
    """So many tokens are drawn before anything has to be found out."""
    at: int = 0
    """It was found out after so many tokens."""
    path: tuple[int, ...] = ()
    """Completes those tokens; empty: nothing is known that does."""
    lifts_bans: bool = False
    """True if the path has what is banned, because no other was found."""
    bans_at: int = 0
    """Before so many tokens no other is looked for."""

    @property
    def found_none(self) -> bool:
        """True if a completion was looked for in vain."""
        return self.free_until > 0 and not self.path

    def rest(self, accepted: Sequence[int]) -> tuple[int, ...]:
        """Return what of the path is left after these tokens; empty if they left it."""
        done = len(accepted) - self.at
        return self.path[done:] if done >= 0 and tuple(accepted[self.at :]) == self.path[:done] else ()


Beginnings: TypeAlias = dict[tuple[Budget, frozenset[int]], Record]
"""The knowledge of the ends of one grammar's outputs before their first token, by budget and stop tokens: it is the
same for all of them."""


class Closer:
    """Keeps the masks of one sequence to what can still be completed.

    Far from the end it does nothing. As the budget ends it allows no token that opens more than is left room for, then
    only the completion that was found; one that ends the output is always allowed.
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
        self.record = record or Record()
        self.records: list[Record] = []
        """By row of the last `restrict` what is known once a token was drawn from it."""
        self._accepted: list[int] = []
        self._cursors: list[JsonCursor] = [START]
        """After each of the accepted tokens, as far as anybody asked."""
        self._until = math.inf
        """The processor time of the thread at which a search gives up."""
        self._far_from, self._far_until = 0, -1
        """Found out after so many tokens: up to so many, rows included, the end is far whatever they are."""

    def fork(self) -> Closer:
        """That of a sequence with the same past."""
        copy = Closer(self._lexicon, self._stop_token_ids, self._budget, self.record, self._beginnings)
        copy._accepted, copy._cursors, copy.records = list(self._accepted), list(self._cursors), self.records
        copy._far_from, copy._far_until = self._far_from, self._far_until
        return copy

    def accept(self, token_ids: Sequence[int]) -> None:
        """These are final, and were drawn from the rows of the last `restrict`, the first from the first."""
        if not token_ids:  # what is known stays: the rows of the last `restrict` may still be drawn from
            return
        if self.records:
            self.record = self.records[min(len(token_ids), len(self.records)) - 1]
        self.records = []
        self._accepted += token_ids

    def write(self, num_tokens: int, token_ids: Sequence[int]) -> None:
        """These are final after the first `num_tokens`, in place of any that are there, and `is_far` of each."""
        self._accepted[num_tokens:] = token_ids

    @property
    def num_free(self) -> int:
        """So many more tokens may be accepted one by one, and `is_far` of one row after each."""
        return max(self._far_until, self.record.free_until - 1) - len(self._accepted) - 1

    def _cursor(self) -> JsonCursor:
        """That after the accepted tokens."""
        cursors, tokens = self._cursors, self._lexicon.tokens
        for token_id in self._accepted[len(cursors) - 1 :]:
            cursors.append(cursors[-1].after(tokens[token_id]))
        return cursors[-1]

    def rollback(self, num_tokens: int) -> None:
        """The last ones are not."""
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
        num_open = 1 + num_tokens + (len(self._cursor().open) if reserve.is_json else 0)
        # a bound leaves room for a stop token, but says nothing of an end without what is banned
        kept = 1 if reserve.is_bound and not self._budget.bans.of_completion else reserve.growth
        spare = self._budget.num_tokens - num_accepted - num_open * reserve.level - kept
        if not num_tokens and spare > 1:
            each = 1 + reserve.level * max(1, self._lexicon.most_opened)  # of it a token takes at most
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
        cursor = self._cursor() if reserve.is_json else None
        path = record.rest(self._accepted)
        if not (path and is_allowed(row[None], 0, path[0])):
            record = (
                self._cut_otherwise(matcher, record, cursor)
                or self._same(matcher, record, left, cursor)
                or self._back(matcher, record, left)
                or self._looked_for(matcher, record, left)
            )
            if not (path := record.path):
                return record, None
        room = left - len(path)
        if room < 0:
            return record, None
        if room > reserve.growth:
            return replace(record, free_until=num_accepted + room // (reserve.growth + 1)), None
        keep = self._kept(cursor, row, room) if cursor is not None and room > reserve.within + 1 else None
        words = np.zeros(self._lexicon.words, dtype=np.int32) if keep is None else keep.copy()
        _add(words, (path[0], *self._stop_token_ids))
        _add(words, self._affordable(matcher, row & ~words, record, path))
        return record, words

    def _cut_otherwise(self, matcher: Matcher, record: Record, cursor: JsonCursor | None) -> Record | None:
        """The knowledge of the end where the output has gone on as the text of the completion does, in other tokens, or
        with white space; None if it has not."""
        if not record.path or record.at > len(self._accepted):
            return None
        written = b"".join([self._lexicon.tokens[i] for i in self._accepted[record.at :]])
        found = self._rest_of_text(record.path, written, in_string=cursor is None or cursor.in_string)
        return None if found is None else self._led_to(matcher, *found, record)

    def _led_to(self, matcher: Matcher, path: Sequence[int], num_new: int, record: Record) -> Record | None:
        """`_led_on` with what fits. The matcher proves what is new, and one token more: it has proved the others after
        the same text."""
        proved = path[: num_new + 1]
        if len(path) > self._budget.num_tokens - len(self._accepted) or matcher.validate(proved) != len(proved):
            return None
        return self._led_on(record, path)

    def _back(self, matcher: Matcher, record: Record, left: int) -> Record | None:
        """The knowledge of a completion that comes back to the one of before, which the output has left: a search would
        take many times as long. None also for one with what is banned, unless no other was found of late, and for one
        that is longer than before where that would take freedom away."""
        reserve = self._budget.reserve
        if not record.path or not reserve.is_json or record.at > len(self._accepted):
            return None
        cursor = self._cursor()
        found = go_back(
            matcher,
            self._lexicon,
            path=record.path,
            begin=self._cursors[record.at],
            past=self._accepted,
            cursor=cursor,
            witnesses=reserve.witnesses,
        )
        if found is None or len(found) > left:
            return None
        if left - len(found) <= reserve.growth and len(found) > len(record.path):
            return None
        return self._led_on(record, found)

    def _led_on(self, record: Record, path: Sequence[int]) -> Record | None:
        """The knowledge of the end with another path; None for one with what is banned, unless no other was found of
        late."""
        is_free = self._is_free(path)
        if not is_free and len(self._accepted) >= record.bans_at:
            return None
        return Record(0, len(self._accepted), tuple(path), not is_free, 0 if is_free else record.bans_at)

    def _looked_for(self, matcher: Matcher, record: Record, left: int) -> Record:
        """Look for a completion; the knowledge of the end after it. Where nothing is known yet, one that goes back to
        that of the beginning, which all outputs share, takes a small part of a search."""
        if not self._accepted:
            return self._beginning(matcher)
        if not record.found_none and not record.path and self._budget.reserve.is_json:
            begun = self._beginning(matcher) if len(self._accepted) <= MOST_BACK else Record()
            if found := self._cut_otherwise(matcher, begun, self._cursor()) or self._back(matcher, begun, left):
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
        if record.found_none and self._needs_too_many(matcher, left):
            return Record(self._budget.num_tokens, num_accepted)
        again = num_accepted + max(1, left // AGAIN)
        for lifts in (False, True) if self._budget.bans.of_completion else (False,):
            if num_accepted < record.bans_at and not lifts:
                continue
            for part in (PART_FIRST,) if record.found_none or record.lifts_bans else (PART_FIRST, 1):
                if (found := self._find(matcher, part=part, lifts=lifts)) is not None:
                    return Record(0, num_accepted, tuple(found), lifts, again if lifts else 0)
        return Record(again, num_accepted)

    def _needs_too_many(self, matcher: Matcher, left: int) -> bool:
        """Return whether what completes the output, found without regard to what is `left`, is far longer than that.
        Such a search takes few steps back, and a small part of the work of one that looks for what fits."""
        work = MAX_TRIED // PART_FIRST
        found = self._find(matcher, part=PART_FIRST, lifts=True, limit=LONGEST, most_tried=work, quick=True)
        return found is not None and len(found) > TOO_LONG * left

    def _same(self, matcher: Matcher, record: Record, left: int, cursor: JsonCursor | None) -> Record | None:
        """The knowledge of what completed the text before, if it does still; None if it does not."""
        if not record.path or cursor is None or cursor.place not in SAME or len(record.path) > left:
            return None
        return self._led_to(matcher, record.path, len(record.path), record)

    def shortest(self, matcher: Matcher) -> int | None:
        """Count the tokens of the shortest completion that is found, however few are left; None if none is."""
        for lifts in (False, True) if self._budget.bans.of_completion else (False,):
            found = self._find(matcher, lifts=lifts, limit=LONGEST, most_tried=MAX_TRIED // 4, most_masks=64)
            if found is not None:
                return len(found)
        return None

    def _find(
        self,
        matcher: Matcher,
        *,
        lifts: bool = False,
        limit: int | None = None,
        part: int = 1,
        most_tried: int | None = None,
        most_masks: int | None = None,
        quick: bool = False,
    ) -> Sequence[int] | None:
        """Find what completes the output in `limit` tokens, or in what is left, without what is banned, or, where it
        `lifts` that, with it."""
        reserve = self._budget.reserve
        if limit is None:
            limit = self._budget.num_tokens - len(self._accepted)
        most_tried = reserve.most_tried(limit) // part if most_tried is None else most_tried
        most_masks = reserve.most_masks // part if most_masks is None else most_masks
        if (told := self._told(matcher, limit)) is not None and (lifts or not told or self._is_free(told)):
            return told or None
        return find_completion(
            matcher,
            self._lexicon,
            self._stop_token_ids,
            limit=limit,
            past=self._accepted,
            cursor=self._cursor() if reserve.is_json else None,
            witnesses=reserve.witnesses,
            bans=NO_BANS if lifts else self._budget.bans,
            most_tried=most_tried,
            most_masks=most_masks,
            quick=quick,
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

    def _is_free(self, token_ids: Sequence[int]) -> bool:
        """Return whether a completion does without what is banned, but for its stop token where all of them are."""
        bans = self._budget.bans
        if not token_ids or not bans.of_completion:
            return True
        before_stop, stop = token_ids[:-1], token_ids[-1]
        return stop in bans.ends(self._stop_token_ids) and not brings_about(
            bans, self._accepted, before_stop, self._lexicon
        )

    def _affordable(self, matcher: Matcher, row: NDArray[np.int32], record: Record, path: Sequence[int]) -> list[int]:
        """The tokens of `row` after which the output can be completed, where there are few: without what is banned,
        where the `path` is."""
        if not row.any():
            return []
        allowed = np.flatnonzero(self._lexicon.bits(row))
        if len(allowed) * len(path) > MOST_TRIED:
            return []
        found, left = [], self._budget.num_tokens - len(self._accepted)
        cursor = self._cursor() if self._budget.reserve.is_json else None
        for token_id in allowed.tolist():
            token = self._lexicon.tokens[token_id]
            in_string = cursor is None or cursor.after(token).in_string
            known = self._rest_of_text(path, token, in_string=in_string) if token else None
            if known is not None and len(known[0]) >= left and not token.strip(BLANKS) and not in_string:
                continue  # nothing becomes shorter by white space
            if matcher.accept((token_id,)) != 1:
                continue
            self._accepted.append(token_id)
            try:
                if known is not None and self._led_to(matcher, *known, record):
                    found.append(token_id)
                    continue
                find = partial(self._find, matcher, most_tried=FEW * len(path), most_masks=FEW_MASKS, quick=True)
                if find() or (record.lifts_bans and find(lifts=True)):
                    found.append(token_id)
            finally:
                self.rollback(1)
                matcher.rollback(1)
        return found

    def _rest_of_text(self, path: Sequence[int], written: bytes, *, in_string: bool) -> tuple[list[int], int] | None:
        """Return the rest of the text of `path` after `written`, which stands where that text would begin: both are
        alike but for how they are cut into tokens, or for white space that came last, not `in_string`. With it the
        number of its first tokens that the path has not. None where they are not alike. To look for another completion
        takes many times as long."""
        tokens = self._lexicon.tokens
        text = b"".join([tokens[i] for i in path])
        if not text.startswith(written):
            written = written if in_string else written.rstrip(BLANKS)
            if not text.startswith(written):
                return None
        place = count = 0
        while place < len(written):  # to where a token of the path ends, too
            place += len(tokens[path[count]])
            count += 1
        between = self._lexicon.spell(text[len(written) : place])
        return None if between is None else ([*between, *path[count:]], len(between))

    def _kept(self, cursor: JsonCursor, row: NDArray[np.int32], room: int) -> NDArray[np.int32] | None:
        """The tokens that open nothing where the text ends, and choose nothing that asks for more than there is room
        for."""
        may_choose = room > self._budget.reserve.chosen + 1
        match cursor.place:
            case Place.STRING if not cursor.escape and (may_choose or self._lexicon.has_letters(row)):
                return self._lexicon.text
            case Place.KEY if not cursor.escape and self._lexicon.has_letters(row):  # a name of the model's own
                return self._lexicon.text
            case Place.VALUE if may_choose:
                return self._lexicon.begun
            case Place.SCALAR if may_choose:
                return self._lexicon.scalars
        return None


def _add(words: NDArray[np.int32], token_ids: Iterable[int]) -> None:
    """Set the bits of these tokens."""
    for token_id in token_ids:
        words.view(np.uint32)[token_id // BITS_PER_WORD] |= np.uint32(1 << token_id % BITS_PER_WORD)
