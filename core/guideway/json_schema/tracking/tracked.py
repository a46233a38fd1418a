"""Schemas of which the host enforces a part."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cached_property

from guideway.api.types import JsonSchema
from guideway.json_schema.checking import check_schema
from guideway.json_schema.tracking.places import UniqueArrays
from guideway.json_schema.walking import Schema, parts_of

__all__ = ["TrackedSchema", "tracked"]


@dataclass(frozen=True)
class TrackedSchema(JsonSchema):
    """A schema without the keywords that the host enforces in its outputs, for grammar strategies."""

    whole: str = field(default="true", kw_only=True)
    """The text of the whole schema."""

    @cached_property
    def arrays(self) -> UniqueArrays:
        """The arrays whose items the host keeps unique."""
        return UniqueArrays(json.loads(self.whole))


def tracked(constraint: JsonSchema) -> JsonSchema:
    """Return the schema to offer to strategies in place of a well-formed one: a `TrackedSchema` if the host enforces a
    part of it."""
    given = constraint.schema
    if isinstance(given, str) and "uniqueItems" not in given and "\\" not in given:  # not even with an escape
        return constraint
    if isinstance(constraint, TrackedSchema) or '"uniqueItems"' not in constraint.source():
        return constraint
    constraint.cached(check_schema)
    rest = constraint.cached(_without_unique_items)
    if rest is None:
        return constraint
    return TrackedSchema(
        rest, strategy=constraint.strategy, whitespace=constraint.whitespace, whole=constraint.source()
    )


def _without_unique_items(schema: Schema) -> str | None:
    """Return the text of a schema without the keywords that are tracked; None if none is."""
    chains = UniqueArrays(schema).tracked
    if not chains:
        return None
    rest = json.loads(json.dumps(schema))
    for chain in chains:
        node = rest
        for part in parts_of(chain):
            node = node[part]
        del node["uniqueItems"]
    return json.dumps(rest)
