"""A short way from where a matcher stands to the end of its grammar, found by trying."""

from __future__ import annotations

import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import Matcher
from guideway.errors import ConformanceError, DeadEnd
from guideway.json_schema.cursor import JsonCursor, Place
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing.lexicon import MOST_MASKS_KEPT, SCALAR, AllowedTokens, Lexicon
from guideway.runtime.constraints.closing.shortening import shortened
from guideway.runtime.constraints.closing.ways import Prover, Way
from guideway.runtime.constraints.mask_block import GUARD

__all__ = ["MAX_MASKS", "MAX_TRIED", "brings_about", "find_completion", "most_work"]

MAX_MASKS = 600
"""So many bitmasks a search fills at most: what bounds its work, since time would make it another one each time."""
MAX_TRIED = 5_000
"""So many tokens it tries at most, and more where what it looks for may be long."""
TRIED_PER_TOKEN = 16
"""Tokens that are tried for one of a completion."""
MOST_TRIED = 80_000
"""Tokens that a search tries, however long what it looks for may be."""
MOST_OF_ENDS = 4096
"""So many bytes of ends of witnesses are tried for one string at most."""
DEEPER = (1, 2, 3, 4)
"""The number of further levels. Where nothing is found, recursion may have led astray: then so many more levels are
tried, with a part of the work each."""
RECENT = 12
"""Tokens looked back upon for what repeats itself."""
AT_MOST = 24
"""Tokens of one bitmask that are tried."""
SHORT_TEXTS = (b'a"', b'aq"', b'aqZ"')
"""The shortest strings, but for the empty one."""
SHORT = 16
"""Tokens of a completion that are too few for that a longer one could be made as short."""
MOST_PROVED = 16_384
"""Tokens of known completions that are validated in one search."""
MASK = 16
"""Tokens of the prover's work that a bitmask counts for."""
MOST_JOINED = 4
"""Places of known completions that are tried from one place."""
PRIME = (1 << 64) - 59
"""The largest prime of 64 bits: so many digests of texts there are."""
FEW_TRIED = 4
"""Tokens that are tried for each of a path that leads to an end."""
CLOCK = 64
"""Tokens that are tried between two looks at the clock."""
MUCH_LONGER = 2
"""The times that a completion may have too many tokens before it is made shorter."""


def most_work(limit: int) -> int:
    """Return how many tokens a search for a completion of at most `limit` tokens tries."""
    return min(MAX_TRIED + TRIED_PER_TOKEN * limit, MOST_TRIED)


@runtime_checkable
class Demanding(Protocol):
    """A matcher that knows names which must come, in any order."""

    def missing_names(self) -> Sequence[str]:
        """Return names that the last open object still requires."""


