"""Every strategy over the official suite of JSON Schema, each instance in many texts. An invalid text may be accepted
only if `unenforced` names something, and no plain text of a valid instance may become refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from guideway.api import InvalidGrammar, JsonSchema, UnsupportedGrammar
from guideway.json_schema.prober import byte_vocabulary
from guideway_conformance.coverage.corpora import Case, read_cases

from tests.support.json_strategies import build, takes
from tests.support.json_texts import TextJudge, writings

SUITE = "json_schema_test_suite.jsonl"

TAKEN = {"llguidance": 623, "xgrammar": 1114, "outlines": 222, "lmfe": 716, "reference": 309}
"""Minimum of valid instances whose plain text each strategy accepts, whether or not it names something."""

UNKNOWN = {"vocabulary::schema that uses custom metaschema with with no validation vocabulary"}
"""Cases that `jsonschema` cannot judge: metaschemas that leave keywords out."""

pytestmark = pytest.mark.corpora


@dataclass(frozen=True)
class Written:
    """A text of an instance, the kind of its spelling, and whether it is valid."""

    kind: str
    text: str
    valid: bool

    @property
    def data(self) -> bytes:
        return self.text.encode("utf-8", "surrogatepass")


@pytest.fixture(scope="module")
def cases(request: pytest.FixtureRequest) -> list[Case]:
    given = request.config.getoption("--corpora")
    if given is None:
        raise pytest.UsageError("these tests need --corpora FOLDER (make test-corpora CORPORA=folder)")
    return read_cases(Path(given, SUITE))


def texts(case: Case) -> Iterator[Written]:
    """Yield all texts of all instances, with the suite's labels."""
    for valid in (True, False):
        for instance in case.valid if valid else case.invalid:
            for kind, text in writings(instance):
                yield Written(kind, text, valid and kind != "repeated")


def test_the_judge_agrees_with_the_suite(cases: list[Case]) -> None:
    unresolved, wrong = [], set()
    for case in cases:
        judge = TextJudge(case.schema, case.dataset)
        for written in texts(case):
            try:
                if judge(written.text) != written.valid:
                    wrong.add(case.name)
            except Exception as error:
                unresolved.append(f"{case.name}: {error}"[:200])
                break
    assert wrong == UNKNOWN
    assert len(unresolved) < len(cases) / 10, unresolved


@pytest.mark.parametrize("name", sorted(TAKEN))
def test_no_invalid_text_is_taken_in_silence(name: str, cases: list[Case]) -> None:
    vocabulary = byte_vocabulary()
    strategy = build(name, vocabulary)
    silent, taken = [], 0
    for case in cases:
        constraint = JsonSchema(case.schema)
        support = strategy.supports(constraint)
        if support.refused:
            continue
        try:
            compiled = strategy.compile(constraint)
        except (InvalidGrammar, UnsupportedGrammar):
            continue
        found = list(texts(case))
        taken += sum(takes(compiled, w.data, vocabulary.stop_token_ids) for w in found if w.kind == "plain" and w.valid)
        if not support.unenforced:
            silent += [
                (w.kind, case.name, w.text)
                for w in found
                if not w.valid and takes(compiled, w.data, vocabulary.stop_token_ids)
            ]
    assert taken >= TAKEN[name]
    assert not silent, f"{len(silent)}, {Counter(kind for kind, _, _ in silent)}: {silent[:20]}"
