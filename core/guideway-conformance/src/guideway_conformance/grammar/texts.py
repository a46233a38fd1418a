"""Texts of JSON that mean something else than their bytes look like."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from guideway.api import JsonSchema
from guideway.json_schema.prober import cases, spoilt
from guideway.json_schema.validity import validator

from guideway_conformance.grammar.languages import is_output
from guideway_conformance.grammar.samples import Sample, spellings
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

_ID: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}}
_COUNTED: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
_NAMED: dict[str, Any] = {"type": "object", "patternProperties": {"^i": {"type": "integer"}}}


def _equal_in_python() -> Iterator[tuple[dict[str, Any], tuple[bytes, ...]]]:
    """Schemas with a boolean or a number, and the value that JSON tells apart from it and Python does not."""
    for yes, number in ((True, 1), (False, 0)):
        for one, other in ((yes, number), (number, yes)):
            for a, b in ((one, other), ([one], [other]), ({"k": [one]}, {"k": [other]})):
                right, wrong = (json.dumps(value, separators=(",", ":")).encode() for value in (a, b))
                yield {"const": a}, (wrong,)
                yield {"enum": ["x", a]}, (wrong,)
                yield {"enum": [a, "x"], "const": b}, (right, wrong)
                yield {"enum": ["x", a], "not": {"const": a}}, (right, wrong)
            named = "boolean" if isinstance(one, bool) else "integer"
            yield {"type": named, "enum": [one, other]}, (json.dumps(other).encode(),)
            yield {"type": "array", "items": {"enum": [one]}}, (json.dumps([other]).encode(),)
            yield {"type": "object", "properties": {"a": {"const": one}}}, (json.dumps({"a": other}).encode(),)


_WRONG: tuple[tuple[dict[str, Any] | bool, tuple[bytes, ...]], ...] = (
    (True, (b'{"a":1,"a":1}', b'[{"a":{"b":1,"b":2}}]', rb'{"a":1,"\u0061":1}')),
    (
        _ID,
        (rb'{"\u0069d":"x"}', rb'{"i\u0064":"x"}', b'{"id":1,"id":"x"}', rb'{"id":1,"\u0069d":"x"}', b'{"a":1,"a":2}'),
    ),
    ({**_ID, "required": ["id"]}, (rb'{"id":1,"\u0069\u0064":"x"}', b'{"id":1,"id":"x"}')),
    ({**_COUNTED, "minProperties": 2}, (b'{"a":1,"a":2}', rb'{"a":1,"\u0061":2}')),
    ({**_COUNTED, "maxProperties": 1}, (b'{"a":1,"a":2}',)),
    (_NAMED, (rb'{"\u0069":"x"}', b'{"i":1,"i":2}')),
    ({"type": "string", "minLength": 2}, (rb'"\ud83d\ude00"', '"\U0001f600"'.encode())),
    ({"type": "string", "maxLength": 1}, (rb'"\u0061\u0061"', rb'"a\n"')),
    ({"type": "string", "pattern": "^[^a]$"}, (rb'"\u0061"',)),
    ({"type": "integer"}, (b"15e-1", b"1.5e0", b"1e-1")),
    ({"type": "integer", "maximum": 9}, (b"1e1", b"10.0", b"100E-1", b"18446744073709551617")),
    ({"type": "integer", "minimum": 1}, (b"-0", b"0.0", b"-18446744073709551617")),
    ({"type": "number", "exclusiveMinimum": 0}, (b"-0", b"0.00", b"0e5")),
    ({"type": "integer", "multipleOf": 2}, (b"10e-1", b"18446744073709551617")),
    *_equal_in_python(),
)
"""Schemas, and texts that are invalid under each, by what they mean."""


_SIZED: dict[str, tuple[str, str, Callable[[int], Any]]] = {
    "array": ("minItems", "maxItems", lambda n: [None] * n),
    "string": ("minLength", "maxLength", lambda n: n * "a"),
    "object": ("minProperties", "maxProperties", lambda n: dict.fromkeys("abcdef"[:n])),
    "integer": ("minimum", "maximum", lambda n: n),
    "number": ("exclusiveMinimum", "exclusiveMaximum", lambda n: n),
}
"""By type: keywords that bound it from below and above, and an instance of each size."""
_BOUNDS = ((3, 1), (1, 0), (2, 1), (5, 4), (4, 0), (0, 0), (1, 1), (2, 2), (1, 2), (0, 3))
"""Bounds that leave nothing between them, or little."""
_AROUND: tuple[tuple[Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (lambda schema: schema, lambda value: value),
    (lambda schema: {"type": "array", "items": schema}, lambda value: [value]),
    (lambda schema: {"type": "object", "properties": {"z": schema}, "required": ["z"]}, lambda value: {"z": value}),
    (lambda schema: {"anyOf": [schema, {"type": "boolean"}]}, lambda value: value),
)


def _bounded() -> Iterator[dict[str, Any]]:
    """Schemas with a pair of bounds each."""
    items: dict[str, Any] = {"items": {"type": "null"}}
    for name, (least, most, _) in _SIZED.items():
        pairs = (
            [(least, most)]
            if name not in ("integer", "number")
            else [(low, high) for low in ("minimum", "exclusiveMinimum") for high in ("maximum", "exclusiveMaximum")]
        )
        for low, high in pairs:
            for bounds in _BOUNDS:
                schema = {"type": name, low: bounds[0], high: bounds[1]}
                yield {**schema, **items} if name == "array" else schema
    yield {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"], "maxProperties": 1}
    yield {"type": "object", "properties": {"a": {}}, "additionalProperties": False, "minProperties": 2}
    yield {"type": "array", "prefixItems": [{"type": "null"}], "items": False, "minItems": 2}
    yield {"type": "string", "minLength": 3, "pattern": "^a{0,2}$"}


@check("grammar", trait="kind:json_schema", seconds=120)
def bounds_that_cross_leave_nothing(subject: GrammarSubject) -> None:
    """Two keywords that bound an instance from below and above both hold, though they leave little between them or
    nothing, wherever the schema stands: where supports leaves nothing unenforced, no text outside is accepted."""
    strategy, stop = subject.build(), max(standard().stop_token_ids)
    for number, schema in enumerate(_bounded()):
        for around, instance in (_AROUND[0], _AROUND[1 + number % (len(_AROUND) - 1)]):
            whole = around(schema)
            case = compiled_case(strategy, standard(), Sample(JsonSchema(whole)))
            if case is None or case.support.unenforced:
                continue
            is_valid = validator(whole).is_valid
            for size in range(6):
                value = instance(_SIZED[schema["type"]][2](size))
                text = json.dumps(value, separators=(",", ":")).encode()
                if is_valid(value):
                    continue
                accepted = is_output(case.session().matcher, ids_of(standard(), text), stop)
                said = f"with the schema {json.dumps(whole)}, {text.decode()} is accepted, and supports says nothing"
                expect(not accepted, said)


@check("grammar", trait="kind:json_schema", seconds=60)
def texts_are_judged_by_what_they_mean(subject: GrammarSubject) -> None:
    """An invalid text is refused however it is written, where supports leaves nothing unenforced: with a name twice in
    an object, escapes in names, surrogate pairs, numbers with fractions, exponents and many digits, and 1 and 0 in the
    place of true and false."""
    strategy, stop = subject.build(), max(standard().stop_token_ids)
    for schema, texts in _WRONG:
        case = compiled_case(strategy, standard(), Sample(JsonSchema(schema)))
        if case is None or case.support.unenforced:
            continue
        for text in texts:
            accepted = is_output(case.session().matcher, ids_of(standard(), text), stop)
            expect(not accepted, f"with the schema {schema}, {text.decode()} is accepted, and supports says nothing")


_ABOUT_STRINGS = ("pattern", "patternProperties", "propertyNames", "format", "minLength", "maxLength", "type", "enum")
MOST_CHARACTERS = 2000
"""Characters of an instance; longer ones take long, and tell nothing else."""


@check("grammar", trait="kind:json_schema", seconds=240)
def what_is_accepted_is_json(subject: GrammarSubject) -> None:
    """A text that is accepted under a JSON Schema is JSON, whatever supports calls unenforced: in no string, and in no
    name, stands a quote, a backslash or a control character as it is, however often a pattern repeats a class."""
    strategy, stop = subject.build(), max(standard().stop_token_ids)
    for name, schema, right, _ in cases():
        if "+" in name or not name.startswith(_ABOUT_STRINGS):
            continue
        texts = [text for instance in right for text in spellings(instance)[:1] if len(text) < MOST_CHARACTERS]
        case = compiled_case(strategy, standard(), Sample(JsonSchema(schema))) if texts else None
        if case is None:
            continue
        for text in texts:
            if not is_output(case.session().matcher, ids_of(standard(), text), stop):
                continue
            for other in spoilt(text):
                accepted = is_output(case.session().matcher, ids_of(standard(), other), stop)
                said = f"with the schema {json.dumps(schema)}, {other.decode(errors='replace')[-60:]!r} is accepted"
                expect(not accepted, f"{said}, which is no JSON")
