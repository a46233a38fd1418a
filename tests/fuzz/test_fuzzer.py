"""The fuzzer finds errors, repeatably, and its parts behave as its findings require."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from guideway.api import Constraint, JsonSchema
from guideway.json_schema import check_schema, keywords
from guideway_conformance.reference.strategy import Strategy

from tests.fuzz import examining
from tests.fuzz.coverage import Coverage, Pair, pairs_of, supported
from tests.fuzz.examining import Case, Examiner
from tests.fuzz.keyword_writers import WRITERS
from tests.fuzz.minimizing import shrink
from tests.fuzz.running import run
from tests.fuzz.schemas import SchemaWriter
from tests.support.json_texts import TextJudge
from tests.support.stages import one_in

# other tests may have started threads that a forked process lacks; it uses none of them
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


class Forgetful(Strategy):
    """The reference strategy, but it ignores `maxItems` silently."""

    def compile(self, constraint: Constraint) -> Any:
        return super().compile(_without_max_items(constraint))


def _without_max_items(constraint: Constraint) -> Constraint:
    assert isinstance(constraint, JsonSchema)
    kept = json.loads(constraint.source(), object_hook=lambda node: {k: v for k, v in node.items() if k != "maxItems"})
    return JsonSchema(kept, whitespace=constraint.whitespace)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examining, "build", lambda _name, vocabulary: Forgetful(vocabulary, {}))


@pytest.mark.slow
def test_a_lost_keyword_is_found_and_made_small(forgetful: None) -> None:
    found = run("reference", "a seed", 6, lambda _line: None)
    assert found.silent
    for finding in found.silent:
        assert "maxItems" in finding.keywords
        assert len(json.dumps(finding.case.schema)) < 200
        assert Examiner("reference").verdict(finding.case) == "silent"


@pytest.mark.slow
def test_nothing_is_found_in_the_reference() -> None:
    found = run("reference", "a seed", 3, lambda _line: None)
    assert found.counts["judged"] > 20
    assert not found.silent and not found.broken


@pytest.mark.parametrize("draft", one_in(3, ["2020-12", "7", "4"]))
def test_schemas_are_schemas_and_the_same_for_the_same_seed(draft: str) -> None:
    names = [*WRITERS, "false"]
    written = []
    for number in range(300):
        random = Random(number)
        first, second = random.choices([name for name in WRITERS if draft in WRITERS[name].drafts], k=2)
        schema = SchemaWriter(random, names, draft).write(first, second, inside=number % 2 == 0)
        check_schema(schema)
        TextJudge(schema)
        written.append(json.dumps(schema))
        again = Random(number)
        assert again.choices([name for name in WRITERS if draft in WRITERS[name].drafts], k=2) == [first, second]
        assert SchemaWriter(again, names, draft).write(first, second, inside=number % 2 == 0) == schema
    assert len(set(written)) > 200


@pytest.mark.parametrize("name", sorted(WRITERS))
def test_every_keyword_is_written(name: str) -> None:
    draft = max(WRITERS[name].drafts)
    schemas = (SchemaWriter(Random(i), [name], draft).write(name, name, inside=False) for i in range(60))
    assert any(name in keywords(schema) for schema in schemas)


def test_pairs() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "$defs": {"x": {"minLength": 1}}}
    found = pairs_of(schema)
    assert Pair("properties", "type", False) in found
    assert Pair("properties", "$ref", True) in found
    assert Pair("$ref", "minLength", True) in found
    assert Pair("minLength", "type", False) not in found


def test_what_is_rare_is_written_next() -> None:
    coverage = Coverage(["minLength", "maxLength", "anyOf"])
    asked = [coverage.next(Random(i)) for i in range(3)]
    for pair in {*asked}:
        coverage.add(pair, {"anyOf": [{"type": "string", "minLength": 1}], "minLength": 1}, judged=True)
    assert coverage.judged[Pair("anyOf", "minLength", True)]
    assert coverage.next(Random(7)) not in coverage.judged
    assert 0 < coverage.summary()["pairs"] == coverage.summary()["in reach"]
    assert coverage.summary()["often"] == 0


def test_supported_keywords_are_those_of_the_table() -> None:
    assert {"type", "properties"} <= set(supported("llguidance"))
    assert "not" not in supported("xgrammar")


def test_a_case_is_a_line() -> None:
    case = Case("xgrammar", {"type": "string"}, "compact", '"\udced\n"')
    assert "\n" not in case.to_json()
    assert Case.from_json(case.to_json()) == case


def test_what_is_made_smaller_is_still_found() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "minLength": 3}, "b": {"type": "null"}}}
    case = Case("reference", schema, "compact", '{"a":"abc","b":null}')
    smaller = shrink(case, lambda case: "minLength" in json.dumps(case.schema) and '"b"' in case.text)
    assert smaller.schema == {"minLength": 0}
    assert smaller.text == '"b"'


@pytest.mark.parametrize(
    ("pattern", "text", "valid"),
    [
        ("^a$", '"a\\n"', False),
        (r"^\d$", '"٣"', False),
        (r"^[\d]$", '"3"', True),
        (r"^\w$", '"é"', False),
        (r"^\p{L}$", '"é"', True),
        (r"^\p{Lu}$", '"é"', False),
        (r"^[\p{N}a]$", '"1"', True),
        (r"^\$$", '"$"', True),
        ("^[$]$", '"$"', True),
    ],
)
def test_patterns_mean_what_the_specification_says(pattern: str, text: str, valid: bool) -> None:
    assert TextJudge({"type": "string", "pattern": pattern})(text) is valid
    of_names = TextJudge({"patternProperties": {pattern: False}})
    assert of_names(f"{{{text}:1}}") is not valid


def test_an_empty_pattern_is_of_every_name() -> None:
    assert TextJudge({"patternProperties": {"": {}}, "additionalProperties": False})('{"a":1}')
