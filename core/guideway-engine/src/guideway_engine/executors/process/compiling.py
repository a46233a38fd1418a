"""Detection of compilation for a device in this process, which may take longer than any step."""

from __future__ import annotations

import sys
from collections.abc import Callable
from threading import Lock
from typing import Any

__all__ = ["Compiling"]

XLA = "/jax/core/compile/backend_compile_duration"
"""Name of jax's event for a compilation."""


class Compiling:
    """Calls `say` with True when an imported library begins to compile, and with False when none compiles any more."""

    def __init__(self, say: Callable[[bool], None]) -> None:
        self._say = say
        self._count = 0
        self._lock = Lock()
        self._watched: set[str] = set()

    def watch(self) -> None:
        """Register with libraries that were imported since the last call."""
        for name, listen in (
            ("torch._dynamo.callback", self._listen_to_torch),
            ("jax.monitoring", self._listen_to_jax),
        ):
            if name not in self._watched and (library := sys.modules.get(name)) is not None:
                self._watched.add(name)
                listen(library)

    def _listen_to_torch(self, callback: Any) -> None:
        callback.on_compile_start(lambda _: self._add(1))
        callback.on_compile_end(lambda _: self._add(-1))

    def _listen_to_jax(self, monitoring: Any) -> None:
        # a scalar event at the begin and a duration event at the end, with the same name
        monitoring.register_scalar_listener(lambda event, *_, **__: self._add(1) if event == XLA else None)
        monitoring.register_event_duration_secs_listener(
            lambda event, *_, **__: self._add(-1) if event == XLA else None
        )

    def _add(self, count: int) -> None:
        with self._lock:
            before, self._count = self._count, max(0, self._count + count)
            if bool(before) != bool(self._count):
                self._say(self._count > 0)
