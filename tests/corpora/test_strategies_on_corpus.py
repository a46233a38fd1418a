"""The grammar strategies over a corpus of real schemas with valid and invalid instances, with a vocabulary of 131072.

`expectations.json` holds what each strategy does today, and differences in either direction fail: a strategy that gets
better is a reason to write the better numbers down. ``python -m tests.corpora.judge FOLDER STRATEGY`` prints them.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.corpora.judge import Verdict, judge, read_corpus, summarize

EXPECTATIONS = json.loads((Path(__file__).parent / "expectations.json").read_text("utf-8"))

pytestmark = pytest.mark.corpora


@pytest.fixture(scope="module", params=sorted(EXPECTATIONS))
def strategy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def verdicts(strategy: str, request: pytest.FixtureRequest) -> list[Verdict]:
    folder = request.config.getoption("--corpora")
    if folder is None:
        raise pytest.UsageError("these tests need --corpora FOLDER (make test-corpora CORPORA=folder)")
    return list(judge(strategy, read_corpus(Path(folder))))


def test_compile_refuses_with_a_typed_error_or_not_at_all(verdicts: list[Verdict]) -> None:
    agreed = {"compiled", "unsupported", "InvalidGrammar", "UnsupportedGrammar", "timeout"}
    assert {v.name: (v.outcome, v.message) for v in verdicts if v.outcome not in agreed} == {}


def test_verdicts_are_as_expected(strategy: str, verdicts: list[Verdict]) -> None:
    assert summarize(verdicts) == EXPECTATIONS[strategy]
