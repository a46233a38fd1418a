"""A short way from where a matcher stands to the end of its grammar, found by trying."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Protocol, runtime_checkable

import numpy as np

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import Matcher
from guideway.errors import ConformanceError, DeadEnd
from guideway.json_schema.cursor import JsonCursor, Place
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing.lexicon import MOST_MASKS_KEPT, AllowedTokens, Lexicon
from guideway.runtime.constraints.closing.shortening import shortened
from guideway.runtime.constraints.closing.ways import Prover, Way
from guideway.runtime.constraints.mask_block import GUARD

__all__ = ["WORK", "brings_about", "find_completion"]

WORK = 16_000
"""What bounds a search, since time would make it another one each time, in tokens that are tried or validated."""
MASK = 16
"""The tokens that a bitmask counts for, as they take as long."""
DEEPER = 2
"""Objects and arrays that are opened in one another before each further one counts as a worse try: recursion leads
astray."""
AT_MOST = 24
"""Tokens of one bitmask that are tried."""
MOST_OF_ENDS = 256
"""Ends of witnesses that are tried for one string at most."""
SHORT = 16
"""Tokens of a completion that are too few for that a longer one could be made as short."""
MOST_JOINED = 4
"""Places of known completions that are tried from one place."""
PRIME = (1 << 64) - 59
"""The largest prime of 64 bits: so many digests of texts there are."""
CLOCK = 64
"""Tokens that are tried between two looks at the clock."""


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
    work: int = WORK,
    until: float = math.inf,
) -> list[int] | None:
    """At most `limit` token ids, a stop token last, that `matcher` takes from where it stands; None if none were found.
    `past` are the last tokens it accepted, `cursor` where the output ends if it is JSON, `witnesses` are examples of
    what its strings, or of what is no JSON, it may be, `ends` what ends free text in it. `bans` are not in it, but
    for a stop token where all of them are banned. What `prover` validates to come back to a `known` way is not part of
    the `work`.

    In each place are tried: what closes what is open, the shortest value, how a witness goes on, then what a bitmask
    allows. The first try is followed to its end; then the search goes on where the fewest worse tries were taken, from
    the end on (W. Harvey and M. Ginsberg, Limited Discrepancy Search, 1995).
    Work is bounded, and the result a function of the arguments: with the first token of a completion accepted, the rest
    of it is found. The matcher is left as it was. It is not always the shortest. A search that is still under way when
    the processor time of the thread is `until` gives up: it would be ended, and its request with it.
    """
    bans = bans or Bans()
    prover = prover or Prover(matcher, bans.ends(stop_token_ids), work)
    return _Search(
        matcher=matcher,
        lexicon=lexicon,
        # the states of a search have few masks that differ, and so have those of others
        masks={} if bans.of_completion else lexicon.masks,
        stops=bans.ends(stop_token_ids),
        limit=limit,
        most=2 * limit + SHORT,
        past=list(past[-max(1, bans.most_before) :]),
        root=_Node((), cursor),
        witnesses=witnesses,
        ends=ends,
        bans=bans,
        known=known,
        prover=prover,
        work=work,
        until=until,
    ).completion()


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


@dataclass(slots=True, eq=False)
class _Node:
    """What the search has written, as a step after another one."""

    token_ids: Sequence[int]
    cursor: JsonCursor | None
    before: _Node | None = None
    num_tokens: int = 0
    digest: int = 1
    """Of the text, whatever its tokens."""
    cost: int = 0
    """The worse tries that were taken on the way."""
    tries: Iterator[Sequence[int]] | None = None

    def path(self) -> list[int]:
        steps, node = list[Sequence[int]](), self
        while node.before is not None:
            steps.append(node.token_ids)
            node = node.before
        return [token_id for step in reversed(steps) for token_id in step]


@dataclass(slots=True)
class _Search:
    matcher: Matcher
    lexicon: Lexicon
    masks: dict[bytes, AllowedTokens]
    """The tokens of masks that were filled of late, in searches with the same bans."""
    stops: list[int]
    limit: int
    most: int
    """Tokens of a completion that is looked for: more than `limit`, as it may be made shorter, until one was not."""
    past: list[int]
    root: _Node
    witnesses: Sequence[str]
    ends: Sequence[bytes]
    bans: Bans
    known: Sequence[Way]
    """Ways that completed what the output was before: the search may come back to one."""
    prover: Prover
    work: int
    """What is left of it."""
    until: float
    """The processor time of the thread at which it gives up."""
    path: list[int] = field(default_factory=list)
    """The tokens that the matcher has accepted."""
    seen: dict[tuple[int, tuple[int, ...]], int] = field(default_factory=dict)
    """By digest and `_tail` the fewest tokens of each text that was written, from where it begins: the texts
    themselves would take memory that grows with the square of their length."""
    num_tried: int = 0
    at: _Node = field(init=False)
    """Where the matcher stands."""
    rows: Bitmask = field(init=False)
    """One between two guards."""

    def __post_init__(self) -> None:
        self.at = self.root
        self.rows = np.full((3, self.lexicon.words), GUARD, dtype=np.int32)

    def completion(self) -> list[int] | None:
        """The path and a stop token, if it completes the output. The matcher is left as it was."""
        numbers, cursor = count(), self.root.cursor
        deepest = DEEPER + (0 if cursor is None else len(cursor.open))
        left = [(0, 0, 0, self.root)]
        """By the worse tries, those that their place counts for included, the longest and last first."""
        try:
            while left and self.work > 0:
                cost, _, _, node = heappop(left)
                if node.num_tokens + 1 >= self.most:
                    continue
                self._go_to(node)
                if node.tries is None:
                    if self.matcher.is_accepting():
                        if (found := self._made_to_fit()) is not None:
                            return found
                        continue
                    if self.known and (found := self._joined()) is not None:
                        return found
                    node.tries = self._tries()
                if (after := self._advance(node)) is not None:
                    deeper = 0 if after.cursor is None else max(0, len(after.cursor.open) - deepest)
                    heappush(left, (after.cost + deeper, -after.num_tokens, -next(numbers), after))
                    node.cost += 1
                    heappush(left, (cost + 1, -node.num_tokens, -next(numbers), node))
            return None
        finally:
            self.matcher.rollback(len(self.path))

    def _go_to(self, node: _Node) -> None:
        """Bring the matcher to where a step ends."""
        if node is self.at:
            return
        path = node.path()
        shared = next((i for i, (a, b) in enumerate(zip(path, self.path, strict=False)) if a != b), len(self.path))
        shared = min(shared, len(path))
        self.matcher.rollback(len(self.path) - shared)
        if self.matcher.accept(tuple(path[shared:])) != len(path) - shared:
            raise ConformanceError("it refused tokens that it had accepted before they were rolled back")
        self.work -= len(path) - shared
        self.path, self.at = path, node

    def _made_to_fit(self) -> list[int] | None:
        """The path and a stop token, made shorter if it is too long; None if it is still."""
        stop = next((stop for stop in self.stops if self.matcher.validate((stop,)) == 1), None)
        if stop is None:
            return None
        found = [*self.path, stop]
        if len(found) > self.limit:
            self._go_to(self.root)
            cursor, is_free = self.root.cursor, self._is_free
            found = shortened(self.matcher, self.lexicon, found, limit=self.limit, cursor=cursor, is_free=is_free)
            self.most = self.limit
        return found if len(found) <= self.limit else None

    def _joined(self) -> list[int] | None:
        """The path and what a known way completes the output with from where it has come to."""
        joints = [(way.cost(at), i, at) for i, way in enumerate(self.known) for at in way.joints(b"", self.at.cursor)]
        for cost, i, at in sorted(joints)[:MOST_JOINED]:
            rest = self.known[i].path(at)
            if len(self.path) + cost < self.limit and self.prover.proves(self.known[i], at) and self._is_free(rest):
                stop = next(stop for stop in self.stops if self.matcher.validate((*rest, stop)) > len(rest))
                return [*self.path, *rest, stop]
        return None

    def _is_free(self, token_ids: Sequence[int]) -> bool:
        """Return whether tokens after the path do without what is banned."""
        return not brings_about(self.bans, self._last(self.bans.most_before), token_ids, self.lexicon)

    def _advance(self, node: _Node) -> _Node | None:
        """Go on from where the matcher stands with the next try that it takes, to a text that is new."""
        tokens, num_last = self.lexicon.tokens, max(map(len, self.bans.bad_words), default=1) - 1
        assert node.tries is not None
        for token_ids in node.tries:
            added = tokens[token_ids[0]] if len(token_ids) == 1 else b"".join([tokens[i] for i in token_ids])
            length = len(self.path) + len(token_ids)
            # however it was cut into tokens, as far as bans do not tell: the last may begin a bad word
            key = (
                _digest(node.digest, added),
                tuple([*self._last(num_last), *token_ids][-num_last:] if num_last else ()),
            )
            if self.seen.get(key, length + 1) <= length:
                continue
            self.num_tried += 1
            if self.work <= 0 or (not self.num_tried % CLOCK and time.thread_time() > self.until):
                self.work = 0
                return None
            if length >= self.most or not self._is_free(token_ids):
                continue
            num_taken = self.matcher.accept(token_ids)
            self.work -= 1 + num_taken
            if num_taken < len(token_ids):
                self.matcher.rollback(num_taken)
                continue
            self.seen[key] = length
            self.path += token_ids
            cursor = None if node.cursor is None else node.cursor.after(added)
            self.at = _Node(token_ids, cursor, node, length, key[0], node.cost)
            return self.at
        return None

    def _tries(self) -> Iterator[Sequence[int]]:
        """Yield what may come next, in the order in which it is tried."""
        quick: Sequence[int] = ()
        lexicon, cursor, is_new = self.lexicon, self.at.cursor, self._is_in_new()
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
        if cursor is not None and cursor.place is Place.KEY and is_new:
            yield from self._missing_names(cursor)
        if self.witnesses and is_new:
            yield from self._ends()
        self.work -= MASK
        self.prover.num_left -= MASK
        try:
            self.matcher.fill_bitmask(self.rows, 1)
        except DeadEnd:
            return
        if (self.rows[::2] != GUARD).any():
            raise ConformanceError("it wrote outside its row")
        among = self._among()
        if cursor is None and among.letters:  # in free text, which may be the content of a tag
            yield from filter(None, map(lexicon.spell, self.ends))
        tried = set(quick)
        yield from ((token_id,) for token_id in self._of_mask(among) if token_id not in tried)

    def _last(self, num_tokens: int) -> list[int]:
        """The last tokens of the output and the path."""
        missing = num_tokens - len(self.path)
        return [*self.past[-missing:], *self.path] if missing > 0 else self.path[len(self.path) - num_tokens :]

    def _is_in_new(self) -> bool:
        """Return whether the text ends in a string, or in what is no JSON, that the path has not gone on with yet."""
        cursor, before = self.at.cursor, self.at.before
        if cursor is None or before is None or before.cursor is None:
            return before is None and (cursor is None or cursor.in_string)
        return cursor.in_string and not before.cursor.in_string

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
        quote, is_json, is_whole = self.lexicon.of([b'"']), self.at.cursor is not None, bool(self.path)
        texts = [json.dumps(each, ensure_ascii=False)[1:-1] if is_json else each for each in self.witnesses]
        ends = (text[i:].encode(errors="replace") for text in texts for i in range(1 if is_whole else len(text)))
        for end in sorted(dict.fromkeys(ends), key=len)[:MOST_OF_ENDS]:
            token_ids = self.lexicon.spell(end)
            if token_ids is None or len(token_ids) > self.most:
                continue
            if is_json:
                yield [*token_ids, *quote]
            elif any(self.matcher.validate((*token_ids, stop)) > len(token_ids) for stop in self.stops):
                yield token_ids

    def _of_mask(self, among: AllowedTokens) -> list[int]:
        lexicon, cursor = self.lexicon, self.at.cursor
        allowed, longest_first = among.allowed, among.longest
        if among.is_one_text:
            return longest_first
        found: list[int]
        if among.letters and (cursor is None or cursor.in_string):
            # a string that may not end yet: long tokens bring it there sooner
            found = among.plain + lexicon.letters
        elif cursor is not None and cursor.in_string:
            found = longest_first[:AT_MOST]
        else:
            quick = [i for i in (*lexicon.closers, *lexicon.values) if allowed[i]] if cursor is None else []
            found = [*quick, *among.shortest, *among.long]
        if cursor is None:  # what ends a text is a mark more often than a letter
            ends = [i for i in among.signs if any(self.matcher.validate((i, stop)) == 2 for stop in self.stops)]
            self.work -= len(among.signs)
            found = [*ends, *(i for i in lexicon.marks if allowed[i]), *found]
        return list(dict.fromkeys(found or longest_first[:1]))

    def _among(self) -> AllowedTokens:
        """The tokens of the mask."""
        key = self.rows[1].tobytes()
        if (found := self.masks.get(key)) is None:
            if len(self.masks) >= MOST_MASKS_KEPT:
                self.masks.clear()
            allowed = self.lexicon.bits(self.rows[1])
            if self.bans.of_completion:
                allowed &= self.lexicon.unbanned(self.bans)
            found = self.masks[key] = AllowedTokens.of(allowed, self.lexicon)
        return found


def _digest(before: int, added: bytes) -> int:
    """The digest of a text that goes on with `added`, however it is cut (M. O. Rabin, Fingerprinting by Random
    Polynomials, 1981, with integers in place of polynomials)."""
    return (before * pow(256, len(added), PRIME) + int.from_bytes(added)) % PRIME
