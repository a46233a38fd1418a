"""A small cache whose entries expire."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

__all__ = ["Expiring"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

CAPACITY = 1024
"""Most entries; the oldest one is dropped first."""


class Expiring(Generic[K, V]):
    """A cache whose entries each have a lifetime. Thread-safe. Raises errors of comparing keys."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def put(self, key: K, value: V, seconds: float) -> None:
        """Store `value` for `seconds` from now."""
        with self._lock:
            self._values[key] = time.monotonic() + seconds, value
            while len(self._values) > CAPACITY:
                self._values.popitem(last=False)

    def get(self, key: K) -> V | None:
        """Return the value of `key`, or None if it is absent or expired."""
        if not self._values:  # the usual case
            return None
        with self._lock:
            until, value = self._values.get(key, (0.0, None))
            if value is not None and until < time.monotonic():
                del self._values[key]
                return None
            return value
