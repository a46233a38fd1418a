"""Files of a model stay in its folder, contain no code, and mean the same with any installed packages."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_support.models import llama
from guideway import Engine, EngineConfig, SamplingParams
from guideway.api import InvalidConfiguration, ModelFolder
from guideway.plugins import Plugins
from guideway_demo_model import DemoModel
from guideway_engine.command_line.digests import of_entries
from guideway_engine.command_line.task_inputs import Entry
from guideway_engine.config_sources import Configuration, Setting
from guideway_engine.environment import planned
from guideway_engine.model_folder import check_files, check_weights, digests
from guideway_engine.model_path import model_path
from guideway_engine.runners.transformers.model_loader import load_model
from safetensors.torch import load_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a copy of the demo model, next to a file that does not belong to it."""
    (tmp_path / "secret.json").write_text('{"token": "none of yours"}', encoding="utf-8")
    return Path(shutil.copytree(DemoModel().path(), tmp_path / "model"))


def update(folder: Path, name: str, **changes: Any) -> None:
    path = folder / name
    content = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps(content | changes), encoding="utf-8")


def link(name: str, target: str = "../secret.json") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(target if "/" not in name else f"../{target}")

    return change


def module(path: Any) -> Callable[[Path], None]:
    modules = [{"path": path, "type": "sentence_transformers.models.Pooling"}]
    return lambda folder: void((folder / "modules.json").write_text(json.dumps(modules), encoding="utf-8"))


def void(_: object) -> None:
    """Ignore a result."""


def without_tokenizer(folder: Path, **named: str) -> None:
    """Let the tokenizer be read from a file that its settings name."""
    (folder / "tokenizer.json").unlink()
    update(folder, "tokenizer_config.json", **named)


LEAVE: dict[str, Callable[[Path], None]] = {
    "module above": module("../.."),
    "module elsewhere": module("/etc"),
    "module through a link": lambda folder: (link("1_Pooling", "..")(folder), module("1_Pooling/sub")(folder))[1],
    "module with a NUL": module("a\0b"),
    "module of no name": module(7),
    "modules of no form": lambda folder: void((folder / "modules.json").write_text('{"path": "x"}')),
    "shard above": lambda folder: update(
        folder, "model.safetensors.index.json", weight_map={"x": "../secret.json", "y": "model.safetensors"}
    ),
    "shard of a pickle above": lambda folder: update(
        folder, "pytorch_model.bin.index.json", weight_map={"x": "/etc/passwd"}
    ),
    "shards of no form": lambda folder: update(folder, "model.safetensors.index.json", weight_map=["../x"]),
    "weights above": lambda folder: update(folder, "config.json", transformers_weights="../model.safetensors"),
    "tokenizer above": lambda folder: update(folder, "tokenizer_config.json", fast_tokenizer_files=["../secret.json"]),
    "tokenizer of no name": lambda folder: update(folder, "tokenizer_config.json", fast_tokenizer_files=7),
    "vocabulary above": lambda folder: without_tokenizer(folder, vocab_file="../secret.json"),
    "tokenizer of another format": lambda folder: without_tokenizer(folder, gguf_file="/etc/hostname"),
    "link: config.json": link("config.json"),
    "link: tokenizer.json": link("tokenizer.json"),
    "link: chat_template.jinja": link("chat_template.jinja"),
    "link: vocabulary": link("tokenizer.model"),
    "link: nowhere": link("generation_config.json", "../nowhere"),
    "link: a circle": link("generation_config.json", "generation_config.json"),
    "link: more templates": link("additional_chat_templates/tool.jinja"),
    "no file": lambda folder: os.mkfifo(folder / "special_tokens_map.json"),
}


@pytest.mark.parametrize("change", LEAVE.values(), ids=LEAVE)
def test_a_file_outside_the_folder_is_refused(change: Callable[[Path], None], folder: Path) -> None:
    check_files(folder)
    change(folder)
    with pytest.raises(InvalidConfiguration):
        check_files(folder)
    with pytest.raises(InvalidConfiguration) as refused:
        Engine(EngineConfig(model=str(folder)))
    assert refused.value.field == "model"
    assert str(folder) in str(refused.value)
    assert "none of yours" not in str(refused.value)


@pytest.mark.parametrize("name", ["../secret.json", "sub/../../secret.json", "/etc/hostname", "out"])
def test_a_workflow_reads_no_file_outside_the_folder(name: str, folder: Path) -> None:
    (folder / "out").symlink_to("../secret.json")
    model = ModelFolder.read(folder)
    with pytest.raises(InvalidConfiguration, match="outside the folder"):
        model.json(name)
    assert model.json("sub/../config.json") is None  # the folder sub does not exist
    assert model.json("nothing.json") is None


