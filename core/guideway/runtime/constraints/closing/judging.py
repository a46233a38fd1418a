"""Choice of the tokens that a mask may keep near the end of the budget: tokens after which a completion fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from guideway.api.grammar import Matcher
from guideway.json_schema.cursor import JsonCursor, Place
from guideway.runtime.constraints.bans import Bans
from guideway.runtime.constraints.closing.lexicon import MOST, Lexicon
from guideway.runtime.constraints.closing.search import brings_about
from guideway.runtime.constraints.closing.ways import Prover, Way

__all__ = ["Judge"]

MOST_TRIED = 4
"""Most places in known ways to try to join after one token."""


@dataclass(slots=True)
class Judge:
    """Judgment of the tokens of one mask. One sample decides for all tokens of a group of the same shape."""

    matcher: Matcher
    lexicon: Lexicon
    stop_token_ids: frozenset[int]
    cursor: JsonCursor | None
    limit: int
    """Tokens that remain after the next one, stop token included."""
    ways: list[Way]
    """Known completions, in the order of `Record.texts`. The judge appends completions that it finds."""
    costs: dict[int, int] = field(init=False, default_factory=dict)
    """By token: tokens of the completion known after it, stop token included; `MOST` if none was found."""
    prover: Prover
    """Limits and validates attempts to complete the output by a known way."""
    searcher: Prover
    """Limits and validates attempts of searches, to which known ways would leave no work."""
    spell: Callable[[bytes, JsonCursor | None], Way]
    """Returns the way of a text that begins at a position in JSON."""
    find: Callable[[int, Sequence[Way], Prover], Sequence[int] | None]
    """Returns a completion after a token that the matcher has accepted; None if it finds none."""
    bans: Bans
    past: Sequence[int]
    """Accepted tokens, on which it depends which tokens are banned."""
    banned: Sequence[int]
    """Tokens that complete a banned text."""
    apart: Sequence[Sequence[int]]
    """Groups of tokens to judge separately from others of their shape, because a banned text may begin with them."""
    in_text: bool = False
    """True if the mask allows letters: the output is in a string, or in free text."""

    def refused(self, row: NDArray[np.int32]) -> list[int]:
        """Return the tokens to exclude from a mask."""
        shapes = self.lexicon.shapes_of(row, self.cursor is not None and self.cursor.place is Place.KEY)
        self.in_text = shapes.in_text
        way = self.ways[0]
        on_way = {i: way.cost(end) + 1 for i, end in way.first_tokens() if self._is_free(way, end, i)}
        self.costs |= on_way
        decided = np.array([*on_way, *self.banned, *self.stop_token_ids])
        alike, mixed = (
            [rest for group in groups if len(rest := group[~np.isin(group, decided)])]
            for groups in (shapes.alike, shapes.mixed)
        )
        for apart in self.apart:
            alike, mixed = (
                [part for group in groups for part in _split(group, np.isin(group, apart))] for groups in (alike, mixed)
            )
        parts = [*alike, *(part for group in mixed for part in self._parts(group))]
        unknown = [part for part in parts if not self._is_known(_sample(part))]
        for part in sorted(unknown, key=lambda part: self.lexicon.lengths[_sample(part)]):
            if not self._is_known(_sample(part)):
                self._search(_sample(part))
        keep = {*self.stop_token_ids, *(i for i, cost in self.costs.items() if cost <= self.limit)}
        refused = [part for part in parts if _sample(part) not in keep]
        too_long = [i for i, cost in on_way.items() if cost > self.limit and i not in self.stop_token_ids]
        return [*self.banned, *too_long, *(i for part in refused for i in part.tolist() if i not in keep)]

    def _parts(self, group: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """Return groups of tokens that are judged together.

        If a known way completes the output after the shortest token, the longest and one between them, or after none of
        the three, return the whole group. Otherwise return one group per token length.
        """
        fit = [self._is_known(i) and self.costs[i] <= self.limit for i in group[[0, len(group) // 2, -1]].tolist()]
        if all(fit) or not any(fit):
            return [group]
        return np.split(group, np.flatnonzero(np.diff(self.lexicon.lengths[group])) + 1)

    def _is_known(self, token_id: int) -> bool:
        """Return whether the cost of a token is known, or a known way completes the output after it."""
        return token_id in self.costs or self._find_among_ways(token_id)

    def _find_among_ways(self, token_id: int) -> bool:
        """Return whether a known way completes the output after a token. If so, set its entry in `costs`."""
        token = self.lexicon.tokens[token_id]
        finish = self.lexicon.finish(token) if self.in_text else b""
        before = (token_id, *(self.lexicon.spell(finish) or ()))
        token += finish
        after = None if self.cursor is None else self.cursor.after(token)
        on_way, off_way = [], []
        for i, way in enumerate(self.ways):
            if (at := way.follow(token)) is not None:
                on_way.append((way.cost(at), i, at))
            off_way += [(order, way.cost(at), i, at) for order, at in enumerate(way.joints(token, after))]
        for *_, cost, i, at in [*sorted(on_way)[:1], *sorted(off_way)[:MOST_TRIED]]:
            cost += len(before)
            if cost <= self.limit and self._proves(before, self.ways[i], at):
                self.costs[token_id] = cost
                return True
        return False

    def _proves(self, before: tuple[int, ...], way: Way, at: int) -> bool:
        """Return whether a way completes the output from byte `at` on, after `before`, without bans."""
        return self.prover.proves(way, at, before) and self._is_free(way, at, *before)

    def _is_free(self, way: Way, at: int, *before: int) -> bool:
        """Return whether `before` and then a way from byte `at` on contain no banned tokens or texts."""
        return not self.bans.of_completion or not brings_about(
            self.bans, self.past, (*before, *way.path(at)), self.lexicon
        )

    def _search(self, token_id: int) -> None:
        """Search for a completion after a token and set its entry in `costs`; `MOST` if none is found.

        Set no entry if the work ran out. The next step tries again.
        """
        if self.in_text and self.lexicon.finish(self.lexicon.tokens[token_id]):
            return
        if self.searcher.num_left < 0 or self.matcher.accept((token_id,)) != 1:
            return
        try:
            found = self.find(token_id, self.ways, self.searcher)
        finally:
            self.matcher.rollback(1)
        if found is not None:
            self.costs[token_id] = len(found)
            text = b"".join(self.lexicon.tokens[i] for i in (token_id, *found[:-1]))
            self.ways.append(self.spell(text, self.cursor))
        elif self.searcher.num_left >= 0:
            self.costs[token_id] = MOST


def _sample(part: NDArray[np.int32]) -> int:
    """Return the token of a group that is judged for all of it."""
    return int(part[0])


def _split(group: NDArray[np.int32], its: NDArray[np.bool_]) -> list[NDArray[np.int32]]:
    return [part for part in (group[its], group[~its]) if len(part)]
