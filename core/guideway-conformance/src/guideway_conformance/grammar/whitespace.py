"""White space between JSON tokens, in the words of `guideway.api.Whitespace`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from guideway.api import WHITESPACE, Constraint, JsonObject, JsonSchema, StructuralTag, Whitespace

from guideway_conformance.grammar.languages import is_output
from guideway_conformance.grammar.samples import Sample
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

_VALUE = {"a": [1, "x  y, z: 1"], "b": {"c": []}}
_ANY: dict[str, Any] = {"type": "array", "items": {}}
_CLOSED = {
    "type": "object",
    "properties": {
        "a": {"type": "array", "items": {"type": ["integer", "string"]}},
        "b": {"type": "object", "properties": {"c": {"type": "array"}}, "required": ["c"]},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
_EMPTIES = {
    "type": "object",
    "properties": {
        "a": {"type": "object", "properties": {"c": {"type": "null"}}, "additionalProperties": False},
        "b": {"type": "array", "items": {"type": "null"}},
    },
    "required": ["a", "b"],
    "additionalProperties": False,
}
_SCHEMAS: tuple[tuple[Any, Any], ...] = (
    (_CLOSED, _VALUE),
    (_ANY, [1, [True, {"k": [2, None]}], {}]),
    ({"enum": [_VALUE, "z"]}, _VALUE),
    ({"type": "array", "items": {"type": "integer"}}, [1, 2, 3]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2}, [True, False]),
    ({"type": "object"}, {}),
    ({"type": "object", "properties": {"a": {"type": "null"}}, "additionalProperties": False}, {}),
    ({"type": "array", "items": {"type": "boolean"}}, []),
    (_EMPTIES, {"a": {}, "b": []}),
)
"""Schemas and a value of each: full and empty objects and arrays, alone and in others."""
_BOUNDED = re.compile(r"(?: |\r?\n[ \t]{0,40})?")
_BLANKS = (" ", "\n", "\r\n", "\n" + 20 * " \t", "\r\n" + 40 * " ")
_TOO_MUCH = ("  ", "\t", "\r", "\n\n", " \n", "\n  \r\n", "\n" + 41 * " ", "\r\n" + 41 * "\t", 65 * " ", 80 * "\n")
"""White space that is bounded, and that is not."""


@check("grammar", trait="kind:json_schema", seconds=120)
def white_space_is_what_was_asked_for(subject: GrammarSubject) -> None:
    """Between two JSON tokens stands the white space that the constraint asks for, and never more, and none before the
    first and after the last, whichever was asked for before; where supports cannot promise it, it calls `whitespace`
    unenforced."""
    strategy, stop = subject.build(), max(standard().stop_token_ids)
    for whitespace in (*WHITESPACE, *reversed(WHITESPACE[:-1])):
        for constraint, value, before, after in _constraints(whitespace):
            if constraint.kind not in strategy.kinds:
                continue
            case = compiled_case(strategy, standard(), Sample(constraint))
            if case is None or "whitespace" in case.support.unenforced:
                continue
            for text, allowed in _texts(value, whitespace):
                whole = before + text.encode() + after
                accepted = is_output(case.session().matcher, ids_of(standard(), whole), stop)
                what = f"{constraint.kind} {constraint.source():.60} with whitespace={whitespace!r}"
                expect(
                    allowed is not False or not accepted,
                    f"{what}: {text!r:.200} is accepted, and supports says nothing",
                )
                expect(allowed is not True or accepted, f"{what}: {text!r:.200} is refused")


def _constraints(whitespace: Whitespace) -> Iterator[tuple[Constraint, Any, bytes, bytes]]:
    """Constraints with a value of each, and what stands around it."""
    for schema, value in _SCHEMAS:
        yield JsonSchema(schema, whitespace=whitespace), value, b"", b""
        content = {"type": "json_schema", "json_schema": schema}
        modern = {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": content, "end": ">"}}
        yield StructuralTag(modern, whitespace=whitespace), value, b"<", b">"
    for value in (_VALUE, {}):
        yield JsonObject(whitespace=whitespace), value, b"", b""


def _texts(value: Any, whitespace: Whitespace) -> Iterator[tuple[str, bool | None]]:
    """Texts of a value, and whether each must be an output (True), may be (None) or must not (False)."""
    tokens = list(_tokens(value))
    compact = "".join(tokens)
    spaced = json.dumps(value)
    yield spaced, True if whitespace == "spaced" else False if whitespace == "compact" and spaced != compact else None
    yield compact, whitespace != "spaced" or spaced == compact
    yield f" {compact}", False
    yield f"{compact}\n", False
    for i in range(1, len(tokens)):
        few = (_BLANKS[i % len(_BLANKS)], *(_TOO_MUCH[(i + j) % len(_TOO_MUCH)] for j in range(2)))
        for blanks in (" ", *few):
            text = "".join(tokens[:i]) + blanks + "".join(tokens[i:])
            is_bounded = whitespace == "any" or (whitespace == "bounded" and _BOUNDED.fullmatch(blanks) is not None)
            yield text, None if is_bounded else whitespace == "spaced" and text == spaced


def _tokens(value: Any) -> Iterator[str]:
    match value:
        case dict():
            yield "{"
            for i, (key, item) in enumerate(value.items()):
                yield from ([","] if i else [])
                yield from (json.dumps(key), ":")
                yield from _tokens(item)
            yield "}"
        case list():
            yield "["
            for i, item in enumerate(value):
                yield from ([","] if i else [])
                yield from _tokens(item)
            yield "]"
        case _:
            yield json.dumps(value)
