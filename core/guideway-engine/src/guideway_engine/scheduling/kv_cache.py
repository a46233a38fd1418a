"""Bookkeeping of the KV cache: which cells belong to which sequence. The tensors live in the workers.

A sequence owns one slot from `KVCache.allocate` to `KVCache.release`, and in it at most one region of cells, whose size
is a power of two. A sequence that outgrows its region gets a larger one, if possible around the old. The changes to the
tensors are recorded as moves, which a worker executes in order before its next forward pass. The region of a finished
sequence may be kept, so that later sequences with the same prefix need not compute it again.

While there is plenty of room, each region has the size of an equal share of the cache. Few sequences then outgrow their
region, and most regions have the same size, which attention can batch. Unused parts of regions are given to sequences
that need room.

After all moves, free cells hold zeros. Cells of a region beyond its sequence's length hold zeros or old data of that
sequence, never of another.

Each method ends with assignments and calls nothing between them, so an interrupt leaves either all of a change or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from guideway.api.forward import Append, Clear, Copy, Move, Region
from guideway.errors import GuidewayError, InvalidConfiguration

from guideway_engine.scheduling.buddy import BuddyAllocator, power_of_two

__all__ = ["KVCache", "KVCacheError", "KVCacheFull"]

MIN_REGION = 64
"""Cells of the smallest region, unless `max_length` is smaller."""

MIN_PREFIX = 16
"""Tokens of the shortest prefix that is worth a copy."""


class KVCacheError(GuidewayError):
    """Raised for a request that slots or lengths do not allow; nothing was changed."""


class KVCacheFull(KVCacheError):
    """Raised if no slot or room is free, or a sequence would exceed `max_length`; nothing was changed."""


@dataclass(slots=True)
class _Holder:
    """Computed tokens and the region of their keys and values."""

    token_ids: list[int]
    region: Region | None
    written: int
    """Number of cells of the region that may have been written, including discarded and not yet counted tokens."""
    tenant: str
    """Tenant that the tokens were computed for; empty where tenants share prefixes."""


@dataclass(frozen=True, slots=True)
class _Room:
    """A region for a request, and the state of the cache once it is taken."""

    region: Region
    free: BuddyAllocator
    slots: dict[int, _Holder]
    kept: dict[int, _Holder]
    moves: tuple[Move, ...]
    """Moves that clear the kept regions it replaces."""


class KVCache:
    """Slots and the cells of each.

    `num_cells` tokens fit at once. That must be enough for a region of `max_length` tokens, so that one sequence alone
    always fits. Every method that takes a slot raises `KVCacheError` if it is not allocated.
    """

    def __init__(
        self,
        *,
        num_slots: int,
        num_cells: int,
        max_length: int,
        enable_prefix_caching: bool = True,
        isolate_tenants: bool = False,
    ) -> None:
        if num_slots < 1:
            raise InvalidConfiguration(f"num_slots must be at least 1, not {num_slots}", field="num_slots")
        if max_length < 1:
            raise InvalidConfiguration(f"max_length must be at least 1, not {max_length}", field="max_length")
        if num_cells < power_of_two(max_length):
            raise InvalidConfiguration(
                f"num_cells must be at least {power_of_two(max_length)}, the next power of two of max_length "
                f"{max_length}, not {num_cells}",
                field="num_cells",
            )
        self.num_slots = num_slots
        """Number of sequences that fit at once."""
        self.num_cells = num_cells
        """Number of tokens that fit at once, over all sequences and kept regions."""
        self.max_length = max_length
        """Maximum number of tokens of one sequence."""
        self._enable_prefix_caching = enable_prefix_caching
        self._isolate_tenants = isolate_tenants
        self._min_region = min(MIN_REGION, power_of_two(max_length))
        share = power_of_two(num_cells // num_slots + 1) // 2  # the power of two at or below
        self._usual_region = max(self._min_region, min(share, power_of_two(max_length)))
        self._free = BuddyAllocator(num_cells)
        self._slots: dict[int, _Holder] = {}
        self._kept: dict[int, _Holder] = {}
        """Kept regions by start, least recently used first."""
        self._pending: tuple[int, tuple[Move, ...]] = (0, ())

    def capacity(self) -> int:
        """Return the number of free slots."""
        return self.num_slots - len(self._slots)

    def allocate(self, token_ids: Sequence[int] = (), siblings: Sequence[int] = (), tenant: str = "") -> int:
        """Allocate the lowest free slot and return it. Raises `KVCacheFull` if there is none.

        The slot begins with the longest prefix of `token_ids`, excluding the last token, that another slot or a kept
        region holds, if it has at least `MIN_PREFIX` tokens and there is room. `length` returns the number of tokens
        reused. Without prefix caching only `siblings`, slots of the same request, are searched; with isolated tenants
        only slots and regions of `tenant`.
        """
        slot = self._free_slot()
        tenant = tenant if self._isolate_tenants else ""
        holders = [self._holder(sibling) for sibling in siblings]
        if self._enable_prefix_caching:
            everything = (*self._kept.values(), *self._slots.values())
            holders = [holder for holder in everything if holder.tenant == tenant]
        source, length = _longest_prefix(holders, list(token_ids))
        if source is None or source.region is None:
            self._slots[slot] = _Holder([], None, 0, tenant)
            return slot
        kept = source.region.start in self._kept
        prefix = list(token_ids[:length])
        # take over a kept region that holds nothing else, or if there is no room for a copy; copy the others
        room = None
        if not kept or length < len(source.token_ids):
            room = self._room(min(len(token_ids), self.max_length), sparing=source)
        if room is not None:
            if kept:
                room.kept[source.region.start] = room.kept.pop(source.region.start)  # the most recently used
            copied = Copy(source.region.start, room.region.start, length)
            self._commit(room, {slot: _Holder(prefix, room.region, length, tenant)}, (copied,))
        elif kept:
            others = {start: other for start, other in self._kept.items() if other is not source}
            pending = self._pending_with(_clear(source.region.start + length, source.written - length))
            holder = _Holder(prefix, source.region, length, tenant)
            self._kept, self._pending, self._slots[slot] = others, pending, holder
        else:
            self._slots[slot] = _Holder([], None, 0, tenant)
        return slot

    def length(self, slot: int) -> int:
        """Return the number of computed tokens of `slot`."""
        return len(self._holder(slot).token_ids)

    def token_ids(self, slot: int) -> list[int]:
        """Return the computed tokens of `slot`."""
        return self._holder(slot).token_ids.copy()

    def region(self, slot: int) -> Region:
        """Return the region of `slot`. Raises `KVCacheError` if it has none."""
        region = self._holder(slot).region
        if region is None:
            raise KVCacheError(f"slot {slot} has no region; reserve room first")
        return region

    def append(self, slot: int, token_ids: Sequence[int], num_rows: int) -> Append:
        """Return the description, for workers, of `token_ids` to compute in reserved room, with `num_rows` rows of
        logits. Raises `KVCacheError` if no room was reserved."""
        return Append(self.region(slot), self.length(slot), token_ids, num_rows)

    def reserve(self, slot: int, num_tokens: int) -> None:
        """Reserve room for `num_tokens` beyond the length of `slot`, evicting kept regions if necessary, least recently
        used first. Raises `KVCacheFull`."""
        holder = self._holder(slot)
        length = len(holder.token_ids)
        needed, old = length + num_tokens, holder.region
        if num_tokens < 0:
            raise KVCacheError(f"slot {slot} cannot reserve room for {num_tokens} tokens")
        if needed > self.max_length:
            raise KVCacheFull(
                f"slot {slot} holds {length} tokens and cannot take {num_tokens} more; max_length is {self.max_length}"
            )
        if needed <= (old.size if old is not None else 0):
            if needed > holder.written:
                holder.written = needed
            return
        room = self._room(needed, growing=holder)
        if room is None:
            raise KVCacheFull(
                f"slot {slot} holds {length} tokens and there is no room for {num_tokens} more; "
                "release or truncate another"
            )
        if old is None or old.start == room.region.start:
            self._commit(room, {slot: replace(holder, region=room.region, written=needed)}, ())
            return
        # The new region may contain the old one. The copy ends before it, because the old region starts at least its
        # own size after the new one.
        copied = (Copy(old.start, room.region.start, length),) if length else ()
        moves = (*copied, *_clear(old.start, holder.written))
        self._commit(room, {slot: replace(holder, region=room.region, written=needed)}, moves)

    def advance(self, slot: int, token_ids: Sequence[int]) -> None:
        """Count `token_ids` as computed in reserved room."""
        holder = self._holder(slot)
        if len(holder.token_ids) + len(token_ids) > holder.written:
            raise KVCacheError(
                f"slot {slot} holds {len(holder.token_ids)} tokens and has room for {holder.written}; "
                f"reserve room before {len(token_ids)} more are computed"
            )
        holder.token_ids.extend(token_ids)

    def truncate(self, slot: int, length: int) -> None:
        """Drop the tokens of `slot` from `length` on; with 0 its region becomes free. Raises `KVCacheError` if it holds
        fewer."""
        holder = self._holder(slot)
        current = len(holder.token_ids)
        if not 0 <= length <= current:
            raise KVCacheError(f"slot {slot} holds {current} tokens and cannot be truncated to {length}")
        if length:
            del holder.token_ids[length:]
        elif holder.region is not None:
            free, pending = self._plan_free(holder)
            self._free, self._pending, self._slots[slot] = free, pending, _Holder([], None, 0, holder.tenant)

    def release(self, slot: int, *, keep: bool = False) -> None:
        """Free `slot`. With `keep` its tokens stay as a cached prefix until their room is needed."""
        holder = self._holder(slot)
        length = len(holder.token_ids)
        if holder.region is None:
            del self._slots[slot]
        elif keep and self._enable_prefix_caching and length >= MIN_PREFIX:
            free = self._free.copy()
            region = self._trim(holder.region, length, free)
            pending = self._pending_with(_clear(region.start + region.size, holder.written - region.size))
            kept = replace(holder, region=region, written=min(holder.written, region.size))
            self._free, self._pending, self._kept[region.start] = free, pending, kept
            del self._slots[slot]
        else:
            free, pending = self._plan_free(holder)
            self._free, self._pending = free, pending
            del self._slots[slot]

    def moves(self) -> tuple[int, tuple[Move, ...]]:
        """Return the number of moves that are done, and the moves after them in order."""
        return self._pending

    def executed(self, number: int) -> None:
        """Record that all moves before this number have been done."""
        first, moves = self._pending
        if number > first + len(moves):
            raise KVCacheError(f"there have been {first + len(moves)} moves, not {number}")
        if number > first:
            self._pending = (number, moves[number - first :])

    def forget(self) -> None:
        """Record that the tensors are lost: slots become empty, kept regions are dropped, moves are numbered from 0
        again."""
        free = BuddyAllocator(self.num_cells)
        slots = {slot: _Holder([], None, 0, holder.tenant) for slot, holder in self._slots.items()}
        self._free, self._slots, self._kept, self._pending = free, slots, {}, (0, ())

    def _holder(self, slot: int) -> _Holder:
        try:
            return self._slots[slot]
        except KeyError:
            raise KVCacheError(f"slot {slot!r} is not allocated; in use: {sorted(self._slots)}") from None

    def _free_slot(self) -> int:
        for slot in range(self.num_slots):
            if slot not in self._slots:
                return slot
        raise KVCacheFull(f"all {self.num_slots} slots are in use; release one first")

    def _size_for(self, num_tokens: int) -> int:
        return max(self._min_region, power_of_two(num_tokens))

    def _room(self, num_tokens: int, *, growing: _Holder | None = None, sparing: _Holder | None = None) -> _Room | None:
        """Find a region for `num_tokens`; None if there is none.

        The region has the usual size or more if that much is free. Otherwise it is as small as possible, and makes use
        of the unused parts of other regions, then of kept regions except `sparing`. The region of `growing` may be
        replaced; its start is preferred, because then nothing has to move.
        """
        free = self._free.copy()
        moves: tuple[Move, ...] = ()
        preferred = None
        if growing is not None and growing.region is not None:
            preferred = growing.region.start
            free.give(preferred, growing.region.size)
        least = self._size_for(num_tokens)
        for size in (max(least, self._usual_region), least):
            if (start := free.take(size, preferred)) is not None:
                return _Room(Region(start, size), free, self._slots, self._kept.copy(), ())
        slots, kept = self._slots.copy(), self._kept.copy()
        for slot, holder in self._slots.items():
            if holder is not growing and holder.region is not None:
                slots[slot] = replace(holder, region=self._trim(holder.region, holder.written, free))
        oldest = iter(self._kept.values())
        while (start := free.take(least, preferred)) is None:
            victim = next(oldest, None)
            if victim is None:
                return None
            if victim is not sparing and victim.region is not None:
                free.give(victim.region.start, victim.region.size)
                del kept[victim.region.start]
                moves += _clear(victim.region.start, victim.written)
        return _Room(Region(start, least), free, slots, kept, moves)

    def _trim(self, region: Region, num_tokens: int, free: BuddyAllocator) -> Region:
        """Return the beginning of `region` that `num_tokens` need, and add the rest to `free`."""
        size, least = region.size, self._size_for(num_tokens)
        while size > least:
            size //= 2
            free.give(region.start + size, size)
        return Region(region.start, size)

    def _commit(self, room: _Room, slots: dict[int, _Holder], moves: tuple[Move, ...]) -> None:
        """Take `room`, update `slots`, and append `moves` to the moves of `room`."""
        slots, pending = room.slots | slots, self._pending_with(room.moves + moves)
        self._free, self._slots, self._kept, self._pending = room.free, slots, room.kept, pending

    def _plan_free(self, holder: _Holder) -> tuple[BuddyAllocator, tuple[int, tuple[Move, ...]]]:
        """Return the free cells and the moves after freeing the region of `holder`."""
        if holder.region is None:
            return self._free, self._pending
        free = self._free.copy()
        free.give(holder.region.start, holder.region.size)
        return free, self._pending_with(_clear(holder.region.start, holder.written))

    def _pending_with(self, moves: tuple[Move, ...]) -> tuple[int, tuple[Move, ...]]:
        first, pending = self._pending
        return first, pending + moves


def _longest_prefix(holders: Sequence[_Holder], token_ids: list[int]) -> tuple[_Holder | None, int]:
    """Return the holder of the longest prefix of `token_ids` that has at least `MIN_PREFIX` tokens, and its length."""
    limit = len(token_ids) - 1
    best, length = None, MIN_PREFIX - 1
    for holder in holders:
        if length < limit and holder.token_ids[: length + 1] == token_ids[: length + 1]:
            best, length = holder, _common(holder.token_ids, token_ids, length + 1, limit)
    return best, length


def _common(a: list[int], b: list[int], start: int, limit: int) -> int:
    """Return the length of the common prefix of `a` and `b`, at most `limit`; the first `start` tokens are known to
    match."""
    end = min(len(a), limit)
    while start + 64 <= end and a[start : start + 64] == b[start : start + 64]:
        start += 64
    while start < end and a[start] == b[start]:
        start += 1
    return start


def _clear(start: int, num_tokens: int) -> tuple[Move, ...]:
    return (Clear(start, num_tokens),) if num_tokens > 0 else ()
