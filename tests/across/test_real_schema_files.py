"""Real schema files, as the installed package `check-jsonschema` has them, served by one strategy."""

from __future__ import annotations

import json
from collections.abc import Iterator, Set
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import pytest
from guideway import Engine, EngineConfig, FinishReason, SamplingParams
from guideway.api import GrammarStrategy, JsonSchema, UnsupportedGrammar
from guideway.json_schema.validity import validator
from guideway.plugins.limits import Limits
from guideway.runtime.constraints.candidates import choose
from guideway.runtime.constraints.home import Home

from tests.support.hosts import makes_hosts
from tests.support.stages import everyday

EXACT = ("bamboo-spec", "changie", "citation-file-format", "codecov", "github-workflows", "readthedocs", "taskfile")
EXACT += ("woodpecker-ci",)
LOSSY = {
    "bitbucket-pipelines": {"additionalProperties", "items", "type", "uniqueItems"},
    "compose-spec": {"unevaluatedProperties"},
    "dependabot": {"if", "items", "not", "oneOf", "uniqueItems"},
    "github-issue-forms": {"anyOf", "uniqueItems"},
    "gitlab-ci": {"uniqueItems"},
    "meltano": {"unevaluatedProperties"},
    "snapcraft": {"uniqueItems"},
}
"""Keywords of other files that their rewritings do not express."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(EngineConfig(model="demo", grammar=("llguidance",), whitespace="compact")) as engine:
        yield engine


@pytest.fixture(scope="module")
def strategy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GrammarStrategy]:
    """In hosts, where the bounds for rewriting are larger."""
    with makes_hosts(tmp_path_factory.mktemp("installed"), ["llguidance"], Limits()) as make:
        yield make().strategies["llguidance"]


def read(name: str) -> str:
    spec = find_spec("check_jsonschema")
    assert spec is not None and spec.origin is not None
    return (Path(spec.origin).parent / "builtin_schemas" / "vendor" / f"{name}.json").read_text("utf-8")


def is_only(error: object, lost: Set[str]) -> bool:
    """Return whether an error of `jsonschema` comes from these keywords alone."""
    conditional = {"then", "else"}.intersection(error.schema_path)  # type: ignore[attr-defined]
    # a condition is written as alternatives, so what is lost of it may be named by either
    if error.validator in lost or (conditional and not lost.isdisjoint({"if", "anyOf"})):  # type: ignore[attr-defined]
        return True
    branches: dict[object, list[object]] = {}
    for each in error.context:  # type: ignore[attr-defined]
        branches.setdefault(each.schema_path[0], []).append(each)
    return any(all(is_only(each, lost) for each in errors) for errors in branches.values())


@pytest.mark.parametrize("name", everyday([*EXACT, *LOSSY], "github-workflows", "gitlab-ci", "citation-file-format"))
def test_a_rewriting_compiles_and_names_what_it_does_not_express(strategy: GrammarStrategy, name: str) -> None:
    constraint = JsonSchema(read(name))
    for candidate in choose(constraint, {"llguidance": strategy}, {"llguidance": cast("Home", strategy)}).candidates:
        try:
            strategy.compile(candidate.served(constraint))
        except UnsupportedGrammar:
            continue
        lost = {loss.keyword for loss in candidate.losses}
        assert lost == LOSSY.get(name, set())
        assert lost <= set(candidate.unenforced)
        return
    pytest.fail("nothing compiles")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*EXACT, *LOSSY])
def test_an_answer_is_valid_but_for_what_is_named(engine: Engine, name: str) -> None:
    schema = json.loads(read(name))
    params = SamplingParams(max_tokens=200, temperature=1.0, seed=3, constraint=schema)
    (result,) = engine.generate([f"Write a file for {name}."], params)
    assert (result.error, result.finish_reason, result.strategy) == (None, FinishReason.STOP, "llguidance")
    lost = {loss.keyword for loss in result.losses}
    for error in validator(schema).iter_errors(json.loads(result.text)):
        assert is_only(error, lost), f"{error.json_path}: {error.message}"
