"""The assertions of a JSON Schema, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from guideway.json_schema import kinds
from guideway.json_schema.emptiness import Emptiness
from guideway.json_schema.kinds import kind_of, kinds_of
from guideway.json_schema.patterns import pattern_details, repeats_a_repetition, string_details
from guideway.json_schema.reading import OLD, draft_of
from guideway.json_schema.walking import KEYWORDS, Chain, Schema, resolve, walk

__all__ = ["KEYWORDS", "TYPES", "Assertions", "assertions", "combine", "keywords", "names_by_place", "root_keywords"]

TYPES = tuple(kinds.TYPES)
_ORDER = {keyword: i for i, keyword in enumerate(KEYWORDS)}


_LOW, _HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
_EXCLUDING = frozenset({"exclusiveMinimum", "exclusiveMaximum"})
_BOUNDED = _EXCLUDING | {"allOf", "anyOf", "oneOf", "$ref"}
_COUNTED = frozenset(
    {"minLength", "maxLength", "minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties"}
    | {"multipleOf"}
)
LARGE = 1000
"""Engines ignore larger counts or are slow, so these get a second name: ``multipleOf>1000``."""
MOST_IN_PLACE = 256
"""Maximum schemas of one instance to examine together; with more, bounds count as narrow."""


class Assertions(NamedTuple):
    """The assertions of a checked schema."""

    keywords: frozenset[str]
    """Names, as defined by `keywords`."""
    leaves_names_open: bool
    """True if an object in an instance may have a name that its schema does not list, or if that is uncertain."""


def keywords(schema: Schema) -> frozenset[str]:
    """Return the names of the assertions of a checked schema. For each subschema:

    - its keywords that can make an instance invalid (`KEYWORDS`, ``type``), if the keywords they need are there too;
      ``false`` for a subschema that refuses everything, also by an ``enum`` without values;
    - every pair of them, ``pattern+maxLength``, because engines lose one of two keywords;
    - their combination with ``type``: ``anyOf+type`` if both are there (for ``$ref`` to ``const`` in `KEYWORDS`, which
      need no type); for the others ``minLength+types`` with a list of types, and ``minLength+untyped`` without a type;
    - ``$ref:nested-id`` for a local reference that is relative to an ``$id`` inside the schema, or for a reference by
      name in a schema with such an ``$id``; ``$ref:siblings`` for one with siblings that its draft ignores;
    - instead of the plain name: ``format:date``; ``$ref:remote`` to another document, ``$ref:anchor``,
      and ``$ref:missing`` to nothing;
      ``allOf:several`` and ``patternProperties:several``; ``oneOf:disjoint`` if it is proved that no instance
      satisfies two branches; ``enum:mistyped`` and ``const:mistyped`` if a value is not of the ``type``;
      ``multipleOf:number`` unless type and value are integers; ``required:undeclared`` for names that are not in
      ``properties``; ``minProperties:optional`` with properties that are allowed and not required;
      ``propertyNames:untyped`` unless the names' type is ``string``; ``items:false``; ``items:list`` and
      ``exclusiveMinimum:draft4`` from older drafts;
    - ``pattern:lookaround`` and the like (`pattern_details`); ``pattern:escaped`` if it names a character that JSON
      strings escape, and ``pattern:unescaped`` if a negated class does; ``pattern:repetition`` for a group with ``*``,
      ``+`` or ``{2,}`` in it, followed by ``?`` or ``{1,2}``, which engines get wrong in JSON strings;
      ``pattern:repeat>128`` for a count above 128 in a pattern that may match a character that JSON strings escape,
      and ``pattern:class>127`` for a pattern that may match one and contains a non-ASCII character. The names are also
      used for ``patternProperties``, except for features that engines refuse there;
    - ``maxItems>1000`` and the like for a count above 1,000, in addition to the plain name;
    - ``number:large`` for numbers past 2**53, which engines round; ``number:fraction`` for values like 0.1, which are
      not exact as doubles; and ``number:narrow`` if a bound is exclusive and the other one less than 1 away.
    """
    return assertions(schema).keywords


def assertions(schema: Schema) -> Assertions:
    """Return all assertions of a checked schema, in one walk."""
    found: set[str] = set()
    leaves_names_open = False
    for _, subschema, names in names_by_place(schema):
        found.update(names)
        leaves_names_open = leaves_names_open or _leaves_names_open(subschema)
    return Assertions(frozenset(found), leaves_names_open)


def names_by_place(schema: Schema, place: Chain = None) -> Iterator[tuple[Chain, Schema, Collection[str]]]:
    """Yield each subschema of a checked schema at `place`, with its own place and the names of its assertions, as
    `keywords` defines them; names that result from several subschemas come last."""
    known: dict[frozenset[str], frozenset[str]] = {}
    subschemas = list(walk(schema, place))
    ignores_siblings = draft_of(schema, [node for _, node, _ in subschemas]) <= OLD
    by_name = nested = False
    emptiness = cache(lambda: Emptiness(schema))
    bounded: list[tuple[Chain, Mapping[str, Any]]] = []
    excludes = False
    for chain, subschema, (_, resource) in subschemas:
        if isinstance(subschema, bool):
            yield chain, subschema, () if subschema else ("false",)
            continue
        own, typed, details = _own(subschema, emptiness), subschema.get("type"), set()
        if subschema.get("enum") == []:
            details.add("false")
        whole = subschema
        if ignores_siblings and "$ref" in subschema:
            if len(own) > 1 or not subschema.keys().isdisjoint({"type", "$id", "id"}):
                details.add("$ref:siblings")
            subschema = {"$ref": subschema["$ref"]}
            own, typed = _own(subschema, emptiness), None
        if "$ref:anchor" in own or ("$ref" in own and not _is_schema(resolve(resource, subschema["$ref"]))):
            source = emptiness().source
            if source.is_missing(source.read(whole)):
                own = (own - {"$ref", "$ref:anchor"}) | {"$ref:missing"}
        names, pattern = subschema.get("patternProperties", ()), subschema.get("pattern", "")
        details |= {f"pattern:{detail}" for detail in (*pattern_details(pattern), *string_details(pattern))}
        details |= {
            f"pattern:{detail}"
            for name in names
            for detail in {*pattern_details(name), *string_details(name)} - _REFUSED_IN_NAMES
        }
        if any(map(repeats_a_repetition, (pattern, *names))):
            details.add("pattern:repetition")
        details |= {f"{name}>{LARGE}" for name in _COUNTED & subschema.keys() if subschema[name] > LARGE}
        values = _values(subschema)
        if any(map(_is_large, _numbers([*values, *(subschema[name] for name in _NUMERIC & subschema.keys())]))):
            details.add("number:large")
        if any(map(_is_fraction, _numbers(values))):
            details.add("number:fraction")
        if not subschema.keys().isdisjoint(_BOUNDED):
            bounded.append((chain, subschema))
        excludes = excludes or not subschema.keys().isdisjoint(_EXCLUDING)
        references = own & {"$ref", "$ref:anchor", "$dynamicRef", "$recursiveRef"}
        nested |= resource is not schema
        by_name |= not references <= {"$ref"}
        if resource is not schema and references:
            details.add("$ref:nested-id")
        key = frozenset(own | details | {str(typed)})
        if key not in known:
            beside = (_beside_type(name, typed) for name in own)
            known[key] = frozenset(
                {*own, *details, *_combinations(own), *filter(None, beside), *(() if typed is None else ("type",))}
            )
        yield chain, whole, known[key]
    if nested and by_name:
        yield place, schema, ("$ref:nested-id",)
    for chain, subschema in bounded if excludes else ():
        if _is_narrow(_in_place(subschema, schema)):
            yield chain, subschema, ("number:narrow",)
            return


def _leaves_names_open(schema: Schema) -> bool:
    """Return `Assertions.leaves_names_open` for a subschema by itself."""
    if isinstance(schema, bool):
        return schema
    if not schema.keys().isdisjoint({"const", "enum"}):
        return False
    types = schema.get("type", () if schema.keys() & _APPLIES_OTHERS else TYPES)
    if "object" in types and (schema.get("additionalProperties") is not False or "patternProperties" in schema):
        return True
    return "array" in types and schema.get("items", True) is True


def root_keywords(schema: Schema) -> frozenset[str]:
    """Return the names of the assertions of a checked schema's own keywords, as `keywords` does, without
    subschemas."""
    if isinstance(schema, bool):
        return frozenset() if schema else frozenset({"false"})
    return frozenset(_own(schema, lambda: Emptiness(schema)) | ({"type"} & schema.keys()))


def combine(first: str, second: str) -> str:
    """Return the name of a combination of two keywords, in which all formats are the same."""
    (both,) = _combinations((first, second))
    return both


def _combinations(names: Iterable[str]) -> Iterable[str]:
    names = ("format" if name.startswith("format:") else name for name in names)
    return map("+".join, combinations(sorted(names, key=lambda name: _ORDER[name.partition(":")[0]]), 2))


def _own(schema: Mapping[str, Any], emptiness: Callable[[], Emptiness]) -> set[str]:
    asserting = (keyword for keyword in KEYWORDS if keyword in schema and _asserts(keyword, schema))
    return {_name(keyword, schema, emptiness) for keyword in asserting}


def _numbers(values: list[Any]) -> Iterator[int | float]:
    """Yield the numbers in some values, at any depth."""
    pending = [*values]
    while pending:
        value = pending.pop()
        if isinstance(value, list):
            pending += value
        elif isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, int | float):
            yield value


def _is_large(number: float) -> bool:
    return not -(2**53) <= number <= 2**53


def _is_fraction(number: float) -> bool:
    return f"{number:.17g}" != f"{number:.15g}" and not _is_large(number)


class _InPlace(NamedTuple):
    """A schema of an instance."""

    schema: Mapping[str, Any]
    branches: Mapping[int, int]
    """By id of each ``anyOf`` or ``oneOf`` around it, the index of its branch; -1 for more than one."""

    def is_beside(self, other: _InPlace) -> bool:
        """Return whether both may have to hold: they are not in different branches."""
        return all(-1 in (i, j := other.branches.get(each, i)) or i == j for each, i in self.branches.items())


def _in_place(schema: Mapping[str, Any], root: Schema) -> list[_InPlace]:
    """Return a schema and all schemas that apply to the same instance, except negated and conditional ones."""
    found: list[_InPlace] = []
    seen: set[tuple[int, frozenset[tuple[int, int]]]] = set()
    pending: list[tuple[Any, dict[int, int]]] = [(schema, {})]
    while pending and len(found) < MOST_IN_PLACE:
        node, branches = pending.pop()
        if not isinstance(node, Mapping) or (key := (id(node), frozenset(branches.items()))) in seen:
            continue
        seen.add(key)
        found.append(_InPlace(node, branches))
        pending += ((part, branches) for part in node.get("allOf", ()))
        for keyword in ("anyOf", "oneOf"):
            parts = node.get(keyword, ())
            for i, part in enumerate(parts):
                pending.append((part, {**branches, id(parts): i if branches.get(id(parts), i) == i else -1}))
        reference = node.get("$ref")
        if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
            pending.append((resolve(root, reference), branches))
    return found


def _is_narrow(schemas: Sequence[_InPlace]) -> bool:
    """Return whether a bound is exclusive (also as in draft 4) and the other one less than 1 away."""
    low, high = (
        [
            (each, one)
            for one in schemas
            for each in map(one.schema.get, keywords)
            if isinstance(each, int | float) and not isinstance(each, bool)
        ]
        for keywords in (_LOW, _HIGH)
    )
    if len(schemas) == MOST_IN_PLACE:  # the other bound may be in a schema that was not examined
        return bool(low or high)
    excluded = [one.schema.get(keyword) for one in schemas for keyword in _EXCLUDING]
    if not any(value is not None and value is not False for value in excluded):
        return False
    return any(abs(high_end - low_end) < 1 and one.is_beside(other) for low_end, one in low for high_end, other in high)


def _is_schema(value: object) -> bool:
    return isinstance(value, Mapping | bool)


def _values(schema: Mapping[str, Any]) -> list[Any]:
    """Return the values of ``enum`` and ``const``."""
    return [*schema.get("enum", ()), *([schema["const"]] if "const" in schema else [])]


def _asserts(keyword: str, schema: Mapping[str, Any]) -> bool:
    """Return whether `keyword` has an effect in `schema`."""
    match keyword:
        case "format":
            return "type" not in schema or "string" in schema["type"]
        case "additionalItems":
            return isinstance(schema.get("items"), list)
        case "minContains" | "maxContains":
            return "contains" in schema
        case "if":
            return "then" in schema or "else" in schema
    return True


def _beside_type(name: str, typed: object) -> str | None:
    if name.partition(":")[0] in ("enum", "const"):  # values of another type have another name
        return None
    if name.partition(":")[0] in _NEED_NO_TYPE:
        return None if typed is None else f"{name}+type"
    name = "format" if name.startswith("format:") else name
    return None if isinstance(typed, str) else f"{name}+{'untyped' if typed is None else 'types'}"


def _name(keyword: str, schema: Mapping[str, Any], emptiness: Callable[[], Emptiness]) -> str:
    value = schema[keyword]
    declared = schema.get("properties", {})
    match keyword:
        case "format":
            return f"format:{value}"
        case "$ref" if value != "#" and not value.startswith("#/"):
            return "$ref:anchor" if value.startswith("#") else "$ref:remote"
        case "enum" | "const" if "type" in schema and not _are_of_type(value if keyword == "enum" else [value], schema):
            return f"{keyword}:mistyped"
        case "allOf" if len(value) > 1:
            return "allOf:several"
        case "oneOf" if emptiness().is_exclusive(schema):
            return "oneOf:disjoint"
        case "multipleOf" if schema.get("type") != "integer" or value != int(value):
            return "multipleOf:number"
        case "required" if not all(name in declared for name in value):
            return "required:undeclared"
        case "minProperties" | "maxProperties" if _optional(schema):
            return f"{keyword}:optional"
        case "patternProperties" if len(value) > 1:
            return "patternProperties:several"
        case "propertyNames" if not (isinstance(value, Mapping) and value.get("type") == "string"):
            return "propertyNames:untyped"
        case "items" if isinstance(value, list):
            return "items:list"
        case "items" if value is False:
            return "items:false"
        case "exclusiveMinimum" | "exclusiveMaximum" if isinstance(value, bool):
            return f"{keyword}:draft4"
    return keyword


def _optional(schema: Mapping[str, Any]) -> set[str]:
    """Return the names of declared properties that may be there or not."""
    declared = schema.get("properties", {})
    return {name for name in declared if declared[name] is not False}.difference(schema.get("required", ()))


def _are_of_type(values: list[Any], schema: Mapping[str, Any]) -> bool:
    return all(kind_of(value) & kinds_of(schema["type"]) for value in values)


_NUMERIC = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}

_APPLIES_OTHERS = frozenset({"$ref", "allOf", "anyOf", "oneOf"})
_REFUSED_IN_NAMES = frozenset({"backreference", "boundary", "property"})
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_NEED_NO_TYPE = frozenset({*_REFERENCES, "allOf", "anyOf", "oneOf", "not", "if", "enum", "const"})
