"""Sequences that wait for their turn: by priority, fair among tenants, then by arrival."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from guideway_engine.scheduling.sequence import Sequence

__all__ = ["WaitingQueue"]


class WaitingQueue:
    """Among sequences of the best priority, the tenant that has been served least goes first.

    How much a tenant has been served is counted in tokens through the model, prompts and generated ones alike. A
    tenant that comes back after a pause has at least as much as the least served of the busy ones, so nobody saves up
    by waiting, and nobody is forgiven by going away. When nobody is busy, all counts are dropped. (Virtual token
    counter; Sheng et al., Fairness in serving large language models, OSDI'24.)
    """

    def __init__(self) -> None:
        self._queues: dict[int, dict[str, dict[Sequence, None]]] = {}
        """By priority and tenant, in order of arrival; dicts because any entry may be removed."""
        self._served: dict[str, float] = {}
        """Of tenants that have sequences here or running, and of those that would come back with a debt."""
        self._busy: dict[str, set[Sequence]] = {}
        """The sequences of each tenant, waiting and running."""
        self._sizes: Counter[int] = Counter()
        """How many sequences wait, by priority; priorities that nobody has are left out."""

    def __len__(self) -> int:
        return self._sizes.total()

    def count(self, priority: int) -> int:
        """How many have this priority or a better one."""
        return sum(size for theirs, size in self._sizes.items() if theirs <= priority)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._queues.get(sequence.priority, {}).get(sequence.tenant, {})

    def __iter__(self) -> Iterator[Sequence]:
        return iter([s for tenants in self._queues.values() for queue in tenants.values() for s in queue])

    def add(self, sequence: Sequence) -> None:
        """At the end of its tenant's queue."""
        self.enter(sequence)
        self._queues.setdefault(sequence.priority, {}).setdefault(sequence.tenant, {})[sequence] = None
        self._sizes[sequence.priority] += 1

    def discard(self, sequence: Sequence) -> None:
        """Take it out, because it starts. Nothing happens if it is not here."""
        if sequence not in self:
            return
        tenants = self._queues[sequence.priority]
        del tenants[sequence.tenant][sequence]
        self._sizes[sequence.priority] -= 1
        if not tenants[sequence.tenant]:
            del tenants[sequence.tenant]
        if not tenants:
            del self._queues[sequence.priority], self._sizes[sequence.priority]

    def enter(self, sequence: Sequence) -> None:
        """Its tenant is busy from now on."""
        tenant = sequence.tenant
        if tenant not in self._busy:
            self._served[tenant] = max(self.served(tenant), self._least_served())
            self._busy[tenant] = set()
        self._busy[tenant].add(sequence)

    def leave(self, sequence: Sequence) -> None:
        """It has ended: out of the queue, and its tenant may have become idle. Calling it twice is fine."""
        self.discard(sequence)
        busy = self._busy.get(sequence.tenant)
        if busy is not None:
            busy.discard(sequence)
            if not busy:
                del self._busy[sequence.tenant]
                least = self._least_served() if self._busy else math.inf
                self._served = {t: n for t, n in self._served.items() if t in self._busy or n > least}

    def charge(self, tenant: str, num_tokens: int) -> None:
        """Count work that was done for `tenant`."""
        if tenant in self._busy:
            self._served[tenant] += num_tokens

    def served(self, tenant: str) -> float:
        """The tenant's count."""
        return self._served.get(tenant, 0.0)

    def _least_served(self) -> float:
        return min((self._served[tenant] for tenant in self._busy), default=0.0)

    def best(self) -> Sequence | None:
        """Whose turn it is among those that are ready; what is still compiling blocks nobody."""
        for priority in sorted(self._queues):
            tenants = self._queues[priority]
            for tenant in sorted(tenants, key=self.served):
                for sequence in tenants[tenant]:
                    if sequence.ready():
                        return sequence
        return None
