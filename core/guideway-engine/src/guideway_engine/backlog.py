"""Requests that are not let in yet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from guideway_engine.engine import demand

if TYPE_CHECKING:
    from guideway_engine.async_engine import AsyncGeneration

__all__ = ["Backlog"]


class Backlog:
    """What `AsyncEngine` has no room for yet. Asking for the best priority and whose turn it is does not look at every
    request, for there may be many and it is asked in every step."""

    def __init__(self) -> None:
        self._queues: dict[int, dict[str, dict[AsyncGeneration, int]]] = {}
        """By priority and tenant, in order of arrival, with the how-manieth request each is."""
        self._places: dict[AsyncGeneration, tuple[int, str]] = {}
        """The priority and tenant each is filed under."""
        self._arrivals = itertools.count()

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[AsyncGeneration]:
        return iter(self._places)

    def add(self, waiting: AsyncGeneration) -> None:
        """Behind the others of its priority and tenant."""
        priority, _ = demand(waiting.params)
        tenant = waiting.tenant if isinstance(waiting.tenant, str) else ""  # admission refuses another one
        self._places[waiting] = (priority, tenant)
        self._queues.setdefault(priority, {}).setdefault(tenant, {})[waiting] = next(self._arrivals)

    def discard(self, waiting: AsyncGeneration) -> None:
        """Take it out. Nothing happens if it is not here."""
        if waiting not in self._places:
            return
        priority, tenant = self._places.pop(waiting)
        tenants = self._queues[priority]
        del tenants[tenant][waiting]
        if not tenants[tenant]:
            del tenants[tenant]
        if not tenants:
            del self._queues[priority]

    def clear(self) -> None:
        """Take out all."""
        self._queues.clear()
        self._places.clear()

    def priority(self) -> int:
        """The best priority. There must be a request."""
        return min(self._queues)

    def next(self, under_way: Mapping[str, int]) -> AsyncGeneration:
        """Whose turn it is: of the best priority, whose tenant has the least `under_way`; then who came first. There
        must be a request."""
        tenants = self._queues[self.priority()]
        heads = [(under_way.get(tenant, 0), *next(iter(queue.items()))) for tenant, queue in tenants.items()]
        return min(heads, key=lambda head: (head[0], head[2]))[1]
