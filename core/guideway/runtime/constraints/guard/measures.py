"""Measures of a constraint, with the place of each maximum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

__all__ = ["CAP", "Measures", "Place", "TooLarge"]

CAP = 1 << 62
"""Products are capped here, so that long chains of repetitions stay cheap to compute."""

MOST_OF_A_STRING = 256
"""Most that one string counts; longer ones cost libraries hardly more."""

Place: TypeAlias = Callable[[], str]
"""Returns the description of a place, computed only for messages."""


class TooLarge(Exception):
    """Raised when there are more nodes than any strategy takes, to stop measuring."""


class Measures:
    """The maximum of each rule of `guideway.api.limits`, and its place."""

    __slots__ = ("found", "most_nodes", "nodes", "strings", "totals")

    def __init__(self, most_nodes: int) -> None:
        self.found: dict[str, tuple[int, Place | str]] = {}
        self.nodes = 0
        self.most_nodes = most_nodes
        self.strings: set[object] = set()
        """Lengths and patterns already counted."""
        self.totals = {"literals": 0, "multiple_of": 1, "strings": 0}
        """Sums of the rules that count for the whole constraint."""

    def at(self, rule: str, value: int, place: Place | str) -> None:
        """Record that `rule` has `value` at `place`."""
        best = self.found.get(rule)
        if value > (0 if best is None else best[0]):
            self.found[rule] = min(value, CAP), place

    def literal(self, length: int, place: Place | str) -> None:
        """Count text of `length` characters that the output may contain literally."""
        self.totals["literals"] += length
        self.at("literals", self.totals["literals"], place)

    def string(self, what: object, length: int, place: Place | str) -> None:
        """Count text of up to `length` characters, once for equal `what`."""
        if what not in self.strings:
            self.strings.add(what)
            self.totals["strings"] += min(length, MOST_OF_A_STRING)
            self.at("strings", self.totals["strings"], place)

    def count(self, number: int, place: Place | str) -> None:
        """Count `number` more nodes. Raises `TooLarge` above the maximum."""
        self.nodes += number
        if self.nodes > self.most_nodes:
            self.at("nodes", self.nodes, place)
            raise TooLarge

    def exceeded(self, limits: Mapping[str, int]) -> tuple[str, int, str, int] | None:
        """Return the first rule over its limit, with its value, place and limit. `limits` must have all rules."""
        for rule, (value, place) in self.found.items():
            if value > limits[rule]:
                return rule, value, place if isinstance(place, str) else place(), limits[rule]
        return None
