"""Settings of an engine, and those that it refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from engine_support.prompts import PERSON, person
from guideway import (
    AsyncEngine,
    Choice,
    Engine,
    EngineConfig,
    JsonSchema,
    SamplingParams,
)
from guideway.api import (
    InvalidConfiguration,
    InvalidRequest,
    PluginNotFound,
)
from guideway.plugins.limits import Limits
from guideway_demo_model import DemoModel
from guideway_engine.config import EngineArguments
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.support.stages import everyday


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine("demo", grammar=("llguidance", "xgrammar", "reference"), max_num_seqs=8) as built:
        yield built


@pytest.mark.slow
def test_a_model_and_settings_or_a_configuration_make_the_same_engine(engine: Engine) -> None:
    config = EngineConfig(model="demo", grammar=("llguidance", "xgrammar", "reference"), max_num_seqs=8)
    assert engine.config == config
    with Engine(config) as other, Engine(DemoModel().path(), max_num_seqs=4) as third:
        assert other.config is config
        assert third.config == EngineConfig(model=str(DemoModel().path()), max_num_seqs=4)
        assert other.generate([[5, 80]]) == engine.generate([[5, 80]])


async def serve(*args: Any, **settings: Any) -> EngineConfig:
    async with AsyncEngine(*args, **settings) as serving:
        (result,) = await asyncio.gather(serving.generate([5, 80], SamplingParams(max_tokens=2)))
        assert len(result.token_ids) == 2
        return serving.config


@pytest.mark.slow
def test_an_async_engine_is_made_from_the_same() -> None:
    expected = EngineConfig(model="demo", max_num_seqs=2)
    assert asyncio.run(serve("demo", max_num_seqs=2)) == expected == asyncio.run(serve(expected))


@pytest.mark.parametrize("make", [Engine, AsyncEngine])
def test_what_an_engine_cannot_be_made_from_says_what_to_write(make: Any) -> None:
    config = EngineConfig(model="demo")
    with pytest.raises(
        InvalidConfiguration, match=r"replace\(config, max_num_seqs=\.\.\.\)\), or Engine\(model, "
    ) as caught:
        make(config, max_num_seqs=8)
    assert caught.value.field == "max_num_seqs"
    for wrong in ({"model": "demo"}, None, 5):
        with pytest.raises(InvalidConfiguration, match=r"write Engine\('demo', "):
            make(wrong)
    for unknown, close in (("gramar", "grammar"), ("prefix_caching", "enable_prefix_caching")):
        with pytest.raises(TypeError, match=f"unexpected keyword argument {unknown!r}; did you mean {close!r}"):
            make("demo", **{unknown: ()})
    with pytest.raises(InvalidConfiguration, match="max_num_seqs must be a whole number of at least 1, not 0"):
        make("demo", max_num_seqs=0)


def test_the_settings_of_an_engine_are_the_fields_of_its_configuration() -> None:
    hints = get_type_hints(EngineConfig)
    assert get_type_hints(EngineArguments) == {name: hint for name, hint in hints.items() if name != "model"}


@pytest.mark.parametrize(
    ("config", "field", "said"),
    [
        ({"model": "dmo"}, "model", "'demo'"),
        ({"model": "demo", "max_num_seqs": 0}, "max_num_seqs", "at least 1"),
        ({"model": "demo", "max_model_len": 5000}, "max_model_len", "1024"),
        ({"model": "demo", "max_num_batched_tokens": 31}, "max_num_batched_tokens", "at least one token"),
        ({"model": 5}, "model", "string"),
        ({"model": ""}, "model", "string"),
        ({"model": "demo", "device_backend": None}, "device_backend", "string"),
        ({"model": "demo", "device": 5}, "device", "string"),
        ({"model": "demo", "dtype": None}, "dtype", "string"),
        ({"model": "demo", "plugins": None}, "plugins", "PluginSettings"),
        ({"model": "demo", "grammar": 5}, "grammar", "list of names"),
        ({"model": "demo", "grammar": (5,)}, "grammar", "list of names"),
        ({"model": "demo", "grammar": iter(["reference"])}, "grammar", "list of names"),
        ({"model": "demo", "grammar": ("a/reference", "b/reference")}, "grammar", "twice"),
        ({"model": "demo", "modifiers": ("kgw", "a/modifier.kgw")}, "modifiers", "twice"),
        ({"model": "demo", "modifiers": ("a/grammar",)}, "modifiers", "reserved"),
        ({"model": "demo", "options": None}, "options", "must be a mapping"),
        (
            {"model": "demo", "grammar": ("reference",), "options": {"grammar.reference": 5}},
            "options.grammar.reference",
            "must map",
        ),
        (
            {"model": "demo", "grammar": ("reference",), "options": {"grammar.reference": {5: 5}}},
            "options.grammar.reference",
            "must map",
        ),
        ({"model": "demo", "grammar": ("reference", "reference")}, "grammar", "twice"),
        ({"model": "demo", "dtype": "float9"}, "dtype", "float32"),
        ({"model": "demo", "device": "nowhere"}, "device", "nowhere"),
        (
            {"model": "demo", "grammar": (), "options": {"grammar.xgrammar": {}}},
            "options.grammar.xgrammar",
            "does not use",
        ),
        (
            {"model": "demo", "grammar": ("llguidance",), "options": {"grammar.llguidance": {"spead": 1}}},
            "grammar.llguidance.spead",
            "accepted",
        ),
    ],
)
def test_a_bad_configuration_names_its_field(config: dict[str, Any], field: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said) as caught:
        Engine(EngineConfig(**config))
    assert caught.value.field == field


@pytest.mark.parametrize("option", [{"grammar": ("xgramar",)}, {"modifiers": ("kgv",)}, {"device_backend": "abacus"}])
def test_an_unknown_plugin_is_named(option: dict[str, Any]) -> None:
    with pytest.raises(PluginNotFound, match="installed"):
        Engine(EngineConfig(model="demo", **option))


@pytest.mark.slow
def test_a_model_with_more_columns_than_tokens_never_draws_the_surplus(engine: Engine, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(DemoModel().path(), dtype=torch.float32)
    model.resize_token_embeddings(1600, mean_resizing=False)
    model.get_input_embeddings().weight.data[1536:] *= 100  # the unused columns would win every draw
    model.save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(DemoModel().path()).save_pretrained(tmp_path)
    params = [
        SamplingParams(max_tokens=40, constraint=JsonSchema(PERSON)),
        SamplingParams(max_tokens=40),
        SamplingParams(max_tokens=40, temperature=0.8, seed=3),
    ]
    expected = engine.generate([person(1)] * 3, params)
    with Engine(EngineConfig(model=str(tmp_path), grammar=("llguidance",))) as padded:
        assert padded.vocabulary.logits_width == 1600
        results = padded.generate([person(1)] * 3, params)
    assert [r.token_ids for r in results[:2]] == [r.token_ids for r in expected[:2]]
    assert max(results[2].token_ids) < 1536
    assert results[2].error is None


@pytest.mark.parametrize(
    "strategy", everyday(["llguidance", "xgrammar", "outlines", "lmfe", "reference"], "llguidance", "xgrammar")
)
def test_tokens_past_the_logits_are_never_drawn(tmp_path: Path, strategy: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DemoModel().path())
    width = len(tokenizer)
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.add_tokens([' {"name"', "yes"])
    AutoModelForCausalLM.from_pretrained(DemoModel().path()).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    params = [
        SamplingParams(max_tokens=40, constraint=JsonSchema(PERSON, whitespace="compact")),
        SamplingParams(max_tokens=40, constraint=Choice(["yes", "yes and no"]), temperature=2.0, seed=1),
        SamplingParams(max_tokens=40, temperature=2.0, seed=3),
    ]
    limits = Limits(step_seconds=5.0)  # the reference takes half a second for its first mask
    config = EngineConfig(model=str(tmp_path), grammar=(strategy,), grammar_host="inline", limits=limits)
    with Engine(config) as narrow:
        assert (len(narrow.vocabulary), narrow.vocabulary.logits_width) == (width, width)
        results = narrow.generate([person(1)] * 3, params)
        (refused,) = narrow.generate([[5, width]], SamplingParams(max_tokens=4))
        (stop,) = narrow.generate([[5]], SamplingParams(max_tokens=4, stop_token_ids=(width,)))
        (text,) = narrow.generate(["[PAD] is no token of the model"], SamplingParams(max_tokens=4))
    assert [result.error for result in results] == [None] * 3
    assert json.loads(results[0].text).keys() == set(PERSON["required"])
    assert results[1].text in ("yes", "yes and no")
    assert max(token_id for result in results for token_id in result.token_ids) < width
    for each, field in ((refused, "prompt"), (text, "prompt"), (stop, "stop_token_ids")):
        assert isinstance(each.error, InvalidRequest)
        assert each.error.field == field


def test_a_vocabulary_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    from engine_support.models import llama

    llama(0).save_pretrained(tmp_path)  # 300 columns of logits for 1536 tokens
    AutoTokenizer.from_pretrained(DemoModel().path()).save_pretrained(tmp_path)
    with pytest.raises(InvalidConfiguration, match="does not belong to this model"):
        Engine(EngineConfig(model=str(tmp_path)))
