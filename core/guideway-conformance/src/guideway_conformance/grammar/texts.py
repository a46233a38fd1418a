"""Texts of JSON that mean something else than their bytes look like."""

from __future__ import annotations

from typing import Any

from guideway.api import JsonSchema

from guideway_conformance.grammar.languages import is_output
from guideway_conformance.grammar.samples import Sample
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

_ID: dict[str, Any] = {"type": "object", "properties": {"id": {"type": "integer"}}}
_COUNTED: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
_NAMED: dict[str, Any] = {"type": "object", "patternProperties": {"^i": {"type": "integer"}}}

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
)
"""Schemas, and texts that are invalid under each, by what they mean."""


@check("grammar", trait="kind:json_schema", seconds=60)
def texts_are_judged_by_what_they_mean(subject: GrammarSubject) -> None:
    """An invalid text is refused however it is written, where supports leaves nothing unenforced: with a name twice in
    an object, escapes in names, surrogate pairs, and numbers with fractions, exponents and many digits."""
    strategy, stop = subject.build(), max(standard().stop_token_ids)
    for schema, texts in _WRONG:
        case = compiled_case(strategy, standard(), Sample(JsonSchema(schema)))
        if case is None or case.support.unenforced:
            continue
        for text in texts:
            accepted = is_output(case.session().matcher, ids_of(standard(), text), stop)
            expect(not accepted, f"with the schema {schema}, {text.decode()} is accepted, and supports says nothing")
