"""The installed distribution: its entry point, and the state that it detects in processors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import entry_points
from typing import Any

import guideway_legacy
import pytest
import torch
from guideway_legacy import LegacyModifier
from guideway_legacy.watch import MAX_ITEMS, Watch
from transformers import (
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)


def test_the_entry_point_leads_to_the_modifier() -> None:
    (entry,) = [e for e in entry_points(group="guideway.v1") if e.name == "modifier.legacy"]
    assert entry.load() is guideway_legacy
    assert guideway_legacy.guideway_logit_modifier() is LegacyModifier


def test_importing_it_imports_no_array_library_but_numpy() -> None:
    program = "import sys, guideway_legacy; print('torch' in sys.modules, 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False False\n"


class Attribute:
    def __init__(self) -> None:
        self.count = 1000

    def __call__(self) -> None:
        self.count += 1

    def method(self) -> None:
        self.count += 1


class Inside:
    def __init__(self, container: Any, change: Callable[[Any], object]) -> None:
        self.container = container
        self.change = change

    def __call__(self) -> None:
        self.change(self.container)


class Anew:
    """Has a new list at each call, equal to the previous one."""

    def __call__(self) -> None:
        self.held = [1, 2]


class Late:
    def __call__(self) -> None:
        self.__dict__[f"call_{len(self.__dict__)}"] = 1


class Cached:
    """Harmless: fills a cache at its first call, and stores the same value at each."""

    def __init__(self) -> None:
        self.cache: list[int] | None = None

    def __call__(self) -> None:
        self.cache = self.cache or [1, 2]
        self.width = int("1000")


def closure() -> Callable[[], None]:
    count = 1000

    def call() -> None:
        nonlocal count
        count += 1

    return call


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (Attribute(), "count"),
        (Attribute().method, "count"),
        (Inside([], lambda held: held.append(1)), "container"),
        (Inside([1, 2], lambda held: held.reverse()), "container"),
        (Inside({"a": 1}, lambda held: held.update(a=held["a"] + 1)), "container"),
        (Inside(set(), lambda held: held.add(len(held))), "container"),
        (Inside([0] * 1000, lambda held: held.append(1)), "container"),
        (Inside([0] * (MAX_ITEMS - 1) + [1], lambda held: held.reverse()), "container"),
        (Inside(torch.zeros(2), lambda held: held.add_(1)), "container"),
        (Anew(), "held"),
        (Late(), "call_1"),
        (closure(), "count"),
    ],
)
def test_a_change_is_seen_from_the_second_call_on(target: Any, name: str) -> None:
    watch = Watch(target)
    for expected in (None, name):
        watch.begin()
        target()
        assert watch.changed() == expected


def test_a_cache_filled_once_is_no_state() -> None:
    target = Cached()
    watch = Watch(target)
    for _ in range(3):
        watch.begin()
        target()
        assert watch.changed() is None


@pytest.mark.parametrize(
    "target",
    [
        RepetitionPenaltyLogitsProcessor(1.2),
        SequenceBiasLogitsProcessor([[[5], 1.0], [[1, 2], -1.0]]),
        LogitsProcessorList([MinLengthLogitsProcessor(3, 1, device="cpu"), RepetitionPenaltyLogitsProcessor(1.2)]),
        partial(RepetitionPenaltyLogitsProcessor(1.2)),
    ],
    ids=lambda target: type(target).__name__,
)
def test_processors_of_transformers_are_found_innocent(target: Any) -> None:
    watch = Watch(target)
    for length in (1, 2, 3):
        watch.begin()
        target(torch.ones((1, length), dtype=torch.int64), torch.zeros(1, 8))
        assert watch.changed() is None


def test_neither_what_stays_nor_what_tells_no_change_is_one() -> None:
    with torch.inference_mode():
        tensor = torch.zeros(2)
    for held in (tensor, (1, [2]), {"a": [1]}, [0] * MAX_ITEMS + [1]):
        target = Inside(held, lambda held: held.reverse() if len(held) > MAX_ITEMS else None)
        watch = Watch(target)
        for _ in range(3):
            watch.begin()
            target()
            assert watch.changed() is None


def test_a_member_of_a_list_is_named() -> None:
    members = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.2), Attribute()])
    watch = Watch(members)
    for expected in (None, "[1].count"):
        watch.begin()
        members[1]()
        assert watch.changed() == expected
