"""Search for a short completion of an output, by trying tokens on its matcher."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count

import numpy as np

from guideway.errors import ConformanceError, DeadEnd
from guideway.json_schema.cursor import JsonCursor, Place
from guideway.runtime.constraints.closing.avoiding import Avoiding
from guideway.runtime.constraints.closing.lexicon import MOST, VALUES, Lexicon
from guideway.runtime.constraints.closing.positions import Position
from guideway.runtime.constraints.closing.reserve import Reserve
from guideway.runtime.constraints.closing.ways import Prover, Way, joints
from guideway.runtime.constraints.mask_block import GUARD

__all__ = ["Search"]

MASK = 16
"""Work of filling a bitmask, in tokens: it takes about as long as trying this many."""
DEEPER = 2
"""Nested objects and arrays that a search may open without extra cost. Each further level costs as much as a worse try,
because recursive schemas would lead the search ever deeper."""

DIGITS = [b"%d" % digit for digit in range(10)]
SIGNS = (b",", b":", b"[", b"{", b"]", b"}")


@dataclass(slots=True, eq=False)
class _Node:
    """A state of the search: the text of the node before, and the tokens of one step."""

    token_ids: Sequence[int]
    position: Position
    text: hashlib.blake2b = field(default_factory=partial(hashlib.blake2b, digest_size=16))
    """The digest of the path's text, without most white space between tokens of JSON."""
    before: _Node | None = None
    num_tokens: int = 0
    cost: int = 0
    """Number of worse tries on the path to this node."""
    tries: Iterator[Sequence[int]] | None = None

    @property
    def cursor(self) -> JsonCursor | None:
        """The position in JSON; None outside JSON."""
        return self.position.json


