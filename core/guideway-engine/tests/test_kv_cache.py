"""Slots and regions compared with a model of the cells that executes every move and step."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
from guideway.api import InvalidConfiguration
from guideway.api.forward import Clear, Copy, Region
from guideway_engine.scheduling.buddy import power_of_two
from guideway_engine.scheduling.kv_cache import KVCache, KVCacheError, KVCacheFull
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.support.stages import everyday, examples, one_in

MAX_LENGTH = 200
NUM_SLOTS = 6


def common(a: list[int], b: list[int]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


def text(seed: int, length: int) -> list[int]:
    """Return token ids. Two texts share a prefix if their seeds do; they differ from position 20, 70 or 130 on."""
    return [
        1 + (position * 7 + seed % (1 + sum(position >= p for p in (20, 70, 130)))) % 50 for position in range(length)
    ]


class CacheMachine(RuleBasedStateMachine):
    """State machine over a cache. `cells` is the content of a worker's tensors: token ids, or None for zeros. `written`
    is the number of cells of each slot's region that may have been written while it belonged to the slot."""

    @initialize(
        num_cells=st.sampled_from([256, 300, 448, 768, 1024]),
        enable_prefix_caching=st.booleans(),
        isolate_tenants=st.booleans(),
    )
    def start(self, num_cells: int, enable_prefix_caching: bool, isolate_tenants: bool) -> None:
        self.cache = KVCache(
            num_slots=NUM_SLOTS,
            num_cells=num_cells,
            max_length=MAX_LENGTH,
            enable_prefix_caching=enable_prefix_caching,
            isolate_tenants=isolate_tenants,
        )
        self.isolate_tenants = isolate_tenants
        self.tenants: dict[int, str] = {}
        """Tenant of each slot, while it is held."""
        self.enable_prefix_caching = enable_prefix_caching
        self.cells: list[int | None] = [None] * num_cells
        self.done = 0
        self.held: dict[int, list[int]] = {}
        self.written: dict[int, int] = {}
        self.kept: list[tuple[str, list[int]]] = []
        """Texts of released sequences that may still be cached, with their tenants."""

    def slot(self, number: int) -> int:
        return sorted(self.held)[number % len(self.held)]

    def work(self) -> None:
        """Execute the moves, as a worker does before a forward pass."""
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
        """Return the cells that all slots except this one need."""
        cells: set[int] = set()
        for other in self.held:
            if other != slot and (region := self.region(other)) is not None:
                cells |= set(range(region.start, region.start + max(64, power_of_two(self.written[other]))))
        return cells

    def room(self, slot: int | None, num_tokens: int) -> bool:
        """Return whether a region for `num_tokens` would fit, given the other slots and no kept regions."""
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

    @rule(seed=st.integers(0, 11), length=st.integers(0, MAX_LENGTH), tenant=st.sampled_from(["", "a"]))
    def allocate(self, seed: int, length: int, tenant: str = "") -> None:
        self.begin(text(seed, length), [], tenant)

    @precondition(lambda self: self.held)
    @rule(numbers=st.lists(st.integers(0, 9), min_size=1, max_size=3), more=st.integers(0, 9))
    def begin_beside(self, numbers: list[int], more: int) -> None:
        """Start a sequence with all tokens of a held one and `more` tokens of its own."""
        slots = [self.slot(number) for number in numbers]
        tenant = self.tenants[slots[0]]
        siblings = [slot for slot in slots if self.tenants[slot] == tenant]
        self.begin([*self.held[siblings[0]], *[0] * more][:MAX_LENGTH], siblings, tenant)

    def begin(self, wanted: list[int], siblings: list[int], tenant: str) -> None:
        if len(self.held) == NUM_SLOTS:
            self.refused(lambda: self.cache.allocate(wanted, siblings, tenant), KVCacheFull)
            return
        shares = {tenant} if self.isolate_tenants else {"", "a"}
        slots = self.held if self.enable_prefix_caching else siblings
        asked = [self.held[slot] for slot in slots if self.tenants[slot] in shares]
        kept = [text for whose, text in self.kept if whose in shares]
        length = len(wanted)
        best = min(max((common(other, wanted) for other in [*asked, *kept]), default=0), length - 1)
        sure = min(max((common(other, wanted) for other in asked), default=0), length - 1)
        slot = self.cache.allocate(wanted, siblings, tenant)
        self.tenants[slot] = tenant
        assert slot == min(set(range(NUM_SLOTS)) - set(self.held))
        self.held[slot] = self.cache.token_ids(slot)
        got = self.written[slot] = self.cache.length(slot)
        assert self.held[slot] == wanted[:got]
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
            self.refused(lambda: self.cache.reserve(slot, count), KVCacheFull)
            return
        old = self.region(slot)
        self.cache.reserve(slot, count)
        new = text(seed, len(held) + count)[len(held) :]
        self.work()
        region = self.cache.region(slot)
        assert region.size >= len(held) + count
        in_place = old is not None and old.start == region.start
        self.written[slot] = max(self.written[slot] if in_place else 0, len(held) + count)
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
        self.written[slot] = self.written[slot] if length else 0
        assert length or self.region(slot) is None

    @precondition(lambda self: self.held)
    @rule(number=st.integers(0, 9), keep=st.booleans())
    def release(self, number: int, keep: bool) -> None:
        slot = self.slot(number)
        self.cache.release(slot, keep=keep)
        held = self.held.pop(slot)
        del self.written[slot]
        if keep and self.enable_prefix_caching:
            self.kept.append((self.tenants[slot], held))

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
        self.written = dict.fromkeys(self.held, 0)
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
        done, before = self.done, list(self.cells)
        self.work()
        for slot, held in self.held.items():
            assert self.cache.token_ids(slot) == held
            region = self.region(slot)
            if region is not None:
                cells = self.cells[region.start : region.start + region.size]
                assert cells[: len(held)] == held
                assert set(cells[self.written[slot] :]) <= {None}
        self.done, self.cells = done, before

    def teardown(self) -> None:
        """Release all slots, and check that a sequence of maximum length finds zeros everywhere."""
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
"""Random short runs, shrunk on failure."""
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("num_cells", everyday([256, 300, 448, 768, 1024], 300, 768))
@pytest.mark.parametrize("seed", one_in(4, range(4)))
def test_long_walks(num_cells: int, seed: int) -> None:
    """Find failures that take many steps."""
    rng = random.Random(seed)
    machine = CacheMachine()
    machine.start(num_cells=num_cells, enable_prefix_caching=seed > 0, isolate_tenants=seed > 1)
    for _ in range(400):
        event, number, text_seed = rng.random(), rng.randrange(10), rng.randrange(12)
        if not machine.held or event < 0.2:
            machine.allocate(seed=text_seed, length=rng.randrange(MAX_LENGTH + 1), tenant=rng.choice(["", "a"]))
        elif event < 0.6:
            count = rng.choice([1, 3, 20, 60, 100, MAX_LENGTH])
            machine.append(number=number, seed=text_seed, count=count, fails=rng.random() < 0.2, short=False)
        elif event < 0.7:
            machine.truncate(number=number, length=rng.randrange(MAX_LENGTH + 1), to_zero=rng.random() < 0.2)
        elif event < 0.8:
            machine.begin_beside(numbers=[number], more=rng.randrange(10))
        elif event < 0.95:
            machine.release(number=number, keep=rng.random() < 0.6)
        else:
            machine.tell()
        machine.regions_are_powers_of_two_that_do_not_overlap()
        machine.cells_hold_what_they_should()
    machine.teardown()


