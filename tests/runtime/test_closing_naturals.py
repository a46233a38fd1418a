"""An answer that fits is the model's own: near the end, only tokens after which no completion is found are excluded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import product
from random import Random
from typing import Any

import jsonschema
import numpy as np
import pytest
from guideway.api import Choice, Constraint, Grammar, GrammarStrategy, JsonSchema, Matcher, Regex, StructuralTag
from guideway.api.bitmask import is_allowed, unpack
from guideway.api.vocabulary import Vocabulary
from guideway.runtime.constraints.bans import Bans, MaskBans
from guideway.runtime.constraints.closing import Budget, Closer, Lexicon, Record, Reserve
from guideway.runtime.sequences.replay import new_matcher
from guideway.vocabulary import build_vocabulary
from guideway_llguidance.strategy import Strategy as LLGuidanceStrategy
from guideway_xgrammar.strategy import Strategy as XGrammarStrategy
from hypothesis import example, given, settings
from hypothesis import strategies as st
from xgrammar.builtin_structural_tag import get_model_structural_tag

import tests.vocabulary.tokenizers_under_test as samples
from tests.support.closing import STOPS, record
from tests.support.closing import VOCABULARY as BYTES

STRATEGIES = [LLGuidanceStrategy, XGrammarStrategy]
PERSON = record(name={"type": "string", "maxLength": 40}, age={"type": "integer"})
ORDER = record(
    id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
    state={"enum": ["open", "paid", "sent back"]},
    tags={"type": "array", "items": {"type": "string"}},
    to=record(city={"type": "string"}, day={"type": "string", "format": "date"}),
    total={"type": "number"},
)
CALL = '<tool_call>\n{"name": "weather", "arguments": '
TAG = {
    "begin": CALL,
    "content": {"type": "json_schema", "json_schema": record(city={"type": "string"}, unit={"enum": ["C", "F"]})},
    "end": "}\n</tool_call>",
}
TEXT = "Let me look that up for you, one moment please.\n"


@cache
def vocabulary() -> Vocabulary:
    return build_vocabulary(samples.demo())


@cache
def lexicon() -> Lexicon:
    return Lexicon(vocabulary())


@cache
def strategy_of(cls: type[GrammarStrategy]) -> GrammarStrategy:
    return cls(vocabulary(), {})


def write(
    cls: type[GrammarStrategy], constraint: Constraint, wanted: bytes, num_tokens: int | None = None, *, more: int = 0
) -> tuple[int, bytes, str]:
    """Return how many tokens of `wanted` a model wrote that writes it where it may, its text, and why it ended. It may
    write `num_tokens`; None: as many as `wanted` has, and a stop token, and `more`."""
    strategy, stops = strategy_of(cls), vocabulary().stop_token_ids
    token_ids: Sequence[int] = [*(vocabulary().encode(wanted) or ()), min(stops)]
    budget = Budget(len(token_ids) + more if num_tokens is None else num_tokens, Reserve.of(constraint, vocabulary()))
    matcher, closer = new_matcher(strategy, strategy.compile(constraint), stops), Closer(lexicon(), stops, budget)
    row, output, num_own = np.zeros((1, lexicon().words), dtype=np.int32), list[int](), 0
    while len(output) < budget.num_tokens and not matcher.is_terminated():
        matcher.fill_bitmask(row, 0)
        if not closer.is_far(1):
            closer.restrict(matcher, (), row)
        token_id = token_ids[num_own] if num_own == len(output) < len(token_ids) else -1
        if token_id >= 0 and is_allowed(row, 0, token_id):
            num_own += 1
        else:
            token_id = int(np.flatnonzero(unpack(row, len(vocabulary()))[0])[0])
        assert matcher.accept((token_id,)) == 1
        closer.accept((token_id,))
        output.append(token_id)
    return num_own, vocabulary().decode([i for i in output if i not in stops]), ending(matcher)


def ending(matcher: Matcher) -> str:
    """Return why an output ended: ``whole`` is text that is complete without a stop token."""
    return "stop" if matcher.is_terminated() else "whole" if matcher.is_accepting() else "cut"


texts = st.text(st.sampled_from("aeZq 7-é€"), min_size=2, max_size=12)
people = st.builds(lambda name, age: {"name": name, "age": age}, texts, st.integers(0, 130))
orders = st.builds(
    lambda number, state, tags, city, day, total: {
        "id": number,
        "state": state,
        "tags": tags,
        "to": {"city": city, "day": str(day)},
        "total": total / 100,
    },
    st.from_regex("[A-Z]{2}-[0-9]{4}", fullmatch=True),
    st.sampled_from(["open", "paid", "sent back"]),
    st.lists(texts, max_size=3),
    texts,
    st.dates(),
    st.integers(0, 9999),
)


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@given(answer=st.one_of(people, orders), spaced=st.booleans(), more=st.sampled_from([0, 1, 2, 4, 8]))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_an_answer_that_fits_is_the_models_own(
    cls: type[GrammarStrategy], answer: dict[str, Any], spaced: bool, more: int
) -> None:
    constraint = JsonSchema(PERSON if "age" in answer else ORDER)
    wanted = json.dumps(answer, ensure_ascii=False, separators=(", ", ": ") if spaced else (",", ":")).encode()
    _, text, ended = write(cls, constraint, wanted, more=more)
    assert ended == "stop"
    assert text == wanted


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("num_tokens", [24, 28, 36])
def test_an_answer_that_does_not_fit_is_complete(cls: type[GrammarStrategy], num_tokens: int) -> None:
    wanted = json.dumps({"name": "a" * 40, "age": 12345678901234567890}).encode()
    _, text, ended = write(cls, JsonSchema(PERSON), wanted, num_tokens)
    assert ended == "stop"
    jsonschema.validate(json.loads(text), PERSON)


LINKED = record(value={"type": "integer"}, next={"anyOf": [{"$ref": "#"}, {"type": "null"}]})


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@example(numbers=[5], spaced=False, more=8)
@example(numbers=[1, 22, 333], spaced=False, more=8)
@given(
    numbers=st.lists(st.integers(0, 999), min_size=1, max_size=3),
    spaced=st.booleans(),
    more=st.sampled_from([0, 1, 2, 4, 8]),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_a_linked_list_that_fits_is_the_models_own(
    cls: type[GrammarStrategy], numbers: list[int], spaced: bool, more: int
) -> None:
    answer = None
    for number in numbers:
        answer = {"value": number, "next": answer}
    wanted = json.dumps(answer, separators=(", ", ": ") if spaced else (",", ":")).encode()
    assert write(cls, JsonSchema(LINKED), wanted, more=more)[1] == wanted


ESCAPES = Vocabulary(
    [*(bytes([i]) for i in range(256)), rb"\u", rb"\u00", rb"a\\", b""], frozenset({259}), {259: "</s>"}
)


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
def test_a_string_with_room_may_go_on_in_any_way(cls: type[GrammarStrategy]) -> None:
    """Near the end too, escapes and characters that have begun included."""
    stops, text = ESCAPES.stop_token_ids, b'{"name":"an'
    strategy, lexicon, constraint = cls(ESCAPES, {}), Lexicon(ESCAPES), JsonSchema(PERSON)
    matcher = new_matcher(strategy, strategy.compile(constraint), stops)
    closer = Closer(lexicon, stops, Budget(len(text) + 20, Reserve.of(constraint, ESCAPES)))
    assert matcher.accept(tuple(text)) == len(text)
    closer.accept(tuple(text))
    row = np.zeros((1, lexicon.words), dtype=np.int32)
    matcher.fill_bitmask(row, 0)
    assert closer.restrict(matcher, (), row) is None
    assert closer.records[0].texts


def test_a_carriage_return_needs_room_for_its_line_feed() -> None:
    stops, text = ESCAPES.stop_token_ids, b'{"name":"","age":1'
    strategy, lexicon, constraint = XGrammarStrategy(ESCAPES, {}), Lexicon(ESCAPES), JsonSchema(PERSON)
    matcher = new_matcher(strategy, strategy.compile(constraint), stops)
    closer = Closer(lexicon, stops, Budget(len(text) + 3, Reserve.of(constraint, ESCAPES)))
    assert matcher.accept(tuple(text)) == len(text)
    closer.accept(tuple(text))
    row = np.zeros((1, lexicon.words), dtype=np.int32)
    matcher.fill_bitmask(row, 0)
    assert is_allowed(row, 0, ord("\r")), "the test needs it"
    closer.restrict(matcher, (), row)
    assert [is_allowed(row, 0, ord(each)) for each in "}\n\r"] == [True, True, False]


BESIDE = [("a", "big"), (".", "+-"), ("a", "!")]


@pytest.mark.parametrize(
    ("cls", "other", "name"),
    [*((cls, *names) for cls in STRATEGIES for names in BESIDE), (LLGuidanceStrategy, "a", "bi")],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_name_that_asks_for_a_value_that_does_not_fit_is_not_ended(
    cls: type[GrammarStrategy], other: str, name: str
) -> None:
    """Tokens that end a declared name are judged by themselves, and where patterns declare names, one by one: which
    value follows depends on the name. By itself xgrammar allows no names beside those of patterns."""
    short, long = f'{other}"'.encode(), f'{name}"'.encode()
    tokens = Vocabulary([*(bytes([i]) for i in range(256)), short, long, b""], frozenset({258}), {258: "</s>"})
    constraint = JsonSchema(
        {
            "type": "object",
            "patternProperties" if name == "bi" else "properties": {name: {"const": "b" * 30}},
            "additionalProperties": {"type": "integer"},
        }
    )
    strategy, lexicon, text = cls(tokens, {}), Lexicon(tokens), b'{"'
    matcher = new_matcher(strategy, strategy.compile(constraint), tokens.stop_token_ids)
    closer = Closer(lexicon, tokens.stop_token_ids, Budget(len(text) + 8, Reserve.of(constraint, tokens)))
    assert matcher.accept(tuple(text)) == len(text)
    closer.accept(tuple(text))
    row = np.zeros((1, lexicon.words), dtype=np.int32)
    matcher.fill_bitmask(row, 0)
    assert is_allowed(row, 0, 256) and is_allowed(row, 0, 257), "the test needs it"
    closer.restrict(matcher, (), row)
    assert [is_allowed(row, 0, token_id) for token_id in (256, 257)] == [True, False]


PIECES = (b'":', b'": ', b', "', b',"', b'": "', b'":"', b'", "', b'{"', b"name", b"age", b": ", b'""', b' "')


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@given(pieces=st.sets(st.sampled_from(PIECES)), whitespace=st.sampled_from(["bounded", "compact", "spaced"]))
@example(pieces={b'": ', b', "', b"name", b"age"}, whitespace="bounded")
@settings(max_examples=12, deadline=None, derandomize=True)
def test_blanks_between_tokens_of_json_compete(cls: type[GrammarStrategy], pieces: set[bytes], whitespace: Any) -> None:
    tokens = (*BYTES.tokens, *sorted(pieces))
    split = Vocabulary(tokens, STOPS, BYTES.special_tokens, len(tokens))
    words, strategy = Lexicon(split), cls(split, {})
    constraint = JsonSchema(record(name={"type": "string"}, age={"type": "integer"}), whitespace=whitespace)
    grammar, reserve = strategy.compile(constraint), Reserve.of(constraint, split)
    matcher, parts = new_matcher(strategy, grammar, STOPS), ["{", '"name"', ":", '""', ",", '"age"', ":", "0", "}"]
    texts = ("".join(map("".join, zip(parts, blanks, strict=False))) + "}" for blanks in product(("", " "), repeat=8))
    paths = [[*(words.spell(text.encode()) or ()), min(STOPS)] for text in texts]
    least = min(len(path) for path in paths if matcher.validate(tuple(path)) == len(path))
    assert Closer(words, STOPS, Budget(99, reserve)).shortest(matcher) == least
    closer, row, output = Closer(words, STOPS, Budget(least, reserve)), np.zeros((1, words.words), np.int32), []
    while not matcher.is_terminated() and len(output) < least:
        matcher.fill_bitmask(row, 0)
        closer.restrict(matcher, (), row)
        output.append(int(np.flatnonzero(unpack(row, len(split))[0])[0]))
        assert matcher.accept(output[-1:]) == 1
        closer.accept(output[-1:])
    assert matcher.is_terminated()


@pytest.mark.parametrize("pattern", ["(?s:.*)", "[^a]*"])
def test_text_that_is_complete_loses_nothing_but_unfinished_characters(pattern: str) -> None:
    strategy, stops, constraint = strategy_of(LLGuidanceStrategy), vocabulary().stop_token_ids, Regex(pattern)
    for left in (1, 2, 8):
        closer = Closer(lexicon(), stops, Budget(left, Reserve.of(constraint, vocabulary())))
        matcher, row = (
            new_matcher(strategy, strategy.compile(constraint), stops),
            np.zeros((2, lexicon().words), np.int32),
        )
        matcher.fill_bitmask(row, 0)
        row[1] = row[0]
        closer.restrict(matcher, (), row[1:])
        before, after = unpack(row, len(vocabulary()))
        lost = [vocabulary().tokens[i] for i in np.flatnonzero(before & ~after)]
        assert not [token for token in lost if token.decode(errors="ignore").encode() == token]


def tags(*, required: bool) -> StructuralTag:
    return StructuralTag(
        {
            "type": "structural_tag",
            "format": {
                "type": "triggered_tags",
                "triggers": ["<tool_call>"],
                "tags": [TAG],
                "at_least_one": required,
                "stop_after_first": required,
            },
        }
    )


def call(**arguments: str) -> str:
    return CALL + json.dumps(arguments) + "}\n</tool_call>"


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
def test_a_call_is_whole_or_is_not_begun_and_text_is_the_models_own(cls: type[GrammarStrategy]) -> None:
    wanted = (TEXT + call(city="Oslo, Norway", unit="C")).encode()
    size = len(vocabulary().encode(wanted) or ())
    num_free = len(vocabulary().encode(TEXT.encode()) or ())
    for num_tokens in range(4, size + 12, 5):
        num_own, text, ended = write(cls, tags(required=False), wanted, num_tokens)
        assert ended in ("stop", "whole")
        assert text.count(b"<tool_call>") == text.count(b"</tool_call>")
        assert num_own >= min(num_tokens, num_free), "free text lost a token"
        if num_tokens > size:
            assert text == wanted


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("more", [0, 1, 4, 8])
def test_a_required_call_that_fits_is_the_models_own(cls: type[GrammarStrategy], more: int) -> None:
    wanted = call(city="Oslo, Norway", unit="F").encode()
    _, text, ended = write(cls, tags(required=True), wanted, more=more)
    assert ended == "stop"
    assert text == wanted


TOOLS: dict[str, dict[str, Any]] = {
    "weather": record(city={"type": "string", "maxLength": 12}, unit={"enum": ["celsius", "fahrenheit"]}),
    "book": record(
        legs={"type": "array", "items": record(to={"type": "string", "pattern": "^[A-Z]{3}$"}), "minItems": 1}
    ),
    "ping": {"type": "object", "properties": {}, "additionalProperties": False},
}
ARGUMENTS = {
    "weather": '{"city": "Oslo", "unit": "celsius"}',
    "book": '{"legs": [{"to": "OSL"}, {"to": "CPH"}]}',
    "ping": "{}",
}


def of_both_spellings(names: Sequence[str], before: str, *, required: bool) -> StructuralTag:
    """Return the tags of vLLM 0.32 for its parser `hermes`: each tool is there with line feeds and without."""
    tags = [
        {
            "type": "tag",
            "begin": f'{before}<tool_call>{line}{{"name": "{name}", "arguments": ',
            "content": {"type": "json_schema", "json_schema": TOOLS[name]},
            "end": f"}}{line}</tool_call>",
        }
        for name in names
        for line in ("\n", "")
    ]
    several = {"type": "tags_with_separator", "tags": tags, "separator": "", "at_least_one": True}
    triggered = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": tags}
    return StructuralTag({"type": "structural_tag", "format": several if required else triggered})


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("names", [["weather"], ["book"], ["ping"], list(TOOLS)], ids=len)
@pytest.mark.parametrize("required", [True, False])
def test_any_of_several_tags_may_be_the_models_own(
    cls: type[GrammarStrategy], names: list[str], required: bool
) -> None:
    constraint = of_both_spellings(names, "", required=required)
    for name, line, more in product(names, ["\n", ""], [0, 1, 4, 16]):
        call = f'<tool_call>{line}{{"name": "{name}", "arguments": {ARGUMENTS[name]}}}{line}</tool_call>'
        wanted = ("" if required else "Let me look. ") + call
        assert write(cls, constraint, wanted.encode(), more=more)[1:] == (wanted.encode(), "stop")


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("before", ["", "<tool_calls>\n"])
def test_the_shortest_call_is_that_of_the_tool_with_the_shortest_call(cls: type[GrammarStrategy], before: str) -> None:
    alone = shortest(cls, of_both_spellings(["ping"], before, required=True))
    assert shortest(cls, of_both_spellings(list(TOOLS), before, required=True)) == alone


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("value", [True, {"type": "number"}])
def test_a_value_ends_before_a_tag_that_ends_with_white_space_first(cls: type[GrammarStrategy], value: Any) -> None:
    tag = {
        "begin": "<call>book\n```json\n",
        "content": {"type": "json_schema", "json_schema": value},
        "end": "\n```</call>",
    }
    constraint = StructuralTag({"type": "structural_tag", "format": {"type": "tag", **tag}})
    assert shortest(cls, constraint) <= 2 + len(vocabulary().encode(b"<call>book\n```json\n0\n```</call>") or ())


CALLS = {
    "deepseek_r1": (
        "<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>function<\uff5ctool▁sep\uff5c>plan\n```json\n",
        "\n```<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>",
    ),
    "deepseek_v3_1": (
        "<\uff5ctool▁calls▁begin\uff5c><\uff5ctool▁call▁begin\uff5c>plan<\uff5ctool▁sep\uff5c>",
        "<\uff5ctool▁call▁end\uff5c><\uff5ctool▁calls▁end\uff5c>",
    ),
    "kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.plan:0<|tool_call_argument_begin|>",
        "<|tool_call_end|><|tool_calls_section_end|>",
    ),
    "llama": ('{"name": "plan", "parameters": ', "}"),
    "harmony": ("<|channel|>commentary to=functions.plan<|constrain|>json<|message|>", "<|call|>"),
    "qwen_3": ('<tool_call>\n{"name": "plan", "arguments": ', "}\n</tool_call>"),
}
"""By model, as xgrammar names it: the text of a call before and after its arguments."""
values = st.recursive(
    st.one_of(texts, st.integers(-99, 9999), st.booleans(), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(texts, inner, max_size=2)),
    max_leaves=3,
)


def any_call(model: str, choice: str) -> StructuralTag:
    """Return the tag of calls of one tool with any arguments."""
    tool = {"type": "function", "function": {"name": "plan", "parameters": {"type": "object"}, "strict": False}}
    named = {"type": "function", "function": {"name": "plan"}}
    tag = get_model_structural_tag(model, [tool], named if choice == "named" else choice, reasoning="disabled")
    return StructuralTag(tag.model_dump(mode="json"))


@pytest.mark.parametrize("model", CALLS)
@example(arguments={"city": "Oslo", "days": [{"at": 7, "on": True}]}, choice="required", spaced=True, more=0)
@example(arguments={"city": "Oslo, Norway", "unit": "celsius"}, choice="required", spaced=True, more=0)
@given(
    arguments=st.dictionaries(texts, values, max_size=3),
    choice=st.sampled_from(["required", "named"]),
    spaced=st.booleans(),
    more=st.sampled_from([0, 1, 2, 4, 8]),
)
@settings(max_examples=8, deadline=None, derandomize=True)
def test_a_call_with_any_arguments_is_the_models_own(
    model: str, arguments: dict[str, Any], choice: str, spaced: bool, more: int
) -> None:
    tag = any_call(model, choice)
    begin, end = CALLS[model]
    inner = json.dumps(arguments, ensure_ascii=False, separators=(", ", ": ") if spaced else (",", ":"))
    wanted = (begin + inner + end).encode()
    assert write(XGrammarStrategy, tag, wanted, more=more)[1] == wanted


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("more", [0, 1, 4, 16])
def test_any_of_several_tags_in_a_tag_may_be_the_models_own(cls: type[GrammarStrategy], more: int) -> None:
    tags = [
        {
            "type": "tag",
            "begin": f"<|plamo:begin_tool_request:plamo|><|plamo:tool_name:plamo|>{name}<|plamo:end_tool_name:plamo|>",
            "content": {"type": "json_schema", "json_schema": True},
            "end": "<|plamo:end_tool_arguments:plamo|><|plamo:end_tool_request:plamo|>",
        }
        for name in TOOLS
    ]
    several = {"type": "tags_with_separator", "tags": tags, "separator": "", "at_least_one": True}
    constraint = StructuralTag(
        {
            "type": "structural_tag",
            "format": {
                "type": "tag",
                "begin": "<|plamo:requests:plamo|>",
                "content": several,
                "end": "<|plamo:end_requests:plamo|>",
            },
        }
    )
    for name, arguments in ARGUMENTS.items():
        begin, end = next((tag["begin"], tag["end"]) for tag in tags if name in tag["begin"])
        wanted = f"<|plamo:requests:plamo|>{begin}{arguments}{end}<|plamo:end_requests:plamo|>".encode()
        assert write(cls, constraint, wanted, more=more)[1:] == (wanted, "stop")


@pytest.mark.parametrize("name", ["qwen_3_coder", "mimo"])
@pytest.mark.parametrize("choice", ["required", "named"])
@example(arguments={"city": "Oslo, Norway", "unit": "celsius"}, more=4)
@given(arguments=st.dictionaries(st.sampled_from(["city", "unit"]), texts, max_size=2), more=st.integers(0, 8))
@settings(max_examples=4, deadline=None, derandomize=True)
def test_a_call_with_elements_of_any_name_is_the_models_own(
    name: str, choice: str, arguments: dict[str, str], more: int
) -> None:
    tag = any_call(name, choice)
    lines = {"qwen_3_coder": "\n", "mimo": ""}[name]
    inner = "".join(f"<parameter={key}>{value}</parameter>" for key, value in arguments.items())
    wanted = f"<tool_call>{lines}<function=plan>{lines}{inner}{lines}</function>{lines}</tool_call>".encode()
    assert write(XGrammarStrategy, tag, wanted, more=more)[1] == wanted


FIXED = "no, never again, not once! "
UNLIKE = [
    Regex(FIXED),
    Regex("(ab|cd|[e-g]{2}){3,}z"),
    Regex("w*z|kc|w+kc{8}"),  # masks that are equal in states with other ends
    Regex("w*z|kc{6}|w+kc"),
    Choice(("yes, of course", "no, never", "perhaps later")),
    JsonSchema(PERSON),
    JsonSchema(ORDER),
]


def draw(
    cls: type[GrammarStrategy],
    constraint: Constraint,
    bans: Bans,
    num_tokens: int | None,
    random: Random,
    rebuilt: bool = False,
) -> tuple[list[int], str]:
    """Draw an output from its masks without its stop token, in `num_tokens` tokens or else in as many as the shortest
    that is found has; return it and why it ended, as `write` does. A `rebuilt` closer is made anew from its record and
    the output in each step, as one that another process goes on with."""
    strategy, stops, size = strategy_of(cls), vocabulary().stop_token_ids, len(vocabulary())
    matcher, reserve = new_matcher(strategy, strategy.compile(constraint), stops), Reserve.of(constraint, vocabulary())
    num_tokens = num_tokens or Closer(lexicon(), stops, Budget(80, reserve, bans)).shortest(matcher) or 80
    budget = Budget(num_tokens, reserve, bans)
    closer, masks = Closer(lexicon(), stops, budget), MaskBans(bans, stops, lexicon().words)
    row, output = np.zeros((1, lexicon().words), dtype=np.int32), list[int]()
    while len(output) < num_tokens and not matcher.is_terminated():
        matcher.fill_bitmask(row, 0)
        if not closer.is_far(1):
            closer.restrict(matcher, (), row)
        masks.restrict(row, [0], output, [])
        output.append(random.choice(np.flatnonzero(unpack(row, size)[0]).tolist()))
        assert matcher.accept(output[-1:]) == 1
        closer.accept(output[-1:])
        if rebuilt:
            record = Record.from_json(json.loads(json.dumps(closer.record.to_json())))
            closer = Closer(lexicon(), stops, budget, record)
            closer.write(0, list(output))
    return [token_id for token_id in output if token_id not in stops], ending(matcher)


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@given(
    constraint=st.sampled_from(UNLIKE),
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=16),
    num_biased=st.sampled_from([0, 0, 30]),
    stop=st.sampled_from([(), (), (b"er",), (b"a", b'"')]),
    more=st.sampled_from([0, 1, 4, 20]),
    seed=st.integers(0, 1000),
)
@settings(max_examples=15, deadline=None, derandomize=True)
def test_outputs_with_bans_are_complete_and_the_same_from_a_record(
    cls: type[GrammarStrategy],
    constraint: Constraint,
    sizes: list[int],
    num_biased: int,
    stop: tuple[bytes, ...],
    more: int,
    seed: int,
) -> None:
    random = Random(seed)
    drawn, _ = draw(cls, constraint, Bans(), 80, random)
    begins = [(random.randrange(max(1, len(drawn) - size + 1)), size) for size in sizes]
    bans = Bans(
        bad_words=tuple(sorted({tuple(drawn[begin : begin + size]) for begin, size in begins})),
        logit_bias=frozenset(random.sample(range(len(vocabulary())), num_biased)),
        stop=stop,
    )
    budget = None
    if more:
        shortest, _ = draw(cls, constraint, bans, None, Random(seed))
        budget = len(shortest) + 1 + more
    outputs = [draw(cls, constraint, bans, budget, Random(seed), rebuilt) for rebuilt in (False, True)]
    assert outputs[0] == outputs[1]
    assert outputs[0][1] == "stop"


classes = st.sampled_from(["[a-z]", "[A-Z]", "[A-Za-z]", "[^0-9]", "[0-9a-f]", "[^<]"])
parts = st.builds(
    lambda chars, least, more: f"{chars}{{{least},{least + more}}}", classes, st.integers(0, 20), st.integers(0, 9)
)
signs = st.sampled_from(["-", " ", "!", "</b>", ", "])
patterns = st.builds(lambda part, sign, num_parts: f"({part}{sign}){{{num_parts}}}", parts, signs, st.integers(1, 4))


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@given(pattern=patterns, more=st.integers(0, 8), seed=st.integers(0, 100))
@settings(max_examples=12, deadline=None, derandomize=True)
def test_a_regular_expression_is_complete_from_its_shortest_text_on(
    cls: type[GrammarStrategy], pattern: str, more: int, seed: int
) -> None:
    """Tokens of several characters: each text of a class has other ends, and white space counts."""
    shortest, _ = draw(cls, Regex(pattern), Bans(), None, Random(seed))
    drawn, ended = draw(cls, Regex(pattern), Bans(), len(shortest) + 1 + more, Random(seed))
    assert ended in ("stop", "whole"), vocabulary().decode(drawn)


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
def test_the_end_of_many_nested_objects_is_found(cls: type[GrammarStrategy]) -> None:
    schema = record(value={"type": "array", "items": record(value={"type": "string"}), "minItems": 2})
    for _ in range(12):
        schema = record(value=schema)
    assert shortest(cls, JsonSchema(schema)) < 100


def test_a_number_that_must_be_a_multiple_ends() -> None:
    quantity = {"type": "integer", "multipleOf": 12, "minimum": 24}
    known = shortest(LLGuidanceStrategy, JsonSchema(record(quantity={"const": 24})))
    assert shortest(LLGuidanceStrategy, JsonSchema(record(quantity=quantity))) <= known + 1


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
def test_a_string_with_a_least_length_is_judged_by_characters(cls: type[GrammarStrategy]) -> None:
    schema = record(by={"type": "string", "minLength": 3})
    strategy, least = strategy_of(cls), shortest(cls, JsonSchema(schema))
    grammar, reserve = strategy.compile(JsonSchema(schema)), Reserve.of(JsonSchema(schema), vocabulary())
    matcher = new_matcher(strategy, grammar, vocabulary().stop_token_ids)
    closer = Closer(lexicon(), vocabulary().stop_token_ids, Budget(least, reserve))
    bitmask = np.zeros((1, lexicon().words), dtype=np.int32)
    for token_id in vocabulary().encode(b'{"by":"') or ():
        matcher.accept((token_id,))
        closer.accept((token_id,))
    matcher.fill_bitmask(bitmask, 0)
    closer.restrict(matcher, (), bitmask)
    allowed = [vocabulary().tokens[i] for i in np.flatnonzero(unpack(bitmask, len(vocabulary()))[0])]
    assert allowed
    assert [token for token in allowed if len(token.decode(errors="ignore")) < 3] == []


GRAMMARS = {
    'start: "SELECT " NAME " FROM " NAME\nNAME: /[a-z_]+/': b"SELECT age FROM people",
    'start: row row\nrow: CELL "," CELL "\\n"\nCELL: /[a-z]{2,}/': b"name,age\nanna,old\n",
    'start: a\na: "(" a ")" | "[" a "]" | "x"': b"([(x)])",
    'start: "<r>" item+ "</r>"\nitem: "<i id=\\"" /[0-9]+/ "\\">" /[^<]+/ "</i>"': b'<r><i id="17">tea</i></r>',
    'start: term (OP term)*\nterm: NUM | "(" start ")"\nNUM: /[0-9]+/\nOP: /[-+*\\/]/': b"(12+(3*4))-55",
}


@pytest.mark.parametrize("cls", STRATEGIES, ids=lambda cls: cls.name)
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_grammar_of_which_no_example_is_known_is_complete(cls: type[GrammarStrategy], grammar: str) -> None:
    constraint, wanted = Grammar(grammar, "lark"), GRAMMARS[grammar]
    least = shortest(cls, constraint)
    assert least <= 1 + len(vocabulary().encode(wanted) or ())
    for more in range(9):
        assert write(cls, constraint, wanted, more=more)[1] == wanted
        assert write(cls, constraint, b"", least + more)[2] != "cut"


def shortest(cls: type[GrammarStrategy], constraint: Constraint) -> int:
    strategy, stops = strategy_of(cls), vocabulary().stop_token_ids
    matcher = new_matcher(strategy, strategy.compile(constraint), stops)
    found = Closer(lexicon(), stops, Budget(4096, Reserve.of(constraint, vocabulary()))).shortest(matcher)
    assert found is not None, "no output was found"
    return found
