"""Refused values of an `EngineConfig`, and their messages."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, asdict, replace
from pathlib import Path
from typing import Any

import pytest
from guideway import EngineConfig, PluginSettings
from guideway.errors import InvalidConfiguration


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": ""}, "model must be a string that is not empty"),
        ({"model": 3}, "model must be a string"),
        ({"device_backend": ""}, "device_backend must be"),
        ({"device": None}, "device must be"),
        ({"dtype": ""}, "dtype must be"),
        ({"executor": 1}, "executor must be"),
        ({"grammar": ""}, "grammar must be a list of names"),
        ({"grammar": ("",)}, "grammar must be a list of names"),
        ({"modifiers": ("grammar",)}, "reserved for the grammar mask"),
        ({"worker_mixins": ("timing", "other/timing")}, "worker_mixins has worker 'timing' twice"),
        ({"max_num_seqs": 0}, "max_num_seqs must be a whole number of at least 1, not 0"),
        ({"max_num_seqs": None}, "max_num_seqs must be a whole number"),
        (
            {"max_num_seqs": 10**7, "max_num_batched_tokens": 10**7},
            "max_num_seqs must be at most 65,536, not 10,000,000",
        ),
        ({"dtype": "float23"}, "dtype must be auto, float32, float16, bfloat16 or float64, not 'float23'"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be a whole number of at least 1"),
        ({"max_waiting": True}, "max_waiting must be a whole number of at least 1"),
        ({"max_model_len": 1}, "max_model_len must be a whole number of at least 2"),
        ({"kv_cache_tokens": 1.5}, "kv_cache_tokens must be a whole number of at least 2"),
        ({"num_speculative_tokens": -1}, "num_speculative_tokens must be a whole number of at least 0"),
        ({"compile_threads": "2"}, "compile_threads must be a whole number of at least 1"),
        ({"grammar_cache_bytes": -1}, "grammar_cache_bytes must be a whole number of at least 0"),
        ({"enable_prefix_caching": 1}, "enable_prefix_caching must be true or false"),
        ({"plugins": {}}, "plugins must be PluginSettings"),
        ({"options": []}, "options must be a mapping of 'kind.name' to options"),
    ],
)
def test_a_bad_value_names_its_field(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said) as caught:
        EngineConfig(**{"model": "demo"} | wrong)
    assert caught.value.field == next(iter(wrong))


def test_a_path_is_text(tmp_path: Path) -> None:
    config: Any = {"model": tmp_path / "model"}
    assert EngineConfig(**config).model == EngineConfig.load(environ={}, **config).model == f"{tmp_path}/model"


@pytest.mark.parametrize("field", ["grammar", "modifiers", "worker_mixins"])
def test_one_name_is_a_list_of_one(field: str) -> None:
    given: dict[str, Any] = {"model": "demo", field: "mine"}
    assert getattr(EngineConfig(**given), field) == getattr(EngineConfig.load(environ={}, **given), field) == ("mine",)


def test_options_are_for_components_that_are_used() -> None:
    config = EngineConfig(
        model="demo",
        grammar=("acme/mine",),
        modifiers=("modifier.kgw",),
        worker_mixins=("timing",),
        executor="process",
        options={
            "grammar.mine": {},
            "modifier.kgw": {"key": 1},
            "worker.timing": {},
            "executor.process": {"num_workers": 2},
            "device.torch": {},
            "runner.transformers": {},
        },
    )
    assert config.components() == tuple(sorted(config.options))
    with pytest.raises(InvalidConfiguration, match=r"does not use; did you mean 'worker\.timing'\? used: ") as caught:
        EngineConfig(model="demo", worker_mixins=("timing",), options={"worker.timming": {}})
    assert caught.value.field == "options.worker.timming"
    with pytest.raises(InvalidConfiguration, match="must map names to values"):
        EngineConfig(model="demo", options={"device.torch": {1: 2}})  # type: ignore[dict-item]


def test_it_is_frozen_and_holds_what_it_was_given() -> None:
    config = EngineConfig(model="demo", grammar=["a", "b"], kv_cache_tokens=None)  # type: ignore[arg-type]
    assert config.grammar == ("a", "b")
    assert config.plugins == PluginSettings()
    with pytest.raises(FrozenInstanceError):
        config.model = "other"  # type: ignore[misc]


def configured(options: Any) -> EngineConfig:
    return EngineConfig(model="demo", grammar=("g",), options=options)


def test_options_stay_as_they_were_given() -> None:
    inner: dict[str, Any] = {"words": ["a", {"b": 1}], "size": 1}
    given = {"grammar.g": inner}
    config = configured(given)
    expected = {"grammar.g": {"words": ["a", {"b": 1}], "size": 1}}
    inner["words"][1]["b"] = 2
    inner["words"].append("c")
    inner["size"] = 2
    given["grammar.absent"] = {}
    assert config.options == expected
    taken = dict(config.options["grammar.g"])
    taken["words"].append("d")
    taken["words"][1]["b"] = 3
    assert config.options == expected
    for mapping in (config.options, config.options["grammar.g"]):
        with pytest.raises(TypeError, match="does not support item assignment"):
            mapping["size"] = 3  # type: ignore[index]


def test_it_can_be_hashed_compared_pickled_and_replaced() -> None:
    config = configured({"grammar.g": {"words": ["a"]}})
    assert {config: 1}[configured({"grammar.g": {"words": ["a"]}})] == 1
    assert config != configured({"grammar.g": {"words": ["b"]}})
    for other in (
        pickle.loads(pickle.dumps(config)),
        replace(config),
        EngineConfig(
            **asdict(replace(config)) | {name: getattr(config, name) for name in ("plugins", "limits", "reasoning")}
        ),
    ):
        assert other == config
        assert hash(other) == hash(config)
    assert "options={'grammar.g': {'words': ['a']}}" in repr(config)


def test_options_that_contain_themselves_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(InvalidConfiguration, match="nested too deeply") as caught:
        configured({"grammar.g": {"words": endless}})
    assert caught.value.field == "options"
