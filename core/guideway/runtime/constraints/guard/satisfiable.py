"""Detection of unsatisfiable constraints, and removal of unsatisfiable parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from guideway.api.types import Constraint, JsonSchema, StructuralTag
from guideway.errors import InvalidGrammar
from guideway.json_schema import check_satisfiable, check_schema, pruned, schemas_in
from guideway.json_schema.walking import Chain, Schema, parts_of

__all__ = ["check_embedded", "forms"]


def forms(constraint: Constraint) -> Sequence[Constraint]:
    """Return the forms of a constraint to offer to strategies, best first: without the unsatisfiable parts of its
    schema, if there are any, then as it is. Raises `InvalidGrammar` if nothing satisfies it."""
    if isinstance(constraint, JsonSchema):
        constraint.cached(check_schema)
        schema = constraint.cached(_pruned)
        return [constraint] if schema is None else [replace(constraint, schema=json.dumps(schema)), constraint]
    if isinstance(constraint, StructuralTag):
        tag = _pruned_tag(constraint)
        return [constraint] if tag is None else [replace(constraint, tag=json.dumps(tag)), constraint]
    return [constraint]


def check_embedded(schema: Any, place: Chain) -> None:
    """Raise `InvalidGrammar` if nothing satisfies an embedded schema. Malformed schemas pass; strategies report
    them."""
    try:
        parsed = JsonSchema(schema).parsed
        check_schema(parsed)
    except InvalidGrammar:
        return
    check_satisfiable(parsed, place)


def _pruned(schema: Schema) -> Schema | None:
    """Return a schema without its unsatisfiable parts; None if there are none."""
    found = pruned(schema)
    return None if found is schema else found


def _pruned_tag(constraint: StructuralTag) -> Any:
    """Return a structural tag without the unsatisfiable parts of its schemas; None if there are none."""
    found: list[tuple[Chain, Schema]] = []
    for place, schema in schemas_in(constraint.parsed):
        try:
            constraint.cached(check_schema, schema)
        except InvalidGrammar:  # the strategy reports it with its place in the tag
            continue
        if (left := pruned(schema, place)) is not schema:
            found.append((place, left))
    if not found:
        return None
    tag = json.loads(constraint.source())
    for chain, left in found:
        *path, last = parts_of(chain)
        holder = tag
        for part in path:
            holder = holder[part]
        holder[last] = left
    return tag
