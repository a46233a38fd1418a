"""Detection of unsatisfiable constraints."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from guideway.api.types import Constraint, JsonSchema, StructuralTag
from guideway.errors import InvalidGrammar
from guideway.json_schema import check_satisfiable, check_schema, schemas_in
from guideway.json_schema.walking import Chain

__all__ = ["check_embedded", "check_possible"]


def check_possible(constraint: Constraint) -> bool:
    """Raise `InvalidGrammar` if nothing satisfies a constraint, or a schema in it, as far as that is proved. Return
    False if nothing satisfies a part of a schema."""
    if isinstance(constraint, JsonSchema):
        constraint.cached(check_schema)
        return constraint.cached(check_satisfiable)
    if isinstance(constraint, StructuralTag):
        for place, schema in schemas_in(constraint.parsed):
            check_embedded(schema, place, partial(constraint.cached, check_schema))
    return True


def check_embedded(schema: Any, place: Chain, check: Callable[[Any], object] = check_schema) -> None:
    """Raise `InvalidGrammar` if nothing satisfies a schema at a place of a constraint. One that does not pass `check`
    is ignored; strategies report it."""
    try:
        check(schema)
    except InvalidGrammar:
        return
    check_satisfiable(schema, place)
