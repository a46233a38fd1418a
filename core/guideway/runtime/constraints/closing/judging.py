"""Choice of the tokens that a mask may keep near the end of the budget: tokens after which a completion fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from guideway.json_schema.cursor import Place
from guideway.runtime.constraints.closing.avoiding import Avoiding
from guideway.runtime.constraints.closing.lexicon import MOST, Lexicon
from guideway.runtime.constraints.closing.positions import Position
from guideway.runtime.constraints.closing.ways import Prover, Way, continuations

__all__ = ["Judge"]

MOST_TRIED = 3
"""Most places in known ways to try to join after one token."""


@dataclass(slots=True)
class Judge:
    """Judgment of the tokens of one mask. One sample decides for all tokens that do the same to an output."""

    lexicon: Lexicon
    prover: Prover
    """Limits the work of the judgment, and tries tokens."""
    position: Position
    limit: int
    """Tokens that remain after the next one, stop token included."""
    ways: list[Way]
    """Known completions, in the order of `Record.texts`. The judge appends completions that it finds."""
    apart: Sequence[Sequence[int]]
    """Groups of tokens to judge separately from others of their shape."""
    names: Sequence[str] | None
    """The names of properties to judge separately; None for all names."""
    find: Callable[[int, Sequence[Way], Prover], tuple[int, Way] | None]
    """Returns the number of tokens of a completion after a token and the way of both; None if it finds none."""
    costs: dict[int, int] = field(init=False, default_factory=dict)
    """By token: tokens of the completion known after it, stop token included; `MOST` if none was found."""
    in_text: bool = False
    """True if the mask allows letters: the output is in a string, or in free text."""

    def refused(self, row: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return ``bool[num_bits]``: True for tokens to exclude from a mask."""
        mask, lexicon, way = row.tobytes(), self.lexicon, self.ways[0]
        self.in_text = lexicon.has_letters(mask)
        refused, decided = np.zeros((2, lexicon.num_bits), dtype=np.bool_)
        decided[self.prover.stop_token_ids] = True
        for token_id, end in way.first_tokens():
            same = (each for each in self.ways if each.text[:end] == way.text[:end])
            best = min(same, key=lambda each: each.cost(end))
            if 1 + best.cost(end) > self.limit and self.in_text:
                continue  # the token may be text of which other text completes the output
            is_proved = best is way and not isinstance(self.prover.matcher, Avoiding)
            if is_proved or self.prover.end([token_id, *best.path(end)]):
                self.costs[token_id], decided[token_id] = 1 + best.cost(end), True
                refused[token_id] = 1 + best.cost(end) > self.limit
        json, apart = self.position.json, [*self.apart]
        is_name = self.in_text and json is not None and json.place is Place.KEY
        groups, plain = lexicon.groups_of(mask, in_json=json is not None, by_name=is_name and self.names is None)
        if is_name and json is not None:  # a declared name may require a value
            names = [name.encode() for name in self.names or ()]
            apart += [lexicon.which("begin", name[len(json.text) :]) for name in names if name.startswith(json.text)]
        marks = np.zeros(lexicon.num_bits, dtype=np.int64)  # equal for tokens of the same groups
        for tokens in apart:
            marks[tokens] = 1 + marks.max() + np.unique(marks[tokens], return_inverse=True)[1]
        is_apart = marks[plain] != 0
        groups, plain = [*groups, plain[is_apart]], plain[~is_apart]
        groups = [part for group in groups for part in _split(group, marks[group])]
        parts = [rest for group in groups if len(rest := group[~decided[group]])]
        parts += self._parts(plain[~decided[plain]])
        unknown = [part for part in parts if not self._is_known(int(part[0]))]
        for part in sorted(unknown, key=lambda part: lexicon.lengths[part[0]]):
            if not self._is_known(int(part[0])):
                self._search(int(part[0]))
        for part in parts:
            refused[part] = self.costs[int(part[0])] > self.limit
        return refused

    def _parts(self, plain: NDArray[np.int32]) -> list[NDArray[np.int32]]:
        """Return groups of tokens of plain text that are judged together.

        If a known way completes the output after the shortest token, the longest and one between them, or after none of
        the three, return one group. Otherwise return one group per number of characters, which a schema may bound.
        """
        if not len(plain):
            return []
        fit = [self._is_known(i) and self.costs[i] <= self.limit for i in plain[[0, len(plain) // 2, -1]].tolist()]
        if all(fit) or not any(fit):
            return [plain]
        return np.split(plain, np.flatnonzero(np.diff(self.lexicon.characters[plain])) + 1)

    def _is_known(self, token_id: int) -> bool:
        """Return whether the cost of a token is known, or a known way completes the output after it within the limit.
        If so, set its entry in `costs`."""
        if token_id in self.costs:
            return True
        token = self.lexicon.tokens[token_id]
        finish = self._finish(token)
        before = [token_id, *(self.lexicon.spell(finish) or ())]
        token += finish
        after = self.position.after(self.lexicon.write(before)).json
        for way, at in islice(continuations(self.ways, token, after), MOST_TRIED):
            cost = len(before) + way.cost(at)
            if cost <= self.limit and self.prover.end([*before, *way.path(at)]) is not None:
                self.costs[token_id] = cost
                if after is None and at not in (0, len(token)):  # the sample's text decides where it joins
                    self.ways.append(Way(token + way.text[at:], self.position, self.lexicon))
                return True
        return False

    def _search(self, token_id: int) -> None:
        """Search for a completion after a token and set its entry in `costs`; `MOST` if none is found."""
        self.costs[token_id] = MOST
        if self._finish(self.lexicon.tokens[token_id]):
            return
        if (found := self.find(token_id, self.ways, self.prover)) is not None:
            self.costs[token_id], way = found
            self.ways.append(way)

    def _finish(self, token: bytes) -> bytes:
        """Return bytes that complete what a token leaves unfinished in text."""
        return self.lexicon.finish(token, in_json=self.position.json is not None) if self.in_text else b""


def _split(tokens: NDArray[np.int32], marks: NDArray[np.int64]) -> list[NDArray[np.int32]]:
    """Return the tokens in groups of equal marks."""
    if not marks.any():
        return [tokens]
    order = np.argsort(marks, kind="stable")
    return np.split(tokens[order], np.flatnonzero(np.diff(marks[order])) + 1)
