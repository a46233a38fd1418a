"""`on_unenforced`: policies for constraints that cannot be enforced in full."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from guideway.api import (
    FinishReason,
    GenerationResult,
    JsonObject,
    JsonSchema,
    OnUnenforced,
    Regex,
    SamplingParams,
    UnsupportedGrammar,
)
from guideway.plugins import Plugins

from tests.support.fake_host import FakeHost
from tests.support.hostility import PROMPT, host

DROPPED = {"type": "string", "pattern": "^[a-c]{2,9}$", "maxLength": 9}
"""xgrammar ignores ``pattern+maxLength``."""

REMOTE = {"$ref": "https://example.com/person.json"}
POLICIES: tuple[OnUnenforced, ...] = ("report", "refuse", "check")


def subject(*names: str, **options: Any) -> FakeHost:
    return host(strategies=[Plugins().load("grammar", name) for name in names], **options)


def serve(subject: FakeHost, constraint: Any, **params: Any) -> GenerationResult:
    (result,) = subject.generate([PROMPT], [SamplingParams(max_tokens=40, constraint=constraint, **params)])
    return result


def test_a_constraint_is_refused_by_the_names_of_what_nobody_enforces() -> None:
    result = serve(subject("xgrammar"), JsonSchema(DROPPED), on_unenforced="refuse")
    assert result.finish_reason is FinishReason.REFUSED
    assert isinstance(result.error, UnsupportedGrammar)
    assert (result.error.field, result.error.feature) == ("constraint", "pattern+maxLength")
    assert "xgrammar does not enforce `pattern+maxLength`" in str(result.error)
    assert "set on_unenforced to 'report' or 'check'" in str(result.error)


def test_a_refusal_has_the_word_of_every_strategy() -> None:
    """One strategy enforces part of it in other keywords, and two in its own."""
    strategies = subject("llguidance", "xgrammar", "lmfe")
    integer = {"type": "integer"}
    unique = JsonSchema({"type": "array", "prefixItems": [integer], "items": integer, "uniqueItems": True})
    for _ in range(2):  # the second time from the cache
        said = str(serve(strategies, unique, on_unenforced="refuse").error)
        assert "xgrammar does not enforce `uniqueItems`" in said
        assert "llguidance (rewritten) does not enforce `uniqueItems` at #" in said
        assert re.search("lmfe does not enforce .*`uniqueItems`", said)


def test_a_misspelt_keyword_is_refused_whoever_serves() -> None:
    result = serve(subject("llguidance"), JsonSchema({"type": "string", "maxLenght": 3}), on_unenforced="refuse")
    assert isinstance(result.error, UnsupportedGrammar)
    assert "llguidance does not enforce `maxLenght`" in str(result.error)


def test_white_space_that_is_not_kept_is_refused() -> None:
    lists = JsonSchema({"enum": [[1, 2]]})  # xgrammar always writes it compact
    result = serve(subject("xgrammar"), replace(lists, whitespace="spaced"), on_unenforced="refuse")
    assert "xgrammar does not enforce `whitespace`" in str(result.error)
    assert serve(subject("xgrammar"), lists, on_unenforced="refuse").error is None


def test_a_strategy_that_enforces_all_is_preferred_to_refusing() -> None:
    result = serve(subject("xgrammar", "llguidance"), JsonSchema(DROPPED), on_unenforced="refuse")
    assert (result.strategy, result.unenforced, result.error) == ("llguidance", (), None)


@pytest.mark.parametrize("constraint", [JsonSchema({"type": "boolean"}), JsonObject(), Regex("[ab]{3}")])
def test_what_is_enforced_in_full_is_served(constraint: Any) -> None:
    for policy in POLICIES:
        result = serve(subject("xgrammar"), constraint, on_unenforced=policy)
        assert (result.strategy, result.unenforced, result.error) == ("xgrammar", (), None)


def test_the_operators_word_is_that_of_requests_that_do_not_say() -> None:
    strict, lenient = subject("xgrammar", on_unenforced="refuse"), subject("xgrammar")
    assert serve(strict, JsonSchema(DROPPED)).finish_reason is FinishReason.REFUSED
    for result in (serve(lenient, JsonSchema(DROPPED)), serve(strict, JsonSchema(DROPPED), on_unenforced="report")):
        assert (result.error, result.unenforced) == (None, ("pattern+maxLength",))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("schema", "name"),
    [
        (REMOTE, "$ref:remote"),
        ({**REMOTE, "$defs": {"a": {"type": "string"}}}, "$ref:remote"),
        ({"contains": {"type": "string"}}, "contains"),
        ({"patern": "a"}, "patern"),
    ],
)
def test_a_schema_of_which_nothing_would_be_enforced_is_refused(
    schema: dict[str, Any], name: str, policy: OnUnenforced
) -> None:
    result = serve(subject("xgrammar"), JsonSchema(schema), on_unenforced=policy)
    assert result.finish_reason is FinishReason.REFUSED
    assert isinstance(result.error, UnsupportedGrammar)
    assert f"nothing of it: `{name}` at #/{name.partition(':')[0]} would be ignored" in str(result.error)


@pytest.mark.parametrize("schema", [{}, True, {"description": "anything"}])
def test_a_schema_without_keywords_is_any_json(schema: Any) -> None:
    result = serve(subject("xgrammar"), JsonSchema(schema), on_unenforced="refuse")
    assert (result.strategy, result.error) == ("xgrammar", None)
