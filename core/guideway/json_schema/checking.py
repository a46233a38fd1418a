"""Check that a JSON value is a JSON Schema."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from guideway.json_schema.assertions import KEYWORDS, TYPES
from guideway.json_schema.mistakes import check_regex
from guideway.json_schema.walking import SCHEMA_LISTS, Pointer, refuse, walk

__all__ = ["check_schema", "misspelt_keywords"]

_KNOWN = frozenset(
    {*KEYWORDS, "type", "then", "else", "$id", "id", "$schema", "$anchor", "$dynamicAnchor", "$recursiveAnchor"}
    | {"$vocabulary", "$comment", "$defs", "definitions", "title", "description", "default"}
    | {"examples", "example", "deprecated", "readOnly", "writeOnly", "contentEncoding", "contentMediaType"}
    | {"contentSchema", "nullable", "discriminator", "xml", "externalDocs", "enumNames", "links", "media"}
)
MAX_UNKNOWN_KEYS = 100
"""Maximum number of unknown keys to check for misspellings, as a malicious constraint may have many."""


def check_schema(schema: object) -> frozenset[str]:
    """Raise `InvalidGrammar` unless `schema`, a parsed JSON value, is a JSON Schema. The message contains the JSON
    pointer of the error and the accepted values. Does not check that the schema is satisfiable.

    Returns the unknown keys of subschemas, for `misspelt_keywords`.
    """
    if not isinstance(schema, Mapping | bool):
        refuse(None, "a JSON Schema", "an object or a boolean", schema)
    unknown: set[str] = set()
    for pointer, subschema, _ in walk(schema):
        if isinstance(subschema, bool):
            continue
        for keyword, value in subschema.items():
            if (check := _CHECKS.get(keyword)) and not check[1](value):
                refuse((pointer, keyword), f"`{keyword}`", check[0], value)
        if isinstance(pattern := subschema.get("pattern"), str):
            check_regex(pattern, f"{Pointer((pointer, 'pattern'))}: `pattern`", field="constraint.schema")
        if len(unknown) <= MAX_UNKNOWN_KEYS:
            unknown |= subschema.keys() - _KNOWN
    return frozenset(unknown)


def misspelt_keywords(unknown: Iterable[str]) -> frozenset[str]:
    """Return the unknown keys that look like misspelt assertions, such as ``patern`` or ``maxLenght``. (By the
    specification, unknown keys are annotations.)"""
    return frozenset(key for key in sorted(unknown)[:MAX_UNKNOWN_KEYS] if _looks_like_a_keyword(key))


@lru_cache(maxsize=1024)
def _looks_like_a_keyword(key: str) -> bool:
    known = ("type", *KEYWORDS)
    swapped = any(sorted(key.lower()) == sorted(word.lower()) for word in known)  # as in ``tpye``
    return len(key) < 30 and (swapped or bool(difflib.get_close_matches(key, known, n=1, cutoff=0.84)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_number(value) and value >= 0 and value == int(value)


def _is_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_types(value: object) -> bool:
    if isinstance(value, str):
        return value in TYPES
    return isinstance(value, list) and bool(value) and all(isinstance(v, str) and v in TYPES for v in value)


_GROUPS: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    ("type", f"one of {', '.join(TYPES)} or a list of these", _is_types),
    ("enum", "a list of values", lambda v: isinstance(v, list)),
    ("$ref $dynamicRef $recursiveRef $id $anchor format pattern", "a string", lambda v: isinstance(v, str)),
    (
        "minLength maxLength minItems maxItems minProperties maxProperties minContains maxContains",
        "a non-negative integer",
        _is_count,
    ),
    ("minimum maximum", "a number", _is_number),
    # draft 4 wrote booleans
    ("exclusiveMinimum exclusiveMaximum", "a number", lambda v: _is_number(v) or isinstance(v, bool)),
    ("multipleOf", "a number above 0", lambda v: _is_number(v) and v > 0),
    ("uniqueItems", "true or false", lambda v: isinstance(v, bool)),
    ("required", "a list of strings", _is_strings),
    (
        "dependentRequired",
        "an object of lists of strings",
        lambda v: isinstance(v, Mapping) and all(map(_is_strings, v.values())),
    ),
    (
        "dependencies",
        "an object of schemas and lists of strings",
        lambda v: isinstance(v, Mapping) and all(not isinstance(c, list) or _is_strings(c) for c in v.values()),
    ),
    (
        "$defs definitions dependentSchemas patternProperties properties",
        "an object of schemas",
        lambda v: isinstance(v, Mapping),
    ),
    (" ".join(SCHEMA_LISTS), "a list of at least one schema", lambda v: isinstance(v, list) and bool(v)),
)
_CHECKS = {name: (accepted, accepts) for names, accepted, accepts in _GROUPS for name in names.split()}
