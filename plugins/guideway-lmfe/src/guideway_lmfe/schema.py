"""JSON Schemas rewritten for lm-format-enforcer.

It reads one keyword of a schema; keywords that it does not know make it fail while it decodes, or worse, are ignored.
So a schema is rewritten with the keywords that it knows, and refused where it would fail later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from guideway.api import InvalidGrammar, UnsupportedGrammar
from guideway.json_schema import Schema

MAX_DEPTH = 64
"""Maximum depth of schemas inside schemas, references not followed."""
TYPES = ("string", "number", "boolean", "null", "object", "array")
ANYTHING = {"anyOf": [{"type": name} for name in TYPES]}
CONTAINERS = ("$defs", "definitions")
_KEPT = {
    "string": ("pattern", "minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("required",),
}


def rewritten(schema: Schema) -> dict[str, Any]:
    """Rewrite a checked schema for lm-format-enforcer."""
    new = dict(_one(schema, 0))
    if not isinstance(schema, Mapping):
        return new
    containers = [name for name in CONTAINERS if name in schema]
    if len(containers) > 1:
        _refuse("a schema may have `$defs` or `definitions`, not both", "$ref")
    for name in containers:
        new[name] = {key: _one(child, 0) for key, child in schema[name].items()}
    _check_references(new, *containers)
    _check_arrays(new, new[containers[0]] if containers else {})
    return new


def patterns(new: Mapping[str, Any]) -> Iterator[str]:
    """Yield every ``pattern`` of a rewritten schema, as lm-format-enforcer looks it up."""
    for node in _schemas(new):
        if "pattern" in node:
            yield node["pattern"].removeprefix("^").removesuffix("$")


def _schemas(new: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a rewritten schema and its subschemas, but not the mappings from names to schemas, whose names are free."""
    pending = [new]
    while pending:
        node = pending.pop()
        yield node
        pending += node.get("anyOf", ())
        pending += (node[keyword] for keyword in ("items", "additionalProperties") if keyword in node)
        for keyword in ("properties", *CONTAINERS):
            pending += node.get(keyword, {}).values()


def _one(schema: Schema, depth: int) -> dict[str, Any]:
    if depth > MAX_DEPTH:
        _refuse(f"schemas may be nested {MAX_DEPTH} deep", "depth")
    if not isinstance(schema, Mapping):
        return ANYTHING if schema else _refuse("lm-format-enforcer does not compile `false`", "false")
    if "anyOf" in schema or "oneOf" in schema:
        branches = schema.get("anyOf", schema.get("oneOf"))
        return {"anyOf": [_one(child, depth + 1) for child in branches]}
    if "allOf" in schema:
        if len(schema["allOf"]) > 1:
            _refuse("lm-format-enforcer does not compile `allOf` of several schemas", "allOf")
        return _one(schema["allOf"][0], depth + 1)
    if "const" in schema:
        return _values([schema["const"]])
    if "enum" in schema:
        return _values(schema["enum"])
    if "$ref" in schema:
        return {"$ref": schema["$ref"]}
    kind = schema.get("type")
    if kind is None:
        if schema.keys() & {"properties", "items", "pattern", "required", "prefixItems", "not", "if", "contains"}:
            _refuse("lm-format-enforcer does not compile schemas without a `type`", "untyped")
        return ANYTHING
    if isinstance(kind, list):
        return {"anyOf": [_one({**schema, "type": name}, depth + 1) for name in dict.fromkeys(kind)]}
    return _of_type(kind, schema, depth)


