"""Fixtures for both halves of the plugin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import jax
import pytest

Compilations: TypeAlias = Callable[[], AbstractContextManager[list[str]]]


@pytest.fixture
def compilations() -> Compilations:
    return _compilations


@contextmanager
def _compilations() -> Iterator[list[str]]:
    """Collect the events of jax's traces and compilations in the meantime."""
    events: list[str] = []

    def listen(event: str, _: float, **__: Any) -> None:
        if event.endswith(("backend_compile_duration", "jaxpr_trace_duration")):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield events
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
