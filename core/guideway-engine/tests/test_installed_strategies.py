"""Grammar strategies where the configuration names none, and mistakes that are found before loading a model."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from guideway import (
    Choice,
    Engine,
    EngineConfig,
    FinishReason,
    Grammar,
    InvalidConfiguration,
    JsonSchema,
    PluginSettings,
    SamplingParams,
)
from guideway.errors import PluginError
from guideway_engine.executors.local.executor import LocalExecutor
from guideway_engine.runners.transformers import model_loader
from guideway_engine.strategies import installed_strategies


@pytest.mark.slow
def test_an_engine_takes_what_is_installed_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    names, _ = installed_strategies(PluginSettings(), {})
    with caplog.at_level(logging.INFO, "guideway_engine"), Engine("demo", max_num_seqs=8) as engine:
        said = [record.getMessage() for record in caplog.records if "grammar is not set" in record.getMessage()]
        assert said == [f"grammar is not set, so guideway's own installed strategies are used: {', '.join(names)}"]
        constraints = (JsonSchema({"type": "integer"}), Choice(["a"]), Grammar('start: "test"', "lark"))
        results = engine.generate([[5]] * 3, [SamplingParams(constraint=each) for each in constraints])
        assert [(result.error, result.strategy in names) for result in results] == [(None, True)] * 3
    assert len(names) >= 2


def test_what_is_denied_is_not_taken_and_an_empty_list_takes_none(caplog: pytest.LogCaptureFixture) -> None:
    denied = PluginSettings(deny=("*/grammar.*",))
    for settings, said in ({"plugins": denied}, 1), ({"grammar": ()}, 0):
        caplog.clear()
        with caplog.at_level(logging.INFO, "guideway_engine"), Engine("demo", **settings) as engine:
            assert ("strategies are used: none" in caplog.text) == said
            (result,) = engine.generate([[5]], SamplingParams(constraint=Choice(["a"])))
            assert result.finish_reason is FinishReason.REFUSED


def test_options_are_for_one_that_is_taken() -> None:
    options = {"grammar.llguidance": {"spead": 1}}
    with pytest.raises(InvalidConfiguration, match="spead"):
        Engine("demo", options=options)
    assert EngineConfig(model="demo", options=options).grammar is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"grammar": "llgudance"}, "did you mean 'llguidance'"),
        ({"modifiers": ("kgv",)}, "'kgv'"),
        ({"worker_mixins": ("nothing",)}, "'nothing'"),
        ({"device_backend": "torhc"}, "'torhc'"),
        ({"executor": "locla"}, "'locla'"),
        ({"runner": "transformer"}, "'transformer'"),
        ({"workflow": "embd"}, "'embd'"),
        ({"plugins": PluginSettings(enable=("nobody",))}, "'nobody'"),
        ({"options": {"grammar.llgudance": {}}}, "did you mean 'grammar.llguidance'"),
        ({"options": {"executor.local": {"threads": 1}}}, "threads"),
        ({"options": {"runner.transformers": {"speed": 1}}}, "speed"),
        ({"options": {"workflow.decode": {"schedular": "a"}}}, "schedular"),
    ],
    ids=lambda value: None if isinstance(value, str) else next(iter(value)),
)
def test_a_mistake_is_told_before_the_model_is_loaded(
    settings: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def loaded(*_: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(LocalExecutor, "submit", loaded)
    monkeypatch.setattr(model_loader, "load_tokenizer", loaded)
    with pytest.raises((InvalidConfiguration, PluginError), match=said):
        Engine("demo", **settings)
