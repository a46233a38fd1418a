"""The result of rewriting a schema, and the bounds of the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from guideway.json_schema.walking import Schema

__all__ = ["BUDGET", "COARSE", "Budget", "Loss", "Rewriting", "TooLarge", "summarize"]

MOST_SHOWN = 8
"""Losses to list in a message for people."""


class Loss(NamedTuple):
    """A keyword that a rewritten schema enforces only in part, or not at all."""

    pointer: str
    """JSON pointer of the subschema with the keyword, in the original schema."""
    keyword: str
    reason: str

    def __str__(self) -> str:
        return f"{self.pointer}: {self.keyword}"


def summarize(losses: Sequence[Loss]) -> str:
    """Return losses as short text: ``#/properties/tags: uniqueItems, and 16 more``."""
    shown = ", ".join(map(str, losses[:MOST_SHOWN]))
    return f"{shown}, and {len(losses) - MOST_SHOWN} more" if len(losses) > MOST_SHOWN else shown


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A schema in keywords of draft 2020-12. Every instance of the original is an instance of it."""

    schema: Schema
    losses: tuple[Loss, ...]
    """Empty if both schemas have the same instances."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Bounds of the work. None is a time, so equal schemas always have equal rewritings."""

    nodes: int = 20_000
    """Subschemas to write; a schema that needs more is written with `COARSE` bounds, or not at all."""
    depth: int = 60
    """Nesting levels to write, which bounds Python's stack."""
    cases: int = 40
    """Alternatives for one keyword, such as the choices of properties that satisfy ``minProperties``."""
    positions: int = 6
    """Positions in an array to try for ``contains``, or for an item that must be invalid."""
    combinations: int = 1000
    """Product of the alternatives that apply to one value, times the properties of the schema. Engines combine each
    with each: at twice the number, llguidance exceeds the 2,000 parser items that it allows."""
    negation: int = 1_000_000
    """Subschemas in the written form of one negation."""
    steps: int = 100_000
    """Steps between the states of one automaton."""
    count: int = 100_000
    """The largest length or number of items; larger ones exceed the limits of the guard."""


BUDGET: Final = Budget()
COARSE: Final = Budget(combinations=32, negation=2)
"""Bounds for schemas whose full rewriting is too large."""


class TooLarge(Exception):
    """The written schema has more nodes than the budget."""
