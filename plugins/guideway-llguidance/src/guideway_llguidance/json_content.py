"""A JSON Schema as a part of a Lark grammar; the same for a schema by itself and for one inside a structural tag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from guideway.api import InvalidGrammar, JsonSchema, StructuralTag, UnsupportedGrammar
from guideway.json_schema import Schema, check_schema, subschemas

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

OPTIONS = "x-guidance"
OPTIONS_IN_SCHEMA = "a schema may not hold `x-guidance`: llguidance would take options of the engine from it"


def check(constraint: JsonSchema | StructuralTag, schema: Any) -> None:
    """Raise `InvalidGrammar` if `schema`, all or a part of what was parsed, is no schema or allows nothing,
    `UnsupportedGrammar` if it has options."""
    constraint.cached(check_schema, schema)
    if schema is False:
        raise InvalidGrammar("the schema `false` allows nothing", field="constraint.schema")
    if f'"{OPTIONS}"' in constraint.source() and _sets_options(schema):
        raise UnsupportedGrammar(OPTIONS_IN_SCHEMA, feature=OPTIONS)


def to_lark(schema: Any, options: JsonCompileOptions) -> str:
    """A checked schema as a Lark expression."""
    return "%json " + json.dumps({**({} if schema is True else schema), OPTIONS: options})


def _sets_options(schema: Schema) -> bool:
    return any(isinstance(subschema, Mapping) and OPTIONS in subschema for _, subschema in subschemas(schema))
