"""Repeating the work of a host that died, and finding the work that ended it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from guideway_hosts.host import HostDied

__all__ = ["MAX_DEATHS", "Subject", "isolate", "retry"]

MAX_DEATHS = 3
"""Times in a row that a host may be killed from outside while it works for one sequence, before the sequence fails."""

T = TypeVar("T")
S = TypeVar("S", bound="Subject")

_NUMBERS = itertools.count()


class Subject:
    """Something that a host works for."""

    def __init__(self) -> None:
        self.number = next(_NUMBERS)
        """Unique in all hosts of this process."""
        self.deaths = 0
        """Times in a row that its host died while working for it."""

    def died(self, by_itself: bool) -> bool:
        """Count a death of the host. Return whether the subject fails for it."""
        self.deaths += 1
        return by_itself or self.deaths >= MAX_DEATHS


def isolate(call: Callable[[list[int], bool], Sequence[int]], items: Mapping[int, Subject]) -> dict[int, HostDied]:
    """Do the work for all items at once. If the host dies and it is unknown over which item, continue one by one.

    ``call(left, apart)`` returns the keys of the items that are done. Return by key why the others failed: their host
    exceeded a limit or crashed, or it was killed from outside `MAX_DEATHS` times.
    """
    left, apart, failed = list(items), False, dict[int, HostDied]()
    while left:
        try:
            done = call(left, apart)
        except HostDied as died:
            known = [key for key in left if items[key].number == died.working_on]
            if died.working_on is not None and not known:  # the host was working on something else
                continue
            apart = apart or not known
            failed |= {key: died for key in known or left if items[key].died(died.by_itself and bool(known))}
            left = [key for key in left if key not in failed]
        else:
            left = [key for key in left if key not in done] if len(done) < len(left) else []
    return failed


def retry(subject: S, call: Callable[[S], T]) -> T:
    """Return the result of a call about one subject, repeated as `isolate` does. Raises `HostDied`."""
    found: list[T] = []

    def attempt(left: list[int], _: bool) -> list[int]:
        found.append(call(subject))
        subject.deaths = 0
        return left

    for died in isolate(attempt, {0: subject}).values():
        raise died
    return found[-1]
