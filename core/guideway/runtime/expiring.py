"""Values that are remembered for a while."""

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
"""So many values are remembered; beyond, the one that was put in first goes."""


class Expiring(Generic[K, V]):
    """Values by key, each of which is gone after its seconds. Safe to use from several threads. Raises what comparing
    keys raises."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._values: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def put(self, key: K, value: V, seconds: float) -> None:
        """Remember `value` for so long from now."""
        with self._lock:
            self._values[key] = time.monotonic() + seconds, value
            while len(self._values) > CAPACITY:
                self._values.popitem(last=False)

    def get(self, key: K) -> V | None:
        """The value, if it is remembered still."""
        if not self._values:  # as almost always
            return None
        with self._lock:
            until, value = self._values.get(key, (0.0, None))
            if value is not None and until < time.monotonic():
                del self._values[key]
                return None
            return value
