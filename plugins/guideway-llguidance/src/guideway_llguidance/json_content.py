"""JSON Schemas as parts of a Lark grammar, for a schema alone and for one inside a structural tag."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from guideway.api import MAX_INDENTATION, InvalidGrammar, JsonSchema, StructuralTag, UnsupportedGrammar
from guideway.json_schema import Emptiness, Schema, assertions, check_schema, subschemas, with_patterns
from guideway.json_schema.ecma import with_spelled_patterns
from guideway.json_schema.expressions import lacks_an_escape, pieces, without_nul

if TYPE_CHECKING:
    from guideway.api import Whitespace
    from llguidance._lib import JsonCompileOptions

OPTIONS = "x-guidance"
APPLYING = ("$ref", "allOf", "anyOf", "oneOf")
VALUES = ("const", "enum")
BESIDE_REF = frozenset({"$schema", "$ref", "$defs", "definitions"})
EXCLUSIVE = ("exclusiveMinimum:draft4", "exclusiveMaximum:draft4")
OPTIONS_IN_SCHEMA = "a schema may not contain `x-guidance`, because llguidance would read options from it; remove it"


def check(constraint: JsonSchema | StructuralTag, schema: Any) -> None:
    """Raise `InvalidGrammar` if `schema`, the parsed constraint or a part of it, is not a schema or allows nothing, and
    `UnsupportedGrammar` if it has llguidance's options."""
    constraint.cached(check_schema, schema)
    if schema is False:
        raise InvalidGrammar("the schema `false` allows nothing", field="constraint.schema")
    if f'"{OPTIONS}"' in constraint.source() and _sets_options(schema):
        raise UnsupportedGrammar(OPTIONS_IN_SCHEMA, feature=OPTIONS)


def options(whitespace: Whitespace, *, inside: bool = False) -> JsonCompileOptions:
    """Return llguidance's options for writing JSON. Its lexeme for white space may repeat, so llguidance cannot bound
    it; in a whole output the matcher does. With `inside`, for JSON inside other text, the bound is part of the comma
    and the colon, which llguidance reads as patterns."""
    comma, colon, flexible = ",", ":", whitespace in ("bounded", "any")
    if whitespace == "spaced":
        comma, colon = ", ", ": "
    elif whitespace == "bounded" and inside:
        blanks, flexible = rf"( |\r?\n[ \t]{{0,{MAX_INDENTATION}}})?", False
        comma, colon = f"{blanks},{blanks}", f"{blanks}:{blanks}"
    return {
        "whitespace_flexible": flexible,
        "item_separator": comma,
        "key_separator": colon,
        "coerce_one_of": False,
        "lenient": False,
    }


def spelled(constraint: JsonSchema | StructuralTag, schema: Schema) -> Schema:
    """Return a checked schema, the parsed constraint or a part of it, in the form that llguidance reads best:

    - ``.`` and ``\\s`` in patterns are spelled out, because llguidance's own differ from those in ECMA-262, and a class
      that lacks the quote or the backslash but has all control characters loses NUL: with all of them, llguidance lets
      every escape pass;
    - formats become patterns, because llguidance's own accept 29 February of any year. Unknown formats are removed,
      because llguidance would refuse the schema;
    - a ``oneOf`` whose branches exclude each other becomes an ``anyOf``: llguidance recognizes few of these and refuses
      the others;
    - ``const``, ``enum`` and keywords that apply other schemas are moved to the end: llguidance would read a pair such
      as ``items`` and ``additionalItems``, or a bound and its exclusiveness in draft 4, separately if one of these were
      between them;
    - what a draft ignores beside ``$ref`` is removed, because llguidance would enforce it."""
    names = constraint.cached(assertions, schema).keywords
    found = with_patterns(schema, names)
    if any(name.startswith("pattern") for name in names):
        found = with_spelled_patterns(found, change=_spare_escapes)
    kinds = {name.partition(":")[0] for name in names}
    needs_change = not kinds.isdisjoint((*VALUES, *APPLYING, "format")) or not names.isdisjoint(EXCLUSIVE)
    if not needs_change or not isinstance(found, Mapping):
        return found
    changed: Schema = _change(found, drops_siblings="$ref:siblings" in names)
    return changed


def _spare_escapes(pattern: str) -> str:
    cut = pieces(pattern)
    return "".join(without_nul(piece) if lacks_an_escape(piece) else piece for piece in cut)


def to_lark(schema: Any, options: JsonCompileOptions) -> str:
    """Return a checked schema as a Lark expression."""
    return "%json " + json.dumps({**({} if schema is True else schema), OPTIONS: options})


def _change(schema: Any, *, drops_siblings: bool) -> Any:
    text = json.dumps(schema)
    copy = json.loads(text)
    is_apart = '"oneOf"' in text and "/oneOf/" not in text  # a reference may lead into a branch
    emptiness = Emptiness(copy) if is_apart else None
    for _, node in subschemas(copy):
        if not isinstance(node, dict):
            continue
        if drops_siblings and "$ref" in node:
            for keyword in node.keys() - BESIDE_REF:
                del node[keyword]
        node.pop("format", None)  # known formats are patterns by now
        if emptiness is not None and "oneOf" in node and emptiness.is_exclusive(node):
            any_of = {"anyOf": node.pop("oneOf")}
            node |= {"allOf": [*node.get("allOf", ()), any_of]} if "anyOf" in node else any_of
        node.update([(keyword, node.pop(keyword)) for keyword in (*VALUES, *APPLYING) if keyword in node])
    return copy


def _sets_options(schema: Schema) -> bool:
    return any(isinstance(subschema, Mapping) and OPTIONS in subschema for _, subschema in subschemas(schema))
