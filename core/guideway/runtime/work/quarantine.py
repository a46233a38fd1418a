"""Quarantine for validators that do not answer in time."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from threading import Lock

from guideway.errors import PluginUnavailable
from guideway.runtime.work.expiring import Expiring
from guideway.runtime.work.metrics import QUARANTINES

__all__ = ["Quarantine"]

log = logging.getLogger(__name__)

MAX_STRIKES = 3
"""Missed deadlines within `STRIKES_SECONDS` that lead to quarantine."""

STRIKES_SECONDS = 300.0

QUARANTINE_SECONDS = 60.0
"""Duration of a quarantine. The next miss after it leads to another one."""


class Quarantine:
    """Counts missed deadlines of plugins, each of which costs a thread that may never return. Only validators are
    listed: a user whose requests are too slow for a strategy or modifier could otherwise block it for everybody.
    Thread-safe."""

    def __init__(self, plugins: Iterable[str] = ()) -> None:
        self._lock = Lock()
        self._strikes = {plugin: deque[float](maxlen=MAX_STRIKES) for plugin in plugins}
        self._quarantined: Expiring[str, str] = Expiring()
        """Quarantined plugins, each with the message for its requests."""

    def strike(self, plugin: str) -> None:
        """Count a missed deadline of `plugin`; plugins that are not listed are ignored."""
        now = time.monotonic()
        with self._lock:
            if (strikes := self._strikes.get(plugin)) is None:
                return
            strikes.append(now)
            if len(strikes) < MAX_STRIKES or now - strikes[0] > STRIKES_SECONDS:
                return
        said = (
            f"validator {plugin} did not answer in time {MAX_STRIKES} times; it is not called for "
            f"{QUARANTINE_SECONDS:g} s, and its requests are refused meanwhile"
        )
        self._quarantined.put(plugin, said, QUARANTINE_SECONDS)
        QUARANTINES.labels(plugin).inc()
        log.error("%s", said)

    def check(self, plugin: str) -> None:
        """Raise `PluginUnavailable` if `plugin` is in quarantine."""
        if (said := self._quarantined.get(plugin)) is not None:
            raise PluginUnavailable(said, plugin=plugin)
