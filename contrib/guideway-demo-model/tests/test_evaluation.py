"""The evaluation: which answers are right, and that the model card has the figures of the shipped weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from guideway import Engine, EngineConfig
from guideway_demo_model import DemoModel
from guideway_demo_model.training.data import Sample, dumps
from guideway_demo_model.training.evaluate import Setting, evaluate, main, samples, settings, table
from guideway_demo_model.training.scoring import Answer, Score, interval, score

PROJECT = Path(__file__).parent.parent
RESULTS = PROJECT / "results"

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "price": {"type": "number"}},
    "required": ["name", "price"],
    "additionalProperties": False,
}
SAMPLE = Sample("product", "a pen for 5", {"name": "pen", "price": 5.0}, SCHEMA)


def one(text: str, finish_reason: str = "stop") -> Score:
    return score([SAMPLE], [Answer(text, finish_reason)])


@pytest.mark.parametrize(
    ("text", "exact", "fields_right", "valid"),
    [
        ('{"name": "pen", "price": 5}', 1, 2, 1),
        ('{"price": 5.0, "name": "pen"}', 1, 2, 1),
        ('{"name": "pens", "price": 5}', 0, 1, 1),
        ('{"name": "pen", "price": "5"}', 0, 1, 0),
        ('{"name": "a long pen", "price": 6}', 0, 0, 0),
        ('{"name": "pen", "price": 5, "more": 1}', 0, 2, 0),
        ('{"name": "pen", "pri', 0, 0, 0),
        ("null", 0, 0, 0),
        ("", 0, 0, 0),
    ],
)
def test_what_is_right(text: str, exact: int, fields_right: int, valid: int) -> None:
    result = one(text)
    assert (result.samples, result.fields) == (1, 2)
    assert (result.exact, result.fields_right, result.valid) == (exact, fields_right, valid)
    assert len(result.wrong) == 1 - exact


def test_scores_are_counted_by_kind_and_by_end() -> None:
    samples = [SAMPLE, SAMPLE, Sample("copy", "", {"text": ""}, {})]
    answers = [Answer('{"name":"pen","price":5}', "stop"), Answer("{", "length"), Answer('{"text":""}', "stop")]
    result = score(samples, answers)
    assert result.kinds == {"product": 2, "copy": 1}
    assert result.kinds_exact == {"product": 1, "copy": 1}
    assert result.finish_reasons == {"stop": 2, "length": 1}
    assert result.wrong == [
        {
            "kind": "product",
            "prompt": "a pen for 5",
            "expected": {"name": "pen", "price": 5},
            "got": "{",
            "finish_reason": "length",
        }
    ]


def test_the_interval_is_wilsons() -> None:
    assert interval(285, 300) == pytest.approx((0.9191, 0.9694), abs=1e-4)
    assert interval(300, 300) == pytest.approx((0.9874, 1.0), abs=1e-4)


def test_samples_differ_between_settings_but_not_between_runs() -> None:
    first = Setting(held_out_templates=False, listed=True, constrained=True)
    assert samples(first, 5) == samples(first, 5)
    assert samples(first, 5) == samples(Setting(False, True, constrained=False), 5)
    assert len({dumps(samples(setting, 1)[0].answer, spaced=False) for setting in settings()}) == 4


@pytest.mark.slow
def test_the_shipped_model_under_schemas() -> None:
    with Engine(EngineConfig(model="demo", grammar=("llguidance",))) as engine:
        result = evaluate(engine, Setting(held_out_templates=False, listed=True, constrained=True), 12, seed=1)
    assert result.samples == result.valid == 12
    assert result.exact >= 10


@pytest.mark.slow
def test_the_command_writes_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--samples", "1", "--seed", "3", "--out", str(tmp_path), "--wrong", str(tmp_path / "wrong")]) == 0
    report = json.loads((tmp_path / "evaluation.json").read_text("utf-8"))
    assert report["command"] == "python -m guideway_demo_model.training.evaluate --samples 1 --seed 3"
    assert [row["samples"] for row in report["settings"]] == [1] * 8
    assert capsys.readouterr().out == table(report)
    assert (tmp_path / "evaluation.md").read_text("utf-8").endswith(table(report))
    wrong = (tmp_path / "wrong").read_text("utf-8").splitlines()
    assert len(wrong) == sum(1 - row["exact"] for row in report["settings"])


@pytest.fixture
def report() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / "evaluation.json").read_text("utf-8"))
    return found


def test_the_results_are_of_the_shipped_weights(report: dict[str, Any]) -> None:
    weights = (DemoModel().path() / "model.safetensors").read_bytes()
    assert report["model_sha256"] == hashlib.sha256(weights).hexdigest()
    assert [row["name"] for row in report["settings"]] == [str(setting) for setting in settings()]
    assert all(row["samples"] >= 300 for row in report["settings"])
    assert (RESULTS / "evaluation.md").read_text("utf-8").endswith(table(report))


def test_the_model_card_has_the_figures_and_the_command(report: dict[str, Any]) -> None:
    card = (PROJECT / "README.md").read_text("utf-8")
    assert table(report).split("\n\n")[0] in card
    assert report["command"] in card


def test_the_model_is_not_worse_than_it_was(report: dict[str, Any]) -> None:
    for row in report["settings"]:
        if row["constrained"]:
            listed = row["listed"]
            floor = (0.80 if listed else 0.77) if row["held_out_templates"] else (0.95 if listed else 0.92)
            assert row["exact"] / row["samples"] >= floor, row["name"]
            assert row["valid"] == row["samples"], row["name"]


def test_every_sample_is_within_what_was_trained() -> None:
    for setting in settings()[:4]:
        for sample in samples(setting, 20):
            jsonschema.validate(sample.answer, sample.schema)
