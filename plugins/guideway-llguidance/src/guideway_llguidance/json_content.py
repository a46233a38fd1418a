"""A JSON Schema as a part of a Lark grammar; the same for a schema by itself and for one inside a structural tag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from guideway.api import MAX_WHITESPACE, InvalidGrammar, JsonSchema, StructuralTag, UnsupportedGrammar
from guideway.json_schema import Exclusion, Schema, assertions, check_schema, subschemas, with_patterns
from guideway.json_schema.ecma import with_spelled_patterns

if TYPE_CHECKING:
    from guideway.api import Whitespace
    from llguidance._lib import JsonCompileOptions

OPTIONS = "x-guidance"
APPLYING = ("$ref", "allOf", "anyOf", "oneOf")
VALUES = ("const", "enum")
EXCLUSIVE = ("exclusiveMinimum:draft4", "exclusiveMaximum:draft4")
OPTIONS_IN_SCHEMA = "a schema may not contain `x-guidance`, because llguidance would read options from it; remove it"


def check(constraint: JsonSchema | StructuralTag, schema: Any) -> None:
    """Raise `InvalidGrammar` if `schema`, all or a part of what was parsed, is no schema or allows nothing,
    `UnsupportedGrammar` if it has options."""
    constraint.cached(check_schema, schema)
    if schema is False:
        raise InvalidGrammar("the schema `false` allows nothing", field="constraint.schema")
    if f'"{OPTIONS}"' in constraint.source() and _sets_options(schema):
        raise UnsupportedGrammar(OPTIONS_IN_SCHEMA, feature=OPTIONS)


def options(whitespace: Whitespace, *, inside: bool = False) -> JsonCompileOptions:
    """Return the options by which llguidance writes JSON. It skips white space by a lexeme that may follow itself, so
    it knows no bound; that of a whole output is the matcher's affair. `inside` other text it stands at commas and
    colons alone, which llguidance takes for patterns."""
    comma, colon, flexible = ",", ":", whitespace in ("bounded", "any")
    if whitespace == "spaced":
        comma, colon = ", ", ": "
    elif whitespace == "bounded" and inside:
        blanks, flexible = rf"[ \t\n\r]{{0,{MAX_WHITESPACE}}}", False
        comma, colon = f"{blanks},{blanks}", f"{blanks}:{blanks}"
    return {
        "whitespace_flexible": flexible,
        "item_separator": comma,
        "key_separator": colon,
        "coerce_one_of": False,
        "lenient": False,
    }


def spelled(constraint: JsonSchema | StructuralTag, schema: Schema) -> Schema:
    """Return a checked schema, all or a part of what was parsed, as llguidance reads it best:

    - what ``.`` and ``\\s`` take in a pattern is written out, because its own differ from those of ECMA-262;
    - formats are patterns, because its own take 29 February of any year, and those that nobody knows are left out: it
      would refuse the schema for one;
    - a ``oneOf`` of which no two branches can hold is an ``anyOf``: it sees few of those, and refuses the others;
    - ``const``, ``enum`` and keywords that apply other schemas come last: what stands on both sides of one, such as
      ``items`` and ``additionalItems``, or a bound and what makes it exclusive in draft 4, it would read apart."""
    names = constraint.cached(assertions, schema).keywords
    found = with_patterns(schema, names)
    if any(name.startswith("pattern") for name in names):
        found = with_spelled_patterns(found)
    kinds = {name.partition(":")[0] for name in names}
    needs_change = not kinds.isdisjoint((*VALUES, *APPLYING, "format")) or not names.isdisjoint(EXCLUSIVE)
    return _changed(found) if needs_change and isinstance(found, Mapping) else found


def to_lark(schema: Any, options: JsonCompileOptions) -> str:
    """A checked schema as a Lark expression."""
    return "%json " + json.dumps({**({} if schema is True else schema), OPTIONS: options})


def _changed(schema: Any) -> Any:
    text = json.dumps(schema)
    copy = json.loads(text)
    exclusion = None if "/oneOf/" in text else Exclusion(copy)  # a reference may lead into one
    for _, node in subschemas(copy):
        if not isinstance(node, dict):
            continue
        node.pop("format", None)  # those that are known are patterns by now
        if exclusion is not None and "oneOf" in node and exclusion.is_exclusive(node):
            any_of = {"anyOf": node.pop("oneOf")}
            node |= {"allOf": [*node.get("allOf", ()), any_of]} if "anyOf" in node else any_of
        node.update([(keyword, node.pop(keyword)) for keyword in (*VALUES, *APPLYING) if keyword in node])
    return copy


def _sets_options(schema: Schema) -> bool:
    return any(isinstance(subschema, Mapping) and OPTIONS in subschema for _, subschema in subschemas(schema))
