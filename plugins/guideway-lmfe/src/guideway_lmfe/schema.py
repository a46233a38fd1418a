"""JSON Schemas rewritten for lm-format-enforcer.

It reads one keyword of a schema; keywords that it does not know make it fail while it decodes, or worse, are ignored.
So a schema is rewritten with the keywords that it knows, and refused where it would fail later.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from guideway.api import InvalidGrammar, UnsupportedGrammar
from guideway.json_schema import Chain, Pointer, Schema

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


class Rewriting:
    """A checked schema, rewritten for lm-format-enforcer. Raises `InvalidGrammar` and `UnsupportedGrammar`."""

    def __init__(self, schema: Schema) -> None:
        self._places: dict[int, Chain] = {}
        """The places in `schema` of the rewritten subschemas, by id."""
        whole = self._one(schema, None, 0)  # lives as long as the ids are taken
        self.schema = dict(whole)
        self._places[id(self.schema)] = None
        if not isinstance(schema, Mapping):
            return
        containers = [name for name in CONTAINERS if name in schema]
        if len(containers) > 1:
            _refuse(None, "a schema may have `$defs` or `definitions`, not both", "$ref")
        for name in containers:
            here = (None, name)
            self.schema[name] = {key: self._one(child, (here, key), 0) for key, child in schema[name].items()}
        self._check_references(*containers)
        self._check_arrays(self.schema[containers[0]] if containers else {})

    def patterns(self) -> Iterator[tuple[Pointer, str]]:
        """Yield every ``pattern``, as lm-format-enforcer looks it up, with its place."""
        for node in _schemas(self.schema):
            if "pattern" in node:
                yield Pointer((self._places[id(node)], "pattern")), node["pattern"].removeprefix("^").removesuffix("$")

    def _one(self, schema: Schema, place: Chain, depth: int) -> dict[str, Any]:
        new = self._rewrite(schema, place, depth)
        self._places.setdefault(id(new), place)
        return new

    def _rewrite(self, schema: Schema, place: Chain, depth: int) -> dict[str, Any]:
        if depth > MAX_DEPTH:
            _refuse(place, f"schemas may be nested {MAX_DEPTH} deep", "depth")
        if not isinstance(schema, Mapping):
            return ANYTHING if schema else _refuse(place, "lm-format-enforcer does not compile `false`", "false")
        if "anyOf" in schema or "oneOf" in schema:
            keyword = "anyOf" if "anyOf" in schema else "oneOf"
            here = (place, keyword)
            return {"anyOf": [self._one(child, (here, i), depth + 1) for i, child in enumerate(schema[keyword])]}
        if "allOf" in schema:
            if len(schema["allOf"]) > 1:
                _refuse((place, "allOf"), "lm-format-enforcer does not compile `allOf` of several schemas", "allOf")
            return self._one(schema["allOf"][0], ((place, "allOf"), 0), depth + 1)
        if "const" in schema:
            return _values([schema["const"]], (place, "const"))
        if "enum" in schema:
            return _values(schema["enum"], (place, "enum"))
        if "$ref" in schema:
            return {"$ref": schema["$ref"]}
        kind = schema.get("type")
        if kind is None:
            if schema.keys() & {"properties", "items", "pattern", "required", "prefixItems", "not", "if", "contains"}:
                _refuse(place, "lm-format-enforcer does not compile schemas without a `type`", "untyped")
            return ANYTHING
        if isinstance(kind, list):
            return {"anyOf": [self._one({**schema, "type": name}, place, depth + 1) for name in dict.fromkeys(kind)]}
        return self._of_type(kind, schema, place, depth)

    def _of_type(self, kind: str, schema: Mapping[str, Any], place: Chain, depth: int) -> dict[str, Any]:
        new: dict[str, Any] = {"type": kind}
        new |= {keyword: schema[keyword] for keyword in _KEPT.get(kind, ()) if keyword in schema}
        if kind == "string":
            _check_string(new, place)
            if new.get("pattern", "?") in ("", "^", "$", "^$"):  # lm-format-enforcer would ignore these
                return {"type": "string", "enum": [""]} if new["pattern"] == "^$" else {"type": "string"}
        elif kind == "array":
            if new.get("maxItems") == 0 or new.get("minItems", 0) > new.get("maxItems", new.get("minItems", 0)):
                message = "lm-format-enforcer does not compile arrays that are empty or impossible"
                _refuse((place, "maxItems"), message, "maxItems")
            items = schema.get("items", True)
            if isinstance(items, list) or items is False:
                message = "lm-format-enforcer does not compile `items` that are a list or false"
                _refuse((place, "items"), message, "items")
            if items is not True:
                new["items"] = self._one(items, (place, "items"), depth + 1)
        elif kind == "object":
            additional = schema.get("additionalProperties", True)
            if "properties" in schema or additional is False:
                properties = schema.get("properties", {})
                here = (place, "properties")
                for name in properties:
                    _check_text(name, here, "properties")
                missing = [name for name in schema.get("required", ()) if name not in properties]
                if missing:
                    message = f"lm-format-enforcer does not support undeclared required properties: {missing}"
                    _refuse((place, "required"), message, "required")
                new["properties"] = {
                    name: self._one(child, (here, name), depth + 1) for name, child in properties.items()
                }
            elif isinstance(additional, Mapping):
                new["additionalProperties"] = self._one(additional, (place, "additionalProperties"), depth + 1)
        return new

    def _check_references(self, container: str = "") -> None:
        new = self.schema
        targets = new.get(container, {})
        for node in _schemas(new):
            if "$ref" in node:
                name = node["$ref"].removeprefix(f"#/{container}/")
                if name == node["$ref"] or name not in targets or set(name) & set("%~/"):
                    message = "a reference must be to `#/$defs/...` or `#/definitions/...`"
                    _refuse((self._places[id(node)], "$ref"), message, "$ref")
        for name in targets:
            self._check_ends(name, targets)
        self._check_ends("", {**targets, "": {key: value for key, value in new.items() if key not in CONTAINERS}})

    def _check_ends(self, name: str, targets: Mapping[str, Any]) -> None:
        """Refuse a schema that refers to itself without reading anything in between."""
        pending, seen = [targets[name]], {name}
        while pending:
            node = pending.pop()
            pending += node.get("anyOf", ())
            if "$ref" in node:
                target = node["$ref"].rpartition("/")[2]
                if target in seen:
                    message = "a schema refers to itself without anything in between"
                    _refuse((self._places.get(id(node)), "$ref"), message, "$ref:recursive")
                seen.add(target)
                pending.append(targets[target])

    def _check_arrays(self, targets: Mapping[str, Any]) -> None:
        """Refuse a choice between arrays, which lm-format-enforcer would mix up."""
        for node in _schemas(self.schema):
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
                _refuse(self._places[id(node)], "lm-format-enforcer does not compile a choice between arrays", "anyOf")


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


def _check_string(new: Mapping[str, Any], place: Chain) -> None:
    if "pattern" in new and (new.get("minLength") or new.get("maxLength") is not None):
        _refuse(place, "lm-format-enforcer does not compile `pattern` beside a length", "pattern+maxLength")
    if new.get("minLength", 0) > new.get("maxLength", new.get("minLength", 0)):
        raise InvalidGrammar(f"{Pointer(place)}: no string has at least `minLength` and at most `maxLength` characters")


def _values(values: list[Any], place: Chain) -> dict[str, Any]:
    """Return a schema of some values: strings and numbers as they are, other values by their types."""
    branches: list[dict[str, Any]] = []
    strings = [value for value in values if isinstance(value, str)]
    for value in strings:
        _check_text(value, place, "enum")
    if strings:
        branches.append({"type": "string", "enum": strings})
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if numbers:
        branches.append({"enum": numbers})
    if None in values:
        branches.append({"type": "null"})
    truths = {value for value in values if isinstance(value, bool)}
    if len(truths) == 1 or any(isinstance(value, list | dict) for value in values):
        message = "lm-format-enforcer does not compile `true` or `false` alone, arrays and objects as values"
        _refuse(place, message, "enum")
    if truths:
        branches.append({"type": "boolean"})
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def _check_text(text: str, place: Chain, feature: str) -> None:
    if json.dumps(text, ensure_ascii=False)[1:-1] != text:
        _refuse(place, f"lm-format-enforcer cannot write the string {text!r:.100}, which JSON escapes", feature)


def _refuse(place: Chain, message: str, feature: str) -> NoReturn:
    raise UnsupportedGrammar(f"{Pointer(place)}: {message}", feature=feature)
