"""The position in text with tags, and the shortest outputs of tags with nested JSON."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from guideway.api import Constraint, JsonSchema, StructuralTag, Vocabulary
from guideway.json_schema.cursor import START
from guideway.runtime.constraints.closing import Budget, Closer, Lexicon, Reserve
from guideway.runtime.constraints.closing.positions import MOST, Position
from guideway.runtime.sequences.replay import new_matcher
from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xgrammar.builtin_structural_tag import get_model_structural_tag

from tests.support.closing import LEXICON, STOPS, VOCABULARY, allowed_after, drawn, record

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
    position = Reserve.of(tagged({}, kind), VOCABULARY).begin
    for text, is_inside in ((before + begin + content[:-1], True), (content[-1] + end + "so", False)):
        for piece in pieces(text.encode(), cuts):
            position = position.after(piece)
        if is_inside:
            opened = begin.find("{")
            assert position.json == START.after((begin[opened:] * (opened >= 0) + content[:-1]).encode())
        else:
            assert position.json is None


@given(text=st.text(alphabet='<>ab= {}"', max_size=60), cuts=st.sets(st.integers(1, 60)))
def test_cuts_change_nothing_in_elements(text: str, cuts: set[int]) -> None:
    begin = position = Position(begins=((b">{", b"{"), (b"<a>", b"")))
    for piece in pieces(text.encode(), cuts):
        position = position.after(piece)
    byte_by_byte = begin
    for byte in text.encode():
        byte_by_byte = byte_by_byte.after(bytes((byte,)))
    assert position == byte_by_byte


@pytest.mark.parametrize("piece", [b"so <so ", b"so", b"<b" * 8])
def test_a_position_in_free_text_stays_small(piece: bytes) -> None:
    position = Position(begins=((b"<function=plant>", b""),))
    for _ in range(400):
        position = position.after(piece)
    assert len(position.written) < 20
    assert len(position.element) <= MOST


def test_a_special_token_may_begin_a_tag() -> None:
    mark = len(VOCABULARY)
    vocabulary = Vocabulary((*VOCABULARY.tokens, b""), STOPS, {mark: "<tool_call>"}, mark + 1)
    reserve = Reserve.of(tagged({}, "hermes"), vocabulary)
    closer = Closer(Lexicon(vocabulary), STOPS, Budget(4096, reserve))
    rest = [LEXICON.ids[bytes((byte,))] for byte in b'{"name": "plant", "arguments": {"a": [']
    closer.accept([mark, *rest])
    json = closer._position(len(rest) + 1).json
    assert json is not None
    assert len(json.open) == 3


@pytest.mark.parametrize("kind", TAGS)
@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("make", [LLGuidanceStrategy, XGrammarStrategy])
def test_the_content_of_a_tag_is_as_short_as_the_schema_alone(make: Any, name: str, kind: str) -> None:
    begin, end = TAGS[kind]
    alone = shortest(make, JsonSchema(SCHEMAS[name]))
    assert shortest(make, tagged(SCHEMAS[name], kind)) <= len(begin) + alone + len(end)


@pytest.mark.parametrize("model", ["minimax", "cohere", "qwen_3_coder", "deepseek_v3_1", "deepseek_v3_2", "kimi_k3"])
def test_a_required_call_is_found_among_more_of_them(model: str) -> None:
    tool = {"type": "function", "function": {"name": "plant", "parameters": TREE, "strict": True}}
    tag = get_model_structural_tag(model, [tool], "required", reasoning=False).model_dump(mode="json")
    assert shortest(XGrammarStrategy, StructuralTag(tag)) < 400


MODELS = (
    *("cohere", "deepseek_r1", "deepseek_v3_1", "deepseek_v3_2", "deepseek_v4", "deepseek_v4_1", "exaone", "glm_4_7"),
    *("kimi", "kimi_k3", "llama", "mimo", "minimax", "minimax_m3", "qwen_3", "qwen_3_5", "qwen_3_coder"),
)
SCALARS: tuple[dict[str, Any], ...] = (
    *({"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 10}, {"type": "boolean"}),
    *({"enum": ["celsius", "kelvin"]}, {"type": ["string", "null"]}),
)
ARGUMENTS = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: st.one_of(
        st.builds(lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, st.integers(0, 2)),
        st.builds(lambda x, y: {**record(x=x, y=y), "required": ["x"]}, inner, inner),
    ),
    max_leaves=3,
)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=4, derandomize=True)
@example(schema=TREE, more=0, is_named=True)
@example(schema=record(text={"type": "string"}), more=4, is_named=True)
@given(
    schema=st.builds(record, a=ARGUMENTS, b=ARGUMENTS) | st.builds(record, city=ARGUMENTS),
    more=st.sampled_from([0, 4, 8]),
    is_named=st.booleans(),
)
def test_a_call_is_whole_from_its_shortest_length_on(
    model: str, schema: dict[str, Any], more: int, is_named: bool
) -> None:
    tool = {"type": "function", "function": {"name": "plant", "parameters": schema, "strict": True}}
    choice = {"type": "function", "function": {"name": "plant"}} if is_named else "required"
    tag = get_model_structural_tag(model, [tool], choice, reasoning="disabled", parallel_tool_calls=False)
    strategy, constraint = XGrammarStrategy(VOCABULARY, {}), StructuralTag(tag.model_dump(mode="json"))
    grammar, reserve = strategy.compile(constraint), Reserve.of(constraint, VOCABULARY)
    least = shortest(XGrammarStrategy, constraint)
    assert least <= reserve.level + reserve.growth, "the shortest output is searched for where it may not fit"
    assert drawn(strategy, grammar, Budget(least + more, reserve), least) is not None


@pytest.mark.parametrize("length", [{"minLength": 1}, {"maxLength": 100}])
def test_an_element_whose_length_is_bounded_ends_at_its_end(length: dict[str, int]) -> None:
    schema = record(query={"type": "string", **length})
    tool = {"type": "function", "function": {"name": "plant", "parameters": schema, "strict": True}}
    named = {"type": "function", "function": {"name": "plant"}}
    tag = get_model_structural_tag("qwen_3_coder", [tool], named, reasoning="disabled").model_dump(mode="json")
    begin, end = "<tool_call>\n<function=plant>\n<parameter=query>", "</parameter>\n</function>\n</tool_call>"
    assert shortest(XGrammarStrategy, StructuralTag(tag)) <= len(begin) + 2 + len(end)


@pytest.mark.parametrize("model", ["qwen_3_coder", "glm_4_7"])
def test_an_argument_of_any_name_is_whole(model: str) -> None:
    tool = {"type": "function", "function": {"name": "plant", "parameters": {"type": "object"}, "strict": False}}
    named = {"type": "function", "function": {"name": "plant"}}
    tag = get_model_structural_tag(model, [tool], named, reasoning="disabled").model_dump(mode="json")
    strategy, constraint = XGrammarStrategy(VOCABULARY, {}), StructuralTag(tag)
    grammar, reserve = strategy.compile(constraint), Reserve.of(constraint, VOCABULARY)
    begun = {"qwen_3_coder": b"<tool_call>\n<function=plant>\n<parameter=q", "glm_4_7": b"<tool_call>plant<arg_key>q"}
    matcher, closer = new_matcher(strategy, grammar, STOPS), Closer(LEXICON, STOPS, Budget(4096, reserve))
    token_ids = [LEXICON.ids[bytes((byte,))] for byte in begun[model]]
    assert matcher.accept(token_ids) == len(token_ids)
    closer.accept(token_ids)
    assert closer.shortest(matcher) is not None


@pytest.mark.parametrize("first", [b"<tool_call>", b"<tool_call>\n<function="])
def test_a_call_that_does_not_fit_does_not_begin_with_its_first_line_either(first: bytes) -> None:
    tool = {"type": "function", "function": {"name": "plant", "parameters": record(at={"type": "integer"})}}
    tag = get_model_structural_tag("qwen_3_coder", [tool], "auto", reasoning="disabled").model_dump(mode="json")
    strategy, constraint = XGrammarStrategy(VOCABULARY, {}), StructuralTag(tag)
    grammar, reserve = strategy.compile(constraint), Reserve.of(constraint, VOCABULARY)
    for limit, fits in ((60, False), (140, True)):
        matcher, closer = new_matcher(strategy, grammar, STOPS), Closer(LEXICON, STOPS, Budget(limit, reserve))
        for byte in first[:-1]:
            if LEXICON.ids[bytes((byte,))] not in allowed_after(matcher, closer):
                assert not fits
                break
            matcher.accept((LEXICON.ids[bytes((byte,))],))
            closer.accept((LEXICON.ids[bytes((byte,))],))
        else:
            assert (LEXICON.ids[first[-1:]] in allowed_after(matcher, closer)) is fits


def tagged(schema: Any, kind: str) -> StructuralTag:
    begin, end = TAGS[kind]
    content = {"type": "json_schema", "json_schema": schema}
    tag = {"type": "tag", "begin": begin, "content": content, "end": end}
    return StructuralTag({"type": "structural_tag", "format": tag})


def shortest(make: Any, constraint: Constraint) -> int:
    strategy = make(VOCABULARY, {})
    matcher = new_matcher(strategy, strategy.compile(constraint), STOPS)
    found = Closer(LEXICON, STOPS, Budget(4096, Reserve.of(constraint, VOCABULARY))).shortest(matcher)
    assert found is not None, "no output was found"
    return found