@pytest.mark.slow
def test_a_snapshot_in_the_cache_of_the_hub_is_a_folder_like_others(tmp_path: Path) -> None:
    repository = tmp_path / "models--guideway--demo"
    snapshot, blobs = repository / "snapshots" / "0123abcd", repository / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, path in enumerate(sorted(DemoModel().path().iterdir())):
        if path.is_file():
            shutil.copy(path, blobs / f"blob{i}")
            (snapshot / path.name).symlink_to(f"../../blobs/blob{i}")
    (tmp_path / "current").symlink_to(snapshot)
    for folder in (snapshot, tmp_path / "current"):
        with Engine(EngineConfig(model=str(folder))) as engine:
            assert engine.generate([[5, 6, 7]], SamplingParams(max_tokens=2))[0].error is None
    assert digests(snapshot) == digests(DemoModel().path())
    (repository / "refs").write_text("{}")
    (snapshot / "more.json").symlink_to("../../refs")
    with pytest.raises(InvalidConfiguration, match="outside the folder"):
        check_files(snapshot)


class Code:
    """An object that runs code when unpickled."""

    def __reduce__(self) -> Any:
        return (os.mkdir, ("ran",))


def as_pickle(folder: Path, name: str = "pytorch_model.bin") -> None:
    """Store the weights in torch's own format."""
    torch.save(load_file(folder / "model.safetensors"), folder / name)
    (folder / "model.safetensors").unlink()


def test_weights_that_are_pickles_are_read_only_where_the_operator_says_so(folder: Path) -> None:
    with Engine(EngineConfig(model=str(folder))) as engine:
        expected = engine.generate([[5, 6, 7]], SamplingParams(max_tokens=5))[0].token_ids
    as_pickle(folder)
    with pytest.raises(InvalidConfiguration, match=r"'pytorch_model.bin', which is no safetensors file.*load_format"):
        Engine(EngineConfig(model=str(folder)))
    with Engine(EngineConfig(model=str(folder), load_format="auto")) as engine:
        assert engine.generate([[5, 6, 7]], SamplingParams(max_tokens=5))[0].token_ids == expected


def test_names_and_indexes_that_nobody_reads_matter_to_nobody(folder: Path) -> None:
    update(folder, "tokenizer_config.json", vocab_file="/somewhere/tokenizer.model", tokenizer_file=None)
    (folder / "texts.index.json").write_text("no JSON", encoding="utf-8")
    with Engine(EngineConfig(model=str(folder))) as engine:
        assert engine.generate([[5, 6, 7]], SamplingParams(max_tokens=2))[0].error is None


OFFSETS = [b"-999999", b"9" * 30, b"1.5", b'"x"', b"null"]
HEADERS = [b"[" * (1 << 16), b"[]", *(b'{"a": {"data_offsets": [%s, 4]}}' % each for each in OFFSETS)]
BROKEN = {f"{i}.safetensors": len(header).to_bytes(8, "little") + header for i, header in enumerate(HEADERS)}
BROKEN |= {"empty.safetensors": b"", "archive.bin": b"PK\5\6" + b"\xff" * 18}


def test_files_of_whatever_bytes_have_digests(folder: Path) -> None:
    """A folder may contain such files beyond the ones that are read."""
    for name, content in BROKEN.items():
        (folder / name).write_bytes(content)
    found = digests(folder)
    assert found.keys() >= BROKEN.keys()
    for name, content in BROKEN.items():
        (folder / name).write_bytes(content + b"more")
        assert digests(folder)[name] != found[name]


@pytest.mark.parametrize("explicit", [False, True])
def test_no_name_makes_a_pickle_of_safetensors(
    explicit: bool, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "weights.bin").write_bytes(pickle.dumps(Code()))
    index = "own.safetensors.index.json" if explicit else "model.safetensors.index.json"
    update(folder, index, weight_map={"model.norm.weight": "weights.bin"}, metadata={})
    if explicit:
        update(folder, "config.json", transformers_weights=index)
    else:
        (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidConfiguration, match=r"'weights.bin', which is no safetensors file") as refused:
        Engine(EngineConfig(model=str(folder)))
    assert refused.value.field == "load_format"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("where", ["attribute_map", "configuration_files", "__dict__"])
