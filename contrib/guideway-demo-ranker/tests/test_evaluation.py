"""The evaluation: which rankings are right, and that the model card has the figures of the shipped weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guideway import Engine, InvalidRequest
from guideway_demo_ranker import DemoRanker
from guideway_demo_ranker.training.bm25 import BM25
from guideway_demo_ranker.training.data import Ranking
from guideway_demo_ranker.training.evaluate import SETTINGS, Figures, evaluate, main, rankings, scorer, table

PROJECT = Path(__file__).parent.parent
RESULTS = PROJECT / "results"
FOOD = "animal.food"
RANKING = Ranking(FOOD, "q", ("a", "b", "c", "d"), answer=2, told=(FOOD,) * 4, same_entity=(False, False, True, False))


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("demo-ranker") as made:
        yield made


@pytest.fixture
def report() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "evaluation.json").read_text("utf-8"))
    return found


@pytest.mark.parametrize(
    ("scores", "first", "reciprocal_rank", "above", "below"),
    [
        ([0.1, 0.2, 0.9, 0.3], 1, 1, 1, 3),
        ([0.6, 0.2, 0.55, 0.3], 0, 1 / 2, 1, 2),
        ([0.4, 0.3, 0.1, 0.2], 0, 1 / 4, 0, 3),
        ([0.5, 0.5, 0.5, 0.5], 0, 1 / 3, 0, 0),
    ],
)
def test_what_is_right(scores: list[float], first: int, reciprocal_rank: float, above: int, below: int) -> None:
    figures = Figures()
    figures.add(RANKING, scores)
    assert (figures.queries, figures.documents) == (1, 3)
    assert (figures.first, figures.reciprocal_ranks) == (first, reciprocal_rank)
    assert (figures.answers_above, figures.others_below) == (above, below)


def test_bm25_prefers_rare_words_and_short_documents() -> None:
    documents = ["the red fox", "the red fox and much else that is said here", "the dog", "a dog"]
    found = BM25(documents).scores("The fox?", documents)
    assert found[0] > found[1] > found[2] > found[3] == 0
    again = BM25(["a b", "c"]).scores("a", ["a b"])  # idf log(1 + 1.5 / 1.5), length 2 of 1.5 on average
    assert again == [pytest.approx(0.693147 * 2.5 / (1 + 1.5 * (0.25 + 0.75 * 2 / 1.5)), abs=1e-6)]


def test_documents_that_are_refused_are_no_score(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="the model takes 128"):
        scorer(engine)("who?", ["word " * 200])


@pytest.mark.slow
def test_the_shipped_model_on_what_it_never_saw(engine: Engine, report: dict[str, Any]) -> None:
    """Score the first 40 of the rankings in the table; the result must be about the same as there."""
    setting = SETTINGS[1]
    (row,) = [row for row in report["settings"] if (row["entities"], row["wordings"]) == ("test", "train")]
    said, asked = row["demo-ranker"], rankings(setting, 40)
    found = evaluate(scorer(engine), asked)
    assert found.first / found.queries > said["first"] / said["queries"] - 0.05
    assert found.answers_above / found.queries > said["answers_above"] / said["queries"] - 0.06
    assert found.others_below / found.documents > said["others_below"] / said["documents"] - 0.03
    by_words = evaluate(BM25(document for each in asked for document in each.documents).scores, asked)
    assert found.first > by_words.first + 10


def test_the_command_writes_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--queries", "2", "--seed", "3", "--out", str(tmp_path)]) == 0
    report = json.loads((tmp_path / "evaluation.json").read_text("utf-8"))
    assert report["command"] == "python -m guideway_demo_ranker.training.evaluate --queries 2 --seed 3"
    assert [row["demo-ranker"]["documents"] for row in report["settings"]] == [38] * 3
    assert capsys.readouterr().out == table(report)
    assert (tmp_path / "evaluation.md").read_text("utf-8").endswith(table(report))


def test_the_results_are_of_the_shipped_weights(report: dict[str, Any]) -> None:
    weights = (DemoRanker().path() / "model.safetensors").read_bytes()
    assert report["model_sha256"] == hashlib.sha256(weights).hexdigest()
    assert [(row["entities"], row["wordings"]) for row in report["settings"]] == [
        (setting.entities, setting.wordings) for setting in SETTINGS
    ]
    assert all(row["demo-ranker"]["queries"] >= 500 for row in report["settings"])
    assert (RESULTS / "evaluation.md").read_text("utf-8").endswith(table(report))


def test_the_model_card_has_the_figures_and_the_command(report: dict[str, Any]) -> None:
    card = (PROJECT / "README.md").read_text("utf-8")
    assert table(report) in card
    assert report["command"] in card
