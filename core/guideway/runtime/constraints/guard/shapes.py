"""Shape of an expression in any notation: groups, repetitions and alternatives."""

from __future__ import annotations

from typing import NamedTuple

from guideway.runtime.constraints.guard.measures import CAP

__all__ = ["Shape"]


class Unit(NamedTuple):
    """A part that a repetition can repeat: an atom or a group."""

    size: int = 0
    product: int = 1
    """Product of nested bounds."""
    stars: int = 0
    """Parts that are optional or unbounded."""
    star_depth: int = 0
    least: int = 0
    """Size with every repetition at its minimum, but at least once."""


ATOM, NOTHING = Unit(1, least=1), Unit()


class Shape:
    """Computes the shape of an expression from its tokens in order, without a tree. `whole` is the expression with
    bounded repetitions expanded."""

    __slots__ = ("_branches", "_group", "_last", "_open", "alternatives", "depth", "repetition", "whole")

    def __init__(self) -> None:
        self.depth = self.repetition = self.alternatives = 0
        self.whole = NOTHING
        self._open: list[tuple[Unit, int]] = []
        self._group = NOTHING
        """Content of the open group, without its last unit."""
        self._branches = 1
        self._last = NOTHING

    def atom(self, unit: Unit = ATOM) -> None:
        """Add a character, class, name or string."""
        self._group = self._together()
        self._last = unit

    def run(self, length: int) -> None:
        """Add `length` characters in a row."""
        group = self._together()
        self._group = group._replace(size=group.size + length - 1, least=group.least + length - 1)
        self._last = ATOM

    def open(self) -> None:
        """Open a group."""
        self._open.append((self._together(), self._branches))
        self._group, self._last, self._branches = NOTHING, NOTHING, 1
        if len(self._open) > self.depth:
            self.depth = len(self._open)

    def close(self) -> None:
        """Close the innermost group."""
        if self._open:
            self._last = self._together()
            self._group, self._branches = self._open.pop()

    def repeat(self, most: int | None, least: int = 0) -> None:
        """Repeat the last unit up to `most` times; None: unbounded."""
        size, product, stars, depth, shortest = self._last
        times = min(CAP, max(1, least if most is None else most))
        self.repetition = max(self.repetition, times if times > 1 else 0)
        stars = min(CAP, stars * times)
        if most is None or (most == 1 and least == 0):
            stars += 1
        shortest = min(CAP, shortest * max(1, least))
        self._last = Unit(min(CAP, size * times), min(CAP, product * times), stars, depth + (most is None), shortest)

    def repeat_between(self, least: str | None, most: str | None, *, is_open: bool) -> None:
        """Repeat the last unit as often as digits say; without `most`, exactly, or unbounded if `is_open`."""
        # Python refuses to parse thousands of digits
        low, high = (min(int(digits[:20]), CAP) if digits else 0 for digits in (least, most))
        self.repeat(high if most else None if is_open else low, low)

    def alternative(self) -> None:
        """Start the next branch."""
        self._group = self._together()
        self._last = NOTHING
        self._branches += 1
        self.alternatives = max(self.alternatives, self._branches)

    def end(self) -> None:
        """End the expression, and all groups still open."""
        while self._open:
            self.close()
        self.whole = self._together()

    def _together(self) -> Unit:
        group, last = self._group, self._last
        if last is ATOM:
            return Unit(group.size + 1, group.product, group.stars, group.star_depth, group.least + 1)
        return Unit(
            min(CAP, group.size + last.size),
            max(group.product, last.product),
            min(CAP, group.stars + last.stars),
            max(group.star_depth, last.star_depth),
            min(CAP, group.least + last.least),
        )
