"""Finding and checking, before any is loaded, the files that an engine or one of its libraries opens in a model's
folder."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from guideway.api.workflow import ModelFolder
from guideway.errors import InvalidConfiguration

__all__ = ["LoadFormat", "check_files", "check_weights", "digests"]

LoadFormat = Literal["safetensors", "auto"]

INDEX = ".index.json"
"""Suffix of index files, which map each tensor to its file."""
TEMPLATES = "additional_chat_templates"
TAKEN = (
    *("model.safetensors", "model.safetensors.index.json"),
    *("pytorch_model.bin", "pytorch_model.bin.index.json"),
)
"""Names of weights that `transformers` looks for; it uses the first one that exists."""
ELSEWHERE = frozenset({"__dict__", "attribute_map", "configuration_files"})
"""Settings of ``config.json`` that make `transformers` read a setting under another name, or from another file."""

WEIGHTS = frozenset({".safetensors", ".bin"})
SETTINGS = frozenset({".json", ".model", ".jinja", ".tiktoken"})
WORDS = frozenset({"vocab.txt", "merges.txt"})
"""Suffixes of the files that affect a model's results, and names of text files among them. Other files in the
folder, such as notes, are ignored."""
TENSOR_BYTES, MOST_HEADER_BYTES = 1 << 10, 1 << 27


def check_files(path: Path) -> None:
    """Raise `InvalidConfiguration` if a file of the model in the folder `path` is outside the folder, or if its files
    ask for something that depends on the installed packages."""
    model = ModelFolder(path, {})
    for name in _names(model):
        model.file(name)
    if model.file("adapter_config.json").exists():
        raise _refusal(
            model,
            "has an adapter (adapter_config.json) beside its weights, which would be applied only where peft is "
            "installed; merge it into the weights (merge_and_unload and save_pretrained of peft), or remove the file",
        )
    config = _object(model, "config.json")
    for part in (config, *config.values()):
        if isinstance(part, Mapping) and part.get("quantization_config"):
            raise _refusal(
                model,
                "has quantized weights (quantization_config in config.json), and what they are computed in depends on "
                "device and installed packages; save the model without quantization, or serve it with vLLM",
            )
        for name in ELSEWHERE & part.keys() if isinstance(part, Mapping) else ():
            raise _refusal(
                model,
                f"has {name} in config.json, so that transformers would read other settings than those checked here; "
                "write the settings that hold into config.json, and remove it",
            )


def check_weights(path: Path, load_format: LoadFormat) -> None:
    """Raise `InvalidConfiguration` if `load_format` excludes a file that the weights of the model in `path` are read
    from."""
    model = ModelFolder(path, {})
    taken = [*_explicit_weights(model), *(name for name in TAKEN if (path / name).exists())][:1]
    shards = [shard for index in taken for shard in sorted(_shards(model, index))]
    for name in (*taken, *shards):
        if load_format == "safetensors" and not name.removesuffix(INDEX).endswith(".safetensors"):
            raise InvalidConfiguration(
                f"model {str(path)!r} has weights in {name!r}, which is no safetensors file: PyTorch's own files are "
                "pickles, which may run code; convert them (save_pretrained writes safetensors), or set load_format to "
                "'auto' if you trust who made them",
                field="load_format",
            )


def digests(path: Path) -> dict[str, str]:
    """Return the digest, by name, of each file that affects the results of the model in `path`. Raises
    `InvalidConfiguration` as `check_files` does."""
    model = ModelFolder(path, {})
    files = {name: model.file(name) for name in _names(model)}
    found = {}
    for name, file in sorted(files.items()):
        if (file.suffix in WEIGHTS | SETTINGS or file.name in WORDS) and file.is_file():
            try:
                found[name] = _digest(file)
            except OSError as error:
                raise _refusal(model, f"has a {name} that cannot be read: {error}") from error
    return found


def _names(model: ModelFolder) -> set[str]:
    """Return the names of all files that may be opened: those in the folder, and files that these name."""
    try:
        names = {path.name for path in model.path.iterdir() if not path.is_dir()}
    except OSError as error:
        raise _refusal(model, f"cannot be read: {error}") from error
    names |= {f"{TEMPLATES}/{path.name}" for path in (model.path / TEMPLATES).glob("*.jinja")}
    names |= {str(Path(_name(model, "modules.json", each), "config.json")) for each in _modules(model)}
    told = _object(model, "tokenizer_config.json")
    versions = told.get("fast_tokenizer_files") or []
    named = [*versions] if isinstance(versions, list) else [versions]
    if "tokenizer.json" not in names:  # it takes precedence
        named += [value for key, value in told.items() if key.endswith("_file") and value is not None]
    names |= {_name(model, "tokenizer_config.json", each) for each in named}
    weights = {*TAKEN, *_explicit_weights(model)}
    return (names | weights).union(*(_shards(model, name) for name in weights))


def _explicit_weights(model: ModelFolder) -> list[str]:
    """Return the file of weights named in ``config.json``, if any."""
    named = _object(model, "config.json").get("transformers_weights")
    return [] if named is None else [_name(model, "config.json", named)]


def _shards(model: ModelFolder, name: str) -> set[str]:
    """Return the files listed in `name` if it is an index of weights, else an empty set."""
    shards = _object(model, name).get("weight_map") if name.endswith(INDEX) else None
    if shards is not None and not isinstance(shards, Mapping):
        raise _refusal(model, f"has a {name} whose weight_map is no JSON object")
    return {_name(model, name, each) for each in (shards or {}).values()}


def _modules(model: ModelFolder) -> list[Any]:
    modules = model.json("modules.json") or []
    if not isinstance(modules, list) or not all(isinstance(each, Mapping) for each in modules):
        raise _refusal(model, "has a modules.json that is no list of objects")
    return [each.get("path", "") for each in modules]


def _object(model: ModelFolder, name: str) -> Mapping[str, Any]:
    """Return the object in a JSON file; empty if there is no such file."""
    found = model.json(name)
    if found is not None and not isinstance(found, Mapping):
        raise _refusal(model, f"has a {name} that is no JSON object")
    return found or {}


def _name(model: ModelFolder, where: str, name: Any) -> str:
    if not isinstance(name, str):
        raise _refusal(model, f"has a {where} in which {name!r} stands for the name of a file")
    return name


def _refusal(model: ModelFolder, reason: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"model {str(model.path)!r} {reason}", field="model")


def _digest(path: Path) -> str:
    """Return the digest of a file. For weights it covers only the first bytes of each tensor, which training changes,
    or their checksums: reading a whole large model would take longer than an answer."""
    if path.suffix == ".safetensors":
        return _of_tensors(path)
    if path.suffix in WEIGHTS:
        try:
            with zipfile.ZipFile(path) as archive:
                sums = [(each.filename, each.file_size, each.CRC) for each in archive.infolist()]
            return hashlib.sha256(json.dumps(sums).encode()).hexdigest()
        except Exception:  # not such an archive, or a broken one; zipfile raises many types
            pass
    return _of_bytes(path)


def _of_bytes(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _of_tensors(path: Path) -> str:
    """Return the digest of a file's header and the first bytes of each tensor. Format: safetensors' documentation,
    "Format"."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(min(length, MOST_HEADER_BYTES))
        found.update(header)
        try:
            begins = [each["data_offsets"][0] for name, each in json.loads(header).items() if name != "__metadata__"]
            for begin in begins:
                file.seek(8 + length + begin)
                found.update(file.read(TENSOR_BYTES))
        except Exception:  # a header in another form; loading reports it
            return _of_bytes(path)
    return found.hexdigest()
