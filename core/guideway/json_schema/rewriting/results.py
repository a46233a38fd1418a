"""The result of rewriting a schema, and the bounds of the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from guideway.api.types import Loss, Losses
from guideway.json_schema.walking import Schema

__all__ = ["BUDGET", "COARSE", "Budget", "Rewriting", "TooLarge", "few"]

MOST_LOSSES = 500
"""Losses with a place of their own."""
ELSEWHERE = "..."


@dataclass(frozen=True, slots=True)
class Rewriting:
    """A schema in keywords of draft 2020-12. Every instance of the original is an instance of it."""

    schema: Schema
    losses: Losses
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
    combinations: int = 4000
    """Product of the alternatives that apply to one value, times the properties of the schema. Engines combine each
    with each, into at most 10,000 items of the parser in llguidance."""
    negation: int = 1_000_000
    """Subschemas in the written form of one negation."""
    steps: int = 100_000
    """Steps between the states of one automaton."""
    automata: int = 60
    """Patterns and lists of texts to make automata of."""
    multiple: int = 10_000
    """The least common multiple of all divisors, without their decimal points; the guard has the same limit."""
    inlined: int = 200
    """References to put their definitions in the place of."""
    overlaps: int = 4
    """Patterns of names in one object to separate where they overlap; there are up to 2**n parts."""
    count: int = 100_000
    """The largest length or number of items; larger ones exceed the limits of the guard."""


BUDGET: Final = Budget()
COARSE: Final = Budget(combinations=32, negation=2, overlaps=0)
"""Bounds for schemas whose full rewriting is too large."""


class TooLarge(Exception):
    """The written schema has more nodes than the budget."""


def few(losses: Iterable[Loss]) -> Losses:
    """Return losses of which only the first `MOST_LOSSES` have a place of their own: a schema may have very many. The
    others are counted by keyword, with the pointer `ELSEWHERE`."""
    listed = list(losses)
    others = Counter(loss.keyword for loss in listed[MOST_LOSSES:])
    counted = [Loss(ELSEWHERE, keyword, f"at {number} more places") for keyword, number in others.items()]
    return Losses([*listed[:MOST_LOSSES], *counted])
