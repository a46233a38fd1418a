"""Schemas that no engine takes as they are, rewritten in the keywords that the installed strategies take."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from random import Random
from typing import Any, Literal

import pytest
from guideway import Engine, EngineConfig
from guideway.api import GrammarStrategy, InvalidGrammar, JsonSchema, SamplingParams, UnsupportedGrammar
from guideway.errors import ConformanceError, LimitExceeded, PluginError
from guideway.json_schema.prober import STOP, byte_vocabulary
from guideway.json_schema.validity import validator
from guideway.plugins import Plugins
from guideway.plugins.building import build_strategies
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.candidates import Candidate, CandidateCache, choose, enforcing_all
from guideway.runtime.constraints.tracking import compile_grammar
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.fuzz.rewriting import draw_schema, draw_values
from tests.support.hosts import makes_hosts
from tests.support.stages import one_in

A = {"type": "string", "pattern": "^[ab]*$", "maxLength": 5}
TAGS = {"type": "array", "prefixItems": [A], "items": A, "maxItems": 3, "uniqueItems": True}
"""Masks keep the items of an array unique only if it has no ``prefixItems``."""
OVERLAPPING = {"oneOf": [A, {"enum": ["a", "c", 7]}]}
HARD: list[Any] = [
    {"type": "object", "properties": {"a": A, "b": A}, "not": {"required": ["a", "b"]}},
    {"type": "object", "properties": {"a": TAGS, "b": {"not": {"type": "string"}}}},
    {"if": {"type": "string"}, "then": A, "else": {"type": "null"}},
    OVERLAPPING,
    {"type": "string", "maxLength": 262_144},
    {"allOf": [{"$ref": "#/$defs/x"}], "$defs": {"x": {"dependentRequired": {"a": ["b"]}}}},
    {"type": "array", "maxItems": 500, "items": {"type": "string", "maxLength": 50_000}},
    {"not": {}},
]


@pytest.fixture(scope="module")
def strategies() -> Mapping[str, GrammarStrategy]:
    classes = [Plugins().load("grammar", name) for name in ("llguidance", "xgrammar")]
    return build_strategies(classes, byte_vocabulary(), {})


def forms(schema: Any, strategies: Mapping[str, GrammarStrategy], **fields: Any) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.title, each.unenforced) for each in choose(JsonSchema(schema, **fields), strategies).candidates]


def accepts(candidate: Candidate, constraint: JsonSchema, value: Any, separators: tuple[str, str] = (",", ":")) -> bool:
    text = json.dumps(value, separators=separators).encode()
    matcher = compile_grammar(candidate.strategy, candidate.served(constraint)).matcher(frozenset({STOP}))
    return matcher.accept([*text, STOP]) == len(text) + 1


def test_an_exact_rewriting_comes_before_other_strategies_and_a_weaker_one_before_partial_ones(
    strategies: Mapping[str, GrammarStrategy],
) -> None:
    assert forms(A, strategies)[0] == ("llguidance", ())
    assert forms(HARD[2], strategies)[0] == ("llguidance (rewritten)", ())
    # as far as it knows, llguidance compiles it, but it does not
    assert forms(OVERLAPPING, strategies)[:2] == [("llguidance", ()), ("llguidance (rewritten)", ())]
    assert forms(TAGS, strategies) == [
        ("llguidance (rewritten)", ("uniqueItems",)),
        ("xgrammar", ("pattern+maxLength", "uniqueItems")),
        ("xgrammar (rewritten)", ("pattern+maxLength", "uniqueItems")),
    ]
    many = {"type": "array", "items": {"type": "integer"}, "maxItems": 2000}
    assert forms(many, strategies) == [("xgrammar", ()), ("llguidance (rewritten)", ("maxItems",))]


TREE = {"type": "object", "anyOf": [{"$ref": "#/$defs/leaf"}, {"$ref": "#/$defs/fork"}]}
FORK = {"properties": {"left": TREE, "right": {"$ref": "#/$defs/list", "maxItems": 1}}, "required": ["left"]}
DEFINITIONS = {"leaf": {"required": ["leaf"]}, "fork": FORK, "list": {"type": "array", "items": TREE}}


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({**TREE, "$defs": DEFINITIONS}, [{"left": {"leaf": 1}, "right": [{"left": {"leaf": 1}}]}], [{"left": {}}, {}]),
        (
            {"patternProperties": {".*": A, "^a": {"maxLength": 1}}, "required": ["ab"]},
            [{"ab": "b"}, {"ab": "", "x": "abab"}],
            [{"ab": "bb"}, {"ab": "b", "x": "c"}],
        ),
        (
            {"allOf": [{"patternProperties": {"a": A}}, {"patternProperties": {"b": {"maxLength": 1}}}]},
            [{"a": "ab", "b": "c", "ab": "a"}],
            [{"a": "c"}, {"b": "cc"}, {"ab": "ab"}, {"ab": "c"}],
        ),
        ({"patternProperties": {"^(?!x)": A}, "additionalProperties": False}, [{"a": "b"}], [{"x": "b"}, {"a": "c"}]),
        (
            {"allOf": [{"properties": {"p": {"items": {"patternProperties": {each: A}}}}} for each in ("^x", "y$")]},
            [{"p": [{"xy": "b", "z": 1}]}],
            [{"p": [{"xy": "c"}]}, {"p": [{}, {"x": 1}]}, {"p": [{"y": "c"}]}],
        ),
    ],
    ids=["recursive", "any name", "overlapping", "lookaround", "overlapping inside"],
)
def test_a_rewriting_combines_what_its_engine_does_not(
    schema: Any, valid: list[Any], invalid: list[Any], strategies: Mapping[str, GrammarStrategy]
) -> None:
    constraint = JsonSchema(schema)
    for first in choose(constraint, strategies).candidates:
        with suppress(UnsupportedGrammar):
            first.strategy.compile(first.served(constraint))
            break
    assert (first.title, first.unenforced) == ("llguidance (rewritten)", ())
    judge = validator(schema)
    for value in [*valid, *invalid]:
        assert judge.is_valid(value) is accepts(first, constraint, value) is (value in valid)


def test_multiples_that_no_engine_counts_to_are_named(strategies: Mapping[str, GrammarStrategy]) -> None:
    schema = {"properties": {"a": {"type": "integer", "multipleOf": 9}, "b": {"type": "integer", "multipleOf": 4001}}}
    (first, *_) = choose(JsonSchema(schema), strategies).candidates
    assert [str(each) for each in first.losses] == ["`multipleOf` at #/properties/b"]
    assert not accepts(first, JsonSchema(schema), {"a": 10}) and accepts(first, JsonSchema(schema), {"a": 9, "b": 2})


def test_a_rewriting_without_the_only_keyword_of_a_schema_may_enforce_much(
    strategies: Mapping[str, GrammarStrategy],
) -> None:
    many = {"oneOf": [{"type": "string", "minLength": i, "maxLength": 2 * i} for i in range(50)]}
    assert ("llguidance (rewritten)", ("oneOf",)) in forms(many, strategies)


def test_a_rewriting_that_improves_nothing_comes_last(strategies: Mapping[str, GrammarStrategy]) -> None:
    titles = [title for title, _ in forms({"type": "string", "format": "regex"}, strategies)]
    assert titles == ["llguidance", "llguidance (rewritten)", "xgrammar", "xgrammar (rewritten)"]


def test_what_leaves_more_comes_later(strategies: Mapping[str, GrammarStrategy]) -> None:
    """Also a rewriting that improves what its strategy would do with the schema as it is."""
    branches = [{"type": "string", "format": "unknown"}, {"type": "null"}]
    schema = {"properties": {"a": {"type": ["string", "null"], "oneOf": branches}}}
    found = [set(unenforced) for _, unenforced in forms(schema, strategies)]
    assert not any(later < earlier for i, earlier in enumerate(found) for later in found[i + 1 :])


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("seed", one_in(2, range(2)))
def test_no_mask_takes_an_invalid_text_without_a_name(
    seed: int, name: str, strategies: Mapping[str, GrammarStrategy]
) -> None:
    random, rewritten = Random(seed), 0
    for _ in range(60):
        schema = draw_schema(random)
        constraint = JsonSchema(json.dumps(schema))
        try:
            candidates = choose(constraint, {name: strategies[name]}).candidates
        except (UnsupportedGrammar, InvalidGrammar, LimitExceeded):
            continue
        for candidate in candidates:
            try:
                candidate.strategy.compile(candidate.served(constraint))
            except UnsupportedGrammar:
                continue
            rewritten += candidate.rewritten is not None
            for value in draw_values(random, schema, 4):
                try:
                    is_valid = validator(schema).is_valid(value)
                except Exception:  # a reference that jsonschema cannot follow
                    break
                assert is_valid or candidate.unenforced or not accepts(candidate, constraint, value), (schema, value)
    assert rewritten > 8


def test_white_space_holds_in_a_rewriting(strategies: Mapping[str, GrammarStrategy]) -> None:
    value = {"a": ["b", "a"], "b": 1}
    for whitespace, separators in (("compact", (",", ":")), ("spaced", (", ", ": "))):
        constraint = JsonSchema(HARD[1], whitespace=whitespace)  # type: ignore[arg-type]
        first = choose(constraint, strategies).candidates[0]
        assert first.rewritten is not None
        for each in ((",", ":"), (", ", ": ")):
            assert accepts(first, constraint, value, each) is (each == separators)


def test_only_what_enforces_all_serves_a_request_that_refuses_the_rest(
    strategies: Mapping[str, GrammarStrategy],
) -> None:
    exact = JsonSchema(HARD[0])
    assert [each.title for each in enforcing_all(choose(exact, strategies), exact)] == ["llguidance (rewritten)"]
    lossy = JsonSchema(HARD[1])
    with pytest.raises(UnsupportedGrammar, match=r"\(rewritten\) does not enforce `uniqueItems` at #/properties/a"):
        enforcing_all(choose(lossy, strategies), lossy)


def test_a_schema_that_is_the_rewriting_of_another_has_no_losses(strategies: Mapping[str, GrammarStrategy]) -> None:
    cache = CandidateCache(strategies)
    first = cache.chosen(JsonSchema(TAGS)).candidates[0]
    assert first.rewritten is not None and first.losses
    itself = cache.chosen(JsonSchema(first.rewritten.text)).candidates[0]
    assert (itself.losses, itself.unenforced) == ((), ())
    assert itself.key == first.key  # one compilation for both


def test_the_cache_forgets_rewritings_that_are_too_large(
    strategies: Mapping[str, GrammarStrategy], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, schemas = CandidateCache(strategies), [JsonSchema({**TAGS, "maxItems": i}) for i in range(2, 9)]
    most = 3 * cache.chosen(schemas[0]).size
    monkeypatch.setattr("guideway.runtime.constraints.candidates.MAX_SIZE", most)
    for schema in schemas:
        cache.chosen(schema)
    assert [schema in cache for schema in schemas] == [False] * 4 + [True] * 3


def test_bounds_that_no_engine_counts_to_are_named(strategies: Mapping[str, GrammarStrategy]) -> None:
    both = [("llguidance (rewritten)", ("maxLength",)), ("xgrammar (rewritten)", ("maxLength",))]
    assert forms(HARD[4], strategies) == both
    nested: Any = {"type": "string", "maxLength": 900}
    for _ in range(3):
        nested = {"type": "array", "items": nested, "maxItems": 100}
    # each is small, but not their product
    assert forms(nested, strategies)[0] == both[0]


def test_what_a_rewriting_proves_empty_is_invalid(strategies: Mapping[str, GrammarStrategy]) -> None:
    with pytest.raises(InvalidGrammar, match="nothing satisfies"):
        choose(JsonSchema({"oneOf": [{"type": "null"}, {"type": "null"}]}), strategies)


def test_a_misspelt_keyword_alone_is_refused_as_before(strategies: Mapping[str, GrammarStrategy]) -> None:
    with pytest.raises(UnsupportedGrammar, match="`propertees` at #/propertees"):
        choose(JsonSchema({"propertees": {}}), strategies)


@pytest.fixture(scope="module")
def hosted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, GrammarStrategy]]:
    with makes_hosts(tmp_path_factory.mktemp("installed"), ["llguidance", "xgrammar"], Limits()) as make:
        yield make().strategies


def test_hosts_rewrite_as_this_process_does(
    hosted: Mapping[str, GrammarStrategy], strategies: Mapping[str, GrammarStrategy]
) -> None:
    for schema in HARD:
        constraint = JsonSchema(schema)
        found = []
        for each in (hosted, strategies):
            try:
                candidates = choose(constraint, each).candidates
            except InvalidGrammar as error:
                found.append(str(error))
                continue
            found.append([(one.title, one.unenforced, one.losses, one.rewritten) for one in candidates])
        assert found[0] == found[1]


def test_a_strategy_must_list_names(strategies: Mapping[str, GrammarStrategy]) -> None:
    class Listing(ReferenceStrategy):
        @property
        def takes(self) -> Set[str]:
            return ["type"]  # type: ignore[return-value]

    with pytest.raises(PluginError, match="takes must be a set of names") as raised:
        choose(JsonSchema(HARD[1]), {"reference": Listing(byte_vocabulary(), {})})
    assert isinstance(raised.value.__cause__, ConformanceError)


@pytest.mark.parametrize("grammar_host", ["inline", "process"])
def test_a_text_is_judged_by_the_schema_that_was_given(grammar_host: Literal["inline", "process"]) -> None:
    number = {"type": "integer", "minimum": 1, "maximum": 2}
    pair = {"type": "array", "prefixItems": [number], "items": number, "minItems": 2, "maxItems": 2}
    schema = JsonSchema({**pair, "uniqueItems": True}, whitespace="compact")
    params = SamplingParams(max_tokens=40, temperature=2.0, seed=1, n=16, constraint=schema, on_unenforced="check")
    with Engine(EngineConfig(model="demo", grammar=("llguidance",), grammar_host=grammar_host)) as engine:
        (result,) = engine.generate(["x"], params)
    for output in result.outputs:
        first, second = json.loads(output.text)
        assert (output.valid, output.unenforced) == (first != second, ("uniqueItems",))
        assert (str(output.losses), str(result.losses)) == ("`uniqueItems` at #",) * 2
    assert {output.valid for output in result.outputs} == {True, False}
