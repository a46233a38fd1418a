"""The account of which cells of the KV cache belong to which sequence: accounting only, for the tensors live in the
workers.

A sequence owns one slot from `KVCache.allocate` to `KVCache.release`, and in it at most one region of cells, whose
size is a power of two. One that outgrows its region gets a larger one, if possible around the old. What that means
for the tensors is said in moves, which a worker does in order before its next forward pass. The region of a finished
sequence may be kept: a later one that begins with the same tokens need not compute them again.

While there is plenty of room, regions have the size of a fair share of it: then few sequences outgrow theirs, and
attention finds most of them alike. The part that is not used yet goes to the sequence that needs it.

Once all moves are done, free cells hold zeros, and cells of a region beyond its sequence's length hold zeros or
remains of that sequence, never another's.

Each method ends with assignments and calls nothing between them: an interrupt finds all of a change or nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from guideway.api.forward import Append, Clear, Copy, Move, Region
from guideway.errors import GuidewayError, InvalidConfiguration

from guideway_engine.scheduling.buddy import BuddyAllocator, power_of_two

__all__ = ["KVCache", "KVCacheError", "KVCacheFull"]

MIN_REGION = 64
"""Cells of the smallest region, unless no sequence can be that long."""

MIN_PREFIX = 16
"""A shorter prefix is not worth a copy."""


class KVCacheError(GuidewayError):
    """The cache was asked for something its slots or lengths do not allow; nothing was changed."""


class KVCacheFull(KVCacheError):
    """No slot or no room is free, or a sequence would outgrow the cache's `max_length`; nothing was changed."""


@dataclass(slots=True)
class _Holder:
    """Computed tokens, and the cells where their keys and values are."""

    token_ids: list[int]
    region: Region | None
    written: int
    """The number of the region's cells that may hold something, those of tokens cut or never counted included."""
    tenant: str
    """The tenant that they were computed for; empty where tenants share prefixes."""


@dataclass(frozen=True, slots=True)
class _Room:
    """A region that can be had, and what the cache looks like then."""

    region: Region
    free: BuddyAllocator
    slots: dict[int, _Holder]
    kept: dict[int, _Holder]
    moves: tuple[Move, ...]
    """The clearing of kept regions that must go for it."""


