"""Rewrite a JSON Schema into an equivalent one that an engine compiles, or into a weaker one whose losses are named.

A writer of subschemas and a writer of their negations call each other. Both read the original schema, so a part that
cannot be written exactly is always written weaker: the result is never stronger, also below ``not``. The result is in
keywords of draft 2020-12, without annotations and unreachable definitions.
"""

from __future__ import annotations

from collections.abc import Set

from guideway.api.types import Loss, Losses
from guideway.json_schema.rewriting import negative, positive
from guideway.json_schema.rewriting.results import BUDGET, COARSE, Budget, Rewriting, TooLarge
from guideway.json_schema.rewriting.writer import Writer
from guideway.json_schema.walking import Schema

__all__ = ["BUDGET", "COARSE", "Budget", "Rewriting", "rewrite"]

OLDEST = 4
"""The oldest draft that is read."""


def rewrite(schema: Schema, takes: Set[str], budget: Budget = BUDGET) -> Rewriting:
    """Return a checked schema in keywords that an engine takes.

    `takes` are the names of keywords that the engine compiles, as in `guideway.json_schema.keywords`. The result never
    has ``not``, ``if``, ``oneOf``, ``dependentRequired`` and ``dependentSchemas``. It has ``contains``,
    ``uniqueItems``, ``propertyNames``, ``minProperties:optional`` and features of patterns only if the engine takes
    them. Equal schemas have equal results. No engine is called.
    """
    try:
        writer = Writer(schema, takes, budget, positive.write, negative.write)
        if writer.source.draft < OLDEST:
            return Rewriting(True, Losses([Loss("#", "$schema", "this draft is too old")]))
        return writer.run()
    except TooLarge:
        return Rewriting(True, Losses([Loss("#", "nodes", "the schema is too large to rewrite")]))
