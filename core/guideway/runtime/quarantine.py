"""Validators that did not answer are not asked again for a while."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from threading import Lock

from guideway.errors import PluginUnavailable
from guideway.runtime.expiring import Expiring
from guideway.runtime.metrics import QUARANTINES

__all__ = ["Quarantine"]

log = logging.getLogger(__name__)

MAX_STRIKES = 3
"""So often one may miss its deadline within `STRIKES_SECONDS`."""

STRIKES_SECONDS = 300.0

QUARANTINE_SECONDS = 60.0
"""The seconds for which it is not asked then. One more miss afterwards, and it is not asked again."""


class Quarantine:
    """The record of which of some plugins missed deadlines: each miss costs a thread that may never come back.
    Strategies and modifiers are none of them, because whoever sends what they cannot bear would keep them from
    everybody. Safe to call from several threads."""

    def __init__(self, plugins: Iterable[str] = ()) -> None:
        self._lock = Lock()
        self._strikes = {plugin: deque[float](maxlen=MAX_STRIKES) for plugin in plugins}
        self._quarantined: Expiring[str, str] = Expiring()
        """Those that are not asked now, and what is said of each."""

    def strike(self, plugin: str) -> None:
        """The plugin has missed a deadline; nothing happens to any other than the given ones."""
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
        """Raise `PluginUnavailable` for one that is not to be asked now."""
        if (said := self._quarantined.get(plugin)) is not None:
            raise PluginUnavailable(said, plugin=plugin)
