"""Health of engine cores, for the server's health probe."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from guideway.errors import Unhealthy

__all__ = ["METHOD", "CoreHealth", "unhealthy"]

log = logging.getLogger("vllm.guideway")

METHOD = "guideway_unhealthy"
"""Name of a method added to vLLM's engine core, which runs between two steps."""

WITHIN = 0.02
"""Seconds that a probe waits for an answer. After that it uses the last one, so that long steps do not delay it."""

FIRST_WITHIN = 5.0
"""The same while there is no last one: the core may still be starting its hosts."""


def unhealthy(core: Any) -> str:
    """Return the reason why an engine core would refuse valid requests; empty if it is healthy."""
    guest = getattr(core.scheduler, "guest", None)
    try:
        if guest is not None:
            guest.runtime.check_health()
    except Unhealthy as error:
        return str(error)
    return ""


class CoreHealth:
    """Asks the engine cores with each probe, but once at a time. For use in one event loop."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[None] | None = None
        self._said: list[str] | None = None

    async def check(self, client: Any) -> None:
        """Raise `Unhealthy` if a core of this client is unhealthy."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(client))
        await asyncio.wait([self._asking], timeout=FIRST_WITHIN if self._said is None else WITHIN)
        if self._said:
            raise Unhealthy("; ".join(f"in the engine core {why}" for why in self._said))

    async def _ask(self, client: Any) -> None:
        try:
            if hasattr(client, "call_utility_all_async"):
                answers = await client.call_utility_all_async(METHOD)
            else:  # vLLM before 0.32 returns only the first core's answer
                answers = [await client.call_utility_async(METHOD)]
        except Exception as error:  # the core is shutting down, which vLLM reports itself
            log.debug("the engine core was not asked for its health: %s", error)
            return
        self._said = [why for why in answers if why]
