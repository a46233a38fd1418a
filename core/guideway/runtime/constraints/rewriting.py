"""The rewritings of a JSON schema to offer to a strategy."""

from __future__ import annotations

import json
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from guideway.api.types import JsonSchema, Loss, Losses
from guideway.errors import InvalidGrammar
from guideway.json_schema import check_schema
from guideway.json_schema.rewriting import BUDGET, COARSE, Budget, Rewriting, rewrite
from guideway.json_schema.tracking import NotTracked, followed, has_order, in_any_order

__all__ = ["INLINE", "IN_HOSTS", "Rewritten", "rewritings"]

IN_HOSTS: Final = (BUDGET, COARSE)
"""Bounds for the forms of a schema, best first, where a host with limits does the work."""
INLINE: Final = tuple(replace(budget, nodes=2_000, steps=5_000, automata=20, inlined=20) for budget in IN_HOSTS)
"""Bounds in the serving process, which must not be held up."""
FEWER: Final = 200
"""Bounds of lengths and items to keep where larger ones multiply past the limits of the guard."""


ORDER: Final = "properties_order"
"""The name of a loss, and in `unenforced`, where properties keep the schema's order."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A schema to compile in place of another."""

    text: str
    losses: Losses
    """Empty if it has the same instances."""
    ordered: str = ""
    """For a schema whose properties come in any order: the text of the same schema with an order."""

    @property
    def size(self) -> int:
        """Characters of all its parts."""
        return len(self.text) + len(self.ordered) + sum(sum(map(len, loss)) for loss in self.losses)

    def of(self, constraint: JsonSchema) -> JsonSchema:
        """Return the constraint to compile in place of `constraint`."""
        if not self.ordered:
            return replace(constraint, schema=self.text)
        return followed(constraint, schema=self.text, ordered=self.ordered)


def rewritings(constraint: JsonSchema, takes: Set[str], budgets: Sequence[Budget], *, repeats: bool) -> list[Rewritten]:
    """Return the different rewritings of a schema, best first, that enforce anything. `repeats` says that its bounds
    exceed the guard's limits, so there is also one without large bounds. For properties in any order, there is another
    form of each, which comes first. Raises `InvalidGrammar` if one proves that nothing satisfies the schema."""
    constraint.cached(check_schema)
    found: list[Rewritten] = []
    for budget in [*budgets, replace(budgets[-1], count=FEWER)] if repeats else budgets:
        rewriting = rewrite(constraint.parsed, takes, budget)
        if rewriting.schema is False:
            raise InvalidGrammar("nothing satisfies the schema: its keywords contradict each other at #")
        if not (rewriting.schema is True and rewriting.losses):
            found += _forms(rewriting, budget.automata if constraint.takes_any_order else None)
    return list(dict.fromkeys(found))


def _forms(rewriting: Rewriting, automata: int | None) -> list[Rewritten]:
    """Return the forms of a rewriting, best first; with a number of `automata`, those whose properties come in any
    order."""
    text, losses = json.dumps(rewriting.schema), rewriting.losses
    if automata is None or not has_order(rewriting.schema):
        return [Rewritten(text, losses)]
    found, reason = [], "the strategy takes no names in any order"
    try:
        form, ordered = in_any_order(rewriting.schema, automata)
        found = [Rewritten(json.dumps(form), losses, json.dumps(ordered))]
    except NotTracked as error:
        reason = str(error)
    return [*found, Rewritten(text, Losses([Loss("#", ORDER, reason), *losses]))]
