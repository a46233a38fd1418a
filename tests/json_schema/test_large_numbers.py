"""Counts above 128 and 1,000, and classes of characters that JSON escapes: outputs are still JSON."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from guideway.api import JsonSchema, StructuralTag, UnsupportedGrammar
from guideway.json_schema import keywords
from guideway.json_schema.prober import STOP, byte_vocabulary, spoilt

from tests.support.json_strategies import STRATEGIES, build, takes
from tests.support.stages import one_in

STOPS = frozenset({STOP})
PIECES = (
    *(
        ".",
        r"\S",
        r"\W",
        r"\D",
        r"[^\n\r]",
        "[^<>]",
        "[^é]",
        "[!-~]",
        "[ -\U0001f600]",
        r"[\s\S]",
        r"[^\u00e9]",
        "(?:.|x)",
    ),
    *("[a-z]", "[a-zé]", "(?:a|-)", "[A-z]", r"[\w\s-]", "[^ab]", "(?:[^x]b?)"),
)
TEXTS = ("a", "-", "x", "é", "B", " ")


def _draw(random: Random) -> tuple[dict[str, Any], list[Any]]:
    """Generate a schema with an expression that repeats a class, and instances that may satisfy it."""
    piece, most = random.choice(PIECES), random.choice((1, 127, 129, 129, 150))
    pattern = f"^{piece}{random.choice((f'{{1,{most}}}', f'{{{most}}}', f'{{{most},}}'))}$"
    texts = [text * most for text in TEXTS]
    if random.random() < 0.5:
        return {"type": "string", "pattern": pattern}, texts
    names = {"type": "object", "patternProperties": {pattern: {"type": "integer"}}, "additionalProperties": False}
    return names, [{text: 1} for text in texts]


@pytest.mark.parametrize("name", one_in(3, STRATEGIES))
def test_a_class_that_is_repeated_takes_json_alone(name: str) -> None:
    strategy, judged = build(name, byte_vocabulary()), 0
    for seed in range(25):
        schema, instances = _draw(Random(f"{name} {seed}"))
        constraint = JsonSchema(schema)
        if strategy.supports(constraint).refused:
            continue
        try:
            compiled = strategy.compile(constraint)
        except UnsupportedGrammar:
            continue
        texts = (json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() for value in instances)
        text = next((text for text in texts if takes(compiled, text, STOPS)), None)
        if text is not None:
            judged += 1
            assert not [bad for bad in spoilt(text) if takes(compiled, bad, STOPS)], schema
    assert judged > 6


LARGE = ("^.{1,129}$", r"^[^\n\r]{1,150}$", "^[^<>]{1,255}$", r"^\S{1,150}$", "^.{129,}$", "a.{200}")


@pytest.mark.parametrize("pattern", LARGE)
def test_a_large_count_of_what_json_escapes_is_served_by_llguidance_alone(pattern: str) -> None:
    xgrammar, llguidance = (build(name, byte_vocabulary()) for name in ("xgrammar", "llguidance"))
    names = {"type": "object", "patternProperties": {pattern: {}}}
    for schema in ({"type": "string", "pattern": pattern}, names):
        tag = {"type": "tag", "begin": "<", "content": {"type": "json_schema", "json_schema": schema}, "end": ">"}
        for constraint in (JsonSchema(schema), StructuralTag({"type": "structural_tag", "format": tag})):
            assert "pattern:repeat>128" in str(xgrammar.supports(constraint).reason)
            assert not llguidance.supports(constraint).refused


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        ({"type": "string", "pattern": "^.{1,128}$"}, None),
        ({"type": "string", "pattern": "^[a-z]{1,300}$"}, None),
        ({"type": "string", "pattern": r"^\.{1,300}[{]{2}$"}, None),
        ({"type": "string", "pattern": r"^[!-~]{2,}[a-z]{300}$"}, "pattern:repeat>128"),
        ({"type": "string", "pattern": r"^(a|\s){129}$"}, "pattern:repeat>128"),
        ({"type": "integer", "multipleOf": 1000}, None),
        ({"type": "integer", "multipleOf": 1500}, "multipleOf>1000"),
        ({"type": "array", "items": {}, "maxItems": 1001, "minItems": 3}, "maxItems>1000"),
    ],
)  # fmt: skip
def test_names_of_large_numbers(schema: dict[str, Any], name: str | None) -> None:
    assert {found for found in keywords(schema) if ">" in found} == ({name} if name else set())
