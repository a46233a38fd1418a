"""A model folder is loaded completely or refused with the reason."""

from __future__ import annotations

import json
import os
import pty
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.models import VOCABULARY_SIZE, llama
from guideway.api import InvalidConfiguration
from guideway.api.forward import ModelInfo
from guideway_engine.runners.transformers.model_loader import load_model, load_tokenizer, model_info
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging


def bfloat16_llama() -> PreTrainedModel:
    model = llama(num_hidden_layers=1)
    model.to(torch.bfloat16)  # type: ignore[arg-type]
    return model


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store a tiny Llama as bfloat16, with a fast word tokenizer, and return the folder."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    bfloat16_llama().save_pretrained(folder)
    words = {f"w{i}": i for i in range(VOCABULARY_SIZE)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


def test_loads_model_and_tokenizer(stored: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = load_model(stored, "float32", "cpu"), load_tokenizer(stored)
    assert model.dtype == torch.float32
    assert not model.training
    assert tokenizer("w3 w299")["input_ids"] == [3, 299]
    written = {name: weight.to(torch.float32) for name, weight in bfloat16_llama().named_parameters()}
    loaded = dict(model.named_parameters())
    assert all(torch.equal(loaded[name], value) for name, value in written.items())
    assert capfd.readouterr().err == ""


def test_loading_is_silent_on_a_terminal_too(
    stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    copied = Path(shutil.copytree(stored, tmp_path / "more"))
    (file,) = copied.glob("*.safetensors")
    save_file({**load_file(file), "more": torch.zeros(1)}, file, metadata={"format": "pt"})
    monkeypatch.setattr(logging.get_logger("transformers"), "propagate", True)
    verbosity = logging.get_verbosity()
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        load_model(stored, "float32", "cpu")
        load_model(copied, "float32", "cpu")
        load_tokenizer(stored)
        terminal.write("done")
    sent = os.read(master, 65536)
    os.close(master)
    assert sent == b"done"
    assert caplog.messages == []  # `transformers` reports unused weights
    # the logging settings of others in this process are unchanged
    assert logging.is_progress_bar_enabled() and logging.get_verbosity() == verbosity


@pytest.mark.parametrize(("dtype", "expected"), [("auto", torch.bfloat16), (torch.float32, torch.float32)])
def test_dtypes(stored: Path, dtype: str | torch.dtype, expected: torch.dtype) -> None:
    assert load_model(str(stored), dtype, torch.device("cpu")).dtype == expected


def test_what_an_engine_has_to_know(stored: Path) -> None:
    model = load_model(stored, "float32", "cpu")
    assert model_info(model) == ModelInfo(VOCABULARY_SIZE, 256, ())
    model.generation_config.eos_token_id = [5, 6]
    assert model_info(model).stop_token_ids == (5, 6)


def without(*names: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return change


def config(**changes: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


def contents(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(text)

    return change


def bert(folder: Path) -> None:
    shutil.rmtree(folder)
    small = BertConfig(vocab_size=30, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    BertModel(small).save_pretrained(folder)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "does not exist"),
        (without("config.json"), "has no config.json"),
        (contents("config.json", "{"), "has a configuration transformers cannot use"),
        (config(model_type="unheard-of"), "has a configuration transformers cannot use.*unheard-of"),
        (config(hidden_size="big"), "has a configuration transformers cannot use"),
        (
            config(architectures=["LlamaForSequenceClassification"]),
            "holds LlamaForSequenceClassification, which",
        ),
        (bert, "holds BertModel, which is not a causal language model"),
        (config(architectures=None, model_type="vit"), "holds a vit model, which is not a causal language model"),
        (without("model.safetensors"), "has weights that cannot be loaded"),
        (contents("model.safetensors", "these are no weights"), "has weights that cannot be loaded"),
        (config(intermediate_size=300), "has weights that cannot be loaded"),
        (config(num_hidden_layers=2), "lacks 9 of the model's weights, the first being 'model.layers.1"),
    ],
)
def test_a_folder_that_cannot_be_used(
    stored: Path, tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "spoiled"
    shutil.copytree(stored, folder)
    spoil(folder)
    with pytest.raises(InvalidConfiguration, match=message) as refusal:
        load_model(folder, "float32", "cpu")
    assert refusal.value.field == "model"
    assert str(folder) in str(refusal.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (shutil.rmtree, "does not exist"),
        (without("config.json"), "has no config.json"),
        (bert, "holds BertModel, which is not a causal language model"),
        (without("tokenizer.json", "tokenizer_config.json"), r"has no fast tokenizer \(tokenizer.json\)"),
        (contents("tokenizer.json", "{"), r"has no fast tokenizer \(tokenizer.json\)"),
    ],
)
def test_a_folder_without_a_tokenizer_that_can_be_used(
    stored: Path, tmp_path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    folder = tmp_path / "spoiled"
    shutil.copytree(stored, folder)
    spoil(folder)
    with pytest.raises(InvalidConfiguration, match=message) as refusal:
        load_tokenizer(folder)
    assert refusal.value.field == "model"


def test_a_file_is_no_folder(stored: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="is not a folder") as refusal:
        load_model(stored / "config.json", "float32", "cpu")
    assert refusal.value.field == "model"


@pytest.mark.parametrize("dtype", ["float33", "int8", "nn", torch.int32])
def test_a_dtype_no_model_has(stored: Path, dtype: str | torch.dtype) -> None:
    with pytest.raises(InvalidConfiguration, match="dtype must be auto, float32") as refusal:
        load_model(stored, dtype, "cpu")
    assert refusal.value.field == "dtype"


@pytest.mark.parametrize(("device", "message"), [("abacus", "is no device torch knows"), ("xla:7", "cannot be moved")])
def test_a_device_that_is_not_there(stored: Path, device: str, message: str) -> None:
    with pytest.raises(InvalidConfiguration, match=message) as refusal:
        load_model(stored, "float32", device)
    assert refusal.value.field == "device"
