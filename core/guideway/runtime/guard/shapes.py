"""The shape of an expression, whichever notation it has: groups, repetitions, alternatives; token by token."""

from __future__ import annotations

from guideway.runtime.guard.measures import CAP

__all__ = ["Shape"]


class Shape:
    """Told of the tokens in their order, it knows the shape without a tree. `size` is what the expression would have
    with bounded repetitions written out."""

    __slots__ = (
        *("_branches", "_open", "_own", "_product", "_size", "_stars", "_unit"),
        *("alternatives", "depth", "product", "repetition", "size", "star_depth", "stars"),
    )

    def __init__(self) -> None:
        self.depth = self.repetition = self.product = self.stars = self.star_depth = self.alternatives = 0
        self._open: list[tuple[int, int, int, int]] = []
        self._size, self._product, self._stars, self._branches = 0, 1, 0, 1
        """Of the group that is open, without its last unit."""
        self._unit = (0, 1, 0)
        """Size, product and stars of what came last, which a repetition would repeat."""
        self.size = 0

    def atom(self, size: int = 1) -> None:
        """A character, class, name or string."""
        self._flush()
        self._unit = (size, 1, 0)

    def run(self, length: int) -> None:
        """So many characters in a row."""
        self._flush()
        self._size += length - 1
        self._unit = (1, 1, 0)

    def open(self) -> None:
        self._flush()
        self._unit = (0, 1, 0)
        self._open.append((self._size, self._product, self._stars, self._branches))
        self._size, self._product, self._stars, self._branches = 0, 1, 0, 1
        if len(self._open) > self.depth:
            self.depth = len(self._open)

    def close(self) -> None:
        if not self._open:
            return
        self._flush()
        unit = (self._size, self._product, self._stars)
        self._size, self._product, self._stars, self._branches = self._open.pop()
        self._unit = unit

    def repeat(self, most: int | None, least: int = 0) -> None:
        """What came last, up to `most` times; None: without end."""
        size, product, stars = self._unit
        times = max(1, least if most is None else most)
        if times > 1:
            times = min(times, CAP)
            self.repetition = max(self.repetition, times)
            size, product = min(size * times, CAP), min(product * times, CAP)
        if most is None:
            self.stars += 1
            stars += 1
        self._unit = (size, product, stars)

    def alternative(self) -> None:
        self._flush()
        self._unit = (0, 1, 0)
        self._branches += 1
        if self._branches > self.alternatives:
            self.alternatives = self._branches

    def end(self) -> None:
        """The end of the expression, of whatever is still open too."""
        while self._open:
            self.close()
        self._flush()
        self._unit = (0, 1, 0)
        self.size = min(self.size + self._size, CAP)
        self._size, self._product, self._stars, self._branches = 0, 1, 0, 1

    def _flush(self) -> None:
        size, product, stars = self._unit
        self._size = min(self._size + size, CAP)
        if product > self._product:
            self._product = product
            if product > self.product:
                self.product = product
        if stars > self._stars:
            self._stars = stars
            if stars > self.star_depth:
                self.star_depth = stars
