"""What jax compiles while a test looks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax

__all__ = ["compilations"]


@contextmanager
def compilations() -> Iterator[list[str]]:
    """The names of what jax traces and compiles meanwhile."""
    events: list[str] = []

    def listen(event: str, _: float, **__: Any) -> None:
        if event.endswith(("backend_compile_duration", "jaxpr_trace_duration")):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