@settings(max_examples=examples(100), deadline=None)
@given(
    texts=st.lists(st.tuples(st.integers(0, 11), st.integers(1, 150), st.booleans()), min_size=1, max_size=4),
    wanted=st.tuples(st.integers(0, 11), st.integers(0, MAX_LENGTH)),
)
def test_where_there_is_room_the_longest_prefix_is_found(
    texts: list[tuple[int, int, bool]], wanted: tuple[int, int]
) -> None:
    cache = KVCache(num_slots=5, num_cells=2048, max_length=MAX_LENGTH)
    for slot, (seed, length, _) in enumerate(texts):
        assert cache.allocate() == slot
        fill(cache, slot, text(seed, length))
    for slot, (_, _, ended) in enumerate(texts):
        if ended:
            cache.release(slot, keep=True)
    ids = text(*wanted)
    longest = max(common(text(seed, length), ids) for seed, length, _ in texts)
    found = min(longest, len(ids) - 1)
    assert cache.length(cache.allocate(ids)) == (found if found >= 16 else 0)


def fill(cache: KVCache, slot: int, token_ids: list[int]) -> None:
    """Append `token_ids`, as if a step had been executed."""
    cache.reserve(slot, len(token_ids))
    first, moves = cache.moves()
    cache.executed(first + len(moves))
    cache.advance(slot, token_ids)


def filled(*lengths: int, num_cells: int = 1024, max_length: int = 512) -> KVCache:
    """Return a cache whose slots 0, 1, ... hold `lengths` tokens, all tokens of slot s being s."""
    cache = KVCache(num_slots=16, num_cells=num_cells, max_length=max_length)
    for slot, length in enumerate(lengths):
        assert cache.allocate() == slot
        fill(cache, slot, [slot] * length)
    return cache


