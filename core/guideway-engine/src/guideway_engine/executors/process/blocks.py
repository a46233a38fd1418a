"""Blocks of bytes sent from one process to others through shared memory.

The memory is an unnamed file that the processes have open, so it is freed when the last of them ends, however that
happens. One process writes; it keeps a block until the readers have acknowledged it. A block is::

    int64 number of parts | int64 size of each part | the parts, each starting at a multiple of 64 bytes
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from collections.abc import Sequence

__all__ = ["BlockReader", "BlockWriter", "anonymous_file"]

ALIGNMENT = 64
FIRST_SIZE = 1 << 16


def anonymous_file() -> int:
    """Return a descriptor of an empty unnamed file, in memory if the system supports that."""
    if hasattr(os, "memfd_create"):
        # unlike files in a mounted folder, not limited by that folder's size, which containers set low
        return os.memfd_create("guideway")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class BlockWriter:
    """The writing side. The memory grows as needed."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory: mmap.mmap | None = None
        self._kept: dict[int, tuple[int, int]] = {}
        """Start and end of each block that may be unread, by number. There are few."""

    def write(self, number: int, parts: Sequence[memoryview]) -> tuple[int, int]:
        """Write a block and return its start and length. `number` must be higher than all before."""
        sizes = [part.nbytes for part in parts]
        head = struct.pack(f"{len(sizes) + 1}q", len(sizes), *sizes)
        places, length = _layout(sizes)
        start = self._free_start(length)
        memory = self._memory_up_to(start + length)
        self._kept[number] = (start, start + length)
        memory[start : start + len(head)] = head
        for part, place in zip(parts, places, strict=True):
            memory[start + place : start + place + part.nbytes] = part
        return start, length

    def free(self, number: int) -> None:
        """Free all blocks up to `number`, which have been read."""
        for known in [known for known in self._kept if known <= number]:
            del self._kept[known]

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        os.close(self._file)

    def _free_start(self, length: int) -> int:
        """Return the lowest start where `length` bytes overlap no kept block."""
        kept = self._kept.values()
        starts = sorted([0, *(_align(end) for _, end in kept)])
        return next(s for s in starts if all(s + length <= start or s >= end for start, end in kept))

    def _memory_up_to(self, end: int) -> mmap.mmap:
        if self._memory is None or len(self._memory) < end:
            size = max(FIRST_SIZE, 1 << (end - 1).bit_length())
            os.ftruncate(self._file, size)
            self._memory = mmap.mmap(self._file, size)
        return self._memory


class BlockReader:
    """The reading side."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._memory: mmap.mmap | None = None

    def read(self, start: int, length: int) -> list[memoryview]:
        """Return the parts of a block, as writable copies."""
        if self._memory is None or len(self._memory) < start + length:
            self._memory = mmap.mmap(self._file, os.fstat(self._file).st_size, access=mmap.ACCESS_READ)
        block = memoryview(bytearray(memoryview(self._memory)[start : start + length]))
        (count,) = struct.unpack_from("q", block)
        sizes = list(struct.unpack_from(f"{count}q", block, 8))
        return [block[place : place + size] for place, size in zip(_layout(sizes)[0], sizes, strict=True)]

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        os.close(self._file)


def _layout(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the start of each part in a block, and the block's length."""
    places = []
    end = 8 * (len(sizes) + 1)
    for size in sizes:
        places.append(_align(end))
        end = places[-1] + size
    return places, end


def _align(end: int) -> int:
    return -(-end // ALIGNMENT) * ALIGNMENT
