"""Where the keys and values of running sequences live.

A sequence owns one slot from `KVCache.allocate` to `KVCache.release`. Appending is the runner's work: it writes a
step's keys and values beyond a slot's length and then advances the length, so a step that fails changes nothing.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch

from guideway.api.errors import GuidewayError

__all__ = ["KVCache", "KVCacheError", "KVCacheFull", "KVShape", "SlotKVCache"]


class KVCacheError(GuidewayError):
    """The cache was asked for something its slots or lengths do not allow; nothing was changed."""


class KVCacheFull(KVCacheError):
    """No slot is free, or a sequence would grow beyond the cache's `max_length`; nothing was changed."""


class KVCache(ABC):
    """Slots, and how many tokens each of them holds.

    Every method that takes a slot raises `KVCacheError` if it is not allocated.
    """

    num_slots: int
    """How many sequences fit at once."""
    max_length: int
    """The most tokens one sequence can hold."""

    @abstractmethod
    def capacity(self) -> int:
        """How many slots are free."""

    @abstractmethod
    def allocate(self) -> int:
        """The lowest free slot, now an empty sequence's. Raises `KVCacheFull`."""

    @abstractmethod
    def release(self, slot: int) -> None:
        """Free `slot`."""

    @abstractmethod
    def length(self, slot: int) -> int:
        """How many tokens `slot` holds."""

    @abstractmethod
    def reserve(self, slot: int, num_tokens: int) -> None:
        """Make room to write `num_tokens` beyond the length of `slot`. Raises `KVCacheFull`."""

    @abstractmethod
    def advance(self, slot: int, num_tokens: int) -> None:
        """Count `num_tokens` more whose keys and values have been written into reserved room."""

    @abstractmethod
    def truncate(self, slot: int, length: int) -> None:
        """Forget every token of `slot` from `length` on. Raises `KVCacheError` if it holds fewer."""

    @abstractmethod
    def fork(self, slot: int) -> int:
        """A new slot that holds the same tokens and is independent from now on. Raises `KVCacheFull`."""


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one token costs: every layer has `num_heads` key heads of `key_dim` and value heads of `value_dim`."""

    num_layers: int
    num_heads: int
    key_dim: int
    value_dim: int


class SlotKVCache(KVCache):
    """One contiguous stretch per slot, so that attention over neighboring slots reads a view and gathers nothing.

    `keys` is ``[num_layers, num_slots, num_heads, max_length, key_dim]``, `values` the same with ``value_dim``; cells
    beyond a slot's length hold zeros or remains of its own sequence, never another's.
    """

    def __init__(
        self, shape: KVShape, *, num_slots: int, max_length: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.num_slots = num_slots
        self.max_length = max_length
        self.shape = shape
        cells = (shape.num_layers, num_slots, shape.num_heads, max_length)
        self.keys = torch.zeros(*cells, shape.key_dim, dtype=dtype, device=device)
        self.values = torch.zeros(*cells, shape.value_dim, dtype=dtype, device=device)
        # a heap: the lowest free slot first keeps the slots in use dense, so that views over them have few holes
        self._free = list(range(num_slots))
        self._lengths: dict[int, int] = {}
        self._written: dict[int, int] = {}  # how far each slot has been written, truncated tokens included

    def capacity(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        if not self._free:
            raise KVCacheFull(f"all {self.num_slots} slots are in use; release one first")
        slot = heapq.heappop(self._free)
        self._lengths[slot] = self._written[slot] = 0
        return slot

    def release(self, slot: int) -> None:
        self.length(slot)
        # The padding of a view over several slots is multiplied by zero, and zero times a NaN is NaN: a sequence whose
        # numbers overflowed must not reach the next owner of its slot.
        with torch.inference_mode():
            self.keys[:, slot, :, : self._written[slot]] = 0
            self.values[:, slot, :, : self._written[slot]] = 0
        del self._lengths[slot], self._written[slot]
        heapq.heappush(self._free, slot)

    def length(self, slot: int) -> int:
        try:
            return self._lengths[slot]
        except KeyError:
            raise KVCacheError(f"slot {slot!r} is not allocated; in use: {sorted(self._lengths)}") from None

    def reserve(self, slot: int, num_tokens: int) -> None:
        length = self.length(slot)
        if length + num_tokens > self.max_length:
            raise KVCacheFull(
                f"slot {slot} holds {length} tokens and cannot take {num_tokens} more; max_length is {self.max_length}"
            )
        self._written[slot] = max(self._written[slot], length + num_tokens)

    def advance(self, slot: int, num_tokens: int) -> None:
        self._lengths[slot] = self.length(slot) + num_tokens

    def truncate(self, slot: int, length: int) -> None:
        current = self.length(slot)
        if not 0 <= length <= current:
            raise KVCacheError(f"slot {slot} holds {current} tokens and cannot be truncated to {length}")
        self._lengths[slot] = length

    def fork(self, slot: int) -> int:
        length = self.length(slot)
        copy = self.allocate()
        with torch.inference_mode():
            self.keys[:, copy, :, :length] = self.keys[:, slot, :, :length]
            self.values[:, copy, :, :length] = self.values[:, slot, :, :length]
        self.reserve(copy, length)
        self.advance(copy, length)
        return copy
