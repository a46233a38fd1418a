"""A buddy allocator: blocks whose sizes are powers of two, each starting at a multiple of its size."""

from __future__ import annotations

__all__ = ["BuddyAllocator", "power_of_two"]


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least `number`."""
    return 1 << max(number - 1, 0).bit_length()


class BuddyAllocator:
    """Allocator over `num_cells` cells, in blocks whose sizes are powers of two.

    Two free halves of a block are merged at once, so a block is free as a whole whenever all its cells are.
    """

    def __init__(self, num_cells: int) -> None:
        self._free: dict[int, set[int]] = {}
        """Start positions of the free blocks of each size."""
        start = 0
        for bit in reversed(range(num_cells.bit_length())):  # the largest first, so that each starts at a multiple
            if num_cells & 1 << bit:
                self._free[1 << bit] = {start}
                start += 1 << bit

    def copy(self) -> BuddyAllocator:
        """Return an independent copy."""
        other = BuddyAllocator(0)
        other._free = {size: starts.copy() for size, starts in self._free.items() if starts}
        return other

    def num_free(self) -> int:
        """Return the number of free cells."""
        return sum(size * len(starts) for size, starts in self._free.items())

    def take(self, size: int, preferred: int | None = None) -> int | None:
        """Take a free block of `size` and return its start, or None if no free block is large enough.

        The block starts at `preferred` if that is free, else at the first of the smallest free blocks that are large
        enough.
        """
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
