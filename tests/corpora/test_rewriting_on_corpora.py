"""Rewritings of the official suite and of real schemas, on their instances and on values near them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from guideway.errors import InvalidGrammar
from guideway.json_schema import check_schema
from guideway_conformance.coverage.corpora import read_cases

from tests.fuzz.instances import edit
from tests.fuzz.rewriting import Comparison, compare

pytestmark = pytest.mark.corpora

EXACT = {"json_schema_test_suite.jsonl": 1000, "jsonschemabench_sample.jsonl": 550}
"""Minimum of exact rewritings, of two for each schema."""


@pytest.mark.parametrize("name", EXACT)
def test_no_rewriting_is_stronger_and_none_weaker_without_a_loss(request: pytest.FixtureRequest, name: str) -> None:
    given = request.config.getoption("--corpora")
    if given is None:
        raise pytest.UsageError("these tests need --corpora FOLDER (make test-corpora CORPORA=folder)")
    found = Comparison()
    for case in read_cases(Path(given, name)):
        try:
            check_schema(case.schema)
        except InvalidGrammar:
            continue
        random, values = Random(case.name), [*case.valid, *case.invalid]
        compare(found, case.schema, [*values, *(edit(random, value) for value in values for _ in range(4))])
    assert found.is_sound, found
    assert found.exact >= EXACT[name]
