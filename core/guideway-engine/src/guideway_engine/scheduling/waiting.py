"""The waiting queue: ordered by priority, then fair among tenants, then by arrival."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["ServedTokens", "WaitingQueue"]


class Queued(Protocol):
    """Hashable entry of a `WaitingQueue`. Its properties do not change."""

    @property
    def priority(self) -> int:
        """Lower priorities run first."""

    @property
    def tenant(self) -> str:
        """Name of the tenant that it belongs to."""

    @property
    def arrival(self) -> int:
        """Position in the order of arrival."""


T = TypeVar("T", bound=Queued)


class WaitingQueue(Generic[T]):
    """Queue of items by priority and tenant. There may be many, so finding the next does not visit all of them."""

    def __init__(self) -> None:
        self._queues: dict[int, dict[str, dict[T, int]]] = {}
        """Items by priority and tenant in order of arrival, with their arrival; dicts because any may be removed."""

    def __len__(self) -> int:
        return sum(map(len, self._each()))

    def __bool__(self) -> bool:
        return any(self._each())

    def __contains__(self, item: T) -> bool:
        return item in self._queues.get(item.priority, {}).get(item.tenant, {})

    def __iter__(self) -> Iterator[T]:
        return itertools.chain.from_iterable(self._each())

    def add(self, item: T) -> None:
        """Add `item` behind earlier arrivals of its priority and tenant."""
        queue = self._queues.setdefault(item.priority, {}).setdefault(item.tenant, {})
        late = bool(queue) and item.arrival < next(reversed(queue.values()))
        queue[item] = item.arrival
        if late:  # its admission took longer than a later arrival's
            for other in [other for other, arrival in queue.items() if arrival > item.arrival]:
                queue[other] = queue.pop(other)

    def discard(self, item: T) -> None:
        """Remove `item` if it is in the queue."""
        if item in self:
            tenants = self._queues[item.priority]
            del tenants[item.tenant][item]
            if not tenants[item.tenant]:
                del tenants[item.tenant]
            if not tenants:
                del self._queues[item.priority]

    def count(self, priority: int) -> int:
        """Return the number of items with this priority or a higher one."""
        return sum(len(q) for theirs, tenants in self._queues.items() if theirs <= priority for q in tenants.values())

    def best_priority(self) -> int:
        """Return the highest priority of all items. The queue must not be empty."""
        return min(self._queues)

    def in_turn(self, load: Callable[[str], float]) -> Iterator[T]:
        """Yield all items in order: by priority, then the tenant with the least `load`, then by arrival."""
        for priority in sorted(self._queues):
            tenants = self._queues[priority]
            # an interrupt may have left an empty queue behind
            heads = [(load(tenant), next(iter(queue.values())), tenant) for tenant, queue in tenants.items() if queue]
            for _, _, tenant in sorted(heads):
                yield from tenants[tenant]

    def _each(self) -> Iterator[dict[T, int]]:
        return (queue for tenants in self._queues.values() for queue in tenants.values())


class ServedTokens:
    """Number of tokens that each tenant has been served, prompts and generated tokens alike.

    A tenant that returns after a pause starts with at least the smallest count of the busy tenants, so no tenant saves
    up by waiting or loses a debt by leaving. When no tenant is busy, all counts are dropped. (Virtual token counter;
    Sheng et al., Fairness in serving large language models, OSDI'24.)
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        """Counts of busy tenants, and of idle ones whose count is above the smallest busy one."""
        self._busy: dict[str, set[Queued]] = {}
        """Waiting and running sequences of each tenant."""

    def __call__(self, tenant: str) -> float:
        """Return the count of `tenant`."""
        return self._served.get(tenant, 0.0)

    def enter(self, sequence: Queued) -> None:
        """Count the tenant of `sequence` as busy from now on."""
        tenant = sequence.tenant
        if tenant not in self._busy:
            self._served[tenant] = max(self(tenant), self._least())
            self._busy[tenant] = set()
        self._busy[tenant].add(sequence)

    def leave(self, sequence: Queued) -> None:
        """Remove an ended sequence; its tenant may become idle. Calling it twice is fine."""
        busy = self._busy.get(sequence.tenant)
        if busy is not None:
            busy.discard(sequence)
            if not busy:
                del self._busy[sequence.tenant]
                least = self._least() if self._busy else math.inf
                self._served = {t: n for t, n in self._served.items() if t in self._busy or n > least}

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Add `num_tokens` to the count of a busy `tenant`."""
        if tenant in self._busy:
            self._served[tenant] += num_tokens

    def _least(self) -> float:
        return min((self._served[tenant] for tenant in self._busy), default=0.0)