def find_completion(
    matcher: Matcher,
    lexicon: Lexicon,
    stop_token_ids: frozenset[int],
    *,
    limit: int,
    past: Sequence[int],
    cursor: JsonCursor | None,
    witnesses: Sequence[str] = (),
    ends: Sequence[bytes] = (),
    bans: Bans | None = None,
    known: Sequence[Way] = (),
    prover: Prover | None = None,
    most_tried: int = MAX_TRIED,
    most_masks: int = MAX_MASKS,
    quick: bool = False,
    until: float = math.inf,
) -> list[int] | None:
    """At most `limit` token ids, a stop token last, that `matcher` takes from where it stands; None if none were found.
    `past` are the last tokens it accepted, `cursor` where the output ends if it is JSON, `witnesses` are examples of
    what its strings, or of what is no JSON, it may be, `ends` what ends free text in it. `bans` are not in it, but
    for a stop token where all of them are banned. At most about twice `most_tried` tokens are tried, and `most_masks`
    bitmasks filled, besides what `prover` validates to come back to a `known` way; the same again for
    a longer one, which is made shorter, where none is found.

    Depth first: what closes what is open, then the shortest value, then how a witness goes on, then what the grammar
    asks for, a bitmask for each. In JSON, if that fails, again with few levels. A `quick` search is the first of these
    alone: no limited levels, and nothing longer.
    Work is bounded, and the result a function of the arguments: with the first token of a completion accepted, the rest
    of it is found. The matcher is left as it was. It is not always the shortest. A search that is still under way when
    the processor time of the thread is `until` gives up: it would be ended, and its request with it.
    """
    bans = bans or Bans()
    prover = prover or Prover(matcher, bans.ends(stop_token_ids), MOST_PROVED)
    # the states of a search have few masks that differ, and so have those of others
    masks: dict[bytes, AllowedTokens] = {} if bans.of_completion else lexicon.masks

    def searched(limit: int, *levels: int | None) -> list[int] | None:
        given = matcher, lexicon, stop_token_ids, limit, past, cursor, witnesses, ends, bans, known
        return _searched(levels, masks, *given, prover, most_tried, most_masks, until)

    def is_free(token_ids: Sequence[int]) -> bool:
        return not brings_about(bans, past, token_ids, lexicon)

    def made_to_fit(found: list[int] | None) -> list[int] | None:
        if found is not None:
            found = shortened(matcher, lexicon, found, limit=limit, cursor=cursor, is_free=is_free)
        return found if found is None or len(found) <= limit else None

    deeper = () if cursor is None else DEEPER
    longer = MUCH_LONGER * limit + SHORT
    if quick:
        found = searched(longer, None)
        found = found and shortened(matcher, lexicon, found, limit=longer, cursor=cursor, is_free=is_free)
        return found if found and len(found) <= limit else None
    # a longer one is found without a step back where one that fits is not, and is often made to fit
    if (found := made_to_fit(searched(longer, None))) is not None:
        return found
    if (found := made_to_fit(searched(limit, None, *deeper))) is not None or not deeper:
        return found
    return made_to_fit(searched(longer, *deeper))


def _searched(
    levels: Sequence[int | None],
    masks: dict[bytes, AllowedTokens],
    matcher: Matcher,
    lexicon: Lexicon,
    stop_token_ids: frozenset[int],
    limit: int,
    past: Sequence[int],
    cursor: JsonCursor | None,
    witnesses: Sequence[str],
    ends: Sequence[bytes],
    bans: Bans,
    known: Sequence[Way],
    prover: Prover,
    most_tried: int,
    most_masks: int,
    until: float,
) -> list[int] | None:
    for deeper in levels:
        search = _Search(
            matcher=matcher,
            lexicon=lexicon,
            masks=masks,
            stops=bans.ends(stop_token_ids),
            limit=limit,
            past=list(past[-max(RECENT, bans.most_before) :]),
            cursors=[cursor],
            witnesses=witnesses,
            ends=ends,
            bans=bans,
            known=known,
            prover=prover,
            most_tried=most_tried if deeper is None else min(most_tried, MAX_TRIED) // len(DEEPER),
            most_masks=most_masks if deeper is None else most_masks // len(DEEPER),
            most_open=None if cursor is None or deeper is None else len(cursor.open) + deeper,
            until=until,
        )
        if (found := search.completion()) is not None:
            return found
    return None


def brings_about(bans: Bans, past: Sequence[int], token_ids: Sequence[int], lexicon: Lexicon) -> bool:
    """Return whether tokens after others have, or complete, what is banned."""
    if not bans.of_completion:
        return False
    if bans.forbids(past, token_ids):
        return True
    tokens = lexicon.tokens
    added = b"".join(tokens[i] for i in token_ids)
    for text in bans.stop:
        held = b"".join(tokens[i] for i in past[-len(text) :])[-len(text) + 1 :] if len(text) > 1 else b""
        if text in held + added:
            return True
    return False