def test_slots_are_taken_lowest_first() -> None:
    cache = KVCache(num_slots=3, num_cells=64, max_length=8)
    assert [cache.allocate() for _ in range(3)] == [0, 1, 2]
    assert cache.capacity() == 0
    with pytest.raises(KVCacheFull, match="all 3 slots are in use"):
        cache.allocate()
    cache.release(2)
    cache.release(0)
    assert cache.capacity() == 2
    assert [cache.allocate(), cache.allocate()] == [0, 2]


def test_growing_into_free_cells_behind_moves_nothing() -> None:
    cache = filled(60)
    for count, size in ((4, 64), (1, 128), (300, 512)):
        fill(cache, 0, [0] * count)
        assert cache.region(0) == Region(0, size)
        assert cache.moves() == (0, ())


def test_growing_past_a_neighbor_copies_and_clears() -> None:
    cache = filled(60, 60)
    cache.reserve(0, 5)
    assert cache.region(0) == Region(128, 128)
    assert cache.moves() == (0, (Copy(0, 128, 60), Clear(0, 60)))


def test_a_sequence_alone_grows_over_its_own_cells() -> None:
    cache = filled(250, 200, num_cells=512)
    cache.release(0)
    cache.executed(1)
    cache.reserve(1, 100)
    assert cache.region(1) == Region(0, 512)
    assert cache.moves() == (1, (Copy(256, 0, 200), Clear(256, 200)))


def test_regions_have_a_fair_share_while_there_is_plenty_of_room() -> None:
    cache = KVCache(num_slots=4, num_cells=1024, max_length=1024)
    for slot, length in enumerate((400, 100, 100)):
        fill(cache, cache.allocate(), [slot] * length)
    assert [cache.region(slot) for slot in range(3)] == [Region(0, 512), Region(512, 256), Region(768, 256)]
    fill(cache, cache.allocate(), [3] * 100)  # gets cells that another slot does not use
    assert [cache.region(slot) for slot in range(1, 4)] == [Region(512, 128), Region(768, 128), Region(640, 128)]
    assert cache.moves() == (0, ())


def test_a_kept_region_is_no_larger_than_it_need_be() -> None:
    cache = KVCache(num_slots=2, num_cells=1024, max_length=512)
    fill(cache, cache.allocate(), [1] * 300)
    cache.truncate(0, 100)
    cache.release(0, keep=True)
    assert cache.moves() == (0, (Clear(128, 172),))
    assert cache.allocate() == 0
    cache.reserve(0, 512)
    assert cache.allocate() == 1
    cache.reserve(1, 256)
    assert cache.region(1) == Region(256, 256)
    assert cache.moves() == (0, (Clear(128, 172),))


def test_a_full_cache_says_so() -> None:
    cache = filled(500, 500)
    slot = cache.allocate()
    with pytest.raises(KVCacheFull, match="slot 2 holds 0 tokens and there is no room for 1 more"):
        cache.reserve(slot, 1)
    with pytest.raises(KVCacheFull, match="slot 0 holds 500 tokens and cannot take 13 more; max_length is 512"):
        cache.reserve(0, 13)
    cache.truncate(1, 0)
    cache.reserve(slot, 1)
    assert cache.region(slot) == Region(512, 64)


def test_kept_regions_go_least_recently_used_first() -> None:
    cache = filled(200, 200, 200, 200)
    for slot in (2, 0, 3):
        cache.release(slot, keep=True)
    used = cache.allocate([2] * 60)  # the oldest is reused, by a copy into the room of the next
    assert (used, cache.length(used), cache.region(used)) == (0, 59, Region(0, 64))
    assert cache.moves() == (0, (Clear(0, 200), Copy(512, 0, 59)))
    cache.executed(2)
    cache.release(used)
    for slot, start, cleared in ((0, 0, 0), (2, 768, 3), (3, 512, 2)):
        assert cache.allocate() == slot
        cache.reserve(slot, 200)
        assert cache.region(slot).start == start, cleared
    assert [move.start for move in cache.moves()[1] if isinstance(move, Clear)] == [0, 768, 512]


def test_a_kept_region_that_holds_nothing_but_the_prefix_is_taken_as_it_is() -> None:
    cache = filled(100)
    cache.release(0, keep=True)
    slot = cache.allocate([0] * 300)
    assert (cache.length(slot), cache.region(slot), cache.moves()) == (100, Region(0, 128), (0, ()))


def test_a_kept_region_that_holds_more_is_copied_while_there_is_room() -> None:
    cache = filled(100, num_cells=512)
    cache.release(0, keep=True)
    first = cache.allocate([0] * 50)
    assert cache.moves() == (0, (Copy(0, 128, 49),))
    fill(cache, first, [0] * 200)
    second = cache.allocate([0] * 40 + [1] * 300)  # all of it fits only in place of the kept region
    assert (cache.length(second), cache.region(second)) == (40, Region(0, 128))
    assert cache.moves()[1][-1] == Clear(40, 60)


