"""Slots: taken lowest first, grown, cut, forked and given back, with typed errors for everything else."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from guideway.engine.kv_cache import KVCacheError, KVCacheFull, KVShape, SlotKVCache

MAX_LENGTH = 8


@pytest.fixture
def cache() -> SlotKVCache:
    return SlotKVCache(
        KVShape(num_layers=2, num_heads=3, key_dim=4, value_dim=5),
        num_slots=3,
        max_length=MAX_LENGTH,
        dtype=torch.float32,
        device=torch.device("cpu"),
    )


def write(cache: SlotKVCache, slot: int, number: float, count: int) -> None:
    """Append `count` tokens whose keys are `number` and whose values are ``-number``, as a runner would."""
    cache.reserve(slot, count)
    start = cache.length(slot)
    cache.keys[:, slot, :, start : start + count] = number
    cache.values[:, slot, :, start : start + count] = -number
    cache.advance(slot, count)


def held(cache: SlotKVCache, slot: int) -> list[float]:
    """The numbers of the tokens `slot` holds, which every layer, head and dimension must agree on."""
    keys = cache.keys[:, slot, :, : cache.length(slot)]
    values = cache.values[:, slot, :, : cache.length(slot)]
    first = keys[0, 0, :, 0]
    assert torch.equal(keys, first[:, None].expand_as(keys))
    assert torch.equal(values, -first[:, None].expand_as(values))
    numbers: list[float] = first.tolist()
    return numbers


def test_the_lowest_free_slot_is_taken_first(cache: SlotKVCache) -> None:
    assert [cache.allocate() for _ in range(3)] == [0, 1, 2]
    assert cache.capacity() == 0
    cache.release(2)
    cache.release(0)
    assert cache.capacity() == 2
    assert [cache.allocate(), cache.allocate()] == [0, 2]


def test_shapes(cache: SlotKVCache) -> None:
    assert cache.keys.shape == (2, 3, 3, MAX_LENGTH, 4)
    assert cache.values.shape == (2, 3, 3, MAX_LENGTH, 5)


def test_a_full_cache_says_so(cache: SlotKVCache) -> None:
    for _ in range(3):
        cache.allocate()
    with pytest.raises(KVCacheFull, match="all 3 slots are in use"):
        cache.allocate()
    with pytest.raises(KVCacheFull, match="all 3 slots are in use"):
        cache.fork(1)


def test_lengths_grow_are_cut_and_start_anew(cache: SlotKVCache) -> None:
    slot = cache.allocate()
    write(cache, slot, 1, 5)
    assert cache.length(slot) == 5
    cache.truncate(slot, 2)
    assert cache.length(slot) == 2
    write(cache, slot, 3, 1)
    assert held(cache, slot) == [1, 1, 3]
    cache.truncate(slot, 3)
    assert cache.length(slot) == 3
    cache.release(slot)
    assert cache.length(cache.allocate()) == 0


def test_a_sequence_cannot_outgrow_the_cache(cache: SlotKVCache) -> None:
    slot = cache.allocate()
    write(cache, slot, 1, MAX_LENGTH - 1)
    with pytest.raises(KVCacheFull, match="slot 0 holds 7 tokens and cannot take 2 more; max_length is 8"):
        cache.reserve(slot, 2)
    write(cache, slot, 1, 1)
    assert cache.length(slot) == MAX_LENGTH


@pytest.mark.parametrize("length", [-1, 4])
def test_truncating_to_what_is_not_there(cache: SlotKVCache, length: int) -> None:
    slot = cache.allocate()
    write(cache, slot, 1, 3)
    with pytest.raises(KVCacheError, match=f"holds 3 tokens and cannot be truncated to {length}"):
        cache.truncate(slot, length)
    assert cache.length(slot) == 3


@pytest.mark.parametrize(
    "use",
    [
        lambda cache, slot: cache.release(slot),
        lambda cache, slot: cache.length(slot),
        lambda cache, slot: cache.truncate(slot, 0),
        lambda cache, slot: cache.fork(slot),
        lambda cache, slot: cache.reserve(slot, 1),
        lambda cache, slot: cache.advance(slot, 1),
    ],
    ids=["release", "length", "truncate", "fork", "reserve", "advance"],
)
@pytest.mark.parametrize("slot", [0, 2, -1, 3], ids=["released", "free", "negative", "beyond"])
def test_a_slot_nobody_owns(cache: SlotKVCache, use: Callable[[SlotKVCache, int], object], slot: int) -> None:
    cache.allocate()
    cache.allocate()
    cache.release(0)
    with pytest.raises(KVCacheError, match=rf"slot {slot} is not allocated; in use: \[1\]"):
        use(cache, slot)
    assert cache.capacity() == 2


def test_a_fork_holds_the_same_and_goes_its_own_way(cache: SlotKVCache) -> None:
    slot = cache.allocate()
    write(cache, slot, 1, 2)
    write(cache, slot, 2, 3)
    cache.truncate(slot, 4)
    fork = cache.fork(slot)
    assert fork != slot
    assert held(cache, fork) == [1, 1, 2, 2]
    cache.truncate(slot, 1)
    write(cache, slot, 9, 4)
    write(cache, fork, 3, 1)
    assert held(cache, fork) == [1, 1, 2, 2, 3]
    assert held(cache, slot) == [1, 9, 9, 9, 9]
    cache.release(slot)
    assert held(cache, fork) == [1, 1, 2, 2, 3]


@pytest.mark.parametrize(("written", "reserved"), [(6, 2), (1, 7)], ids=["cut", "never-counted"])
def test_a_released_slot_keeps_nothing(cache: SlotKVCache, written: int, reserved: int) -> None:
    slot, neighbor = cache.allocate(), cache.allocate()
    write(cache, neighbor, 4, 2)
    write(cache, slot, 1, written)
    cache.truncate(slot, 1)
    cache.reserve(slot, reserved)  # for a step that then fails
    touched = max(written, 1 + reserved)
    cache.keys[:, slot, :, :touched], cache.values[:, slot, :, :touched] = torch.nan, torch.nan
    cache.release(slot)
    assert not cache.keys[:, slot].any()
    assert not cache.values[:, slot].any()
    assert held(cache, neighbor) == [4, 4]
