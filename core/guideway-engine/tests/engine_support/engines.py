"""Engines whose end is checked, and prompts for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from guideway import Engine, EngineConfig


def tokens(seed: int, count: int) -> list[int]:
    """A prompt of `count` tokens."""
    return [5 + (seed * 7919 + i * i * 31 + i) % 1500 for i in range(count)]


@contextmanager
def engine(**options: Any) -> Iterator[Engine]:
    """One of the demo model; when it is left nothing runs, waits or has a slot."""
    with Engine(EngineConfig(model="demo", **options)) as built:
        yield built
        scheduler = built._scheduler
        assert not scheduler._running
        assert scheduler.num_waiting == 0
        assert scheduler._cache.capacity() == scheduler._cache.num_slots
