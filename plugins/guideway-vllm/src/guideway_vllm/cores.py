"""Questions of a server's front end to its engine cores."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

__all__ = ["Question"]

log = logging.getLogger("vllm.guideway")

FIRST_WITHIN = 5.0
"""Seconds to wait for an answer while there is no last one: the core may still be starting its hosts."""


class Question:
    """A method of vLLM's engine core, added to it by guideway, that every core is asked with each probe, but once at a
    time. A core runs it between two steps. For use in one event loop."""

    def __init__(self, method: str, within: float) -> None:
        """Ask `method` and wait for `within` seconds."""
        self._method, self._within = method, within
        self._asking: asyncio.Task[None] | None = None
        self._answers: list[Any] | None = None

    async def ask(self, client: Any) -> list[Any]:
        """Return the answers of the cores of this client: the last ones if new ones do not arrive in time, and none if
        none has arrived yet."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(client))
        await asyncio.wait([self._asking], timeout=FIRST_WITHIN if self._answers is None else self._within)
        return self._answers or []

    async def _ask(self, client: Any) -> None:
        try:
            if hasattr(client, "call_utility_all_async"):
                self._answers = await client.call_utility_all_async(self._method)
            else:  # vLLM before 0.32 returns only the first core's answer
                self._answers = [await client.call_utility_async(self._method)]
        except Exception as error:  # the core is shutting down, which vLLM reports itself
            log.debug("the engine core did not answer %s: %s", self._method, error)
