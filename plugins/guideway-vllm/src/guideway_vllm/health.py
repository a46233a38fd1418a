"""Health of engine cores, for the server's health probe."""

from __future__ import annotations

from typing import Any

from guideway.errors import Unhealthy

from guideway_vllm.cores import Question

__all__ = ["METHOD", "CoreHealth", "unhealthy"]

METHOD = "guideway_unhealthy"
"""Name of a method added to vLLM's engine core."""

WITHIN = 0.02
"""Seconds that a probe waits for an answer, so that long steps do not delay it."""


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
    """Health of the cores of one client."""

    def __init__(self) -> None:
        self._question = Question(METHOD, WITHIN)

    async def check(self, client: Any) -> None:
        """Raise `Unhealthy` if a core of this client is unhealthy."""
        if said := [why for why in await self._question.ask(client) if why]:
            raise Unhealthy("; ".join(f"in the engine core {why}" for why in said))
