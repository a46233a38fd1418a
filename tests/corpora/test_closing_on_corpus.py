"""Random outputs, drawn from masks over a vocabulary of 131,072 tokens, are complete and valid within the shortest
completion and 32 more tokens. This tests a part of the corpus; `tests/benchmarks/closing.py` tests all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from guideway.errors import GuidewayError
from guideway.plugins import Plugins
from guideway.runtime.constraints.closing import Lexicon
from guideway.vocabulary import build_vocabulary

import tests.vocabulary.tokenizers_under_test as samples
from tests.benchmarks.closing import Found, one, rows_of

EVERY = 6
MORE = 32
REFUSED = "not served"

pytestmark = pytest.mark.corpora


@pytest.mark.parametrize("name", ["llguidance", "xgrammar"])
def test_outputs_are_complete_within_tight_budgets(name: str, request: pytest.FixtureRequest) -> None:
    given = request.config.getoption("--corpora")
    if given is None:
        raise pytest.UsageError("these tests need --corpora FOLDER (make test-corpora CORPORA=folder)")
    strategy = Plugins().load("grammar", name)(build_vocabulary(samples.tekken()), {})
    lexicon, found = Lexicon(strategy.vocabulary), Found()
    for i, row in enumerate(rows_of(Path(given), EVERY)):
        try:
            outcome = one(strategy, lexicon, row["schema"], MORE, found, i)
        except GuidewayError:
            outcome = REFUSED
        found.outcomes[outcome] += 1
        if outcome not in ("complete and valid", "invalid, as was named", REFUSED):
            found.named.setdefault(outcome, []).append(row["name"])
    assert found.named == {}
    assert found.outcomes["complete and valid"] >= 38
