"""The counts of a constraint, and where most of it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

__all__ = ["CAP", "Measures", "Place", "TooLarge"]

CAP = 1 << 62
"""The number that a product is cut to: numbers stay small however long a chain of repetitions is."""

MOST_OF_A_STRING = 256
"""The most that a string counts for: longer ones cost libraries hardly more."""

Place: TypeAlias = Callable[[], str]
"""Says where something is, once somebody asks."""


class TooLarge(Exception):
    """More nodes than any strategy takes: the rest is not looked at."""


class Measures:
    """The most of each rule of `guideway.api.limits` and its place."""

    __slots__ = ("found", "most_nodes", "nodes", "strings", "totals")

    def __init__(self, most_nodes: int) -> None:
        self.found: dict[str, tuple[int, Place | str]] = {}
        self.nodes = 0
        self.most_nodes = most_nodes
        self.strings: set[object] = set()
        """Lengths and patterns that were seen."""
        self.totals = {"literals": 0, "multiple_of": 1, "strings": 0}
        """The totals of what counts for the constraint as a whole."""

    def at(self, rule: str, value: int, place: Place | str) -> None:
        """`rule` has `value` at `place`."""
        best = self.found.get(rule)
        if value > (0 if best is None else best[0]):
            self.found[rule] = min(value, CAP), place

    def literal(self, length: int, place: Place | str) -> None:
        """Text of `length` that the output may hold as it is."""
        self.totals["literals"] += length
        self.at("literals", self.totals["literals"], place)

    def string(self, what: object, length: int, place: Place | str) -> None:
        """Text of up to `length` characters, told apart from others by `what`."""
        if what not in self.strings:
            self.strings.add(what)
            self.totals["strings"] += min(length, MOST_OF_A_STRING)
            self.at("strings", self.totals["strings"], place)

    def count(self, number: int, place: Place | str) -> None:
        """So many more nodes. Raises `TooLarge` once there are too many."""
        self.nodes += number
        if self.nodes > self.most_nodes:
            self.at("nodes", self.nodes, place)
            raise TooLarge

    def exceeded(self, limits: Mapping[str, int]) -> tuple[str, int, str, int] | None:
        """The first rule over its limit, with its value, place and limit; `limits` has all rules."""
        for rule, (value, place) in self.found.items():
            if value > limits[rule]:
                return rule, value, place if isinstance(place, str) else place(), limits[rule]
        return None
