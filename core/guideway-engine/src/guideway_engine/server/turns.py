"""The queue of a server's calls: how many run at once, and in which order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from guideway_engine.scheduling.waiting import WaitingQueue

__all__ = ["Turn", "Turns"]


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Place of a call in the queue."""

    priority: int
    tenant: str
    arrival: int


class Turns:
    """Lets at most `most` calls run at once. Lower priorities run first, then the tenant with the fewest running calls,
    then by arrival. For one event loop."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: WaitingQueue[Turn] = WaitingQueue()
        self._told: dict[Turn, asyncio.Future[None]] = {}
        self._under_way: Counter[str] = Counter()

    @asynccontextmanager
    async def take(self, turn: Turn) -> AsyncIterator[None]:
        """Wait for the turn, and hold it within the context."""
        if self._free:
            self._free -= 1
        else:
            await self._wait(turn)
        self._under_way[turn.tenant] += 1
        try:
            yield
        finally:
            self._under_way[turn.tenant] -= 1
            if not self._under_way[turn.tenant]:
                del self._under_way[turn.tenant]
            self._pass_on()

    async def _wait(self, turn: Turn) -> None:
        told = self._told[turn] = asyncio.get_running_loop().create_future()
        self._waiting.add(turn)
        try:
            await told
        except asyncio.CancelledError:
            if told.done() and not told.cancelled():
                self._pass_on()
            raise
        finally:
            self._waiting.discard(turn)
            del self._told[turn]

    def _pass_on(self) -> None:
        for following in self._waiting.in_turn(self._under_way.__getitem__):
            told = self._told[following]
            if not told.done():  # otherwise it was cancelled and is about to leave
                self._waiting.discard(following)
                told.set_result(None)
                return
        self._free += 1
