"""The position in text with tags, and the shortest outputs of tags with nested JSON."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from guideway.api import Constraint, JsonSchema, StructuralTag
from guideway.json_schema.cursor import START
from guideway.runtime.constraints.closing import Budget, Closer, Reserve
from guideway.runtime.constraints.closing.positions import Position
from guideway.runtime.sequences.replay import new_matcher
from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy
from hypothesis import given
from hypothesis import strategies as st

from tests.support.closing import LEXICON, STOPS, VOCABULARY, record

TAGS = {
    "hermes": ('<tool_call>{"name": "plant", "arguments": ', "}</tool_call>"),
    "function": ("<function=plant>", "</function>"),
    "mistral": ('[TOOL_CALLS] [{"name": "plant", "arguments": ', "}]"),
}
TREE: dict[str, Any] = {
    "$defs": {"t": record(v={"type": "number"}, kids={"type": "array", "items": {"$ref": "#/$defs/t"}})},
    **record(tree={"$ref": "#/$defs/t"}),
}
SCHEMAS = {
    "tree": TREE,
    "nested": record(a=record(b=record(c={"type": "array", "items": {"type": "integer"}, "minItems": 2}))),
    "enums": record(days={"type": "array", "items": {"enum": ["mon", "tue"]}, "minItems": 2}, note={"type": "string"}),
    "word": {"type": "string", "minLength": 2},
    "number": {"type": "integer", "minimum": 10},
}
CONTENTS = ('{"a": [1, {"b": "}"}], "c": "</function>"}', '"}]"', "17", "[[], {}]", "true")


def pieces(text: bytes, cuts: set[int]) -> list[bytes]:
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(places)]


@pytest.mark.parametrize("kind", TAGS)
@pytest.mark.parametrize("content", CONTENTS)
@given(cuts=st.sets(st.integers(1, 120)), before=st.sampled_from(["", "x<func", "a {"]))
def test_a_position_does_not_depend_on_the_tokens(kind: str, content: str, cuts: set[int], before: str) -> None:
    begin, end = TAGS[kind]
    position = Position(begins=tuple(begin.encode() for begin, _ in TAGS.values()))
    for text, is_inside in ((before + begin + content[:-1], True), (content[-1] + end + "so", False)):
        for piece in pieces(text.encode(), cuts):
            position = position.after(piece)
        if is_inside:
            opened = begin.find("{")
            assert position.json == START.after((begin[opened:] * (opened >= 0) + content[:-1]).encode())
        else:
            assert position.json is None


@pytest.mark.parametrize("kind", TAGS)
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("make", [LLGuidanceStrategy, XGrammarStrategy])
def test_the_content_of_a_tag_is_as_short_as_the_schema_alone(make: Any, name: str, kind: str) -> None:
    begin, end = TAGS[kind]
    content = {"type": "json_schema", "json_schema": SCHEMAS[name]}
    tag = {"type": "tag", "begin": begin, "content": content, "end": end}
    alone = shortest(make, JsonSchema(SCHEMAS[name]))
    assert shortest(make, StructuralTag({"type": "structural_tag", "format": tag})) <= len(begin) + alone + len(end)


def shortest(make: Any, constraint: Constraint) -> int:
    strategy = make(VOCABULARY, {})
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    found = Closer(LEXICON, STOPS, Budget(4096, Reserve.of(constraint, VOCABULARY))).shortest(matcher)
    assert found is not None, "no output was found"
    return found