def test_short_prefixes_and_an_excluded_cache_share_nothing() -> None:
    cache = filled(15, 100)
    assert cache.length(cache.allocate([0] * 100)) == 0
    assert cache.length(cache.allocate([1] * 16)) == 0
    cache = KVCache(num_slots=2, num_cells=512, max_length=512, enable_prefix_caching=False)
    fill(cache, cache.allocate(), [1] * 100)
    assert cache.length(cache.allocate([1] * 100)) == 0
    cache.release(0, keep=True)
    assert cache.moves() == (0, (Clear(0, 100),))


def test_an_excluded_cache_shares_among_siblings() -> None:
    cache = KVCache(num_slots=4, num_cells=512, max_length=512, enable_prefix_caching=False)
    fill(cache, cache.allocate(), [1] * 100)
    fill(cache, cache.allocate(), [1] * 50)
    slot = cache.allocate([1] * 200, [1])
    assert (cache.length(slot), cache.moves()) == (50, (0, (Copy(128, 256, 50),)))
    full = cache.allocate([1] * 200, [0, 1])  # there is no room for it
    assert (cache.length(full), cache.capacity()) == (0, 0)


def test_moves_are_told_until_they_are_known_to_be_done() -> None:
    cache = filled(60, 60, 60)
    cache.reserve(0, 5)
    cache.release(2)
    first, moves = cache.moves()
    assert (first, len(moves)) == (0, 3)
    cache.executed(0)
    assert cache.moves() == (0, moves)
    cache.executed(2)
    assert cache.moves() == (2, moves[2:])
    cache.executed(1)
    assert cache.moves() == (2, moves[2:])
    with pytest.raises(KVCacheError, match="there have been 3 moves, not 4"):
        cache.executed(4)
    cache.release(1)
    assert cache.moves() == (2, (*moves[2:], Clear(64, 60)))


def test_what_is_computed_must_have_been_reserved() -> None:
    cache = filled(10)
    with pytest.raises(KVCacheError, match="holds 10 tokens and has room for 10; reserve room before 1 more"):
        cache.advance(0, [1])
    assert cache.token_ids(0) == [0] * 10
    with pytest.raises(KVCacheError, match="slot 1 has no region"):
        cache.region(cache.allocate())


@pytest.mark.parametrize("length", [-1, 4])
def test_truncating_to_what_is_not_there(length: int) -> None:
    cache = filled(3)
    with pytest.raises(KVCacheError, match=f"holds 3 tokens and cannot be truncated to {length}"):
        cache.truncate(0, length)
    assert cache.length(0) == 3


@pytest.mark.parametrize(
    "use",
    [
        lambda cache, slot: cache.release(slot),
        lambda cache, slot: cache.length(slot),
        lambda cache, slot: cache.token_ids(slot),
        lambda cache, slot: cache.region(slot),
        lambda cache, slot: cache.truncate(slot, 0),
        lambda cache, slot: cache.allocate([1] * 20, [slot]),
        lambda cache, slot: cache.reserve(slot, 1),
        lambda cache, slot: cache.advance(slot, [1]),
    ],
    ids=["release", "length", "token_ids", "region", "truncate", "sibling", "reserve", "advance"],
)
@pytest.mark.parametrize("slot", [0, 2, -1, 16], ids=["released", "free", "negative", "beyond"])
def test_a_slot_nobody_owns(use: Callable[[KVCache, int], object], slot: int) -> None:
    cache = filled(5, 5)
    cache.release(0)
    with pytest.raises(KVCacheError, match=rf"slot {slot} is not allocated; in use: \[1\]"):
        use(cache, slot)
    assert cache.capacity() == 15


@pytest.mark.parametrize(
    ("num_slots", "num_cells", "max_length", "field"),
    [(0, 64, 8, "num_slots"), (1, 64, 0, "max_length"), (1, 511, 257, "num_cells")],
)
def test_sizes_that_do_not_fit_are_refused(num_slots: int, num_cells: int, max_length: int, field: str) -> None:
    with pytest.raises(InvalidConfiguration) as refusal:
        KVCache(num_slots=num_slots, num_cells=num_cells, max_length=max_length)
    assert refusal.value.field == field


def test_regions_of_short_sequences_are_no_larger_than_a_sequence_can_be() -> None:
    cache = KVCache(num_slots=2, num_cells=16, max_length=8)
    for slot in range(2):
        cache.reserve(cache.allocate(), 8)
        assert cache.region(slot) == Region(8 * slot, 8)
