"""Validators and observers work for workflows as they do for generation."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Semaphore
from typing import Any

import numpy as np
import pytest
from engine_support.encoders import encoder, stored, texts
from engine_support.listening import CONTEXTS, HEARD
from engine_support.workflow_parts import BreaksOnce, Gate
from guideway import Engine, FinishReason, PluginSettings

from tests.support.distributions import install
from tests.support.stages import one_in

DRIVERS = ("sync", "async", "double_buffered")
PARTS = "engine_support.workflow_parts"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(encoder("Bert"), tmp_path_factory.mktemp("bert"))


@pytest.fixture(autouse=True)
def listened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(tmp_path))
    install(tmp_path, "listening", {"hooks.listening": "engine_support.listening"})
    HEARD.clear()
    CONTEXTS.clear()
    yield


def opened(folder: Path, driver: str = "auto", **options: Any) -> Engine:
    return Engine(
        folder,
        workflow="embed",
        options={"workflow.embed": options | {"driver": driver}},
        plugins=PluginSettings(enable=("listening",)),
    )


def heard(kind: str) -> list[Any]:
    return [each for name, each in HEARD if name == kind]


@pytest.mark.parametrize("driver", one_in(3, DRIVERS))
def test_validators_refuse_one_input_and_observers_hear_of_the_others(driver: str, bert: Path) -> None:
    inputs: list[Any] = ["w1 w2", "w7", "w8", " ".join(["w3"] * 45), [2, 6, 3], {"prompt": "w9"}, 5]
    with opened(bert, driver) as engine:
        results = engine.embed(inputs, priority=3, tenant="acme")
    assert [result.error is None for result in results] == [True, False, False, False, True, True, False]
    assert str(results[1].error) == "not that text"
    assert "validator listening/hooks.listening failed, so the request is refused" in str(results[2].error)
    assert "broken validator" in str(results[2].error)
    assert str(results[3].error) == "too many tokens for you"
    submissions = heard("submission")
    assert [each.prompt for each in submissions] == ["w1 w2", "w7", "w8", inputs[3], (2, 6, 3), "w9"]
    assert [each.prompt_token_ids for each in submissions[-2:]] == [(2, 6, 3), None]
    assert {(each.task, each.tenant, each.params.priority) for each in submissions} == {("embed", "acme", 3)}
    started = heard("started")
    assert [request.prompt for request in started] == ["w1 w2", None, "w9"]
    assert started[0].prompt_token_ids == (2, 6, 7, 3)
    assert [(request, result.finish_reason) for request, result in heard("finished")] == [
        (request, FinishReason.STOP) for request in started
    ]
    assert [request.request_id for request in started] == [
        result.request_id for result in results if result.error is None
    ]
    assert heard("failed") == []
    (context, *_) = CONTEXTS
    assert (context.max_model_len, context.vocabulary_size, context.modifiers) == (80, 285, ())


@pytest.mark.parametrize("driver", one_in(3, DRIVERS))
def test_observers_hear_of_failures_and_of_what_was_given_up(driver: str, bert: Path) -> None:
    with opened(bert, driver, runner=f"{PARTS}:PoisonedRunner", max_step_requests=2) as engine:
        engine.embed(["w1", "w13", "w2"])
        ((failed, error),) = heard("failed")
        assert (failed.prompt, "poison" in str(error)) == ("w13", True)
        reasons = [result.finish_reason for _, result in heard("finished")]
        assert sorted(reasons) == [FinishReason.INTERNAL_ERROR, FinishReason.STOP, FinishReason.STOP]
    HEARD.clear()
    Gate.tickets = Semaphore(2)  # double_buffered begins a second step before it reads the first
    with opened(bert, driver, runner=f"{PARTS}:GatedRunner", max_step_requests=2) as engine:
        reading = engine.embed(iter(texts(40, 5)))
        next(reading)
        while driver != "sync" and len(heard("started")) <= 4:  # more than two steps contain
            time.sleep(0.01)
        reading.close()  # type: ignore[attr-defined]
        Gate.tickets.release(100)
    reasons = [result.finish_reason for _, result in heard("finished")]
    assert FinishReason.ABORT in reasons
    ids = [request.request_id for request, _ in heard("finished")]
    assert sorted(ids) == sorted(request.request_id for request in heard("started"))
    assert len(set(ids)) == len(ids)


def test_pairs_and_arrays_are_shown_as_tuples(bert: Path, tmp_path: Path) -> None:
    head = stored(encoder("Bert", "ForSequenceClassification", num_labels=1), tmp_path / "head")
    with Engine(head, plugins=PluginSettings(enable=("listening",))) as engine:
        engine.rerank("w1", ["w2"])
    with opened(bert) as engine:
        engine.embed([np.array([2, 6, 3])])
    assert [each.prompt for each in heard("submission")] == [("w1", "w2"), (2, 6, 3)]
    assert [each.prompt_token_ids for each in heard("submission")] == [None, (2, 6, 3)]
    assert [each.task for each in heard("started")] == ["rerank", "embed"]


def test_where_a_part_breaks_observers_hear_the_end_of_all(bert: Path) -> None:
    BreaksOnce.at = "finished"
    with opened(bert, "sync", scheduler="engine_support.workflow_parts:BreaksOnce") as engine:
        assert all("broken" in str(result.error) for result in engine.embed(["w1", "w2"]))
        assert len(heard("started")) == len(heard("finished")) == 2
        assert engine.embed("w3")[0].error is None
