"""The queue of what waits for its turn: by priority, fair among tenants, then by arrival."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

__all__ = ["ServedTokens", "WaitingQueue"]


class Queued(Protocol):
    """An entry that can wait in a `WaitingQueue`; it can be hashed, and these do not change."""

    @property
    def priority(self) -> int:
        """Lower goes first."""

    @property
    def tenant(self) -> str:
        """On whose behalf it waits."""

    @property
    def arrival(self) -> int:
        """Its number among all that came."""


T = TypeVar("T", bound=Queued)


class WaitingQueue(Generic[T]):
    """Items by priority and tenant. Whose turn it is costs no look at every item: there may be many."""

    def __init__(self) -> None:
        self._queues: dict[int, dict[str, dict[T, int]]] = {}
        """By priority and tenant, in order of arrival, with the number of each; dicts because any may be removed."""

    def __len__(self) -> int:
        return sum(map(len, self._each()))

    def __bool__(self) -> bool:
        return any(self._each())

    def __contains__(self, item: T) -> bool:
        return item in self._queues.get(item.priority, {}).get(item.tenant, {})

    def __iter__(self) -> Iterator[T]:
        return itertools.chain.from_iterable(self._each())

    def add(self, item: T) -> None:
        """Behind those of its priority and tenant that came before it."""
        queue = self._queues.setdefault(item.priority, {}).setdefault(item.tenant, {})
        late = bool(queue) and item.arrival < next(reversed(queue.values()))
        queue[item] = item.arrival
        if late:  # its admission took longer than that of one that came later
            for other in [other for other, arrival in queue.items() if arrival > item.arrival]:
                queue[other] = queue.pop(other)

    def discard(self, item: T) -> None:
        """Take it out. Nothing happens if it is not here."""
        if item in self:
            tenants = self._queues[item.priority]
            del tenants[item.tenant][item]
            if not tenants[item.tenant]:
                del tenants[item.tenant]
            if not tenants:
                del self._queues[item.priority]

    def count(self, priority: int) -> int:
        """Count those that have this priority or a higher one."""
        return sum(len(q) for theirs, tenants in self._queues.items() if theirs <= priority for q in tenants.values())

    def best_priority(self) -> int:
        """The best of all. There must be an item."""
        return min(self._queues)

    def in_turn(self, load: Callable[[str], float]) -> Iterator[T]:
        """All items, the one whose turn it is first: by priority, then the tenant with the least `load`, then the one
        that came first."""
        for priority in sorted(self._queues):
            tenants = self._queues[priority]
            # an interrupt may have left an empty queue behind
            heads = [(load(tenant), next(iter(queue.values())), tenant) for tenant, queue in tenants.items() if queue]
            for _, _, tenant in sorted(heads):
                yield from tenants[tenant]

    def _each(self) -> Iterator[dict[T, int]]:
        return (queue for tenants in self._queues.values() for queue in tenants.values())


class ServedTokens:
    """The amount that each tenant has been served, in tokens through the model, prompts and generated ones alike.

    A tenant that comes back after a pause has at least as much as the least served of the busy ones, so none saves up
    by waiting, and none is forgiven by going away. When none is busy, all counts are dropped. (Virtual token
    counter; Sheng et al., Fairness in serving large language models, OSDI'24.)
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        """The debts of tenants that are busy, and of those that would come back with a debt."""
        self._busy: dict[str, set[Queued]] = {}
        """The sequences of each tenant, waiting and running."""

    def __call__(self, tenant: str) -> float:
        """The tenant's count."""
        return self._served.get(tenant, 0.0)

    def enter(self, sequence: Queued) -> None:
        """Its tenant is busy from now on."""
        tenant = sequence.tenant
        if tenant not in self._busy:
            self._served[tenant] = max(self(tenant), self._least())
            self._busy[tenant] = set()
        self._busy[tenant].add(sequence)

    def leave(self, sequence: Queued) -> None:
        """It has ended, and its tenant may have become idle. Calling it twice is fine."""
        busy = self._busy.get(sequence.tenant)
        if busy is not None:
            busy.discard(sequence)
            if not busy:
                del self._busy[sequence.tenant]
                least = self._least() if self._busy else math.inf
                self._served = {t: n for t, n in self._served.items() if t in self._busy or n > least}

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Count work that was done for `tenant`."""
        if tenant in self._busy:
            self._served[tenant] += num_tokens

    def _least(self) -> float:
        return min((self._served[tenant] for tenant in self._busy), default=0.0)