class KVCache:
    """Slots, and what each of them holds.

    `num_cells` is how many tokens fit at once; it must be enough for a region of `max_length` tokens, so that one
    sequence alone always fits. Every method that takes a slot raises `KVCacheError` if it is not allocated.
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
        """The number of sequences that fit at once."""
        self.num_cells = num_cells
        """The number of tokens that fit at once, of all sequences and kept regions."""
        self.max_length = max_length
        """The most tokens one sequence can hold."""
        self._enable_prefix_caching = enable_prefix_caching
        self._isolate_tenants = isolate_tenants
        self._min_region = min(MIN_REGION, power_of_two(max_length))
        share = power_of_two(num_cells // num_slots + 1) // 2  # the power of two at or below
        self._usual_region = max(self._min_region, min(share, power_of_two(max_length)))
        self._free = BuddyAllocator(num_cells)
        self._slots: dict[int, _Holder] = {}
        self._kept: dict[int, _Holder] = {}
        """The least recently used first."""
        self._pending: tuple[int, tuple[Move, ...]] = (0, ())

    def capacity(self) -> int:
        """Return the number of free slots."""
        return self.num_slots - len(self._slots)

    def allocate(self, token_ids: Sequence[int] = (), siblings: Sequence[int] = (), tenant: str = "") -> int:
        """The lowest free slot, now another sequence's. Raises `KVCacheFull` if there is none.

        It begins with the longest prefix of `token_ids`, short of the last of them, that another slot or a kept
        region holds, if that is long enough to be worth it and there is room: see `length`. Without prefix caching
        only `siblings` count, slots of the same request; where tenants are isolated, only what is the `tenant`'s.
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
        # a kept region that holds nothing else is taken as it is; another only if there is no room for a copy
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
        """The tokens of `slot` that are computed."""
        return self._holder(slot).token_ids.copy()

    def region(self, slot: int) -> Region:
        """The cells of `slot`. Raises `KVCacheError` if it holds nothing and no room was reserved."""
        region = self._holder(slot).region
        if region is None:
            raise KVCacheError(f"slot {slot} has no region; reserve room first")
        return region

    def append(self, slot: int, token_ids: Sequence[int], num_rows: int) -> Append:
        """Return what a worker needs to know of `token_ids` that it is to compute in reserved room, with `num_rows`
        rows of logits. Raises `KVCacheError` if no room was reserved."""
        return Append(self.region(slot), self.length(slot), token_ids, num_rows)

    def reserve(self, slot: int, num_tokens: int) -> None:
        """Make room for `num_tokens` beyond the length of `slot`, if need be in place of kept regions, the least
        recently used first. Raises `KVCacheFull`."""
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
        # The new region may contain the old one, but what is copied ends before that: it starts at least its own size
        # after.
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
        """Forget every token of `slot` from `length` on; with 0 its region is free. Raises `KVCacheError` if it
        holds fewer."""
        holder = self._holder(slot)
        current = len(holder.token_ids)
        if not 0 <= length <= current:
            raise KVCacheError(f"slot {slot} holds {current} tokens and cannot be truncated to {length}")
        if length:
            del holder.token_ids[length:]
        elif holder.region is not None:
            free, pending = self._freed(holder)
            self._free, self._pending, self._slots[slot] = free, pending, _Holder([], None, 0, holder.tenant)

    def release(self, slot: int, *, keep: bool = False) -> None:
        """Free `slot`. With `keep` its tokens stay as a prefix for later ones until their room is needed."""
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
            free, pending = self._freed(holder)
            self._free, self._pending = free, pending
            del self._slots[slot]

    def moves(self) -> tuple[int, tuple[Move, ...]]:
        """The moves not yet known to be done, in order, and how many there have been before them."""
        return self._pending

    def executed(self, number: int) -> None:
        """All moves before this number have been done."""
        first, moves = self._pending
        if number > first + len(moves):
            raise KVCacheError(f"there have been {first + len(moves)} moves, not {number}")
        if number > first:
            self._pending = (number, moves[number - first :])

    def forget(self) -> None:
        """The tensors are gone: every slot holds nothing, nothing is kept, and moves are numbered from 0 again."""
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
        """A region for `num_tokens`, or None: of the usual size or more if it is simply free, else as small as it can
        be, for which the unused parts of others go, then kept regions except `sparing`.

        The region of `growing` need not stay. Its place is preferred, for then nothing has to move.
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
        """The beginning of `region` that `num_tokens` need; the rest becomes part of `free`."""
        size, least = region.size, self._size_for(num_tokens)
        while size > least:
            size //= 2
            free.give(region.start + size, size)
        return Region(region.start, size)

    def _commit(self, room: _Room, slots: dict[int, _Holder], moves: tuple[Move, ...]) -> None:
        """Take `room` and change these `slots`, with these `moves` after those of `room`."""
        slots, pending = room.slots | slots, self._pending_with(room.moves + moves)
        self._free, self._slots, self._kept, self._pending = room.free, slots, room.kept, pending

    def _freed(self, holder: _Holder) -> tuple[BuddyAllocator, tuple[int, tuple[Move, ...]]]:
        """The free cells and the moves once the region of `holder` is free."""
        if holder.region is None:
            return self._free, self._pending
        free = self._free.copy()
        free.give(holder.region.start, holder.region.size)
        return free, self._pending_with(_clear(holder.region.start, holder.written))

    def _pending_with(self, moves: tuple[Move, ...]) -> tuple[int, tuple[Move, ...]]:
        first, pending = self._pending
        return first, pending + moves


def _longest_prefix(holders: Sequence[_Holder], token_ids: list[int]) -> tuple[_Holder | None, int]:
    """Find which of `holders` has the longest prefix of `token_ids` that is worth it, and how long that is."""
    limit = len(token_ids) - 1
    best, length = None, MIN_PREFIX - 1
    for holder in holders:
        if length < limit and holder.token_ids[: length + 1] == token_ids[: length + 1]:
            best, length = holder, _common(holder.token_ids, token_ids, length + 1, limit)
    return best, length


def _common(a: list[int], b: list[int], start: int, limit: int) -> int:
    """Count the tokens that `a` and `b` have in common, at most `limit`, if the first `start` are known to be."""
    end = min(len(a), limit)
    while start + 64 <= end and a[start : start + 64] == b[start : start + 64]:
        start += 64
    while start < end and a[start] == b[start]:
        start += 1
    return start


def _clear(start: int, num_tokens: int) -> tuple[Move, ...]:
    return (Clear(start, num_tokens),) if num_tokens > 0 else ()
