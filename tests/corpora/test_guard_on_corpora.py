"""The admission guard accepts real schemas, and no hostile constraint that it accepts ends the process that compiles
it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from guideway.api import GrammarStrategy, InvalidGrammar, JsonSchema, LimitExceeded, Vocabulary
from guideway.plugins import Plugins
from guideway.runtime.constraints.guard.guard import Guard, check_bytes
from guideway.vocabulary import build_vocabulary
from guideway_conformance.coverage.corpora import read_cases
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

import tests.vocabulary.tokenizers_under_test as samples
from tests.benchmarks.guard_limits import STRATEGIES, corpus, outcome, refused
from tests.benchmarks.hostile_shapes import shapes

REFUSED = {"Github_medium---o9907", "Snowplow---sp_205_Normalized"}
"""Real schemas that no strategy supports: strings of up to 262,144 and 1,000,000 characters."""

CRASHING = ("chain", "deep", "nul", "circle", "nested", "groups", "left")
"""Parts of the names of constraints that have ended processes."""

pytestmark = pytest.mark.corpora


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    given = request.config.getoption("--corpora")
    if given is None:
        raise pytest.UsageError("these tests need --corpora FOLDER (make test-corpora CORPORA=folder)")
    if not (Path(given) / "abuse_corpus.jsonl").exists():
        raise pytest.UsageError(f"these tests need {given}/abuse_corpus.jsonl")
    return Path(given)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return build_vocabulary(samples.tekken())


@pytest.fixture(scope="module", params=("llguidance", "xgrammar"))
def strategy(request: pytest.FixtureRequest, vocabulary: Vocabulary) -> Iterator[GrammarStrategy]:
    yield Plugins().load("grammar", request.param)(vocabulary, {})


def test_real_schemas_pass(folder: Path) -> None:
    limits = {name: Plugins().load("grammar", name).limits for name in STRATEGIES}
    cases = read_cases(folder / "jsonschemabench_sample.jsonl")
    found = set()
    for case in cases:
        guard = Guard(JsonSchema(json.dumps(case.schema)), limits)
        if all(guard.refusal(name) is not None for name in STRATEGIES):
            found.add(case.name)
    assert found == REFUSED
    assert len(found) <= len(cases) / 100


def test_hostile_constraints_are_refused_by_name_or_pass(folder: Path, vocabulary: Vocabulary) -> None:
    class Anything(ReferenceStrategy):
        kinds = ReferenceStrategy.kinds | {"structural_tag", "grammar:ebnf", "grammar:lark"}

    other = {}
    for name, constraint in (*corpus(folder), *shapes(2)):
        try:
            strategy = Anything(vocabulary, {})
            check_bytes(constraint, [strategy.limits])
            constraint.frozen().source()
            Guard(constraint, {"any": strategy.limits}).refusal("any")
        except (LimitExceeded, InvalidGrammar):
            pass
        except BaseException as error:
            other[name] = repr(error)
    assert other == {}


def test_what_passes_ends_no_process(strategy: GrammarStrategy, vocabulary: Vocabulary) -> None:
    ended = {}
    for name, constraint in shapes(2):
        if any(part in name for part in CRASHING) and refused(constraint, strategy) is None:
            what = outcome(constraint, strategy, vocabulary)[0]
            if what.split()[0] in ("CRASH", "TIME", "MEMORY"):
                ended[name] = what
    assert ended == {}
