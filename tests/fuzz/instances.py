"""Values made to be valid under a schema, and values and texts near them. A judge decides whether they are valid."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any

from guideway.api.types import Whitespace
from guideway.json_schema import TYPES, resolve

from tests.fuzz.values import NAMES, NUMBERS, STRINGS, VALUES
from tests.support.json_texts import writings

__all__ = ["edit", "edit_text", "instance", "write"]

MAX_DEPTH = 6


def instance(random: Random, schema: Any) -> Any:
    """Return a value that should fit `schema`."""
    return _Maker(random, schema).value(schema, 0)


class _Maker:
    def __init__(self, random: Random, root: Any) -> None:
        self._random = random
        self._root = root

    def value(self, schema: Any, depth: int) -> Any:
        random = self._random
        if not isinstance(schema, Mapping):
            return random.choice(VALUES)
        node = self._flat(schema, 0)
        if "const" in node:
            return node["const"]
        if "enum" in node:
            return random.choice(node["enum"])
        kinds = node.get("type", _kinds_of(node))
        kind = kinds if isinstance(kinds, str) else random.choice(kinds or TYPES)
        match kind:
            case "null":
                return None
            case "boolean":
                return random.random() < 0.5
            case "string":
                return self._string(node)
            case "object":
                return self._object(node, depth)
            case "array":
                return self._array(node, depth)
        return self._number(node, kind)

    def _flat(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Merge a schema with one choice of the schemas that it applies."""
        found = {key: value for key, value in schema.items() if key not in _APPLYING}
        if depth > MAX_DEPTH:
            return found
        random, applied = self._random, []
        if isinstance(schema.get("$ref"), str):
            applied.append(resolve(self._root, schema["$ref"]))
        applied += schema.get("allOf", ())
        applied += (random.choice(schema[keyword]) for keyword in ("anyOf", "oneOf") if keyword in schema)
        if "if" in schema:
            applied += [schema["if"], schema.get("then")] if random.random() < 0.5 else [schema.get("else")]
        applied += (s for s in schema.get("dependentSchemas", {}).values() if random.random() < 0.5)
        for other in applied:
            if isinstance(other, Mapping):
                found = _merge(found, self._flat(other, depth + 1))
        return found

    def _string(self, node: Mapping[str, Any]) -> str:
        random = self._random
        text: str = random.choice(STRINGS)
        if "pattern" in node:
            text = random.choice(
                ("a", "b", "ab", "aa", "bb", "abb", "é", "1", "12", "123", "", "abcd", '"', "/", "\\", "A")
            )
        least, most = int(node.get("minLength", 0)), int(node.get("maxLength", 20))
        if random.random() < 0.2:
            most = min(most, least)
        text += "".join(random.choice("aab1") for _ in range(least - len(text)))
        return text[: max(most, 0)]

    def _number(self, node: Mapping[str, Any], kind: str) -> Any:
        random = self._random
        edges = [node[key] for key in _BOUNDS if isinstance(node.get(key), int | float) and node[key] is not True]
        step = node.get("multipleOf", 1)
        near = [edge + d * step for edge in edges for d in (-1, 0, 0, 1)] + [random.choice(NUMBERS)]
        number = random.choice(near)
        if "multipleOf" in node and random.random() < 0.7:
            number = round(number / step) * step
        return int(number) if kind == "integer" and random.random() < 0.9 else number

    def _object(self, node: Mapping[str, Any], depth: int) -> dict[str, Any]:
        random = self._random
        declared, required = node.get("properties", {}), node.get("required", ())
        names = [name for name in declared if name in required or random.random() < (0.6 if depth < 4 else 0.1)]
        names += [name for name in required if name not in declared]
        for name in [*names]:
            names += (other for other in node.get("dependentRequired", {}).get(name, ()) if other not in names)
        is_open = node.get("additionalProperties") is not False or "patternProperties" in node
        more = random.choice((0, 0, 1, 2)) if is_open else 0
        least, most = int(node.get("minProperties", 0)), int(node.get("maxProperties", 9))
        names += [name for name in random.sample(NAMES, len(NAMES)) if name not in names][
            : max(more, least - len(names))
        ]
        return {name: self._member(node, name, depth) for name in dict.fromkeys(names[: max(most, 0)])}

    def _member(self, node: Mapping[str, Any], name: str, depth: int) -> Any:
        applying = [node["properties"][name]] if name in node.get("properties", {}) else []
        patterns = node.get("patternProperties", {})
        applying += (patterns[p] for p in patterns if p.strip("^$[]+.") in name)
        schema = self._random.choice(applying or [node.get("additionalProperties", True)])
        return self._below(schema, depth)

    def _array(self, node: Mapping[str, Any], depth: int) -> list[Any]:
        random = self._random
        listed = node.get("prefixItems", node["items"] if isinstance(node.get("items"), list) else [])
        rest = node.get("additionalItems" if isinstance(node.get("items"), list) else "items", True)
        least, most = int(node.get("minItems", 0)), int(node.get("maxItems", 6))
        length = max(least, random.choice((0, 1, 2, 3, len(listed)))) if depth < 4 else least
        length = min(length, most, len(listed) if rest is False else 9)
        schemas = [*listed, *[rest] * (length - len(listed))][:length]
        if "contains" in node and schemas:
            schemas[random.randrange(len(schemas))] = node["contains"]
        return [self._below(schema, depth) for schema in schemas]

    def _below(self, schema: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            return self._random.choice((None, 1, "a", [], {}))
        return self.value(schema, depth + 1)


_APPLYING = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "$defs", "definitions"}
)
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_LARGER = frozenset({"minLength", "minItems", "minProperties"})
_SMALLER = frozenset({"maxLength", "maxItems", "maxProperties"})


