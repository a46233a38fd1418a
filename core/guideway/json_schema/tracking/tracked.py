"""Schemas of which the host enforces a part."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from functools import cached_property

from guideway.api.types import JsonSchema
from guideway.json_schema.checking import check_schema
from guideway.json_schema.tracking.alternatives import Alternatives
from guideway.json_schema.tracking.places import UniqueArrays
from guideway.json_schema.walking import Schema, parts_of

__all__ = ["TrackedSchema", "followed", "tracked"]

NOTHING = "true"


@dataclass(frozen=True)
class TrackedSchema(JsonSchema):
    """A schema without the keywords that the host enforces in its outputs, for grammar strategies."""

    whole: str = field(default=NOTHING, kw_only=True)
    """The text of the whole schema, if the host keeps items of its arrays unique."""
    ordered: str = field(default=NOTHING, kw_only=True)
    """The text of the rewritten schema, if its objects take their names in any order."""

    @cached_property
    def arrays(self) -> UniqueArrays | None:
        """The arrays whose items the host keeps unique."""
        return None if self.whole == NOTHING else UniqueArrays(json.loads(self.whole))

    @cached_property
    def alternatives(self) -> Alternatives | None:
        """The objects whose required properties the host demands."""
        return None if self.ordered == NOTHING else Alternatives(json.loads(self.ordered))


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
    return followed(constraint, schema=rest, whole=constraint.source())


def followed(constraint: JsonSchema, **changed: str) -> TrackedSchema:
    """Return a constraint as a `TrackedSchema` with some other fields."""
    return TrackedSchema(**{each.name: getattr(constraint, each.name) for each in fields(constraint)} | changed)


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
