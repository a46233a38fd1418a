"""The exception tree. Every error guideway raises on purpose is one of these.

A plugin maps its library's exceptions onto this tree once, at its own edge, with ``raise ... from``.
A refused token is a return value, never an exception.
"""

from __future__ import annotations

__all__ = [
    "ConformanceError",
    "DeadEnd",
    "GuidewayError",
    "InvalidConfiguration",
    "InvalidGrammar",
    "InvalidRequest",
    "LimitExceeded",
    "PluginConflict",
    "PluginError",
    "PluginLoadError",
    "PluginNotFound",
    "PluginUnavailable",
    "UnsupportedCapability",
    "UnsupportedGrammar",
    "WorkerLost",
    "contain",
]


class GuidewayError(Exception):
    """Base of every error guideway raises on purpose."""


class PluginError(GuidewayError):
    """Something is wrong with one plugin.

    `plugin` is its canonical id, ``distribution/kind.name``, or ``kind.name`` where no distribution is known.
    """

    def __init__(self, message: str, *, plugin: str) -> None:
        super().__init__(message)
        self.plugin = plugin


class PluginNotFound(PluginError, LookupError):
    """No installed distribution offers the component."""


class PluginConflict(PluginError):
    """Two distributions, or two components composed into one object, claim the same name."""


class PluginUnavailable(PluginError):
    """The component is installed but cannot or may not run here; the message says why."""


class PluginLoadError(PluginError):
    """A selected component failed while it was imported, looked up or checked against its contract."""


class WorkerLost(GuidewayError):
    """A worker is gone or does not answer; what it was doing is lost, what the scheduler knows is not."""


class InvalidConfiguration(GuidewayError, ValueError):
    """An engine, host or plugin option is wrong. `field` names the option."""

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class InvalidRequest(GuidewayError, ValueError):
    """A request that cannot be served as it stands. `field` names the part the caller has to change."""

    def __init__(self, message: str, *, field: str = "request") -> None:
        super().__init__(message)
        self.field = field


class InvalidGrammar(InvalidRequest):
    """The constraint is malformed or describes no output at all: no strategy could serve it."""

    def __init__(self, message: str, *, field: str = "constraint") -> None:
        super().__init__(message, field=field)


class UnsupportedGrammar(InvalidRequest):
    """The constraint is well formed, but this strategy cannot serve it. `feature` names what it lacks."""

    def __init__(self, message: str, *, feature: str, field: str = "constraint") -> None:
        super().__init__(message, field=field)
        self.feature = feature


class UnsupportedCapability(InvalidRequest):
    """A plugin or host was asked for something it does not offer."""


class LimitExceeded(InvalidRequest):
    """The request is larger, deeper or slower than the configured limits allow."""


class DeadEnd(GuidewayError):
    """A live matcher state in which no token is legal. Ends that request only."""


class ConformanceError(GuidewayError):
    """A plugin broke its contract at run time. The message names the sentence it broke."""


def contain(error: BaseException) -> None:
    """Return for everything that can be one plugin's failure, re-raise a wish to stop.

    A host catches BaseException around a plugin, because a Rust panic (pyo3's ``PanicException``) and ``SystemExit``
    are no `Exception`, and calls this first.
    """
    if isinstance(error, KeyboardInterrupt | GeneratorExit):
        raise error
