"""`decode` as a workflow: chosen like the others, with parts that can be replaced by name."""

from __future__ import annotations

from typing import Any

import pytest
from engine_support import decode_parts
from engine_support.encoders import encoder, stored
from guideway import Engine, EngineConfig, FinishReason, InvalidConfiguration, SamplingParams
from guideway.api import ModelFolder
from guideway.errors import PluginLoadError, PluginUnavailable
from guideway.plugins import Plugins
from guideway.plugins.index import PluginIndex
from guideway.plugins.selection import PluginSettings
from guideway_engine.decoding.workflow import DecodeWorkflow
from guideway_engine.workflows.choosing import choose

PARTS = "engine_support.decode_parts"
REPLACED = {
    "input_processor": f"{PARTS}:NoShouting",
    "request_processor": f"{PARTS}:ShortestFirst",
    "scheduler": f"{PARTS}:Counting",
    "step_builder": f"{PARTS}:Watched",
    "output_processor": f"{PARTS}:Read",
}
PROMPTS = ["The otter lives in the river", "Ada is", "LOUD", "On Monday"]
PARAMS = SamplingParams(max_tokens=6, temperature=1.0, seed=3)


def opened(options: dict[str, Any], **settings: Any) -> Engine:
    return Engine("demo", workflow="decode", options={"workflow.decode": options}, max_model_len=64, **settings)


def folder(tmp_path: Any, **config: Any) -> ModelFolder:
    return ModelFolder(tmp_path, config)


def test_every_part_beside_the_caller_can_be_replaced() -> None:
    with Engine("demo", max_model_len=64) as engine:
        own = engine.generate(PROMPTS, PARAMS)
    decode_parts.asked.clear()
    decode_parts.Watched.order.clear()
    with opened(REPLACED, max_num_seqs=1) as engine:
        assert engine.workflow == "decode"
        theirs = engine.generate(PROMPTS, PARAMS)
        assert not engine.has_work()
    assert set(decode_parts.asked) == set(REPLACED)
    lengths = {result.request_id: len(result.prompt_token_ids) for result in theirs}
    started = [lengths[request_id] for request_id in decode_parts.Watched.order]
    assert len(started) == 3 and started == sorted(started)  # not in the order of arrival
    assert theirs[2].outputs[0].finish_reason is FinishReason.REFUSED
    assert "small letters" in str(theirs[2].error)
    for i in (0, 1, 3):
        assert theirs[i].outputs[0].token_ids == own[i].outputs[0].token_ids


@pytest.mark.parametrize("executor", ["local", pytest.param("process", marks=pytest.mark.slow)])
def test_the_worker_can_be_replaced(executor: str) -> None:
    with opened({"runner": f"{PARTS}:Named"}, executor=executor) as engine:
        assert engine.call_workers("which.worker") == ["Named"]
        assert engine.generate("Ada is", PARAMS)[0].error is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheduler": "x"}, "scheduler of workflow 'decode' must be 'module:Class', not 'x'"),
        ({"scheduler": "no_such_module:X"}, "cannot be imported: .*no_such_module"),
        ({"scheduler": f"{PARTS}:ShortestFirst"}, "is no subclass of guideway_engine.scheduling.scheduler.Scheduler"),
        ({"runner": "json:JSONDecoder"}, "is no subclass of guideway_engine.worker.Worker"),
        ({"driver": "async"}, "driver"),
    ],
)
def test_a_part_that_cannot_be_had_is_named_before_the_model_loads(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message):
        Engine("demo", workflow="decode", options={"workflow.decode": options}, dtype="bfloat16", device="no-device")


def test_a_part_that_fails_while_it_is_made_is_named() -> None:
    with pytest.raises(PluginLoadError, match=r"workflow\.decode failed while it was built: .*no room"):
        opened({"output_processor": f"{PARTS}:Unmakeable"})


def test_it_is_chosen_as_the_others_are(tmp_path: Any) -> None:
    plugins = Plugins()
    causal = folder(tmp_path, architectures=["LlamaForCausalLM"])
    assert choose(None, causal, plugins) is DecodeWorkflow
    assert choose("decode", causal, plugins) is DecodeWorkflow
    unfamiliar = folder(tmp_path, architectures=["Gemma3ForConditionalGeneration"])
    assert choose("decode", unfamiliar, plugins) is DecodeWorkflow
    bert = folder(tmp_path, architectures=["BertModel"], model_type="bert")
    assert "not a causal language model" in str(DecodeWorkflow.supports(bert))
    assert choose("decode", bert, plugins) is DecodeWorkflow  # the runner decides which models it can run


def test_it_can_be_denied(tmp_path: Any) -> None:
    settings = PluginSettings(deny=("guideway-engine/workflow.decode",))
    plugins = Plugins(settings=settings)
    with pytest.raises(PluginUnavailable, match="deny"):
        choose(None, folder(tmp_path, architectures=["LlamaForCausalLM"]), plugins)
    with Engine(str(stored(encoder("Bert"), tmp_path)), plugins=settings) as engine:
        assert engine.workflow == "embed"


@pytest.mark.parametrize("name", ["decode", "workflow.decode", "guideway-engine/decode"])
def test_it_is_in_no_selection_for_it_needs_no_verdict(name: str) -> None:
    config = EngineConfig(model="demo", workflow=name)
    assert "workflow" not in dict(config.selection(PluginIndex.scan()))


def test_it_needs_no_verdict(tmp_path: Any) -> None:
    plugins = Plugins(settings=PluginSettings(require="certified", lock=str(tmp_path / "none.lock")))
    causal = folder(tmp_path, architectures=["LlamaForCausalLM"])
    assert choose(None, causal, plugins) is choose("guideway-engine/decode", causal, plugins) is DecodeWorkflow


@pytest.mark.parametrize(
    ("config", "length"),
    [({"max_position_embeddings": 512}, 512), ({"text_config": {}}, None)],
)
def test_the_length_is_the_configurations(tmp_path: Any, config: dict[str, Any], length: int | None) -> None:
    model = folder(tmp_path, **config)
    if length is not None:
        assert DecodeWorkflow.max_length(model) == length
        return
    with pytest.raises(InvalidConfiguration, match="set max_model_len"):
        DecodeWorkflow.max_length(model)
