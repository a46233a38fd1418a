"""Slots and regions: a model of the cells carries out every move and every step, and must agree at each moment."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from guideway.api import InvalidConfiguration
from guideway.engine.buddy import BuddyAllocator, power_of_two
from guideway.engine.forward import Clear, Copy, Region
from guideway.engine.kv_cache import KVCache, KVCacheError, KVCacheFull
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

MAX_LENGTH = 200
NUM_SLOTS = 5


def common(a: list[int], b: list[int]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


def text(seed: int, length: int) -> list[int]:
    """Token ids of which two texts share a long beginning if their seeds do: they part at 20, 70 and 130."""
    return [
        1 + (position * 7 + seed % (1 + sum(position >= p for p in (20, 70, 130)))) % 50 for position in range(length)
    ]


class CacheMachine(RuleBasedStateMachine):
    """`cells` are what a worker's tensors hold: pairs of who wrote a token and the token, or None for zeros.

    An author is one sequence from its start or its last truncation to 0; a fork and a prefix have their own, for
    what they copied is theirs.
    """

    @initialize(num_cells=st.sampled_from([256, 300, 448, 1024]), prefix_caching=st.booleans())
    def start(self, num_cells: int, prefix_caching: bool) -> None:
        self.cache = KVCache(
            num_slots=NUM_SLOTS, num_cells=num_cells, max_length=MAX_LENGTH, prefix_caching=prefix_caching
        )
        self.prefix_caching = prefix_caching
        self.cells: list[int | None] = [None] * num_cells
        self.done = 0
        self.held: dict[int, list[int]] = {}
        self.kept: list[list[int]] = []
        """Texts of released sequences that may still be there."""

    def slot(self, number: int) -> int:
        return sorted(self.held)[number % len(self.held)]

    def work(self) -> None:
        """What a worker does before a pass."""
        first, moves = self.cache.moves()
        assert first <= self.done <= first + len(moves)
        for move in moves[self.done - first :]:
            if isinstance(move, Copy):
                source = range(move.source, move.source + move.num_tokens)
                target = range(move.target, move.target + move.num_tokens)
                assert move.num_tokens > 0
                assert not set(source) & set(target)
                self.cells[target.start : target.stop] = self.cells[source.start : source.stop]
            else:
                assert move.num_tokens > 0
                self.cells[move.start : move.start + move.num_tokens] = [None] * move.num_tokens
        self.done = first + len(moves)

    def others(self, slot: int | None) -> set[int]:
        """The cells of every slot but this one."""
        cells: set[int] = set()
        for other in self.held:
            if other != slot and (region := self.region(other)) is not None:
                cells |= set(range(region.start, region.start + region.size))
        return cells

    def room(self, slot: int | None, num_tokens: int) -> bool:
        """Whether a region of so many tokens would fit beside the other slots', if nothing were kept."""
        size = max(64, power_of_two(num_tokens))
        taken = self.others(slot)
        starts = range(0, len(self.cells) - size + 1, size)
        return any(not taken & set(range(start, start + size)) for start in starts)

    def region(self, slot: int) -> Region | None:
        try:
            return self.cache.region(slot)
        except KVCacheError:
            return None

    def refused(self, call: Callable[[], object], error: type[KVCacheError]) -> None:
        before = copy.deepcopy(vars(self.cache))
        before["_free"] = vars(before["_free"])
        with pytest.raises(error):
            call()
        after = copy.deepcopy(vars(self.cache))
        after["_free"] = vars(after["_free"])
        assert after == before

    @rule(seed=st.integers(0, 11), length=st.integers(0, MAX_LENGTH), whole=st.booleans())
    def allocate(self, seed: int, length: int, whole: bool) -> None:
        wanted = text(seed, length)
        if len(self.held) == NUM_SLOTS:
            self.refused(lambda: self.cache.allocate(wanted), KVCacheFull)
            return
        lengths = [common(other, wanted) for other in [*self.held.values(), *self.kept]]
        best = min(max(lengths, default=0), length - 1)
        sure = min(max((common(other, wanted) for other in self.held.values()), default=0), length - 1)
        slot = self.cache.allocate(wanted)
        assert slot == min(set(range(NUM_SLOTS)) - set(self.held))
        self.held[slot] = self.cache.token_ids(slot)
        got = self.cache.length(slot)
        assert self.held[slot] == wanted[:got]
        if not self.prefix_caching:
            assert got == 0
        else:
            assert got <= max(best, 0)
            assert got == 0 or got >= 16
            if sure >= 16 and self.room(slot, length):
                assert got >= sure

    @precondition(lambda self: self.held)
    @rule(
        number=st.integers(0, 9),
        seed=st.integers(0, 11),
        count=st.integers(1, MAX_LENGTH),
        fails=st.booleans(),
        short=st.booleans(),
    )
    def append(self, number: int, seed: int, count: int, fails: bool, short: bool) -> None:
        slot = self.slot(number)
        held = self.held[slot]
        count = min(count, 3) if short else count
        if len(held) + count > MAX_LENGTH or not self.room(slot, len(held) + count):
            old = self.region(slot)
            assert old is None or len(held) + count > old.size
            self.refused(lambda: self.cache.reserve(slot, count), KVCacheFull)
            return
        self.cache.reserve(slot, count)
        new = text(seed, len(held) + count)[len(held) :]
        self.work()
        region = self.cache.region(slot)
        assert region.size >= len(held) + count
        start = region.start + len(held)
        self.cells[start : start + count] = [-1 - slot] * count if fails else new
        if not fails:
            self.cache.advance(slot, new)
            held += new
        self.cache.executed(self.done)

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 9), length=st.integers(0, MAX_LENGTH), to_zero=st.booleans())
    def truncate(self, number: int, length: int, to_zero: bool) -> None:
        slot = self.slot(number)
        length = 0 if to_zero else length
        if length > len(self.held[slot]):
            self.refused(lambda: self.cache.truncate(slot, length), KVCacheError)
            return
        self.cache.truncate(slot, length)
        del self.held[slot][length:]
        assert length or self.region(slot) is None

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 9))
    def fork(self, number: int) -> None:
        slot = self.slot(number)
        length = len(self.held[slot])
        if len(self.held) == NUM_SLOTS or (length and not self.room(None, length)):
            self.refused(lambda: self.cache.fork(slot), KVCacheFull)
            return
        self.held[self.cache.fork(slot)] = list(self.held[slot])

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 9), keep=st.booleans())
    def release(self, number: int, keep: bool) -> None:
        slot = self.slot(number)
        self.cache.release(slot, keep=keep)
        held = self.held.pop(slot)
        if keep and self.prefix_caching:
            self.kept.append(held)

    @rule()
    def step(self) -> None:
        self.work()

    @rule()
    def tell(self) -> None:
        self.cache.executed(self.done)
        assert self.cache.moves()[0] >= self.done

    @rule()
    def forget(self) -> None:
        self.cache.forget()
        self.cells = [None] * len(self.cells)
        self.done = 0
        self.kept = []
        self.held = {slot: [] for slot in self.held}
        assert self.cache.moves() == (0, ())

    @invariant()
    def regions_are_powers_of_two_that_do_not_overlap(self) -> None:
        taken: set[int] = set()
        for slot in self.held:
            region = self.region(slot)
            if region is None:
                assert not self.held[slot]
                continue
            assert 64 <= region.size <= power_of_two(MAX_LENGTH)
            assert region.size == power_of_two(region.size)
            assert region.start % region.size == 0
            cells = set(range(region.start, region.start + region.size))
            assert cells <= set(range(len(self.cells)))
            assert not cells & taken
            taken |= cells

    @invariant()
    def cells_hold_what_they_should(self) -> None:
        if not hasattr(self, "cells"):
            return
        done, cells = self.done, list(self.cells)
        self.work()
        for slot, held in self.held.items():
            assert self.cache.token_ids(slot) == held
            region = self.region(slot)
            if region is not None:
                assert self.cells[region.start : region.start + len(held)] == held
        self.done, self.cells = done, cells

    def teardown(self) -> None:
        """Once all is released, a sequence as long as the cache allows finds zeros wherever it is."""
        if not hasattr(self, "cells"):
            return
        for slot in list(self.held):
            self.cache.release(slot)
        assert self.cache.capacity() == NUM_SLOTS
        whole = power_of_two(MAX_LENGTH)
        for _ in range(len(self.cells) // whole):
            slot = self.cache.allocate()
            self.cache.reserve(slot, MAX_LENGTH)
            self.work()
            region = self.cache.region(slot)
            assert self.cells[region.start : region.start + region.size] == [None] * region.size


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
