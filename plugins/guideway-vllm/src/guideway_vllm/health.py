"""The reports of engine cores on themselves, for a probe of the server's."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from guideway.errors import Unhealthy

__all__ = ["METHOD", "CoreHealth", "unhealthy"]

log = logging.getLogger("vllm.guideway")

METHOD = "guideway_unhealthy"
"""The name of a method of vLLM's engine core, which answers between two steps."""

WITHIN = 0.02
"""Seconds a probe waits for an answer. After that it has what was said the last time, so that no long step keeps it."""


def unhealthy(core: Any) -> str:
    """Why an engine core refuses requests that nothing is wrong with; empty: it does not."""
    guest = getattr(core.scheduler, "guest", None)
    try:
        if guest is not None:
            guest.runtime.check_health()
    except Unhealthy as error:
        return str(error)
    return ""


class CoreHealth:
    """Asks anew with each probe, but no more than once at a time. To be used in one event loop."""

    def __init__(self) -> None:
        self._asking: asyncio.Task[None] | None = None
        self._said: list[str] = []

    async def check(self, client: Any) -> None:
        """Raise `Unhealthy` if a core of this client is."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(client))
        await asyncio.wait([self._asking], timeout=WITHIN)
        if self._said:
            raise Unhealthy("; ".join(f"in the engine core {why}" for why in self._said))

    async def _ask(self, client: Any) -> None:
        try:
            if hasattr(client, "call_utility_all_async"):
                answers = await client.call_utility_all_async(METHOD)
            else:  # vLLM before 0.32 tells what the first of several says
                answers = [await client.call_utility_async(METHOD)]
        except Exception as error:  # it is ending, which vLLM itself tells
            log.debug("the engine core was not asked for its health: %s", error)
            return
        self._said = [why for why in answers if why]
