"""Engines that are checked for leftovers when they close, and prompts for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from guideway import Engine, EngineConfig


def tokens(seed: int, count: int) -> list[int]:
    """Return a prompt of `count` tokens."""
    return [5 + (seed * 7919 + i * i * 31 + i) % 1500 for i in range(count)]


@contextmanager
def engine(**options: Any) -> Iterator[Engine]:
    """Yield an engine with the demo model; afterwards check that nothing runs, waits or has a slot."""
    with Engine(EngineConfig(model="demo", **options)) as built:
        yield built
        scheduler = built._scheduler
        assert not scheduler._running
        assert scheduler.num_waiting == 0
        assert scheduler._cache.capacity() == scheduler._cache.num_slots
