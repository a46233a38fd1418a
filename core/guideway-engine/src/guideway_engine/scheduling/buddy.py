"""A buddy allocator: blocks whose sizes are powers of two, each starting at a multiple of its size."""

from __future__ import annotations

__all__ = ["BuddyAllocator", "power_of_two"]


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


class BuddyAllocator:
    """A record of which of `num_cells` cells are free.

    Two free halves of a block become that block at once, so a block is free as a whole whenever all its cells are.
    """

    def __init__(self, num_cells: int) -> None:
        self._free: dict[int, set[int]] = {}
        """By size, where free blocks of that size start."""
        start = 0
        for bit in reversed(range(num_cells.bit_length())):  # the largest first, so that each starts at a multiple
            if num_cells & 1 << bit:
                self._free[1 << bit] = {start}
                start += 1 << bit

    def copy(self) -> BuddyAllocator:
        """The same, independent from now on."""
        other = BuddyAllocator(0)
        other._free = {size: starts.copy() for size, starts in self._free.items() if starts}
        return other

    def num_free(self) -> int:
        """Return the number of free cells."""
        return sum(size * len(starts) for size, starts in self._free.items())

    def take(self, size: int, preferred: int | None = None) -> int | None:
        """Take a free block of `size` and return where it starts: at `preferred` if that can be, else at the beginning
        of the smallest free block that is large enough, of several the first. None if there is none."""
        if preferred is not None and preferred % size == 0:
            for whole in self._free:
                if whole >= size and (first := preferred & -whole) in self._free[whole]:
                    return self._split(first, whole, preferred, size)
        for whole in sorted(self._free):
            if whole >= size and self._free[whole]:
                first = min(self._free[whole])
                return self._split(first, whole, first, size)
        return None

    def _split(self, first: int, whole: int, start: int, size: int) -> int:
        """Cut the block of `size` at `start` out of the free block of `whole` at `first`."""
        self._free[whole].remove(first)
        while whole > size:
            whole //= 2
            self._free.setdefault(whole, set()).add((start & -whole) ^ whole)  # the half that is not cut further
        return start

    def give(self, start: int, size: int) -> None:
        """Free a block that was taken."""
        while (buddy := start ^ size) in self._free.get(size, ()):
            self._free[size].remove(buddy)
            start &= buddy
            size *= 2
        self._free.setdefault(size, set()).add(start)
