"""Tensor parallelism: both workers get the payload, and the tokens are the same as with one worker."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from guideway.api import PluginError
from guideway.plugins import PluginPlan
from guideway_vllm.ranks import check_ranks

from tests.support.distributions import install
from tests.vllm.another import tokens
from tests.vllm.probes_in_vllm import installed
from tests.vllm.serving import serve

REPOSITORY = Path(__file__).parents[2]
PROMPT = "Anna Berg"
HELLO = json.dumps({"hello": {"letter": "e", "strength": -80}})
WITNESS = json.dumps({"witness": {}})
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
CUT = {"guideway.close": False}
"""With closing, modifiers would have little left to change."""
REQUESTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "regex": {"structured_outputs": {"regex": "[a-z]{2,5}[0-9]"}},
    "schema": {"structured_outputs": {"json": SCHEMA}},
    "hello": {"vllm_xargs": {"guideway.modifiers": HELLO}},
    "both": {"structured_outputs": {"regex": "[a-z]{6}"}, "vllm_xargs": {"guideway.modifiers": HELLO} | CUT},
    "witness": {"structured_outputs": {"regex": "[a-z]{6}"}, "vllm_xargs": {"guideway.modifiers": WITNESS} | CUT},
}


@pytest.fixture(scope="module")
def tiny_model(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A random Llama that two workers can share, with the demo model's tokenizer.

    Its weights are large, so that no two logits are so close that the summation order decides between them.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=len(AutoTokenizer.from_pretrained(demo_model)),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(demo_model) / name, folder)
    return str(folder)


@pytest.mark.slow
def test_two_workers_answer_as_one_does(
    tiny_model: str, tmp_path: Path, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "witness", {"modifier.witness": "tests.vllm.tp_witness"})
    marks = {workers: tmp_path / f"marks of {workers}" for workers in (1, 2)}
    for folder in marks.values():
        folder.mkdir()
    monkeypatch.syspath_prepend(tmp_path)

    with serve(
        tiny_model,
        guideway(marks[2]),
        tmp_path / "log.txt",
        "--tensor-parallel-size=2",
        python_path=[tmp_path, REPOSITORY],
    ) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)
        answers = {name: answer(client, wanted) for name, wanted in REQUESTS.items()}

    assert answers == alone(start(guideway(marks[1]), model=tiny_model))
    assert answers["hello"] != answers["plain"], "the modifier acts"
    assert answers["both"] != answers["witness"]
    reports = [file.read_text("utf-8") for file in marks[2].iterdir()]
    assert len(reports) == 2, "a file of each worker"
    (report,) = (file.read_text("utf-8") for file in marks[1].iterdir())
    assert reports == [report, report]


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_two_workers_of_v2(tiny_model: str, tmp_path: Path, sharded: bool) -> None:
    """`sharded`: vLLM distributes the draw of plain steps over the ranks."""
    with installed(tmp_path):
        one = tokens(tmp_path, v2=False, model=tiny_model)
        given = {"tensor_parallel_size": 2, "enable_batch_sharded_sampling": sharded}
        assert tokens(tmp_path, v2=True, one_process=False, model=tiny_model, **given) == one


def test_a_worker_with_other_plugins_is_named_at_start(
    tiny_model: str, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = start({"grammar": ["llguidance"]}, model=tiny_model)
    core, config = llm.llm_engine.engine_core.engine_core, llm.llm_engine.vllm_config
    guest = core.model_executor.driver_worker.worker.guideway_guest
    check_ranks(core.model_executor, config)
    llguidance = next(plugin for plugin in guest.plan.plugins if "grammar.llguidance" in plugin.id)
    others = (replace(llguidance, version="0.0.1"), *(p for p in guest.plan.plugins if p is not llguidance))
    with monkeypatch.context() as patch:
        patch.setattr(guest, "plan", replace(guest.plan, plugins=others))
        with pytest.raises(PluginError, match=rf"rank 0: {re.escape(llguidance.id)} version: want .*, have 0.0.1"):
            check_ranks(core.model_executor, config)
    with monkeypatch.context() as patch:
        patch.delattr(core.model_executor.driver_worker.worker, "guideway_guest")
        with pytest.raises(PluginError, match="rank 0 does not load guideway"):
            check_ranks(core.model_executor, config)


def test_an_engine_does_not_start_where_a_worker_has_other_plugins(
    tiny_model: str, start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(worker: Any) -> PluginPlan:
        return replace(worker.guideway_guest.plan, contract="0.9")

    monkeypatch.setattr("guideway_vllm.ranks.plan_of", other)
    with pytest.raises(PluginError, match=r"rank 0: contract: want 1.0, have 0.9"):
        start({"grammar": ["llguidance"]}, model=tiny_model, max_num_seqs=2)


def guideway(folder: Path) -> dict[str, Any]:
    return {
        "grammar": ["llguidance"],
        "modifiers": ["hello", "witness"],
        "options": {"modifier.witness": {"folder": str(folder)}},
    }


def answer(client: openai.OpenAI, wanted: dict[str, Any]) -> str:
    response = client.completions.create(model="demo", prompt=PROMPT, max_tokens=12, temperature=0, extra_body=wanted)
    return response.choices[0].text


def alone(llm: Any) -> dict[str, str]:
    """Return the answers of one worker in this process."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    params = [
        SamplingParams(
            temperature=0,
            max_tokens=12,
            structured_outputs=StructuredOutputsParams(**wanted["structured_outputs"])
            if "structured_outputs" in wanted
            else None,
            extra_args=wanted.get("vllm_xargs"),
        )
        for wanted in REQUESTS.values()
    ]
    outputs = [llm.generate([PROMPT], [one], use_tqdm=False)[0] for one in params]
    return {name: output.outputs[0].text for name, output in zip(REQUESTS, outputs, strict=True)}
