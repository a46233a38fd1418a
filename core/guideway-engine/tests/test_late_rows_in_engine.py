"""A sequence whose masks are not ready skips steps in the engine: neither its tokens nor its neighbors' change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_support.engines import engine
from guideway import JsonSchema, Limits, Regex, SamplingParams
from prometheus_client import REGISTRY

from tests.support.distributions import install

LIMITS = Limits(fill_seconds=5.0, late_seconds=0.03, late_fills=1000)
PARAMS = [
    SamplingParams(constraint=Regex("FT[a-z ]{4,9}"), temperature=1.0, seed=5, max_tokens=20, logprobs=2, close=False),
    SamplingParams(constraint=Regex("[a-z]{3,12}(x|y)"), temperature=1.0, seed=7, max_tokens=24),
    SamplingParams(constraint=JsonSchema({"enum": ["red", "green"]}), temperature=1.0, seed=2, max_tokens=24),
    SamplingParams(temperature=1.0, seed=3, max_tokens=40, ignore_eos=True),
]
PROMPTS = ["FTab", "hello", "Which color?", "hello there"]


@pytest.fixture(autouse=True)
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path, "hostile", {"grammar.hostile": "tests.support.hostile_strategy"})
    monkeypatch.syspath_prepend(str(tmp_path))
    yield


def outputs(**options: Any) -> list[Any]:
    with engine(grammar=("hostile",), limits=LIMITS, **options) as built:
        results = built.generate(PROMPTS, PARAMS)
    assert [result.error for result in results] == [None] * len(results)
    return [result.outputs[0] for result in results]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_speculative_tokens": 3}, {"max_num_seqs": 2}], ids=str)
def test_tokens_and_their_probabilities_are_the_same(options: dict[str, Any]) -> None:
    before = REGISTRY.get_sample_value("guideway_late_rows_total", {"strategy": "hostile"}) or 0.0
    expected = outputs(grammar_host="inline", **options)
    found = outputs(grammar_host="process", **options)
    after = REGISTRY.get_sample_value("guideway_late_rows_total", {"strategy": "hostile"}) or 0.0
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    assert [output.text for output in found] == [output.text for output in expected]
    assert len(found[0].logprobs) == len(found[0].token_ids)
    assert after > before, "nothing was late"