def test_settings_hold_as_they_are_checked(where: str, folder: Path) -> None:
    """With these settings transformers would find the name of the weights' file elsewhere than in ``config.json``."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = {"transformers_weights": "model.safetensors.index.json"}
    update(folder, "config.4.0.0.json", **config, **weights)
    elsewhere: dict[str, Any] = {
        "attribute_map": {"attribute_map": {"transformers_weights": "other"}, "other": weights["transformers_weights"]},
        "configuration_files": {"configuration_files": ["config.4.0.0.json"]},
        "__dict__": {"__dict__": weights},
    }
    update(folder, "config.json", **elsewhere[where])
    with pytest.raises(InvalidConfiguration, match=f"has {where} in config.json") as refused:
        Engine(EngineConfig(model=str(folder)))
    assert refused.value.field == "model"


def test_pickles_that_are_not_read_matter_to_nobody(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder / "kept.safetensors")
    as_pickle(folder)
    (folder / "kept.safetensors").rename(folder / "model.safetensors")
    update(folder, "pytorch_model.bin.index.json", weight_map={"x": "pytorch_model.bin"})
    check_weights(folder, "safetensors")
    assert model_path(str(folder), Plugins(), "safetensors") == folder


def test_an_adapter_is_refused_whether_or_not_peft_is_installed(folder: Path) -> None:
    update(folder, "adapter_config.json", base_model_name_or_path="elsewhere", peft_type="LORA")
    with pytest.raises(
        InvalidConfiguration, match=r"adapter_config.json.*only where peft is installed; merge"
    ) as refused:
        Engine(EngineConfig(model=str(folder)))
    assert refused.value.field == "model"


@pytest.mark.parametrize("part", [None, "text_config"])
def test_quantized_weights_are_refused(part: str | None, folder: Path) -> None:
    quantized = {"quantization_config": {"quant_method": "unheard-of", "bits": 4}}
    update(folder, "config.json", **(quantized if part is None else {part: quantized}))
    with pytest.raises(InvalidConfiguration, match="has quantized weights") as refused:
        Engine(EngineConfig(model=str(folder)))
    assert refused.value.field == "model"


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation", "experts_implementation"])
@pytest.mark.parametrize("value", ["kernels-community/flash-attn", "flash_attention_2", "sonicmoe", {"": "eager"}])
def test_a_model_chooses_no_code_to_run_it_with(name: str, value: Any, folder: Path) -> None:
    """These settings would select code from packages or the hub, if available."""
    expected = load_model(folder, "float32", "cpu")
    update(folder, "config.json", **{name: value})
    loaded = load_model(folder, "float32", "cpu")
    for chosen in ("_attn_implementation", "_experts_implementation"):
        assert getattr(loaded.config, chosen) == getattr(expected.config, chosen)


def test_whatever_changes_what_a_model_computes_changes_the_fingerprint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fingerprint() -> str:
        return Plugins().plan([], planned(EngineConfig(model="model"), folder)).fingerprint

    seen = [fingerprint()]
    assert fingerprint() == seen[0]
    (folder / "notes.md").write_text("nothing that counts", encoding="utf-8")
    assert fingerprint() == seen[0]
    llama().save_pretrained(folder)
    seen.append(fingerprint())
    update(folder, "generation_config.json", eos_token_id=7)
    seen.append(fingerprint())
    module("pooling")(folder)
    seen.append(fingerprint())
    (folder / "pooling").mkdir()
    update(folder, "pooling/config.json", pooling_mode_mean_tokens=True)
    seen.append(fingerprint())
    as_pickle(folder)
    seen.append(fingerprint())
    weights = torch.load(folder / "pytorch_model.bin")
    weights["model.norm.weight"] += 1
    torch.save(weights, folder / "pytorch_model.bin")
    seen.append(fingerprint())
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    seen.append(fingerprint())
    mkldnn: Any = torch.backends.mkldnn
    mkldnn.matmul.fp32_precision = "bf16"
    try:
        seen.append(fingerprint())
    finally:
        mkldnn.matmul.fp32_precision = "none"
    assert len(set(seen)) == len(seen)


def test_settings_that_make_float32_less_precise_are_named_at_the_start_and_in_request_digests(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def digest() -> dict[str, str]:
        configuration = Configuration.of([{("model",): Setting("demo", "--model")}])
        return of_entries([Entry("0", "a text", "a text")], "embed", configuration, {})

    before = digest()
    monkeypatch.setenv("ONEDNN_DEFAULT_FPMATH_MODE", "BF16")
    assert digest() != before
    with caplog.at_level("INFO", "guideway_engine"), Engine(EngineConfig(model="demo")):
        assert "; ONEDNN_DEFAULT_FPMATH_MODE=BF16; grammar_host=process; fingerprint " in caplog.text
