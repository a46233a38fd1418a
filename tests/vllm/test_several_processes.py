"""A model in several stages, and drafts that models make: tokens are those of one process without drafts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.another import tokens
from tests.vllm.probes_in_vllm import installed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with installed(folder := tmp_path_factory.mktemp("installed")):
        yield folder


@pytest.fixture(scope="module")
def one(folder: Path) -> Any:
    return tokens(folder, v2=False)


@pytest.fixture(scope="module")
def eagle_head(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The last layer of the demo model as an EAGLE head, which knows some of what the model will say."""
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
    """Steps of different requests are under way at once."""
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
    """As on a GPU: vLLM's CPU platform switches it off there."""
    assert tokens(folder, v2=False, async_scheduling=True) == one
