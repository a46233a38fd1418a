"""vLLM's own backends as guideway's strategies: several in one batch, each request with the first that can serve it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from guideway.api import (
    CONTRACT,
    WHITESPACE,
    Grammar,
    InvalidConfiguration,
    JsonSchema,
    PluginUnavailable,
    StructuralTag,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import allocate, unpack
from guideway.json_schema.prober import STOP, byte_vocabulary
from guideway.plugins import Plugins
from guideway_conformance.grammar import vocabularies
from guideway_conformance.grammar.subject import GrammarSubject
from guideway_conformance.registry import checks, plan
from guideway_conformance.subjects import Settings
from guideway_vllm.stock.probe import stand_in
from guideway_vllm.stock.server import serving

from tests.across.test_names_run_out import FEW, walks
from tests.fuzz.examining import vocabulary
from tests.support.dialects import misread_patterns, misread_regexes

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
EVEN = {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000}
SHORT = {"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}
PROMPT = "Anna Berg is 34 years old."


def params(max_tokens: int = 80, *, extra: dict[str, Any] | None = None, **constraint: Any) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    outputs = StructuredOutputsParams(**constraint) if constraint else None
    return SamplingParams(temperature=0, max_tokens=max_tokens, structured_outputs=outputs, extra_args=extra)


def generate(llm: Any, wanted: list[Any]) -> tuple[list[str], list[str | None]]:
    """Return the texts, and the strategies that served them."""
    outputs = llm.generate([PROMPT] * len(wanted), wanted)
    told = [output.kv_transfer_params for output in outputs]
    return [output.outputs[0].text for output in outputs], [
        None if t is None else t["guideway"]["strategy"] for t in told
    ]


def test_a_batch_is_served_by_several_backends_and_none_is_latched(start: Callable[..., Any]) -> None:
    llm = start({})
    wanted = [
        params(json=SCHEMA),
        params(json=EVEN),
        params(json=SHORT),
        params(json=SCHEMA),
        params(regex="[a-z]{3}"),
        params(choice=["yes", "no"]),
        params(grammar='start: "ab" | "cd"'),
        params(grammar='root ::= "ab" | "cd"'),
        params(json_object=True, max_tokens=24),
        params(max_tokens=6),
        *(
            params(json=SCHEMA, extra={"guideway.strategy": f"vllm_{name}"})
            for name in ("xgrammar", "guidance", "outlines")
        ),
    ]
    texts, served = generate(llm, wanted)
    assert served == [
        "vllm_xgrammar",
        "vllm_guidance",
        "vllm_guidance",
        *["vllm_xgrammar"] * 6,
        None,
        "vllm_xgrammar",
        "vllm_guidance",
        "vllm_outlines",
    ]
    for text in (texts[0], texts[3], *texts[10:]):
        value = json.loads(text)
        assert set(value) == {"name", "age"}
        assert len(value["name"]) <= 12
    assert json.loads(texts[1]) % 7 == 0
    assert re.fullmatch('"[a-z]{1,3}"', texts[2])
    assert re.fullmatch("[a-z]{3}", texts[4])
    assert texts[5] in ("yes", "no")
    assert texts[6] in ("ab", "cd")
    assert texts[7] in ("ab", "cd")
    assert texts[8].lstrip().startswith("{")


@pytest.mark.parametrize(
    ("name", "constraint", "said"),
    [
        ("xgrammar", {"json": EVEN}, "by vLLM's own account the schema has features xgrammar does not support"),
        (
            "xgrammar",
            {"json": {"type": "object", "propertyNames": {"const": 5}}},
            "/propertyNames: xgrammar may write values that are no strings as names",
        ),
        (
            "xgrammar",
            {"json": {"type": "object", "properties": {"größe": {"type": "number"}}, "additionalProperties": True}},
            "/properties: xgrammar takes names beyond ASCII for additional ones as well",
        ),
        ("guidance", {"json": {"patternProperties": {"a": {}}}}, "features guidance does not support"),
        ("outlines", {"json_object": True}, "vllm_outlines compiles choice, json_schema, regex"),
        ("outlines", {"regex": "^a"}, "anchored universal start state"),
        ("xgrammar", {"regex": "a**"}, "does not compile `double` (character 3, '*') in a regular expression"),
        ("guidance", {"grammar": "start: x"}, "vLLM's backend guidance"),
    ],
)
def test_what_vllm_would_refuse_is_refused_with_its_reason(
    start: Callable[..., Any], name: str, constraint: dict[str, Any], said: str
) -> None:
    from vllm.exceptions import VLLMValidationError

    llm = start({})
    with pytest.raises(VLLMValidationError, match=re.escape(said)):
        llm.generate([PROMPT], [params(extra={"guideway.strategy": f"vllm_{name}"}, **constraint)])


def built(name: str, vocabulary: Vocabulary | None = None, **options: Any) -> Any:
    """Build a strategy outside vLLM, with a stub of the vLLM objects that its backend uses."""
    vocabulary = vocabulary or byte_vocabulary()
    with serving(stand_in(vocabulary)):
        return Plugins().load("grammar", name)(vocabulary, options)


def test_outside_vllm_they_say_so() -> None:
    with pytest.raises(PluginUnavailable, match="runs inside vLLM only"):
        Plugins().load("grammar", "vllm_xgrammar")(byte_vocabulary(), {})


def test_lm_format_enforcer_is_refused_when_the_server_starts() -> None:
    with pytest.raises(PluginUnavailable, match=r"does not work in vLLM .*vllm\.transformers_utils.*guideway-lmfe"):
        built("vllm_lm_format_enforcer")


def test_they_take_no_options() -> None:
    with pytest.raises(InvalidConfiguration, match="whitespace"):
        built("vllm_xgrammar", whitespace="any")


def test_names_that_run_out_lead_into_no_dead_end() -> None:
    tokens = vocabulary()
    compiled = built("vllm_xgrammar", tokens).compile(JsonSchema(FEW))
    assert {"a", "b"} in [set(json.loads(text)) for text in walks(compiled, tokens, 20)]


@pytest.mark.parametrize("name", ["vllm_xgrammar", "vllm_guidance", "vllm_outlines"])
@pytest.mark.parametrize("flag", [False, True])
def test_white_space_is_the_requests_whatever_the_server_is_told(name: str, flag: bool) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["a"]}
    strict = schema | {"additionalProperties": False}
    vocabulary = byte_vocabulary()
    server = stand_in(vocabulary)
    server.vllm_config.structured_outputs_config.disable_any_whitespace = flag
    with serving(server):
        strategy = Plugins().load("grammar", name)(vocabulary, {})
    blanks = {n: f'{{"a":{" " * n}[1]}}' for n in (0, 1, 2)}
    texts = [*blanks.values(), '{"a": [1, 2]}', ' {"a":[1]}', '{"a":[1]} ']
    allowed = {
        "bounded": {blanks[0], blanks[1], '{"a": [1, 2]}'},
        "compact": {blanks[0]},
        "spaced": {blanks[1], '{"a": [1, 2]}'},
        "any": {*blanks.values(), '{"a": [1, 2]}'},
    }
    for whitespace in WHITESPACE:
        constraint = JsonSchema(strict, whitespace=whitespace)
        named = "whitespace" in strategy.supports(constraint).unenforced
        assert named == (name == "vllm_xgrammar" and whitespace == "spaced")
        compiled = strategy.compile(constraint)
        for text in texts:
            matcher = compiled.matcher(frozenset({STOP}))
            accepted = matcher.accept([*text.encode(), STOP]) == len(text) + 1
            narrow = name == "vllm_outlines"  # writes at most one space by itself
            assert named or not accepted or text in allowed[whitespace], text
            assert named or narrow or accepted or text not in allowed[whitespace], text
    tag = {"format": {"type": "json_schema", "json_schema": strict}}
    if "structural_tag" in strategy.kinds:
        for whitespace in WHITESPACE:
            found = strategy.supports(StructuralTag(tag, whitespace=whitespace))
            assert ("whitespace" in found.unenforced) == (whitespace != "any")


@pytest.mark.parametrize("name", ["vllm_xgrammar", "vllm_guidance", "vllm_outlines"])
def test_tokens_past_the_logits_are_never_legal(name: str) -> None:
    tokens = [*byte_vocabulary().tokens, b"", b'{"a"', *(b"1%02d" % i for i in range(64))]
    specials = {STOP: "</s>", STOP + 1: "[PAD]"}
    wide, narrow = (Vocabulary(tokens, frozenset({STOP}), specials, width) for width in (0, STOP + 1))
    assert (len(wide), len(narrow)) == (len(tokens), STOP + 1)
    with serving(stand_in(wide)):
        strategy = Plugins().load("grammar", name)(narrow, {})
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    compiled = strategy.compile(JsonSchema(schema | {"additionalProperties": False}))
    matcher = compiled.matcher(frozenset({STOP}))
    for token_id in [*b'{"a":1}', STOP]:
        bitmask = allocate(1, narrow.logits_width)
        matcher.fill_bitmask(bitmask, 0)
        assert unpack(bitmask, bitmask.shape[1] * 32)[0].nonzero()[0].max() <= STOP
        assert matcher.validate([STOP + 2]) == matcher.validate([STOP + 3]) == 0
        assert matcher.accept([token_id]) == 1


def test_a_grammar_vllm_would_take_for_another_dialect_is_refused() -> None:
    with pytest.raises(UnsupportedGrammar, match="takes this grammar for ebnf"):
        built("vllm_guidance").compile(Grammar('root ::= "a"', "lark"))


def test_keywords_a_backend_drops_are_named() -> None:
    dropped = JsonSchema({"pattern": "^[a-z]+$", "maxLength": 3})
    assert built("vllm_xgrammar").supports(dropped).unenforced
    assert not built("vllm_guidance").supports(dropped).unenforced
    assert built("vllm_outlines").supports(JsonSchema({"type": "integer", "minimum": 1})).unenforced == {"minimum"}


def test_so_are_those_in_structural_tags() -> None:
    def named(name: str, schema: Any) -> frozenset[str]:
        tag = {"structures": [{"begin": "<a>", "schema": schema, "end": "</a>"}], "triggers": ["<a>"]}
        return built(name).supports(StructuralTag(tag, whitespace="any")).unenforced

    dates = {"type": "array", "items": {"type": "string", "format": "date"}}
    for name in ("vllm_xgrammar", "vllm_guidance"):
        assert named(name, dates) == {"format:date"}
        assert named(name, {"type": "object"}) == {"names"}
        assert named(name, {"type": "array", "items": {"type": "null"}}) == frozenset()


KNOWN: dict[str, set[str]] = {
    # special tokens are text in its structural tags
    "vllm_xgrammar": {
        "stop_tokens_are_those_of_the_matcher",
        "matchers_with_other_stop_tokens_are_independent",
        "a_refused_token_is_not_rolled_back",
        "strategies_of_other_vocabularies_are_independent",
        # it silently reads some syntax differently from Python
        "a_pattern_means_what_python_says",
    },
    # forced text has one tokenization, and none if no token has its next byte
    "vllm_guidance": {
        "a_dead_end_is_raised",
        "a_dead_end_accepts_nothing",
        "a_failed_job_fails_alone",
        "a_draft_into_a_dead_end_is_refused",
        "a_regex_allows_exactly_its_matches",
        "outputs_of_the_language_are_accepted",
    },
}
"""Checks of the contract that a backend cannot pass."""


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_the_rest_of_the_contract_is_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_equals(tokens: Any, *rest: Any) -> Vocabulary:
        """Build a vocabulary without equal tokens, which the suite's vocabularies have and vLLM's tokenizers do not."""
        seen = dict.fromkeys(tokens)
        return Vocabulary([token if seen.pop(token, token) is None else b"" for token in tokens], *rest)

    def build(self: GrammarSubject, vocabulary: Vocabulary | None = None) -> Any:
        return built(name, vocabulary or vocabularies.standard())

    monkeypatch.setattr(vocabularies, "Vocabulary", without_equals)
    monkeypatch.setattr(GrammarSubject, "build", build)
    vocabularies.standard.cache_clear()
    try:
        assert _failing(name) == KNOWN[name]
    finally:
        vocabularies.standard.cache_clear()


def _failing(name: str) -> set[str]:
    cls = Plugins().load("grammar", name)
    by_id = {check.id: check for check in checks("grammar") if check.tier == "core"}
    failing = set()
    for owed in plan("grammar", GrammarSubject.declared(cls), GrammarSubject.traits(cls), contract=CONTRACT):
        if owed.check in by_id:
            run = by_id[owed.check].positive if owed.mode == "positive" else by_id[owed.check].refusal
            assert run is not None
            try:
                run(GrammarSubject(cls, Settings()))
            except Exception:
                failing.add(owed.check.removeprefix("grammar."))
    return failing


@pytest.mark.parametrize("name", ["vllm_xgrammar", "vllm_guidance", "vllm_outlines"])
def test_expressions_are_read_by_their_dialect_refused_or_named(name: str) -> None:
    strategy = built(name)
    num_served, wrong = misread_regexes(strategy)
    assert num_served and not wrong
    assert not misread_patterns(strategy)[1]