@dataclass(slots=True)
class _Search:
    matcher: Matcher
    lexicon: Lexicon
    masks: dict[bytes, AllowedTokens]
    """The tokens of masks that were filled of late, in searches with the same bans."""
    stops: list[int]
    limit: int
    past: list[int]
    cursors: list[JsonCursor | None]
    """The places where the text ends before each step, and after the last."""
    witnesses: Sequence[str]
    ends: Sequence[bytes]
    bans: Bans
    most_tried: int
    most_masks: int
    prover: Prover
    known: Sequence[Way]
    """Ways that completed what the output was before: the search may come back to one."""
    most_open: int | None
    """So many arrays and objects may be open in one another; None: any number."""
    until: float = math.inf
    """The processor time of the thread at which it gives up."""
    joined: list[int] | None = None
    """The path and the rest of a known way, if it came back to one."""
    path: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    """Tokens of each step."""
    digests: list[int] = field(default_factory=lambda: [1])
    """The digest of the path's text before each step, and after the last."""
    seen: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)
    """By digest and `_tail` the fewest tokens of each text that the path has been, from where it begins: the texts
    themselves would take memory that grows with the square of their length."""
    num_failed: Counter[int] = field(default_factory=Counter)
    """The number of times that a step that began with a token was taken back."""
    num_masks: int = 0
    num_tried: int = 0
    rows: Bitmask = field(init=False)
    """One between two guards."""
    unbanned: NDArray[np.bool_] = field(init=False)
    """By token whether it is not banned everywhere."""

    def __post_init__(self) -> None:
        if self.bans.of_completion:
            self.unbanned = self.lexicon.unbanned(self.bans)
        self.rows = np.full((3, self.lexicon.words), GUARD, dtype=np.int32)

    def completion(self) -> list[int] | None:
        """The path and a stop token, if it completes the output. The matcher is left as it was."""
        try:
            if not self._run():
                return None
            ends = (token_id for token_id in self.stops if self.matcher.validate((token_id,)) == 1)
            return self.joined or next(([*self.path, token_id] for token_id in ends), None)
        finally:
            self.matcher.rollback(len(self.path))

    def _join(self) -> bool:
        """Return whether a way that is known completes the output from where the path has come to."""
        joints = [(way.cost(at), i, at) for i, way in enumerate(self.known) for at in way.joints(b"", self.cursors[-1])]
        for cost, i, at in sorted(joints)[:MOST_JOINED]:
            if len(self.path) + cost >= self.limit:
                break
            way, before = self.known[i], self._last(self.bans.most_before)
            if self.prover.proves(way, at) and not brings_about(self.bans, before, way.path(at), self.lexicon):
                rest = way.path(at)
                stop = next(stop for stop in self.stops if self.matcher.validate((*rest, stop)) > len(rest))
                self.joined = [*self.path, *rest, stop]
                return True
        return False

    def _run(self) -> bool:
        """Return whether the path completes the output. It is as far as the matcher went."""
        tries: list[Iterator[Sequence[int]]] = []
        chooses_at = self.most_tried // 2
        while not self.matcher.is_accepting():
            if self.known and self._join():
                return True
            # a value near the beginning may have chosen what is too long; not where the way is long, and leads there
            is_lost = self.num_tried > max(chooses_at, FEW_TRIED * len(self.path))
            if is_lost and (first := self._first_choice()) is not None:
                chooses_at = (self.num_tried + self.most_tried) // 2
                del tries[first + 1 :]
                while len(self.lengths) > first:
                    self._take_back()
            else:
                tries.append(self._tries())
            while not self._advance(tries[-1]):
                if self.num_masks > self.most_masks or self.num_tried > self.most_tried:
                    return False
                for _ in range(self._blamed()):
                    tries.pop()
                    if not self.lengths:
                        return False
                    self._take_back()
        return len(self.path) < self.limit

    def _take_back(self) -> None:
        """Take the last step back."""
        length = self.lengths.pop()
        self.num_failed[self.path[-length]] += 1
        del self.path[-length:]
        self.digests.pop()
        self.cursors.pop()
        self.matcher.rollback(length)

    def _first_choice(self) -> int | None:
        """The first step of the path that chose a value in an array or object; None if there is none."""
        places = enumerate(self.cursors[:-1])
        return next((i for i, at in places if at is not None and at.place is Place.VALUE and at.open), None)

    def _blamed(self) -> int:
        """Return how many steps are taken back where there is no way on: one, but where levels are limited, none that
        chose a number or a word is blamed for what comes after it."""
        cursor = self.cursors[-1]
        if self.most_open is None or cursor is None or cursor.place is Place.SCALAR:
            return 1
        count, at = 1, len(self.path)
        for length, before in zip(reversed(self.lengths), reversed(self.cursors[:-1]), strict=True):
            at -= length
            assert before is not None
            begins = self.lexicon.tokens[self.path[at]][:1]
            if before.place is not Place.SCALAR and not (before.place is Place.VALUE and SCALAR.fullmatch(begins)):
                break
            count += 1
        return count

    def _advance(self, tries: Iterator[Sequence[int]]) -> bool:
        tokens, before = self.lexicon.tokens, self.digests[-1]
        for token_ids in tries:
            added = tokens[token_ids[0]] if len(token_ids) == 1 else b"".join([tokens[i] for i in token_ids])
            digest, length = _digest(before, added), len(self.path) + len(token_ids)
            key = digest, self._tail(token_ids)
            fewest = self.seen.get(key)  # however it was cut into tokens, as far as bans do not tell
            if fewest is not None and (fewest <= length or self.most_open is not None):
                continue
            self.num_tried += 1
            if not self.num_tried % CLOCK and time.thread_time() > self.until:
                self.most_tried = 0
            fits = length < self.limit
            if fits and self.bans.of_completion:
                fits = not brings_about(self.bans, self._last(self.bans.most_before), token_ids, self.lexicon)
            count = self.matcher.accept(token_ids) if fits else 0
            if count == len(token_ids):
                cursor = self.cursors[-1]
                if cursor is not None:
                    cursor = cursor.after(added)
                    if self.most_open is not None and len(cursor.open) > self.most_open:
                        self.matcher.rollback(count)
                        continue
                self.seen[key] = length
                self.digests.append(digest)
                self.cursors.append(cursor)
                self.lengths.append(count)
                self.path += token_ids
                return True
            self.matcher.rollback(count)
            if self.num_tried > self.most_tried:
                break
        return False

    def _tries(self) -> Iterator[Sequence[int]]:
        """Yield what may come next, in the order in which it is tried."""
        if len(self.path) + 1 >= self.limit:
            return
        quick: Sequence[int] = ()
        lexicon, cursor = self.lexicon, self.cursors[-1]
        if cursor is not None:
            # a name ends with nothing but its quote
            inner = () if cursor.place is Place.KEY else cursor.open[:-3:-1]
            closers, quotes = lexicon.closing(b"".join(b"]" if names is None else b"}" for names in inner))
            if cursor.in_string:
                quick = () if cursor.escape else quotes
            elif cursor.place in (Place.AFTER, Place.SCALAR):
                quick = [*closers, *lexicon.commas]
            elif cursor.place is Place.COLON:
                quick = lexicon.colons
            else:
                quick = closers
            yield from ((token_id,) for token_id in quick)
            if cursor.place is Place.VALUE:
                yield from lexicon.spelt_values
                quick = [*quick, *lexicon.values]
        if cursor is not None and cursor.place is Place.KEY and self._is_in_new():
            yield from self._missing_names(cursor)
        if self.witnesses and self._is_in_new():
            if cursor is not None:  # short texts first: an example of another string may be longer
                yield from filter(None, map(lexicon.spell, SHORT_TEXTS))
            yield from self._ends()
        if self.num_masks >= self.most_masks:
            return
        self.num_masks += 1
        self.prover.num_left -= MASK
        try:
            self.matcher.fill_bitmask(self.rows, 1)
        except DeadEnd:
            return
        if (self.rows[::2] != GUARD).any():
            raise ConformanceError("it wrote outside its row")
        if cursor is None and self._among().letters:  # in free text, which may be the content of a tag
            yield from filter(None, map(lexicon.spell, self.ends))
        tried = set(quick)
        yield from ((token_id,) for token_id in self._of_mask() if token_id not in tried)

    def _tail(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Return the last of these tokens, which follow the path: those that may be the beginning of a bad word."""
        num_tokens = max(map(len, self.bans.bad_words), default=1) - 1
        return tuple([*self._last(num_tokens), *token_ids][-num_tokens:]) if num_tokens else ()

    def _last(self, num_tokens: int) -> list[int]:
        """The last tokens of the output and the path."""
        missing = num_tokens - len(self.path)
        return [*self.past[-missing:], *self.path] if missing > 0 else self.path[len(self.path) - num_tokens :]

    def _is_in_new(self) -> bool:
        """Return whether the text ends in a string, or in what is no JSON, that the path has not gone on with yet."""
        cursor = self.cursors[-1]
        if cursor is None or not self.lengths:
            return not self.lengths and (cursor is None or cursor.in_string)
        before = self.cursors[-2]
        return cursor.in_string and before is not None and not before.in_string

    def _missing_names(self, cursor: JsonCursor) -> Iterator[Sequence[int]]:
        """Yield how names go on that the object still requires, if the matcher knows them."""
        for name in self.matcher.missing_names() if isinstance(self.matcher, Demanding) else ():
            text = json.dumps(name, ensure_ascii=False)[1:].encode(errors="replace")
            token_ids = self.lexicon.spell(text.removeprefix(cursor.name)) if text.startswith(cursor.name) else None
            if token_ids:
                yield token_ids

    def _ends(self) -> Iterator[Sequence[int]]:
        """Yield how witnesses go on from where the text stands in them, to where the string or the output may end:
        whole ones in a string that the path has opened, else the shortest of their ends first."""
        quote, left = self.lexicon.of([b'"']), MOST_OF_ENDS
        is_json, is_whole = self.cursors[-1] is not None, bool(self.lengths)
        texts = [json.dumps(each, ensure_ascii=False)[1:-1] if is_json else each for each in self.witnesses]
        ends = (text[i:].encode(errors="replace") for text in texts for i in range(1 if is_whole else len(text)))
        for end in sorted(dict.fromkeys(ends), key=len):
            if (left := left - len(end)) < 0:
                return
            token_ids = self.lexicon.spell(end)
            if token_ids is None or len(token_ids) > self.limit:
                continue
            if is_json:
                yield [*token_ids, *quote]
            elif any(self.matcher.validate((*token_ids, stop)) > len(token_ids) for stop in self.stops):
                yield token_ids

    def _of_mask(self) -> list[int]:
        lexicon, cursor = self.lexicon, self.cursors[-1]
        among = self._among()
        allowed, longest_first = among.allowed, among.longest
        if among.is_one_text:
            return longest_first
        found: list[int]
        if among.letters and (cursor is None or cursor.in_string):
            # a string that may not end yet: long tokens bring it there sooner
            found = among.plain + lexicon.letters
        elif cursor is not None and cursor.in_string:
            found = longest_first[:AT_MOST]
            if self.most_open is not None:  # a name that led astray comes after one that did not
                found.sort(key=self.num_failed.__getitem__)
        else:
            quick = [i for i in (*lexicon.closers, *lexicon.values) if allowed[i]] if cursor is None else []
            found = [*quick, *among.shortest, *among.long]
        if cursor is None:  # what ends a text is a mark more often than a letter
            found = [*(i for i in lexicon.marks if allowed[i]), *found]
        return list(dict.fromkeys(self._fresh(found or longest_first[:1], allowed)))

    def _among(self) -> AllowedTokens:
        """The tokens of the mask."""
        key = self.rows[1].tobytes()
        if (found := self.masks.get(key)) is None:
            if len(self.masks) >= MOST_MASKS_KEPT:
                self.masks.clear()
            allowed = self.lexicon.bits(self.rows[1])
            if self.bans.of_completion:
                allowed &= self.unbanned
            found = self.masks[key] = AllowedTokens.of(allowed, self.lexicon)
        return found

    def _fresh(self, found: list[int], allowed: NDArray[np.bool_]) -> list[int]:
        """`found`, but what came twice of late gives way to single bytes that did not come, those first that patterns
        have between their parts."""
        recent = self._last(RECENT)
        repeated = {i for i in found if recent.count(i) >= 2 and i not in self.lexicon.quotes}
        if not repeated:
            return found
        ones = [i for i in self.lexicon.separators if allowed[i] and i not in recent]
        return [*(i for i in found if i not in repeated), *ones, *(i for i in found if i in repeated)]


def _digest(before: int, added: bytes) -> int:
    """The digest of a text that goes on with `added`, however it is cut (M. O. Rabin, Fingerprinting by Random
    Polynomials, 1981, with integers in place of polynomials)."""
    return (before * pow(256, len(added), PRIME) + int.from_bytes(added)) % PRIME
