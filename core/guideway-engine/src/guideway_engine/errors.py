"""Errors of the engine."""

from __future__ import annotations

from guideway.errors import GuidewayError

__all__ = ["EngineBusy", "EngineClosed", "QueueFull"]


class EngineBusy(GuidewayError):
    """Raised if another thread drives the engine, or a hook calls `step` inside a step. Nothing was changed."""


class EngineClosed(GuidewayError):
    """Raised by calls of a closed engine."""


class QueueFull(GuidewayError):
    """Raised if `EngineConfig.max_waiting` sequences of the same or a higher priority are waiting. Try again when some
    have started."""
