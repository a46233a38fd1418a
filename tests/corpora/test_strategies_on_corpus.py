"""The grammar strategies over corpora of schemas: every strategy compiles or refuses each with a typed error; and the
verdicts of some on valid and invalid instances of real schemas, with a vocabulary of 131072 tokens.

`expectations.json` has the current verdicts of each strategy, and differences in either direction fail: if a strategy
improves, update the file. ``python -m tests.corpora.judge FOLDER STRATEGY`` prints the numbers.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from guideway.api import InvalidGrammar, JsonSchema, UnsupportedGrammar
from guideway.json_schema.prober import byte_vocabulary
from guideway.plugins import PluginIndex, Plugins

from tests.corpora.judge import Verdict, judge, read_corpus, summarize

EXPECTATIONS = json.loads((Path(__file__).parent / "expectations.json").read_text("utf-8"))

GRAMMARS = [record for record in PluginIndex.scan().records if record.kind == "grammar"]
STRATEGIES = sorted(r.name for r in GRAMMARS if r.distribution != "guideway-vllm")  # those run inside vLLM only

pytestmark = pytest.mark.corpora


@pytest.fixture(scope="module", params=sorted(EXPECTATIONS))
def strategy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest) -> Path:
    given = request.config.getoption("--corpora")
    if given is None:
        raise pytest.UsageError("these tests need --corpora FOLDER (make test-corpora CORPORA=folder)")
    return Path(given)


@pytest.fixture(scope="module")
def verdicts(strategy: str, folder: Path) -> list[Verdict]:
    return list(judge(strategy, read_corpus(folder)))


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_compiles_or_refuses_every_schema(name: str, folder: Path) -> None:
    strategy = Plugins().load("grammar", name)(byte_vocabulary(), {})
    other = {}
    for row in read_corpus(folder) + read_corpus(folder, "json_schema_test_suite.jsonl"):
        try:
            strategy.supports(JsonSchema(row["schema"]))
            strategy.compile(JsonSchema(row["schema"]))
        except (InvalidGrammar, UnsupportedGrammar):
            pass
        except Exception as error:
            other[json.dumps(row["schema"])] = repr(error)
    assert other == {}


def test_compile_refuses_with_a_typed_error_or_not_at_all(verdicts: list[Verdict]) -> None:
    agreed = {"compiled", "unsupported", "InvalidGrammar", "UnsupportedGrammar", "timeout"}
    assert {v.name: (v.outcome, v.message) for v in verdicts if v.outcome not in agreed} == {}


def test_verdicts_are_as_expected(strategy: str, verdicts: list[Verdict]) -> None:
    assert summarize(verdicts) == EXPECTATIONS[strategy]
