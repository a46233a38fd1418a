"""The rewritings of a JSON schema to offer to a strategy."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from guideway.api.types import JsonSchema, Losses
from guideway.errors import InvalidGrammar
from guideway.json_schema import check_schema
from guideway.json_schema.rewriting import BUDGET, COARSE, Budget, rewrite

__all__ = ["INLINE", "IN_HOSTS", "Rewritten", "rewritings"]

IN_HOSTS: Final = (BUDGET, COARSE)
"""Bounds for the forms of a schema, best first, where a host with limits does the work."""
INLINE: Final = tuple(replace(budget, nodes=2_000, steps=5_000, automata=20) for budget in IN_HOSTS)
"""Bounds in the serving process, which must not be held up."""
FEWER: Final = 200
"""Bounds of lengths and items to keep where larger ones multiply past the limits of the guard."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A schema to compile in place of another."""

    text: str
    losses: Losses
    """Empty if it has the same instances."""

    @property
    def size(self) -> int:
        """Characters of all its parts."""
        return len(self.text) + sum(sum(map(len, loss)) for loss in self.losses)

    def of(self, constraint: JsonSchema) -> JsonSchema:
        """Return the constraint to compile in place of `constraint`."""
        return replace(constraint, schema=self.text)


def rewritings(constraint: JsonSchema, takes: Set[str], budgets: Sequence[Budget], *, repeats: bool) -> list[Rewritten]:
    """Return the different rewritings of a schema, best first, that enforce anything. `repeats` says that its bounds
    exceed the guard's limits, so there is also one without large bounds. Raises `InvalidGrammar` if one proves that
    nothing satisfies the schema."""
    constraint.cached(check_schema)
    found: list[Rewritten] = []
    for budget in [*budgets, replace(budgets[-1], count=FEWER)] if repeats else budgets:
        rewriting = rewrite(constraint.parsed, takes, budget)
        if rewriting.schema is False:
            raise InvalidGrammar("nothing satisfies the schema: its keywords contradict each other at #")
        one = Rewritten(json.dumps(rewriting.schema), rewriting.losses)
        if not (rewriting.schema is True and rewriting.losses) and one not in found:
            found.append(one)
    return found