def _kinds_of(node: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the type that the keywords of a schema without type imply."""
    if node.keys() & {"properties", "required", "patternProperties", "propertyNames", "minProperties", "maxProperties"}:
        return ("object",)
    if node.keys() & {"items", "prefixItems", "minItems", "maxItems", "contains", "uniqueItems"}:
        return ("array",)
    if node.keys() & {"pattern", "minLength", "maxLength"}:
        return ("string",)
    return ("number",) if node.keys() & {*_BOUNDS, "multipleOf"} else TYPES


def _merge(one: dict[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    found = {**one, **other}
    for keyword in one.keys() & other.keys():
        ours, theirs = one[keyword], other[keyword]
        if keyword in ("properties", "patternProperties"):
            found[keyword] = {**ours, **theirs}
        elif keyword == "required":
            found[keyword] = [*ours, *theirs]
        elif keyword == "type":
            kinds = [ours] if isinstance(ours, str) else ours
            both = [kind for kind in ([theirs] if isinstance(theirs, str) else theirs) if kind in kinds]
            found[keyword] = both or theirs
        elif keyword in _LARGER:
            found[keyword] = max(ours, theirs)
        elif keyword in _SMALLER:
            found[keyword] = min(ours, theirs)
    return found


def edit(random: Random, value: Any) -> Any:
    """Return `value` with one change: a property dropped, renamed, added or moved; an item dropped, doubled or added; a
    string or number changed a little; or any value replaced by another."""
    places: list[tuple[Any, Any]] = []
    copied = json.loads(json.dumps([value]))
    pending: list[Any] = [copied]
    while pending:
        node = pending.pop()
        for key in range(len(node)) if isinstance(node, list) else [*node]:
            places.append((node, key))
            if isinstance(node[key], list | dict):
                pending.append(node[key])
    holder, key = random.choice(places)
    holder[key] = _change(random, holder[key])
    return copied[0]


def _change(random: Random, value: Any) -> Any:
    if random.random() < 0.15:
        return random.choice((random.choice(VALUES), [value], {random.choice(NAMES): value}))
    match value:
        case bool() | None:
            return random.choice((None, True, False, 0, 1, "null"))
        case str():
            i = random.randint(0, len(value))
            return random.choice(
                (
                    value[:i] + value[i + 1 :],
                    value[:i] + random.choice('ab1é😀\n"\\') + value[i:],
                    random.choice(STRINGS),
                )
            )
        case int() | float():
            changes = (value + 1, value - 1, -value, value * 10, value + 0.5, str(value), random.choice(NUMBERS))
            return random.choice(changes)
        case list():
            return _change_list(random, value)
    return _change_object(random, value)


def _change_list(random: Random, value: list[Any]) -> list[Any]:
    i = random.randint(0, len(value))
    if value and random.random() < 0.7:
        return random.choice((value[:i] + value[i + 1 :], [*value, random.choice(value)], value[::-1]))
    return [*value[:i], random.choice(VALUES), *value[i:]]


def _change_object(random: Random, value: dict[str, Any]) -> dict[str, Any]:
    members, other = list(value.items()), random.choice(NAMES)
    if not members or random.random() < 0.3:
        return {**value, other: random.choice(VALUES)}
    i = random.randrange(len(members))
    match random.randrange(3):
        case 0:
            del members[i]
        case 1:
            members[i] = (other, members[i][1])
        case 2:
            random.shuffle(members)
    return dict(members)


def write(random: Random, value: Any, whitespace: Whitespace) -> str:
    """Return a text of a value, mostly the plain one with this white space, else one with unusual spelling or a
    repeated name."""
    separators = (", ", ": ") if whitespace == "spaced" else (",", ":")
    if random.random() < 0.6:
        return json.dumps(value, ensure_ascii=False, separators=separators)
    texts = [text for _, text in writings(value)]
    return random.choice(texts)


def edit_text(random: Random, text: str) -> str:
    """Return `text` with one character dropped, doubled or replaced."""
    i = random.randrange(len(text)) if text else 0
    return random.choice(
        (text[:i] + text[i + 1 :], text[: i + 1] + text[i:], text[:i] + random.choice(_CHARACTERS) + text[i + 1 :])
    )


_CHARACTERS = '{}[]",:01.eE+- \nab\\/un\x7f\x00é'
