"""The package: found by its entry point, loaded offline and silently, complete when built, right on its examples."""

from __future__ import annotations

import logging
import subprocess
import sys
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
from guideway import Engine
from guideway.api import Model
from guideway_demo_ranker import DemoRanker, guideway_model
from transformers import AutoModelForSequenceClassification, AutoTokenizer

PROJECT = Path(__file__).parent.parent
DOCUMENTS = (PROJECT / "examples" / "documents.txt").read_text("utf-8").splitlines()
ANSWERS = {
    "Where does the hedgehog live?": 0,
    "When is the hedgehog awake?": 1,
    "What does the hedgehog eat?": 2,
    "What does the badger eat?": 3,
    "How old does the hedgehog get?": 4,
}


def test_the_entry_point_leads_to_the_model() -> None:
    (entry,) = [e for e in entry_points(group="guideway.v1") if e.name == "model.demo-ranker"]
    assert entry.load().guideway_model is guideway_model
    assert guideway_model() is DemoRanker
    assert issubclass(DemoRanker, Model)
    assert DemoRanker.name == "demo-ranker"


def test_it_loads_offline_without_a_word(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    logger = logging.getLogger("transformers")
    logger.addHandler(caplog.handler)
    try:
        model, info = AutoModelForSequenceClassification.from_pretrained(
            DemoRanker().path(), dtype=torch.float32, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(DemoRanker().path())
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records
    assert not any(info.values())
    assert model.config.model_type == "bert" and model.config.num_labels == 1
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.model_max_length == model.config.max_position_embeddings == 128
    assert tokenizer("a", "b")["token_type_ids"] == [0, 0, 0, 1, 1]


def test_each_example_is_answered_by_the_document_that_does() -> None:
    with Engine("demo-ranker") as engine:
        for query, answer in ANSWERS.items():
            scores = [result.score for result in engine.rerank(query, DOCUMENTS)]
            assert [index for index, score in enumerate(scores) if score > 0.5] == [answer], (query, scores)


def test_the_package_stays_small() -> None:
    files = [path for path in (PROJECT / "src").rglob("*") if "__pycache__" not in path.parts and path.is_file()]
    assert sum(path.stat().st_size for path in files) <= 2_000_000


@pytest.mark.slow
def test_a_wheel_holds_the_weights(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, PROJECT],
        check=True,
        timeout=120,
    )
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {info.filename: info.file_size for info in archive.infolist()}
    for file in DemoRanker().path().iterdir():
        assert packed[f"guideway_demo_ranker/weights/{file.name}"] == file.stat().st_size
    assert {f"guideway_demo_ranker/{name}" for name in ("py.typed", "training/facts.toml")} <= packed.keys()