def _of_type(kind: str, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
    new: dict[str, Any] = {"type": kind}
    new |= {keyword: schema[keyword] for keyword in _KEPT.get(kind, ()) if keyword in schema}
    if kind == "string":
        _check_string(new)
        if new.get("pattern", "?") in ("", "^", "$", "^$"):  # lm-format-enforcer would ignore these
            return {"type": "string", "enum": [""]} if new["pattern"] == "^$" else {"type": "string"}
    elif kind == "array":
        if new.get("maxItems") == 0 or new.get("minItems", 0) > new.get("maxItems", new.get("minItems", 0)):
            _refuse(
                "lm-format-enforcer does not compile arrays that are empty or impossible",
                "maxItems",
            )
        items = schema.get("items", True)
        if isinstance(items, list) or items is False:
            _refuse("lm-format-enforcer does not compile `items` that are a list or false", "items")
        if items is not True:
            new["items"] = _one(items, depth + 1)
    elif kind == "object":
        additional = schema.get("additionalProperties", True)
        if "properties" in schema or additional is False:
            properties = schema.get("properties", {})
            for name in properties:
                _check_text(name, "properties")
            missing = [name for name in schema.get("required", ()) if name not in properties]
            if missing:
                _refuse(
                    f"lm-format-enforcer does not support undeclared required properties: {missing}",
                    "required",
                )
            new["properties"] = {name: _one(child, depth + 1) for name, child in properties.items()}
        elif isinstance(additional, Mapping):
            new["additionalProperties"] = _one(additional, depth + 1)
    return new


def _check_string(new: Mapping[str, Any]) -> None:
    if "pattern" in new and (new.get("minLength") or new.get("maxLength") is not None):
        _refuse("lm-format-enforcer does not compile `pattern` beside a length", "pattern+maxLength")
    if new.get("minLength", 0) > new.get("maxLength", new.get("minLength", 0)):
        raise InvalidGrammar("no string has at least `minLength` and at most `maxLength` characters here")


def _values(values: list[Any]) -> dict[str, Any]:
    """Return a schema of some values: strings and numbers as they are, other values by their types."""
    branches: list[dict[str, Any]] = []
    strings = [value for value in values if isinstance(value, str)]
    for value in strings:
        _check_text(value, "enum")
    if strings:
        branches.append({"type": "string", "enum": strings})
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers:
        branches.append({"enum": numbers})
    if None in values:
        branches.append({"type": "null"})
    truths = {value for value in values if isinstance(value, bool)}
    if len(truths) == 1 or any(isinstance(value, list | dict) for value in values):
        _refuse("lm-format-enforcer does not compile `true` or `false` alone, arrays and objects as values", "enum")
    if truths:
        branches.append({"type": "boolean"})
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def _check_text(text: str, feature: str) -> None:
    if json.dumps(text, ensure_ascii=False)[1:-1] != text:
        _refuse(f"lm-format-enforcer cannot write the string {text!r:.100}, which JSON escapes", feature)


def _check_references(new: Mapping[str, Any], container: str = "") -> None:
    targets = new.get(container, {})
    for node in _schemas(new):
        if "$ref" in node:
            name = node["$ref"].removeprefix(f"#/{container}/")
            if name == node["$ref"] or name not in targets or set(name) & set("%~/"):
                _refuse("a reference must be to `#/$defs/...` or `#/definitions/...`", "$ref")
    for name in targets:
        _check_ends(name, targets)
    _check_ends("", {**targets, "": {key: value for key, value in new.items() if key not in CONTAINERS}})


def _check_ends(name: str, targets: Mapping[str, Any]) -> None:
    """Refuse a schema that refers to itself without reading anything in between."""
    pending, seen = [targets[name]], {name}
    while pending:
        node = pending.pop()
        pending += node.get("anyOf", ())
        if "$ref" in node:
            target = node["$ref"].rpartition("/")[2]
            if target in seen:
                _refuse("a schema refers to itself without anything in between", "$ref:recursive")
            seen.add(target)
            pending.append(targets[target])


def _check_arrays(new: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
    """Refuse a choice between arrays, which lm-format-enforcer would mix up."""
    for node in _schemas(new):
        if "anyOf" not in node:
            continue
        pending, seen, num_arrays = [node], set[str](), 0
        while pending:
            branch = pending.pop()
            pending += branch.get("anyOf", ())
            num_arrays += branch.get("type") == "array"
            if "$ref" in branch and branch["$ref"] not in seen:
                seen.add(branch["$ref"])
                pending.append(targets[branch["$ref"].rpartition("/")[2]])
        if num_arrays > 1:
            _refuse("lm-format-enforcer does not compile a choice between arrays", "anyOf")


def _refuse(message: str, feature: str) -> NoReturn:
    raise UnsupportedGrammar(message, feature=feature)