@dataclass(slots=True)
class Search:
    """A search for a short completion of an output, which is not always the shortest. The result depends on the fields
    alone.

    In each state the search tries tokens that close strings and brackets, the shortest values, the rest of each
    witness, then tokens of the bitmask. It follows each first try to its end. Then it continues from the state with the
    fewest worse tries before it, the longest text first (W. Harvey and M. Ginsberg, Limited Discrepancy Search, 1995).

    In a grammar of which no example is known, such as one in Lark, the mask after a token says how good it is: the mask
    that the search has met least comes first, the same mask as before the token last, because there the grammar is
    probably in the same state. It is not where sequences of tokens are banned.
    """

    prover: Prover
    """Tries tokens on the matcher of the output, and limits the work of the search."""
    lexicon: Lexicon
    reserve: Reserve
    limit: int
    """Most tokens of the completion. A path may have twice as many, since fewer tokens may spell the text of a
    completion."""
    position: Position
    """The position at the end of the output."""
    known: Sequence[Way] = ()
    """Ways that completed the output before. The completion may join one of them."""
    most_worse: int = MOST
    """Most tries in the completion that were not the first of their state."""
    long_first: bool = False
    """True to try long tokens before short ones, and no witnesses."""
    following: dict[bytes, dict[bytes, int]] = field(default_factory=dict)
    """In a grammar without examples, by mask: the masks that followed it, each with a token. The grammar is probably in
    the same state where its mask is the same, so they are filled once."""
    _path: list[int] = field(init=False, default_factory=list)
    """Tokens that the matcher has accepted in this search."""
    _root: _Node = field(init=False)
    _at: _Node = field(init=False)
    """The node whose path the matcher has accepted."""
    _seen: set[bytes] = field(init=False, default_factory=set)
    """Digests of the texts of nodes. The same text in other tokens, or with other white space, has the same completions
    unless sequences of tokens are banned."""
    _met: Counter[bytes] = field(init=False, default_factory=Counter)
    """In a grammar without examples: how often each mask was met."""

    def completion(self) -> list[int] | None:
        """Return the first completion found, with a stop token; None if there is none. The matcher's state is kept."""
        numbers, cursor = count(), self.position.json
        deepest = DEEPER + (0 if cursor is None else len(cursor.open))
        self._root = self._at = _Node((), self.position)
        left = [(0, 0, 0, self._at)]
        """Heap of nodes to continue from: fewest worse tries (with extra depth), then longest path, then latest."""
        try:
            while left and left[0][0] <= self.most_worse and self.prover.num_left > 0:
                cost, _, _, node = heappop(left)
                if node.num_tokens + 1 >= 2 * self.limit:
                    continue
                self._go_to(node)
                if node.tries is None:
                    is_whole = self.prover.matcher.is_accepting()
                    if (found := self._whole() if is_whole else self._joined()) is not None:
                        return found
                    if is_whole:
                        continue
                    node.tries = self._tries()
                if (after := self._advance(node)) is not None:
                    deeper = 0 if after.cursor is None else max(0, len(after.cursor.open) - deepest)
                    heappush(left, (after.cost + deeper, -after.num_tokens, -next(numbers), after))
                    node.cost += 1
                    heappush(left, (cost + 1, -node.num_tokens, -next(numbers), node))
            return None
        finally:
            self.prover.matcher.rollback(len(self._path))

    def _go_to(self, node: _Node) -> None:
        """Roll back and advance the matcher to the path of `node`, in time that grows with the tokens that differ."""
        if node is self._at:
            return
        steps, here, there = list[Sequence[int]](), self._at, node
        while here is not there:
            if there.num_tokens >= here.num_tokens and there.before is not None:
                steps.append(there.token_ids)
                there = there.before
            elif here.before is not None:
                here = here.before
        new = [token_id for step in reversed(steps) for token_id in step]
        pairs = zip(new, self._path[here.num_tokens :], strict=False)
        shared = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(new), len(self._path) - here.num_tokens))
        new, kept, matcher = new[shared:], here.num_tokens + shared, self.prover.matcher
        matcher.rollback(len(self._path) - kept)
        if matcher.accept(tuple(new)) != len(new):
            raise ConformanceError("it refused tokens that it had accepted before they were rolled back")
        self.prover.num_left -= len(new)
        self._path[kept:], self._at = new, node

    def _whole(self) -> list[int] | None:
        """Return a stop token after the path, or after fewer tokens that write its text, with or without the blanks
        that may follow a comma or colon; None if it does not fit in the limit."""
        if (end := self.prover.end(())) is None:
            return None
        found, text = [*self._path, *end], b"".join([self.lexicon.tokens[i] for i in self._path])
        self._go_to(self._root)
        for spelled in (self.lexicon.spell(self.position.spaced(text)), self.lexicon.spell(text)):
            if spelled and len(spelled) + 1 < len(found):
                found = self.prover.end(spelled) or found
        return found if len(found) <= self.limit else None

    def _joined(self) -> list[int] | None:
        """Return the path, the rest of a known way and a stop token; None if no known way completes the path."""
        for way, at in joints(self.known, b"", self._at.cursor):
            fits = len(self._path) + way.cost(at) < self.limit
            if fits and (end := self.prover.end(way.path(at))) is not None:
                return [*self._path, *end]
        return None

    def _advance(self, node: _Node) -> _Node | None:
        """Return the node after the next try that the matcher takes, or None."""
        assert node.tries is not None
        matcher = self.prover.matcher
        for token_ids in node.tries:
            length = len(self._path) + len(token_ids)
            if self.prover.num_left <= 0:
                return None
            if length >= 2 * self.limit:
                continue
            num_taken = matcher.accept(tuple(token_ids))
            self.prover.num_left -= 1 + num_taken
            if num_taken < len(token_ids):
                matcher.rollback(num_taken)
                continue
            written = self.lexicon.write(token_ids)
            position, text = node.position.after(written), node.text.copy()
            text.update(_without_blanks(written, node.cursor, position.json))
            if text.digest() in self._seen and not isinstance(matcher, Avoiding):
                matcher.rollback(num_taken)
                continue
            self._seen.add(text.digest())
            self._path += token_ids
            self._at = _Node(token_ids, position, text, node, length, node.cost)
            return self._at
        return None

    def _tries(self) -> Iterator[Sequence[int]]:
        """Yield the tokens that may follow the path, in the order in which to try them."""
        lexicon, cursor = self.lexicon, self._at.cursor
        quick = [] if cursor is None else [[sign] for sign in lexicon.of(_signs_at(cursor))]
        if cursor is not None and cursor.place is Place.VALUE:  # of any number of tokens: null before any object
            quick += filter(None, map(lexicon.spell, VALUES))
        yield from quick
        if cursor is not None and cursor.place is Place.SCALAR:  # a multiple may end after another digit
            yield from ([digit, *sign] for digit in lexicon.of(DIGITS) for sign in quick)
        if self._is_in_new():
            yield from self._strings()
        if not (row := self._fill()):
            return
        is_known = self.reserve.ends or self.reserve.witnesses or isinstance(self.prover.matcher, Avoiding)
        if cursor is None and not is_known:
            yield from self._by_mask(row)
            return
        if cursor is None or (not cursor.open and cursor.place in (Place.AFTER, Place.SCALAR)):
            # each mark once, because free text may take it any number of times
            marks = [mark.encode() for mark in self.reserve.ends]
            written = lexicon.write(self._path) if marks else b""
            excluded = [text.encode() for text in self.reserve.excludes]
            # what every end of a tag has before it, the end of an element has too
            before = {mark.partition(b"</")[0].strip() for mark in marks if b"</" in mark}
            element = self._at.position.end and (before.pop() if len(before) == 1 else b"") + self._at.position.end
            ends = (element, *(mark for mark in marks if mark not in written), *excluded)
            yield from filter(None, (lexicon.spell(end) for end in ends))
        if cursor is None:
            # a text ends in a punctuation mark or a digit more often than in a letter
            yield from ([i] for i in lexicon.signs(row) if self.prover.end([i]) is not None)
            if self._at.position.element.startswith(b"</") and lexicon.has_letters(row):
                return  # the end may be text of the element: no more text is tried, since no mask would show its end
        chosen = ([token_id] for token_id in lexicon.choose(row, cursor, long_first=self.long_first))
        yield from (each for each in chosen if each not in quick)

    def _by_mask(self, row: bytes) -> Iterator[Sequence[int]]:
        """Yield tokens of a mask, one for each mask that may follow, in the order of these masks."""
        if row not in self.following:
            matcher, found = self.prover.matcher, dict[bytes, int]()
            kinds = self.lexicon.kinds(row)
            for token_id in reversed(kinds) if self.long_first else kinds:
                if self.prover.num_left > 0 and matcher.accept((token_id,)) == 1:
                    self.prover.num_left -= 1
                    found.setdefault(self._fill(), token_id)
                    matcher.rollback(1)
            self.following[row] = found
        self._met[row] += 1
        found = self.following[row]
        yield from ([found[mask]] for mask in sorted(found, key=lambda mask: (mask == row, self._met[mask])))

    def _fill(self) -> bytes:
        """Return the mask of the matcher's state; empty if no token may follow."""
        self.prover.num_left -= MASK
        rows = np.full((3, self.lexicon.words), GUARD, dtype=np.int32)  # the row to fill, between two rows of guards
        try:
            self.prover.matcher.fill_bitmask(rows, 1)
        except DeadEnd:
            return b""
        if (rows[::2] != GUARD).any():
            raise ConformanceError("it wrote outside its row")
        row: bytes = rows[1].tobytes()
        return row

    def _is_in_new(self) -> bool:
        """Return whether the path just opened a string, or is empty and the output ends in a string or outside JSON."""
        cursor, before = self._at.cursor, self._at.before
        if cursor is None or before is None or before.cursor is None:
            return before is None and (cursor is None or cursor.in_string)
        return cursor.in_string and not before.cursor.in_string

    def _strings(self) -> Iterator[list[int]]:
        """Yield the rest of each name that the object may still get, in a name. Then yield ends of witnesses, the
        shortest first, that may end the string or the output; whole ones if the path has opened the string."""
        cursor, spell = self._at.cursor, self.lexicon.spell
        texts = [] if self.long_first else list(self.reserve.witnesses)
        if cursor is not None:
            texts = [json.dumps(text, ensure_ascii=False)[1:] for text in texts]
            if cursor.place is Place.KEY:
                names = [name.encode() for name in self.reserve.names]
                new = [name for name in names if name.startswith(cursor.text) and name not in (cursor.open[-1] or ())]
                yield from filter(None, (spell(name.removeprefix(cursor.text)) for name in new))
        most = (2 * self.limit - len(self._path)) * self.lexicon.longest  # bytes: no longer text has few enough tokens
        ends: dict[bytes, tuple[bytes, int]] = {}
        for whole in (text.encode(errors="replace") for text in texts):
            for at in range(max(0, len(whole) - most), 1 if self._path else len(whole)):
                if not 0x80 <= whole[at] < 0xC0:  # a character begins
                    ends.setdefault(whole[at:], (whole, at))
        for end in sorted(ends, key=len):
            whole, at = ends[end]
            cost, lengths = self.lexicon.spelt(whole)
            if self.prover.num_left <= 0:
                return
            token_ids = self.lexicon.cut(whole, lengths, at) if cost[at] < MOST else []
            if token_ids and (cursor is not None or self.prover.end(token_ids) is not None):
                yield token_ids


def _without_blanks(text: bytes, before: JsonCursor | None, after: JsonCursor | None) -> bytes:
    """Return the text between two positions without white space around signs of JSON."""
    if before is None or after is None:
        return text
    kept = text if before.in_string or before.place is Place.SCALAR else text.lstrip()
    begun = kept.rstrip()
    return (begun if not after.in_string and begun.endswith(SIGNS) else kept) or text


def _signs_at(cursor: JsonCursor) -> Sequence[bytes]:
    """Return the tokens of JSON that may come next, those that complete the most first."""
    bracket = () if not cursor.open else (b"]",) if cursor.open[-1] is None else (b"}",)
    if cursor.in_string:
        return () if cursor.escape else (b'"',)
    if cursor.place in (Place.AFTER, Place.SCALAR):
        return (*bracket, b",")
    if cursor.place is Place.COLON:
        return (b":",)
    return bracket if cursor.place is Place.VALUE else (*bracket, b'"')
