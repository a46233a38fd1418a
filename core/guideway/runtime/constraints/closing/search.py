"""Search for a short completion of an output, by trying tokens on its matcher."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import numpy as np

from guideway.api.bitmask import Bitmask
from guideway.api.grammar import Matcher
from guideway.errors import ConformanceError, DeadEnd
from guideway.json_schema.cursor import JsonCursor, Place
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing.lexicon import MOST_MASKS_KEPT, VALUES, AllowedTokens, Lexicon
from guideway.runtime.constraints.closing.ways import Prover, Way
from guideway.runtime.constraints.mask_block import GUARD

__all__ = ["WORK", "brings_about", "find_completion"]

WORK = 16_000
"""Limit of a search, in tokens tried or validated. A time limit would make its result depend on the machine."""
MASK = 16
"""Work of filling a bitmask, in tokens: it takes about as long as trying this many."""
DEEPER = 2
"""Nested objects and arrays that a search may open without extra cost. Each further level costs as much as a worse try,
because recursive schemas would lead the search ever deeper."""
AT_MOST = 24
"""Most tokens of one bitmask to try in a string that letters cannot continue."""
MOST_OF_ENDS = 256
"""Most ends of witnesses to try for one string."""
CLOCK = 16
"""States visited between two readings of the clock, each of which takes as long as some tries."""


def find_completion(
    matcher: Matcher,
    lexicon: Lexicon,
    stop_token_ids: frozenset[int],
    *,
    limit: int,
    past: Sequence[int],
    cursor: JsonCursor | None,
    witnesses: Sequence[str] = (),
    names: Sequence[str] = (),
    ends: Sequence[bytes] = (),
    bans: Bans | None = None,
    known: Sequence[Way] = (),
    prover: Prover | None = None,
    work: int = WORK,
    until: float = math.inf,
) -> list[int] | None:
    """Return a completion that `matcher` takes next: at most `limit` token ids, a stop token last, or None.

    It is not always the shortest. The state of the matcher does not change.

    - `past`: the last tokens that the matcher accepted.
    - `cursor`: the position in JSON at the end of the output; None if the output is not JSON there.
    - `witnesses`: examples of the output's strings, or of the whole output if it is not JSON.
    - `names`: names of properties to try before others.
    - `ends`: texts that end free text in a tag.
    - `bans`: tokens and texts that the completion does not contain, except for a stop token if all of them are banned.
    - `known`: ways that completed the output before. The search may join a known way.
    - `prover`: validates joins with `known`. Its tokens do not count as `work`.
    - `work`: the limit of the search, in tokens tried or validated.
    - `until`: CPU time of the thread, in seconds, at which the search stops, because its host would end the request.

    In each state the search tries tokens that close strings and brackets, the shortest values, the rest of each
    witness, then tokens of the bitmask. It follows each first try to its end. Then it continues from the state with the
    fewest worse tries before it, the longest text first (W. Harvey and M. Ginsberg, Limited Discrepancy Search, 1995).
    Unless the clock stops it, the result depends on the arguments alone.
    """
    bans = bans or Bans()
    prover = prover or Prover(matcher, bans.ends(stop_token_ids), work)
    return _Search(
        matcher=matcher,
        lexicon=lexicon,
        # the states of one search share few masks, and so do the states of different searches
        masks={} if bans.of_completion else lexicon.masks,
        stops=bans.ends(stop_token_ids),
        limit=limit,
        most=2 * limit,
        past=list(past[-max(1, bans.most_before) :]),
        root=_Node((), cursor),
        witnesses=witnesses,
        names=names,
        ends=ends,
        bans=bans,
        known=known,
        prover=prover,
        work=work,
        until=until,
    ).completion()


def brings_about(bans: Bans, past: Sequence[int], token_ids: Sequence[int], lexicon: Lexicon) -> bool:
    """Return whether `token_ids`, which follow `past`, contain or complete a banned token or text."""
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
    """A state of the search: the text of the node before, and the tokens of one step."""

    token_ids: Sequence[int]
    cursor: JsonCursor | None
    before: _Node | None = None
    num_tokens: int = 0
    cost: int = 0
    """Number of worse tries on the path to this node."""
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
    """By bytes of a mask: its allowed tokens. Shared by searches with the same bans."""
    stops: list[int]
    limit: int
    most: int
    """Most tokens of a path: more than `limit`, since fewer tokens may spell the text of a completion."""
    past: list[int]
    root: _Node
    witnesses: Sequence[str]
    names: Sequence[str]
    ends: Sequence[bytes]
    bans: Bans
    known: Sequence[Way]
    """Ways that completed the output before. The search may join a known way."""
    prover: Prover
    work: int
    """Tokens that may still be tried or validated."""
    until: float
    """CPU time of the thread, in seconds, at which the search stops."""
    path: list[int] = field(default_factory=list)
    """Tokens that the matcher has accepted in this search."""
    at: _Node = field(init=False)
    """The node whose path the matcher has accepted."""
    rows: Bitmask = field(init=False)
    """The row to fill, between two rows of guards."""

    def __post_init__(self) -> None:
        self.at = self.root
        self.rows = np.full((3, self.lexicon.words), GUARD, dtype=np.int32)

    def completion(self) -> list[int] | None:
        """Return the first completion found; None if there is none. The state of the matcher does not change."""
        numbers, cursor = count(), self.root.cursor
        deepest = DEEPER + (0 if cursor is None else len(cursor.open))
        left = [(0, 0, 0, self.root)]
        """Heap of nodes to continue from: fewest worse tries (with extra depth), then longest path, then latest."""
        try:
            for visited in count():
                is_late = visited % CLOCK == 0 and time.thread_time() > self.until
                if not left or self.work <= 0 or is_late:
                    break
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
        """Roll back and advance the matcher to the path of `node`."""
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
        """Return the path and a stop token, in fewer tokens if it is too long; None if it does not fit in the limit."""
        stop = next((stop for stop in self.stops if self.matcher.validate((stop,)) == 1), None)
        if stop is None:
            return None
        found = [*self.path, stop]
        if len(found) > self.limit:
            self._go_to(self.root)
            path = Way(b"".join([self.lexicon.tokens[i] for i in found]), None, self.lexicon).path()
            found = [*path, stop]
            if self.matcher.validate(tuple(found)) < len(found) or not self._is_free(path):
                return None
        return found if len(found) <= self.limit else None

    def _joined(self) -> list[int] | None:
        """Return the path, the rest of a known way and a stop token; None if no known way completes the path."""
        joints = [(way.cost(at), i, at) for i, way in enumerate(self.known) for at in way.joints(b"", self.at.cursor)]
        for cost, i, at in sorted(joints):
            rest = self.known[i].path(at)
            if len(self.path) + cost < self.limit and self.prover.proves(self.known[i], at) and self._is_free(rest):
                stop = next(stop for stop in self.stops if self.matcher.validate((*rest, stop)) > len(rest))
                return [*self.path, *rest, stop]
        return None

    def _is_free(self, token_ids: Sequence[int]) -> bool:
        """Return whether tokens after the path neither contain nor complete a banned token or text."""
        return not brings_about(self.bans, self._last(self.bans.most_before), token_ids, self.lexicon)

    def _advance(self, node: _Node) -> _Node | None:
        """Return the node after the next try that the matcher takes, or None."""
        tokens = self.lexicon.tokens
        assert node.tries is not None
        for token_ids in node.tries:
            length = len(self.path) + len(token_ids)
            if self.work <= 0:
                return None
            if length >= self.most or not self._is_free(token_ids):
                continue
            num_taken = self.matcher.accept(token_ids)
            self.work -= 1 + num_taken
            if num_taken < len(token_ids):
                self.matcher.rollback(num_taken)
                continue
            self.path += token_ids
            added = tokens[token_ids[0]] if len(token_ids) == 1 else b"".join([tokens[i] for i in token_ids])
            cursor = None if node.cursor is None else node.cursor.after(added)
            self.at = _Node(token_ids, cursor, node, length, node.cost)
            return self.at
        return None

    def _tries(self) -> Iterator[Sequence[int]]:
        """Yield the tokens that may follow the path, in the order in which to try them."""
        quick: Sequence[int] = ()
        lexicon, cursor, is_new = self.lexicon, self.at.cursor, self._is_in_new()
        if cursor is not None:
            bracket = () if not cursor.open else (b"]",) if cursor.open[-1] is None else (b"}",)
            if cursor.in_string:
                quick = () if cursor.escape else lexicon.of((b'"',))
            elif cursor.place in (Place.AFTER, Place.SCALAR):
                quick = lexicon.of((*bracket, b","))
            elif cursor.place is Place.COLON:
                quick = lexicon.of((b":",))
            else:
                quick = lexicon.of(bracket if cursor.place is Place.VALUE else (*bracket, b'"'))
            yield from ((token_id,) for token_id in quick)
            if cursor.place is Place.VALUE:
                yield from lexicon.spelt_values
                quick = [*quick, *lexicon.of(VALUES)]
        if cursor is not None and cursor.place is Place.KEY and is_new:
            yield from filter(None, self._new_names(cursor))
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
        if cursor is None and among.letters:  # free text, which may be the content of a tag
            yield from filter(None, map(lexicon.spell, self.ends))
        tried = set(quick)
        yield from ((token_id,) for token_id in self._of_mask(among) if token_id not in tried)

    def _last(self, num_tokens: int) -> list[int]:
        """Return the last `num_tokens` tokens of the output, the path included."""
        missing = num_tokens - len(self.path)
        return [*self.past[-missing:], *self.path] if missing > 0 else self.path[len(self.path) - num_tokens :]

    def _is_in_new(self) -> bool:
        """Return whether the path just opened a string, or is empty and the output ends in a string or outside JSON."""
        cursor, before = self.at.cursor, self.at.before
        if cursor is None or before is None or before.cursor is None:
            return before is None and (cursor is None or cursor.in_string)
        return cursor.in_string and not before.cursor.in_string

    def _new_names(self, cursor: JsonCursor) -> Iterator[Sequence[int]]:
        """Yield the rest of each of `names` that the object may still get."""
        texts = (json.dumps(name, ensure_ascii=False)[1:].encode(errors="replace") for name in self.names)
        for text in texts:
            if text.startswith(cursor.text) and text not in (cursor.open[-1] or ()):
                yield self.lexicon.spell(text.removeprefix(cursor.text)) or ()

    def _ends(self) -> Iterator[Sequence[int]]:
        """Yield ends of witnesses, the shortest first, that may end the string or the output.

        In a string that the path has opened, yield whole witnesses only.
        """
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
            # the string may not end yet: long tokens reach its minimum length sooner
            found = [*lexicon.of((b'"',)), *among.plain, *lexicon.letters]
        elif cursor is not None and cursor.in_string:
            found = longest_first[:AT_MOST]
        else:
            quick = [i for i in lexicon.of((b"}", b"]", *VALUES)) if allowed[i]] if cursor is None else []
            found = [*quick, *among.shortest, *among.long]
        if cursor is None:  # a text ends in a punctuation mark more often than in a letter
            ends = [i for i in among.signs if any(self.matcher.validate((i, stop)) == 2 for stop in self.stops)]
            self.work -= len(among.signs)
            found = [*ends, *found]
        return list(dict.fromkeys(found or longest_first[:1]))

    def _among(self) -> AllowedTokens:
        """Return the tokens of the filled mask, without banned ones."""
        key = self.rows[1].tobytes()
        if (found := self.masks.get(key)) is None:
            if len(self.masks) >= MOST_MASKS_KEPT:
                self.masks.clear()
            allowed = self.lexicon.bits(self.rows[1])
            if self.bans.of_completion:
                allowed &= self.lexicon.unbanned(self.bans)
            found = self.masks[key] = AllowedTokens.of(allowed, self.lexicon)
        return found
