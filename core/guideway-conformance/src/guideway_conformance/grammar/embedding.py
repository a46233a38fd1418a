"""Schemas that are parts of others: what is said of a keyword, and what is done, is the same wherever it stands."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from guideway.api import JsonSchema
from guideway.json_schema import KEYWORDS, keywords
from guideway.json_schema.prober import cases

from guideway_conformance.grammar.languages import is_output
from guideway_conformance.grammar.samples import Sample, spellings
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

MOST_WRONG = 3
"""The wrong instances of a schema that are tried in a place."""
PLACES_EACH = 1
"""The places in which instances of a schema are tried, other ones of the next schema; names are looked at in all."""


_OF_NAMES = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies", "$defs"})
"""Keywords whose value has schemas by name."""


class Place(NamedTuple):
    """A schema around another one, and the instance around one of that."""

    name: str
    schema: Callable[[Any], dict[str, Any]]
    instance: Callable[[Any], Any]


def _object(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", **keywords}


def _same(instance: Any) -> Any:
    return instance


_PLACES = (
    Place("items", lambda s: {"type": "array", "items": s}, lambda v: [v]),
    Place("properties", lambda s: _object(properties={"a": s}), lambda v: {"a": v}),
    Place("additionalProperties", lambda s: _object(additionalProperties=s), lambda v: {"z": v}),
    Place("prefixItems", lambda s: {"type": "array", "prefixItems": [s, {"type": "null"}]}, lambda v: [v, None]),
    Place("patternProperties", lambda s: _object(patternProperties={"^a": s}), lambda v: {"a": v}),
    Place("anyOf", lambda s: {"anyOf": [s]}, _same),
    Place("oneOf", lambda s: {"oneOf": [s]}, _same),
    Place("allOf", lambda s: {"allOf": [s]}, _same),
    Place("$ref", lambda s: {"$ref": "#/$defs/x", "$defs": {"x": s}}, _same),
    Place("items of items", lambda s: {"type": "array", "items": {"type": "array", "items": s}}, lambda v: [[v]]),
    Place(
        "items of properties, closed",
        lambda s: _object(
            properties={"a": {"type": "array", "items": s}, "b": {"type": "null"}},
            required=["a", "b"],
            additionalProperties=False,
        ),
        lambda v: {"a": [v], "b": None},
    ),
    Place(
        "anyOf of items",
        lambda s: {"type": "array", "items": {"anyOf": [s, {"const": "none of them"}]}, "minItems": 1},
        lambda v: [v],
    ),
    Place(
        "a reference of properties",
        lambda s: {**_object(properties={"a": {"$ref": "#/$defs/x"}}, required=["a"]), "$defs": {"x": s}},
        lambda v: {"a": v},
    ),
    Place("annotations beside it", lambda s: {"title": "t", **s, "default": None}, _same),
)


def _schemas() -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    """The cases of one keyword each, where one can be part of another schema: a reference is to the root."""
    for name, schema, _, wrong in cases():
        if "+" not in name and isinstance(schema, dict) and "$ref" not in json.dumps(schema):
            yield name, schema, wrong


def _without_parts(schema: Any, unenforced: frozenset[str]) -> Any:
    """The schema without the schemas of keywords that go unenforced, as all in them does then."""
    if isinstance(schema, list):
        return [_without_parts(each, unenforced) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: _without_parts(value, unenforced) for key, value in schema.items()}
    for key in _names(unenforced) & schema.keys():
        if isinstance(schema[key], dict):
            found[key] = {} if key in _OF_NAMES else True
        elif isinstance(schema[key], list) and any(isinstance(each, dict) for each in schema[key]):
            found[key] = [True]
    return found


def _names(names: Iterable[str]) -> set[str]:
    """The keywords that are named, in combinations too."""
    return {part.partition(":")[0] for name in names for part in name.split("+")}


@check("grammar", trait="kind:json_schema", seconds=60)
def keywords_of_parts_are_named(subject: GrammarSubject) -> None:
    """Each keyword of a part of a schema is named as those of the schema itself are, enforced or unenforced, wherever
    the part stands: below items, properties and all other keywords that have schemas, and behind a reference."""
    strategy, seen = subject.build(), set[str]()
    for name, schema, _ in _schemas():
        if name in seen:
            continue
        seen.add(name)
        for place in _PLACES:
            whole = place.schema(schema)
            support = strategy.supports(JsonSchema(whole))
            if support.refused:
                continue
            wanted = _names(keywords(_without_parts(whole, support.unenforced))) & set(KEYWORDS)
            lacking = sorted(wanted - _names(support.enforced | support.unenforced))
            expect(not lacking, f"of {json.dumps(whole)} supports says nothing of {lacking}, neither this nor that")


@check("grammar", tier="extended", trait="kind:json_schema", seconds=300)
def keywords_of_parts_are_enforced(subject: GrammarSubject) -> None:
    """No instance whose part breaks the schema of that part is accepted where supports leaves nothing unenforced,
    wherever the part stands."""
    strategy, stop = subject.build(), max(standard().stop_token_ids)
    for number, (name, schema, wrong) in enumerate(_schemas()):
        for place in [_PLACES[(number + 5 * i) % len(_PLACES)] for i in range(PLACES_EACH)]:
            whole = place.schema(schema)
            case = compiled_case(strategy, standard(), Sample(JsonSchema(whole)))
            if case is None or case.support.unenforced:
                continue
            for instance in wrong[:: max(1, len(wrong) // MOST_WRONG)]:
                text = spellings(place.instance(instance))[0]
                expect(
                    not is_output(case.session().matcher, ids_of(standard(), text), stop),
                    f"{name} in {place.name} is not among what supports calls unenforced, but with the schema "
                    f"{json.dumps(whole)} the instance {text.decode()} is accepted",
                )
