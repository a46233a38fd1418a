"""The errors of an engine's own."""

from __future__ import annotations

from guideway.errors import GuidewayError

__all__ = ["EngineBusy", "EngineClosed", "QueueFull"]


class EngineBusy(GuidewayError):
    """The engine is in the middle of something else: another thread drives it, or a hook asked for a step inside a
    step. Nothing has happened."""


class EngineClosed(GuidewayError):
    """The engine was closed and takes no more requests."""


class QueueFull(GuidewayError):
    """The queue has no room: `EngineConfig.max_waiting` sequences of the same or a higher priority wait. Try again when
    some have started."""
