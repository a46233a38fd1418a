"""Models in several stages or copies, and model-based drafts: the tokens are the same as in one process without
drafts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import triton_interpreter
from tests.support.processes import is_alive, tree
from tests.vllm.another import tokens
from tests.vllm.probes_in_vllm import installed
from tests.vllm.serving import Server, serve


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(folder := tmp_path_factory.mktemp("installed")):
        yield folder


@pytest.fixture(scope="module")
def one(folder: Path) -> Any:
    return tokens(folder, v2=False)


@pytest.fixture(scope="module")
def eagle_head(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last layer of the demo model as an EAGLE head, which predicts some of the model's tokens."""
    import torch
    from safetensors.torch import load_file, save_file

    folder, weights = tmp_path_factory.mktemp("eagle"), {}
    for file in Path(demo_model).glob("*.safetensors"):
        weights |= load_file(file)
    config = json.loads((Path(demo_model) / "config.json").read_text("utf-8"))
    last, width = f"model.layers.{config['num_hidden_layers'] - 1}.", config["hidden_size"]
    head = {
        name.replace(last, "layers.0."): weight
        for name, weight in weights.items()
        if name.startswith(last) and "input_layernorm" not in name
    }
    head["embed_tokens.weight"] = weights["model.embed_tokens.weight"]
    head["fc.weight"] = torch.cat([0.1 * torch.eye(width), torch.eye(width)], dim=1)
    save_file({name: weight.float().clone() for name, weight in head.items()}, folder / "model.safetensors")
    config.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}), "utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(Path(demo_model) / name, folder)
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [True, False])
def test_stages_of_v2(folder: Path, one: Any, asynchronous: bool) -> None:
    """Steps of different requests run at once."""
    given = {"pipeline_parallel_size": 2, "async_scheduling": asynchronous}
    assert tokens(folder, v2=True, one_process=False, **given) == one


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft_model", "eagle"])
def test_drafts_of_a_model_in_v2(folder: Path, one: Any, demo_model: str, eagle_head: str, method: str) -> None:
    model = {"draft_model": demo_model, "eagle": eagle_head}[method]
    given = {"method": method, "model": model, "num_speculative_tokens": 3}
    assert tokens(folder, v2=True, speculative_config=given) == one


@pytest.mark.slow
def test_asynchronous_scheduling_in_v1(folder: Path, one: Any) -> None:
    """This is the default on a GPU; vLLM's CPU platform turns it off."""
    assert tokens(folder, v2=False, async_scheduling=True) == one


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def ask_all(server: Server, forms: list[dict[str, Any]]) -> list[httpx.Response]:
    """Return the answers to concurrent requests."""

    def ask(form: dict[str, Any]) -> httpx.Response:
        body = {"model": "demo", "max_tokens": 48, "temperature": 0, **form}
        return httpx.post(f"{server.url}/v1/completions", json=body, timeout=600)

    with ThreadPoolExecutor(len(forms)) as threads:
        return list(threads.map(ask, forms))


def workers(server: Server) -> list[int]:
    titles = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in tree(server.pid) if is_alive(pid)}
    return sorted(pid for pid, title in titles.items() if title.startswith(b"VLLM::Worker"))


@pytest.mark.slow
@pytest.mark.parametrize("v2", [False, True])
def test_copies_of_the_model_and_the_end_of_one(demo_model: str, tmp_path: Path, v2: bool) -> None:
    """All copies answer alike. If a worker is killed, vLLM ends, and all clients get an error."""
    environment = triton_interpreter.installed(tmp_path) if v2 else {"VLLM_USE_V2_MODEL_RUNNER": "0"}
    path = [tmp_path, triton_interpreter.ROOT]
    guideway = {"grammar": ["llguidance", "xgrammar"], "modifiers": ["hello"]}
    forms: list[dict[str, Any]] = [
        {"prompt": "Anna Berg, aged 31: ", "structured_outputs": {"json": PERSON}},
        {"prompt": "Meet Zoe. ", "vllm_xargs": {"guideway.modifiers": json.dumps({"hello": {"letter": "e"}})}},
        {"prompt": "Words: ", "structured_outputs": {"regex": "[a-z]{6}"}},
        {"prompt": "Free: "},
    ]
    given = {"environment": environment, "python_path": path}
    with serve(demo_model, guideway, tmp_path / "log.txt", "--data-parallel-size=2", **given) as server:
        answers = [answer.json()["choices"][0]["text"] for answer in ask_all(server, forms * 4)]
        for number in range(len(forms)):
            assert len(set(answers[number :: len(forms)])) == 1, answers
        assert json.loads(answers[0]).keys() == {"name", "age"}
        assert "e" not in answers[1] and len(answers[2]) == 6
        served = [
            line
            for line in httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
            if line.startswith("vllm:generation_tokens_total") and float(line.rpartition(" ")[2]) > 0
        ]
        assert len(served) == 2, "both copies answered"

        victim = workers(server)[0]
        long = {"structured_outputs": {"regex": "[a-z]{400}"}, "max_tokens": 450, "prompt": "Words: "}
        with ThreadPoolExecutor(1) as thread:
            under_way = thread.submit(ask_all, server, [long] * 8)
            deadline = time.monotonic() + 60
            while server.metric("vllm:num_requests_running") < 8 and time.monotonic() < deadline:
                time.sleep(0.2)
            os.kill(victim, signal.SIGKILL)
            assert {answer.status_code for answer in under_way.result()} <= {200, 500}
        deadline = time.monotonic() + 60
        while is_alive(server.pid) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert not is_alive(server.pid)
