"""Inspections of real strategies and a real tokenizer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from guideway.api.grammar import GrammarStrategy
from guideway.api.types import Choice, Grammar, JsonSchema, Regex
from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidConfiguration, InvalidRequest, UnsupportedGrammar
from guideway.plugins import Plugins
from guideway.plugins.building import build_strategies
from guideway.vocabulary import build_vocabulary
from guideway_engine.inspection.as_json import as_json
from guideway_engine.inspection.as_page import as_page
from guideway_engine.inspection.inspecting import FEW, Inspection, inspect_constraint
from guideway_engine.inspection.places import json_place, place_of
from guideway_engine.inspection.tokenizer import load_vocabulary
from guideway_engine.inspection.verdict import verdict
from guideway_engine.inspection.words import begins, share
from guideway_engine.model_path import model_path
from guideway_engine.runners.transformers.model_loader import load_model, load_tokenizer, model_info

STRATEGIES = ("llguidance", "xgrammar", "outlines", "lmfe", "reference")

PERSON = JsonSchema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "married": {"type": "boolean"}},
        "required": ["name", "married"],
        "additionalProperties": False,
    },
    whitespace="compact",
)

INTEGER = {"type": "integer"}
UNIQUE = JsonSchema({"type": "array", "prefixItems": [INTEGER], "items": INTEGER, "uniqueItems": True})


@cache
def demo() -> Path:
    return model_path("demo", Plugins())


@cache
def vocabulary() -> Vocabulary:
    return load_vocabulary(demo())


@cache
def strategies(*names: str) -> Mapping[str, GrammarStrategy]:
    plugins = Plugins()
    return build_strategies([plugins.load("grammar", name) for name in names], vocabulary(), {})


def inspected(constraint: Any, text: str | None, *names: str, served_by: str | None = None) -> Inspection:
    ids = None if text is None else vocabulary().encode(text.encode())
    return inspect_constraint(constraint, strategies(*names), vocabulary(), ids, served_by=served_by)


def tokens(inspection: Inspection, *ids: int) -> list[bytes]:
    return [vocabulary().tokens[i] for i in ids]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_text_that_is_refused_inside_a_token(name: str) -> None:
    text = '{"name":"Zoë","married":falsy}'
    found = inspected(PERSON, text, name)
    assert found.refusal is not None
    place = found.refusal.place
    assert text.encode()[: place.offset].endswith(b":fals")
    assert (place.line, place.column, place.pointer) == (1, text.index("y}") + 1, "#/married")
    assert found.refusal.reason == "'y' may not stand here"
    assert set(tokens(found, *found.refusal.allowed.examples)) == {b"e"} | ({b"e}"} & {*vocabulary().tokens})
    assert found.refusal.allowed.first_bytes == b"e"
    assert (found.valid, found.faults[0].message.partition(":")[0]) == (False, "not JSON")
    assert not found.passes
    read = [step.token_id for step in found.steps]
    assert [*read, *found.rest] == list(found.token_ids)
    assert [step.accepted for step in found.steps] == [True] * (len(read) - 1) + [False]


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_text_that_is_accepted(name: str) -> None:
    found = inspected(PERSON, '{"name":"Zoë","married":true}', name)
    assert (found.passes, found.refusal, found.valid) == (True, None, True)
    *_, last = found.steps
    assert (last.token_id, last.accepted, last.allowed.may_end, last.offset) == (
        None,
        True,
        True,
        len(found.text or b""),
    )
    by_text = {vocabulary().tokens[step.token_id]: step for step in found.steps if step.token_id is not None}
    assert by_text[b"Zo"].choice == "many"
    assert by_text[b"Zo"].allowed.count > len(vocabulary()) / 2
    assert by_text[b"true"].choice == "few"
    assert by_text[b"true"].allowed.first_bytes == b"ft"
    assert by_text[b"true"].allowed.count <= FEW
    assert by_text[b"married"].choice == "spelled"
    assert by_text[b"married"].allowed.count > 1


def test_forced_runs_are_what_leaves_no_choice() -> None:
    found = inspected(PERSON, '{"name":"Zoë","married":true}', "llguidance")
    runs = [
        b"".join(vocabulary().tokens[i] for i in found.token_ids[run.first : run.first + run.length])
        for run in found.forced_runs
    ]
    assert runs == [b'{"name":"', b'married":', b"}"]
    assert found.num_forced == sum(run.length for run in found.forced_runs)


def test_a_token_that_might_begin_otherwise_is_not_spelled() -> None:
    """Its first byte is forced, the second is not."""
    found = inspected(Regex("c[ao]m?"), "com", "llguidance")
    assert vocabulary().tokens[found.token_ids[0]] == b"com"
    assert found.steps[0].allowed.first_bytes == b"c"
    assert found.steps[0].choice == "few"


def test_a_token_before_whose_end_the_text_may_end_is_not_spelled() -> None:
    found = inspected(Regex("c(om)?"), "com", "llguidance")
    assert vocabulary().tokens[found.token_ids[0]] == b"com"
    assert found.steps[0].choice == "few"
    assert inspected(Regex("com"), "com", "llguidance").steps[0].choice == "spelled"


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_token_that_begins_well_is_refused_at_the_byte_that_does_not(name: str) -> None:
    found = inspected(Regex("x?c[ao][nt]"), "xcom", name)
    assert [vocabulary().tokens[i] for i in found.token_ids] == [b"x", b"com"]
    assert found.refusal is not None
    assert (found.refusal.step, found.refusal.place.offset) == (1, 3)
    assert found.refusal.reason == "'m' may not stand here"
    assert found.refusal.allowed.first_bytes == b"nt"
    assert found.steps[1].allowed.first_bytes == b"c"


def test_a_text_that_ends_too_early() -> None:
    found = inspected(Regex("ab"), "a", "llguidance")
    assert found.refusal is not None
    assert (found.refusal.place.offset, found.refusal.reason) == (1, "the text ends before it is complete")
    assert tokens(found, *found.refusal.allowed.examples) == [b"b"]


@pytest.mark.parametrize(
    ("ids", "reason", "step"),
    [
        ([5], "the special token <|assistant|> is not text", 0),
        ([2], "the output may not end here", 0),
        ([b"a", 2, b"a"], "a stop token has already ended the output", 2),
    ],
)
def test_special_tokens_are_refused_as_what_they_are(ids: list[int | bytes], reason: str, step: int) -> None:
    token_ids = [vocabulary().tokens.index(i) if isinstance(i, bytes) else i for i in ids]
    found = inspect_constraint(Regex("a+"), strategies("llguidance"), vocabulary(), token_ids)
    assert found.refusal is not None
    assert (found.refusal.reason, found.refusal.step) == (reason, step)


def with_tokens(constraint: Any, tokens: list[bytes], token_ids: list[int]) -> Inspection:
    """Inspect with a vocabulary of these tokens and a stop token. Few libraries support such vocabularies."""
    stop = len(tokens)
    vocabulary = Vocabulary(tokens=[*tokens, b""], stop_token_ids=frozenset({stop}), special_tokens={stop: "<!--"})
    reference = build_strategies([Plugins().load("grammar", "reference")], vocabulary, {})
    return inspect_constraint(constraint, reference, vocabulary, token_ids)


def test_a_token_whose_bytes_are_no_tokens_is_refused_as_a_whole() -> None:
    found = with_tokens(Regex("ab"), [b"ab", b"ac"], [1])
    assert found.refusal is not None
    assert (found.refusal.place.offset, found.refusal.reason) == (0, "the token ac may not stand here")


def test_a_character_of_several_bytes_is_refused_where_it_begins() -> None:
    found = inspected(Regex("aé"), "aè", "llguidance")  # the two characters share their first byte
    assert found.refusal is not None
    place = found.refusal.place
    assert (place.offset, place.line, place.column) == (2, 1, 2)
    assert found.refusal.reason == "'è' may not stand here"


def test_a_dead_end_is_told_from_a_refusal() -> None:
    found = with_tokens(Regex("ab"), [b"a"], [0])
    assert found.refusal is not None
    assert found.refusal.reason == "no token is allowed here, because the text so far cannot be completed"
    assert [step.choice for step in found.steps] == ["forced", "none"]


def test_without_a_text_there_is_what_may_come_first() -> None:
    found = inspected(Choice(["yes", "no"]), None, "llguidance")
    (step,) = found.steps
    assert (found.text, found.refusal, found.valid, step.token_id) == (None, None, None, None)
    assert set(tokens(found, *step.allowed.examples)) >= {b"y", b"n"}
    assert step.allowed.first_bytes == b"ny"


def test_why_each_strategy_was_or_was_not_chosen() -> None:
    found = inspected(UNIQUE, "[1,1]", *STRATEGIES)
    said = {report.name: report for report in found.strategies}
    assert said.keys() == set(STRATEGIES)
    assert [name for name, report in said.items() if report.outcome == "chosen"] == [found.strategy] == ["llguidance"]
    assert said["llguidance"].is_rewritten
    assert said["llguidance"].reason.startswith("rewritten in keywords that it takes")
    assert "leaves `uniqueItems`" in said["llguidance"].reason
    assert [str(loss) for loss in said["llguidance"].losses] == ["`uniqueItems` at #"]
    assert said["lmfe"].outcome == "possible"
    assert "comes after llguidance (rewritten) in the order of preference" in said["lmfe"].reason
    assert [(each.name, each.places) for each in found.unenforced] == [("uniqueItems", ("#",))]
    assert (found.refusal, found.valid, found.passes) == (None, False, False)
    assert (found.faults[0].place, found.faults[0].keyword) == ("#", "#/uniqueItems")


def test_unenforced_keywords_are_found_where_they_stand() -> None:
    schema = JsonSchema(
        {
            "type": "object",
            "properties": {
                "a/b": {"type": "array", "prefixItems": [INTEGER], "uniqueItems": True},
                "c": {"type": "array", "items": {"type": "string"}},
                "d": {"type": "string", "patern": "x"},
                "e": {"type": "string", "format": "klingon"},
                "f": {"type": "string", "format": "date"},
            },
        }
    )
    found = inspected(schema, None, "xgrammar")
    places = {each.name: each.places for each in found.unenforced}
    assert places["uniqueItems"] == ("#/properties/a~1b/uniqueItems",)
    assert places["patern"] == ("#/properties/d/patern",)
    assert places["format:klingon"] == ("#/properties/e/format",)


def test_what_served_a_record_is_taken_whatever_would_be_chosen() -> None:
    found = inspected(PERSON, None, "llguidance", "xgrammar", served_by="xgrammar")
    said = {report.name: report for report in found.strategies}
    assert found.strategy == "xgrammar"
    assert said["xgrammar"].reason == "it served the record"
    assert said["llguidance"].reason.endswith("it would be chosen here")
    with pytest.raises(InvalidRequest, match="--strategy outlines"):
        inspected(PERSON, None, "llguidance", served_by="outlines")
    with pytest.raises(UnsupportedGrammar, match="llguidance served the record, but refuses this constraint"):
        inspected(Grammar('root ::= "a"', "ebnf"), None, "llguidance", "xgrammar", served_by="llguidance")


def test_what_none_takes_is_refused_with_every_reason() -> None:
    with pytest.raises(UnsupportedGrammar, match=r"outlines compiles .*; xgrammar compiles"):
        inspected(Grammar("a", "klingon"), "a", "outlines", "xgrammar")


@pytest.mark.parametrize(
    ("before", "place"),
    [
        ("", "#"),
        ("{", "#"),
        ('{"a', "#"),
        ('{"a"', "#/a"),
        ('{"a": 1', "#/a"),
        ('{"a": true', "#"),
        ('{"a": "x', "#/a"),
        ('{"a": "x"', "#"),
        ('{"a": "x", ', "#"),
        ('{"a": [1, {"b/c": [[], [2', "#/a/1/b~1c/1/0"),
        ('{"a": [1, {"b": 2}', "#/a"),
        ('{"a": [1, {"b": 2}]}', "#"),
        ('["\\"]", 3', "#/1"),
        ("[", "#/0"),
        ('{"\\u0061": [', "#/a/0"),
    ],
)
def test_the_place_in_json(before: str, place: str) -> None:
    assert json_place(before) == place


def test_lines_and_columns_are_those_of_an_editor() -> None:
    text = '{\n  "ë": "日x"\n}'.encode()
    x = text.index(b"x")
    place = place_of(text, x, is_json=True)
    assert (place.line, place.column, place.pointer) == (2, 10, "#/ë")
    inside = place_of(text, x - 1, is_json=False)
    assert (inside.column, inside.pointer) == (9, None)


def test_numbers_and_characters_as_a_person_reads_them() -> None:
    assert begins(bytes(range(0x20, 0x7F)) + b"\xc3") == "␣-~ non-ASCII"
    assert begins(b"\n -0123456789") == "↵ ␣ - 0-9"
    assert begins(b"ab") == "a b"
    assert (share(1, 10**6), share(999_999, 10**6), share(5, 5)) == ("<0.1 %", ">99.9 %", "100.0 %")


def test_the_vocabulary_is_the_one_an_engine_serves_with() -> None:
    info = model_info(load_model(demo(), "float32", "cpu"))
    served = build_vocabulary(
        load_tokenizer(demo()), logits_width=info.logits_width, stop_token_ids=list(info.stop_token_ids)
    )
    assert vocabulary().fingerprint == served.fingerprint


def copied(folder: Path, **changes: Any) -> Path:
    """Return a folder with the demo model's tokenizer and a changed configuration."""
    for name in ("tokenizer.json", "config.json", "generation_config.json"):
        (folder / name).symlink_to(demo() / name)
    config = json.loads((demo() / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    return folder


def test_a_token_that_only_the_configuration_calls_special_is_special(tmp_path: Path) -> None:
    folder = copied(tmp_path, extra_special_tokens=["name"])
    served = build_vocabulary(load_tokenizer(folder), logits_width=vocabulary().logits_width)
    assert load_vocabulary(folder).fingerprint == served.fingerprint != vocabulary().fingerprint


def test_a_tokenizer_alone_is_enough_if_it_says_how_texts_end(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to(demo() / "tokenizer.json")
    with pytest.raises(InvalidConfiguration, match="has no end-of-text token"):
        load_vocabulary(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}', encoding="utf-8")
    assert load_vocabulary(tmp_path).stop_token_ids == vocabulary().stop_token_ids


def test_json_has_everything_and_is_json() -> None:
    found = inspected(PERSON, '{"name":"Zoë","married":falsy}', "llguidance")
    said = json.loads(json.dumps(as_json(found, "demo"), allow_nan=False))
    assert said["passes"] is False
    assert said["refusal"]["pointer"] == "#/married"
    assert said["refusal"]["allowed"]["begin_with"] == "e"
    assert said["steps"][0]["token"] == {"id": found.token_ids[0], "text": '{"'}
    assert [step["offset"] for step in said["steps"]] == [step.offset for step in found.steps]
    assert said["token_ids"] == list(found.token_ids)
    assert said["forced_runs"][0] == {"first": 0, "length": found.forced_runs[0].length}


def test_the_page_holds_no_markup_of_the_text() -> None:
    """Constraint and text may contain markup. The page loads nothing from elsewhere."""
    hostile = "</script><script>alert(1)</script><b onclick='x'>&amp;"
    schema = JsonSchema({"const": hostile})
    page = as_page(inspected(schema, json.dumps(hostile)[:30], "llguidance"), "<i>model</i>")
    assert page.count("<script") == page.count("</script") == 2
    assert "alert(1)</script>" not in page
    assert "<b onclick" not in page
    assert "<i>model" not in page
    assert "http" not in page
    found = with_tokens(Choice(["a</script>"]), [b"a", b"</script>"], [0, 1, 2])
    assert found.passes
    page = as_page(found, "demo")
    assert page.count("<script") == page.count("</script") == 2
    data = page.partition('id="steps">')[2].partition("</script>")[0]
    assert [step["token"] for step in json.loads(data)] == ["a", "</script>", "<!--"]


@pytest.mark.parametrize(
    ("text", "is_right"),
    [
        ('{"married":true,"name":"Zoë"}', True),
        ('{"married":true}', False),
        ('{"married":true,"name":"Zoë","age":5}', False),
    ],
)
def test_a_text_that_is_right_in_another_order(text: str, *, is_right: bool) -> None:
    found = inspected(PERSON, text, "llguidance")
    assert found.refusal is not None
    assert not found.passes
    assert found.in_another_order is is_right
    assert verdict(found).startswith("Right, in another order: the schema's" if is_right else "Refused at byte 2 (")
    assert as_json(found, "demo")["in_another_order"] is is_right
