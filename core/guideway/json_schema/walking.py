"""Iterate over the subschemas of a JSON Schema without recursion, so that depth needs no stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote

from guideway.errors import InvalidGrammar

__all__ = [
    "IN_PLACE_APPLICATORS",
    "KEYWORDS",
    "Chain",
    "Pointer",
    "Resource",
    "Schema",
    "changed",
    "parts_of",
    "refuse",
    "resolve",
    "subschemas",
    "walk",
]

KEYWORDS: tuple[str, ...] = (
    *("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "enum", "const"),
    *("format", "pattern", "minLength", "maxLength"),
    *("multipleOf", "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    *("properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "propertyNames"),
    *("required", "dependentRequired", "dependentSchemas", "dependencies", "minProperties", "maxProperties"),
    *("prefixItems", "items", "additionalItems", "unevaluatedItems", "contains", "minContains", "maxContains"),
    *("minItems", "maxItems", "uniqueItems"),
)
"""The keywords that can make an instance invalid, except ``type``. Names of combinations use this order. ``then`` and
``else`` count as ``if``."""

Schema: TypeAlias = Mapping[str, Any] | bool

ONE_SCHEMA = frozenset(
    {"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
SCHEMA_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SCHEMA_MAPS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})

Chain: TypeAlias = "tuple[Chain, str | int] | None"
"""A JSON pointer as nested pairs of the parent's chain and the last part."""

Resource: TypeAlias = "tuple[Chain, Schema]"
"""A schema that local references are relative to, the whole schema or a part with an ``$id``, as a pair with its
place."""


class Pointer:
    """A JSON pointer. It is converted to text, such as ``#/properties/a``, only by `str`: the texts of all pointers
    would be as long as the schema's depth times its size, and few are needed."""

    __slots__ = ("_chain",)

    def __init__(self, chain: Chain) -> None:
        self._chain = chain

    def __str__(self) -> str:
        return "/".join(["#", *(str(part).replace("~", "~0").replace("/", "~1") for part in parts_of(self._chain))])


def parts_of(chain: Chain) -> list[str | int]:
    """Return the parts of a JSON pointer, first to last."""
    parts = []
    while chain is not None:
        chain, part = chain
        parts.append(part)
    return parts[::-1]


IN_PLACE_APPLICATORS = frozenset({"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if"})
"""Keywords that apply other schemas to the same value (JSON Schema 2020-12, Core, section 10.2, and references)."""


def subschemas(schema: Schema) -> Iterator[tuple[Pointer, Schema]]:
    """Yield every subschema of a checked schema with its JSON pointer: the schema itself (``#``), its parts, ``$defs``
    and the targets of local references, each once. A boolean that is a keyword's whole value
    (``additionalProperties: false``) belongs to that keyword and is not included."""
    for pointer, subschema, _ in walk(schema):
        yield Pointer(pointer), subschema


def resolve(schema: object, reference: str) -> Any:
    """Return the target of the local `reference` (``#`` or ``#/...``) in `schema`; None if it has none."""
    for part in reference.split("/")[1:]:
        key = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(schema, Mapping):
            schema = schema.get(key)
        elif isinstance(schema, Sequence) and not isinstance(schema, str) and _is_index(key, len(schema)):
            schema = schema[int(key)]
        else:
            return None
    return schema


def _is_index(key: str, length: int) -> bool:
    # reject numbers that are too long for `int`
    return key.isdecimal() and len(key) <= len(str(length)) and int(key) < length


def walk(schema: Schema, place: Chain = None) -> Iterator[tuple[Chain, Schema, Resource]]:
    """Yield every subschema of a schema at `place`, in document order; also of unchecked schemas. Raises
    `InvalidGrammar` for malformed ones."""
    whole: Resource = (place, schema)
    is_old = isinstance(schema, Mapping) and "/draft-0" in str(schema.get("$schema"))
    begins_resource = _begins_resource_of_old if is_old else _begins_resource
    pending: list[tuple[Chain, Any, Resource]] = [(place, schema, whole)]
    seen: set[int] = set()
    while pending:
        pointer, node, resource = pending.pop()
        if isinstance(node, bool):
            yield pointer, node, resource
            continue
        if not isinstance(node, Mapping):
            refuse(pointer, "a subschema", "an object or a boolean", node)
        if id(node) in seen:  # a reference into it, or one object used twice by the caller
            continue
        seen.add(id(node))
        if node is not schema and begins_resource(node):
            resource = (pointer, node)
        yield pointer, node, resource
        children = [(where, child, resource) for where, child in _children(pointer, node, resource)]
        pending.extend(reversed(children))


def changed(schema: Schema, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Schema:
    """Return a copy of a checked schema with each subschema that is an object changed. `change` gets a new dict with
    the parts of the original."""
    nodes = {id(node) for _, node, _ in walk(schema)}
    top: list[Any] = [None]
    pending: list[tuple[Any, Any, Any]] = [(schema, top, 0)]
    while pending:
        value, holder, key = pending.pop()
        if isinstance(value, Mapping):
            new = dict(value)
            holder[key] = new = change(new) if id(value) in nodes else new
            pending += ((each, new, name) for name, each in new.items())
        elif isinstance(value, list):
            holder[key] = [None] * len(value)
            pending += ((each, holder[key], i) for i, each in enumerate(value))
        else:
            holder[key] = value
    copy: Schema = top[0]
    return copy


def _begins_resource(node: Mapping[str, Any]) -> bool:
    return _is_address(node.get("$id"))


def _begins_resource_of_old(node: Mapping[str, Any]) -> bool:
    return "$ref" not in node and (_is_address(node.get("$id")) or _is_address(node.get("id")))


def _is_address(value: object) -> bool:
    return isinstance(value, str) and not value.startswith("#")  # an anchor in old drafts


def _children(pointer: Chain, node: Mapping[str, Any], resource: Resource) -> Iterator[tuple[Chain, Any]]:
    for keyword, value in node.items():
        here: Chain = (pointer, keyword)
        if keyword in SCHEMA_MAPS and isinstance(value, Mapping):
            for name, child in value.items():
                if keyword != "dependencies" or not isinstance(child, list):
                    yield (here, name), child
        elif isinstance(value, list) and (keyword in SCHEMA_LISTS or keyword == "items"):
            for i, child in enumerate(value):
                yield (here, i), child
        elif keyword in ONE_SCHEMA and not isinstance(value, bool):
            yield here, value
        elif keyword == "$ref" and isinstance(value, str) and value.startswith("#/"):
            chain, root = resource
            target = resolve(root, value)
            if isinstance(target, Mapping | bool):
                for part in value.split("/")[1:]:
                    chain = (chain, unquote(part).replace("~1", "/").replace("~0", "~"))
                yield chain, target


def refuse(pointer: Chain, what: str, accepted: str, value: object) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else shown[:57] + "..."
    raise InvalidGrammar(f"{Pointer(pointer)}: {what} must be {accepted}, not {shown}", field="constraint.schema")
