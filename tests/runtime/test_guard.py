"""The admission guard: each rule at its limit and one past it, per strategy in order, and for arbitrary texts."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from guideway.api import (
    Choice,
    Constraint,
    Grammar,
    GrammarStrategy,
    GuidewayError,
    InvalidConfiguration,
    InvalidGrammar,
    JsonSchema,
    LimitExceeded,
    ModifierContext,
    Regex,
    Request,
    SamplingParams,
    StructuralTag,
    Support,
    UnsupportedGrammar,
)
from guideway.api.limits import RULES, check_limits
from guideway.devices.numpy.device import NumpyDevice
from guideway.plugins import Plugins
from guideway.plugins.building import build_strategies
from guideway.runtime import RuntimePlan
from guideway.runtime.constraints.candidates import CandidateCache, choose
from guideway.runtime.constraints.guard.guard import measured
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.fake_host import FakeHost
from tests.support.stages import examples
from tests.support.vocabularies import tiny


class Fussy(ReferenceStrategy):
    """Accepts every kind, and records the constraints it gets."""

    kinds = ReferenceStrategy.kinds | {"structural_tag", "grammar:ebnf", "grammar:lark"}
    takes = frozenset()

    def __init__(self, **limits: int) -> None:
        super().__init__(tiny(), {})
        self.limits = limits
        self.asked: list[Constraint] = []

    def supports(self, constraint: Constraint) -> Support:
        self.asked.append(constraint)
        return Support(enforced=frozenset({constraint.kind}))


def schema(**keywords: Any) -> JsonSchema:
    return JsonSchema(json.dumps(keywords))


def chain(length: int) -> JsonSchema:
    schemas = {f"x{i}": {"$ref": f"#/$defs/x{i + 1}"} for i in range(length)}
    return JsonSchema(json.dumps({"$defs": {**schemas, f"x{length}": {"type": "null"}}, "$ref": "#/$defs/x0"}))


def rules(length: int, dialect: str) -> Grammar:
    first, sign = ("root", "::=") if dialect == "ebnf" else ("start", ":")
    lines = [f"{first} {sign} x0", *(f"x{i} {sign} x{i + 1}" for i in range(length)), f'x{length} {sign} "a"']
    return Grammar("\n".join(lines), dialect)


def tag(**content: Any) -> StructuralTag:
    return StructuralTag(json.dumps({"type": "structural_tag", "format": content}))


SIZES: list[tuple[str, int, Callable[[int], Constraint]]] = [
    ("bytes", 400, lambda n: Regex("a" * n)),
    ("bytes", 400, lambda n: JsonSchema('{"title":"' + "a" * (n - 12) + '"}')),
    ("nul", 3, lambda n: Regex("a\0" * n)),
    ("nul", 3, lambda n: schema(pattern="a\0" * n)),
    ("nul", 3, lambda n: Grammar(f'root ::= "{chr(0) * n}"', "ebnf")),
    ("literals", 30, lambda n: Choice(["a" * 10, "b" * (n - 10)])),
    ("literals", 30, lambda n: schema(enum=["a" * 10, "b" * (n - 10)])),
    ("literals", 30, lambda n: schema(const={"k" * 10: "b" * (n - 10)})),
    ("literals", 30, lambda n: schema(properties={"a" * n: True})),
    ("literals", 30, lambda n: StructuralTag(json.dumps({"begin": "a" * 10, "end": "b" * (n - 10)}))),
    ("literals", 30, lambda n: Grammar(f'root ::= "{"a" * (n - 2)}"', "ebnf")),
    ("depth", 12, lambda n: JsonSchema('{"items":' * (n - 1) + "{}" + "}" * (n - 1))),
    ("depth", 12, lambda n: JsonSchema('{"default":' + "[" * (n - 1) + "]" * (n - 1) + "}")),
    ("depth", 12, lambda n: JsonSchema('{"unheard-of":' + "[" * (n - 1) + "]" * (n - 1) + "}")),
    ("depth", 12, lambda n: JsonSchema('{"const":' + "[" * (n - 1) + "]" * (n - 1) + "}")),
    ("depth", 12, lambda n: schema(pattern="(" * n + ")" * n)),
    ("depth", 12, lambda n: Regex("(?:" * n)),
    ("depth", 12, lambda n: Regex("[" * n + "a]")),
    ("depth", 12, lambda n: Grammar("root ::= " + "(" * n + '"a"' + ")" * n, "ebnf")),
    ("depth", 12, lambda n: Grammar("start: " + "[" * n + '"a"' + "]" * n, "lark")),
    ("depth", 12, lambda n: StructuralTag('{"format":' * (n - 1) + "{}" + "}" * (n - 1))),
    ("depth", 12, lambda n: StructuralTag('{"format":' * (n - 1) + "[]" + "}" * (n - 1))),
    ("alternatives", 20, lambda n: Choice([str(i) for i in range(n)])),
    ("alternatives", 20, lambda n: schema(anyOf=[{}] * n)),
    ("alternatives", 20, lambda n: Regex("x(a" + "|b" * (n - 1) + ")")),
    ("alternatives", 20, lambda n: Grammar('root ::= "a"' + ' | "b"' * (n - 1), "ebnf")),
    ("alternatives", 20, lambda n: Grammar('start: "a"' + ' | "b"' * (n - 1), "lark")),
    ("alternatives", 20, lambda n: tag(type="or", elements=["a"] * n)),
    *(
        ("repetition", 50, lambda n, keyword=keyword: schema(**{keyword: n}))
        for keyword in ("maxItems", "minItems", "maxLength", "minLength", "maxProperties", "maxContains")
    ),
    ("repetition", 50, lambda n: Regex(f"a{{1,{n}}}")),
    ("repetition", 50, lambda n: Regex(f"a{{{n}}}")),
    ("repetition", 50, lambda n: Regex(f"a{{{n},}}")),
    ("repetition", 50, lambda n: Grammar(f'root ::= "a"{{0,{n}}}', "ebnf")),
    ("repetition", 50, lambda n: Grammar(f'start: "a"~1..{n}', "lark")),
    ("repetition", 50, lambda n: Grammar(f"start: /a{{{n}}}/", "lark")),
    ("repetition", 50, lambda n: tag(type="json_schema", json_schema={"maxItems": n})),
    ("repetition", 50, lambda n: tag(type="regex", pattern=f"a{{{n}}}")),
    ("repetition", 50, lambda n: tag(type="grammar", grammar=f'root ::= "a"{{{n}}}')),
    ("repetitions", 50, lambda n: Regex(f"((a|b{{2}}){{5}}){{{n // 10}}}") if n % 10 == 0 else Regex(f"a{{{n}}}")),
    ("repetitions", 120, lambda n: schema(maxItems=10, items={"maxItems": 12 + (n > 120), "items": {}})),
    ("repetitions", 120, lambda n: schema(maxItems=10, items={"pattern": f"a{{{12 + (n > 120)}}}"})),
    ("repetitions", 120, lambda n: schema(**{
        "$defs": {"a": {"type": "string", "maxLength": 12 + (n > 120)}}, "maxItems": 10, "items": {"$ref": "#/$defs/a"}
    })),
    ("repetitions", 120, lambda n: Grammar(f'root ::= ("a"{{10}} "b"){{{12 + (n > 120)}}}', "ebnf")),
    ("nodes", 30, lambda n: schema(properties={str(i): True for i in range(n - 1)})),
    ("nodes", 30, lambda n: schema(examples=[0] * (n - 1))),
    ("depth", 12, lambda n: Grammar("start: %json " + '{"items":' * (n - 1) + "{}" + "}" * (n - 1), "lark")),
    ("depth", 1200, lambda n: Grammar("start: %json " + '{"items":' * (n - 1) + "{}" + "}" * (n - 1), "lark")),
    ("nodes", 30, lambda n: schema(anyOf=[{}] * (n - 1))),
    ("nodes", 30, lambda n: schema(enum=[0] * (n - 1))),
    ("nodes", 3000, lambda n: Regex("[a]" * n)),
    ("nodes", 3000, lambda n: schema(pattern="[a]" * (n - 1))),
    ("nodes", 30, lambda n: StructuralTag(json.dumps({"elements": [0] * (n - 1)}))),
    ("nodes", 30, lambda n: StructuralTag(json.dumps({str(i): 0 for i in range(n)}))),
    ("nodes", 30, lambda n: Grammar("root ::= " + '"a" ' * (n - 1), "ebnf")),
    ("chain", 20, lambda n: chain(n - 1)),
    ("chain", 20, lambda n: rules(n - 1, "ebnf")),
    ("chain", 20, lambda n: rules(n - 1, "lark")),
    ("expanded", 64, lambda n: schema(pattern="a" * (n - 1))),
    ("expanded", 64, lambda n: schema(minItems=3, items={"minItems": 7, "items": {"maxLength": 1 + (n > 64)}})
        if n > 64 else schema(pattern="a" * 63)),
    ("expanded", 64, lambda n: schema(**{
        "$defs": {"a": {"pattern": "a" * (19 + (n > 64))}}, "prefixItems": [{"$ref": "#/$defs/a"}] * 3, "maxItems": 12
    })),
    ("combinations", 36, lambda n: schema(allOf=[{"anyOf": [{}] * 6}, {"oneOf": [{}] * (6 + (n > 36))}])),
    ("combinations", 36, lambda n: schema(**{
        "$defs": {"a": {"anyOf": [{}] * 6}, "b": {"anyOf": [{}] * (6 + (n > 36))}},
        "allOf": [{"$ref": "#/$defs/a"}, {"allOf": [{"$ref": "#/$defs/b"}]}],
    })),
    ("strings", 100, lambda n: schema(properties={"a": {"maxLength": 60}, "b": {"maxLength": n - 60}, "c": {"maxLength": 60}})),  # noqa: E501
    ("strings", 100, lambda n: Regex("a" * n)),
    ("strings", 16, lambda n: schema(properties={"a": {"format": "uri"}, "b": {"format": "uri"}, "c": {"maxLength": 1 + 7 * (n > 16)}} if n <= 16 else {k: {"format": "uri"} for k in "abc"})),  # noqa: E501
    ("properties", 20, lambda n: schema(properties={str(i): True for i in range(n)})),
    ("enum", 20, lambda n: schema(enum=list(range(n)))),
    ("digits", 20, lambda n: schema(minimum=10 ** (n - 1))),
    ("digits", 20, lambda n: JsonSchema(f'{{"maximum":1e-{n - 1}}}') if n == 21 else schema(maximum=0.5)),
    ("digits", 20, lambda n: schema(multipleOf=10.0 ** (1 - n))),
    ("multiple_of", 77, lambda n: schema(multipleOf=n)),
    ("multiple_of", 77, lambda n: schema(allOf=[{"multipleOf": 7}, {"multipleOf": 11 if n == 77 else 13}])),
    ("multiple_of", 77, lambda n: schema(multipleOf=n / 1000)),
    ("pattern", 60, lambda n: Regex("[a-z]" * n)),
    ("pattern", 60, lambda n: schema(pattern="(ab){" + str(n // 2) + "}" + "c" * (n % 2))),
    ("pattern", 60, lambda n: schema(patternProperties={"a" * n: True})),
    ("stars", 9, lambda n: Regex("[a-z]*b+" * (n // 2) + "c*" * (n % 2))),
    ("stars", 9, lambda n: Regex("(a?b)" + f"{{{n}}}")),
    ("stars", 9, lambda n: Grammar("root ::= x*\nx ::= " + "[a-z]* " * n, "ebnf")),
    ("nested_stars", 5, lambda n: Regex("(" * n + "a" + "|b)*" * n)),
    ("nested_stars", 5, lambda n: Regex("a" + "*" * n)),
    ("nested_stars", 5, lambda n: Grammar("root ::= " + "(" * n + '"a"' + ")*" * n, "ebnf")),
    ("rules", 15, lambda n: rules(n - 2, "ebnf")),
    ("rules", 15, lambda n: rules(n - 2, "lark")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "limit", "make"), [pytest.param(*case, id=f"{case[0]}-{i}") for i, case in enumerate(SIZES)]
)
def test_each_rule_holds_from_one_past_its_limit(rule: str, limit: int, make: Callable[[int], Constraint]) -> None:
    strategy = Fussy(**{rule: limit})
    assert [candidate.name for candidate in choose(make(limit), {"fussy": strategy}).candidates] == ["fussy"]
    with pytest.raises(LimitExceeded, match=f"fussy: {rule} at .*, the limit {limit}$"):
        choose(make(limit + 1), {"fussy": strategy})
    assert strategy.asked == [make(limit)]


def test_each_rule_has_a_test() -> None:
    assert {rule for rule, _, _ in SIZES} == RULES.keys()


@pytest.mark.parametrize(
    ("constraint", "place"),
    [
        (schema(properties={"a/b": {"items": {"maxItems": 10**6}}}), "#/properties/a~1b/items/maxItems is 1000000"),
        (Grammar('root ::= "a"\n\nb ::= "b"{1,1000000}', "ebnf"), "line 3, column 1 is 1000000"),
        (tag(type="grammar", grammar='root ::= "b"{1,1000000}'), "#/format/grammar, line 1, column 1 is 1000000"),
        (Regex("a{1000000}"), "the pattern is 1000000"),
        (schema(properties={"\x1b[31mred\n": {"maxItems": 10**6}}), r"#/properties/\x1b[31mred\n/maxItems is 1000000"),
    ],
)
def test_a_refusal_says_where(constraint: Constraint, place: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        choose(constraint, {"fussy": Fussy()})
    assert f"fussy: repetition at {place}, the limit 100000" in str(caught.value)
    assert caught.value.field == "constraint"


def test_a_refusal_is_short_whatever_the_constraint_says() -> None:
    with pytest.raises(LimitExceeded) as caught:
        choose(schema(properties={"é" * 5000: {"maxItems": 10**6}}), {"fussy": Fussy()})
    assert len(str(caught.value)) < 400


def test_the_next_strategy_gets_what_one_cannot_bear() -> None:
    first, second = Fussy(repetition=5), Fussy()
    (candidate,) = choose(schema(maxItems=6), {"first": first, "second": second}).candidates
    assert (candidate.name, first.asked, len(second.asked)) == ("second", [], 1)


def test_nodes_are_counted_up_to_the_most_that_any_strategy_takes() -> None:
    strategies = {"first": Fussy(nodes=5), "second": Fussy(nodes=20)}
    assert [each.name for each in choose(schema(enum=[0] * 10), strategies).candidates] == ["second"]
    with pytest.raises(LimitExceeded):
        choose(schema(enum=[0] * 20), strategies)


def test_what_is_too_much_for_several_is_told_once() -> None:
    strategies = {"first": Fussy(depth=5), "second": Fussy(depth=5), "third": Fussy(repetition=3)}
    with pytest.raises(LimitExceeded) as caught:
        choose(Regex("((((((a{4}))))))"), strategies)
    assert str(caught.value) == (
        "this regex constraint is too large for first, second: depth at the pattern is 6, the limit 5; "
        "third: repetition at the pattern is 4, the limit 3"
    )


def test_it_is_no_matter_of_limits_where_a_strategy_refuses_for_itself() -> None:
    class Never(Fussy):
        def supports(self, constraint: Constraint) -> Support:
            return Support(reason="never")

    with pytest.raises(UnsupportedGrammar, match=r"first: repetition at #/maxItems.*; second: never"):
        choose(schema(maxItems=6), {"first": Fussy(repetition=5), "second": Never()})


def test_a_refused_constraint_is_counted_again_and_a_chosen_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    monkeypatch.setattr(
        "guideway.runtime.constraints.guard.guard.measured", lambda *args: counted.append(args) or measured(*args)
    )
    cache = CandidateCache({"fussy": Fussy(repetition=5)})
    for constraint in (schema(maxItems=5), schema(maxItems=5)):
        cache.chosen(constraint)
    assert len(counted) == 1


@pytest.mark.parametrize(
    "given",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {}]},
        {"anyOf": [{"$ref": "#"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}},
        {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
        {"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 2},
    ],
)
def test_what_needs_itself_without_end_is_invalid(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidGrammar, match="require it inside itself without end"):
        choose(schema(**given), {"fussy": Fussy()})
    with pytest.raises(InvalidGrammar, match="require it inside itself without end"):
        choose(tag(type="json_schema", json_schema=given), {"fussy": Fussy()})


@pytest.mark.parametrize(
    "given",
    [
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"type": "object", "properties": {"next": {"$ref": "#"}}},
        {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}, "required": ["next"]},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 1},
        {"type": ["object", "null"], "properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"properties": {"next": {"$ref": "#"}}, "required": ["next"]},
        {"not": {"$ref": "#"}},
        {"$defs": {"unused": {"$ref": "#/$defs/unused"}}},
        {
            "$defs": {"a": {"$ref": "#"}},
            "type": "object",
            "required": ["next"],
            "properties": {"next": {"$id": "b", "$ref": "#/$defs/a", "$defs": {"a": {"type": "null"}}}},
        },
    ],
)
def test_what_may_end_passes(given: dict[str, Any]) -> None:
    assert choose(schema(**given), {"fussy": Fussy()}).candidates


def test_a_text_too_long_for_all_is_not_read() -> None:
    cache = CandidateCache({"first": Fussy(bytes=9), "second": Fussy(bytes=10)})
    cache.check_bytes(JsonSchema("not JSON.."))
    with pytest.raises(LimitExceeded, match="bytes at its text is 11, the limit 10"):
        cache.check_bytes(JsonSchema("not JSON..."))


@pytest.mark.parametrize(
    ("constraint", "rule"),
    [(JsonSchema("{" * 500), "bytes"), (Regex("a" * 500), "bytes"), (schema(maxItems=6), "repetition")],
)
def test_a_runtime_admits_nothing_over_the_limits(constraint: Constraint, rule: str) -> None:
    strategy = Fussy(repetition=5, bytes=400)
    host = FakeHost(tiny(), NumpyDevice("cpu"), strategies={"fussy": strategy})
    params = SamplingParams(max_tokens=2, constraint=constraint)
    with pytest.raises(LimitExceeded, match=f"{rule} at"):
        host.runtime.admit(Request(request_id="r", prompt_token_ids=(1,), params=params))
    assert strategy.asked == []


# Configuration


def test_an_operator_raises_and_lowers_limits_of_a_strategy() -> None:
    class Declared(ReferenceStrategy):
        limits = MappingProxyType({"repetition": 5, "depth": 10})

    built = build_strategies([Declared], tiny(), {"grammar.reference": {"limits": {"repetition": 7}}})
    assert built["reference"].limits == {"repetition": 7, "depth": 10}
    assert Declared.limits == {"repetition": 5, "depth": 10}


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"deepth": 5}, "did you mean 'depth'?"),
        ({"depth": -1}, "must be a whole number of at least 0, not -1"),
        ({"depth": True}, "must be a whole number of at least 0, not True"),
        ({"depth": "9"}, "must be a whole number of at least 0, not '9'"),
        (9, "must map rules of the admission guard to whole numbers"),
    ],
)
def test_wrong_limits_are_refused(limits: Any, problem: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        build_strategies([ReferenceStrategy], tiny(), {"grammar.reference": {"limits": limits}})
    assert problem in str(caught.value)
    assert caught.value.field.startswith("options.grammar.reference.limits")
    with pytest.raises(InvalidConfiguration):
        check_limits(limits, where="here")


def test_options_that_a_strategy_does_not_read_are_refused() -> None:
    class Silent(ReferenceStrategy):
        __init__ = GrammarStrategy.__init__

    with pytest.raises(InvalidConfiguration, match="has 'typo', but this strategy takes none but 'limits'"):
        build_strategies([Silent], tiny(), {"grammar.reference": {"typo": 1, "limits": {"repetition": 5}}})
    build_strategies([Silent], tiny(), {"grammar.reference": {"limits": {"repetition": 5}}})


def test_a_strategy_in_hosts_has_its_limits() -> None:
    context = ModifierContext(vocabulary=tiny(), max_num_sequences=2, max_model_len=64)
    reference = Plugins().load("grammar", "reference")
    plan = RuntimePlan(context=context, strategies=(reference,), grammar_host="process")
    limited = replace(plan, options={"grammar.reference": {"limits": {"repetition": 5}}})
    runtime = limited.build()
    try:
        for size in (5, 6):
            params = SamplingParams(max_tokens=2, constraint=Regex(f"a{{{size}}}"))
            request = Request(request_id=str(size), prompt_token_ids=(1,), params=params)
            if size == 5:
                runtime.abandon(runtime.admit(request))
                continue
            with pytest.raises(LimitExceeded, match="reference: repetition at the pattern is 6, the limit 5"):
                runtime.admit(request)
    finally:
        runtime.close()
    with pytest.raises(InvalidConfiguration, match="did you mean 'depth'"):
        replace(plan, options={"grammar.reference": {"limits": {"deepth": 5}}}).build()


# Arbitrary texts


def passes_or_refuses(constraint: Constraint) -> None:
    try:
        constraint = constraint.frozen()
        constraint.source()
        choose(constraint, {"fussy": Fussy()})
    except (LimitExceeded, InvalidGrammar):
        pass
    except GuidewayError as error:
        raise AssertionError(f"a {type(error).__name__} of the guard: {error}") from error


TEXTS = st.text(st.sampled_from(r'(){}[]|*+?\^$.,-:=/~"' + "'#ab01 \n\0é") | st.characters(codec="utf-8"), max_size=60)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | TEXTS
    | st.sampled_from(["#", "#/$defs/a", "object", "array"])
)
KEYWORDS = """$ref $defs allOf anyOf oneOf items prefixItems properties required type maxItems minItems maxLength enum
const pattern multipleOf minimum patternProperties additionalProperties a not if format json_schema grammar schema"""
NAMES = st.sampled_from(KEYWORDS.split())
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=5))


@given(TEXTS)
@settings(max_examples=examples(300), deadline=None)
def test_any_text_passes_or_is_refused(text: str) -> None:
    for constraint in (Regex(text), Grammar(text, "ebnf"), Grammar(text, "lark"), Choice([text]), schema(pattern=text)):
        passes_or_refuses(constraint)


@given(VALUES)
@settings(max_examples=examples(300), deadline=None)
def test_any_json_passes_or_is_refused(value: Any) -> None:
    for constraint in (JsonSchema(json.dumps(value)), StructuralTag(json.dumps(value))):
        passes_or_refuses(constraint)
    with suppress(InvalidGrammar):
        measured(JsonSchema(json.dumps(value)), 1 << 60)  # `check_schema` has not checked it
