"""The model for all figures with a vocabulary of 131072 tokens, created on first use and the same everywhere.

A Llama of 8 layers, 8 heads and hidden size 512 with random weights (160 M parameters, 320 MB), and the tekken
vocabulary that mistral-common ships, as a fast tokenizer. The weights are bytes of a PCG64 generator with seed 0 as
bfloat16 numbers, so they do not depend on the version of torch; their digest is checked whenever the model is used.

    python tests/benchmarks/pinned_model.py [--models FOLDER]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mistral_common
import numpy as np
import torch
from guideway.vocabulary import build_vocabulary
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

NAME = "pinned-llama-131072"
WEIGHTS = "4e344330a006700086dbf976888b7f700c9ddef8fed3c0b13485c0ac246507a4"
"""The sha256 of the tensors' bytes, in order of their names."""
SEED = 0
CONFIG: dict[str, Any] = {
    "vocab_size": 131072,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}

SAMPLES = (
    '{"name": "Zoë", "tags": ["a", "b"], "price": 12.50, "city": "東京", "ok": true, "note": null}',
    "def main():\n\tfor i in range(1_000):\n\t\tprint(i)  # 🚆\r\n\r\n",
    "Guideways keep VEHICLES on their path; l'été   arrive.\n\n  Ἐν ἀρχῇ ἦν ὁ λόγος, مرحبا بالعالم, नमस्ते दुनिया.",
)


def add_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--models``, the folder of the model, which is created if missing."""
    parser.add_argument(
        "--models",
        type=Path,
        default=Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "guideway-benchmarks",
        metavar="FOLDER",
        help="where the pinned model is kept, outside of the repository (default: %(default)s)",
    )


def pinned_model(models: Path) -> Path:
    """Return the model's folder below `models`; create the model if it is missing. Raises RuntimeError if its weights
    are not the ones of all figures."""
    folder = models / NAME
    if not folder.is_dir():
        sys.stderr.write(f"making {folder}\n")
        models.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=models))
        try:
            _make(unfinished)
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished)
            raise
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        found = _digest((name, file.get_tensor(name)) for name in sorted(file.keys()))
    if found != WEIGHTS:
        raise RuntimeError(f"the weights in {folder} have the digest {found}, not {WEIGHTS}; remove the folder")
    return folder


def _make(folder: Path) -> None:
    config = LlamaConfig(**CONFIG, architectures=["LlamaForCausalLM"], dtype="bfloat16")
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    save_file(_weights(shapes), folder / "model.safetensors", metadata={"format": "pt"})

    tekken = Tekkenizer.from_file(Path(mistral_common.__file__).parent / "data" / "tekken_240911.json")
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(tekken), ensure_ascii=False), encoding="utf-8")
    names = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    _check_tokenizer(folder, tekken)


def _weights(shapes: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return norms of 1, and all other weights random with a deviation of 0.018."""
    stream = np.random.PCG64(SEED)
    weights = {}
    for name in sorted(shapes):
        shape = shapes[name]
        if len(shape) == 1:
            weights[name] = torch.ones(shape, dtype=torch.bfloat16)
        else:
            raw = stream.random_raw(shape.numel() // 8).astype("<u8").view(np.int8)
            weights[name] = (torch.from_numpy(raw).to(torch.bfloat16) / 4096).view(shape)
    return weights


def _digest(tensors: Iterable[tuple[str, Tensor]]) -> str:
    digest = hashlib.sha256()
    for name, tensor in tensors:
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _tokenizer(tekken: Tekkenizer) -> dict[str, object]:
    """Return tekken as ``tokenizer.json``: byte-level BPE with the same splits, merges and ids.

    A merge is any two tokens that form a third; the third's rank decides which merge is first.
    """
    vocabulary = build_vocabulary(tekken)
    ids = {token: i for i, token in enumerate(vocabulary.tokens) if token}
    merges = [
        (token[:cut], token[cut:])
        for token in ids
        for cut in range(1, len(token))
        if token[:cut] in ids and token[cut:] in ids
    ]
    specials = vocabulary.special_tokens
    split = {"type": "Split", "pattern": {"Regex": tekken._model._pat_str}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": name, **flags} for i, name in sorted(specials.items())],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "ignore_merges": True,
            "vocab": {name: i for i, name in specials.items()} | {_write(token): i for token, i in ids.items()},
            "merges": [[_write(left), _write(right)] for left, right in merges],
        },
    }


def _write(token: bytes) -> str:
    return "".join(map(LETTERS.__getitem__, token))


def _letters() -> list[str]:
    """Return how GPT-2 writes each byte: as itself in Latin-1 if it is printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)]


LETTERS = _letters()


def _check_tokenizer(folder: Path, tekken: Tekkenizer) -> None:
    """Raise RuntimeError unless ids, bytes, special tokens and the encoding of some texts equal tekken's own."""
    ours, theirs = build_vocabulary(AutoTokenizer.from_pretrained(folder)), build_vocabulary(tekken)
    for field in ("tokens", "stop_token_ids", "special_tokens", "logits_width"):
        if getattr(ours, field) != getattr(theirs, field):
            raise RuntimeError(f"the tokenizer differs from tekken in its {field}")
    texts = [*SAMPLES, Path(__file__).read_text("utf-8"), *map(bytes.decode, filter(_is_text, theirs.tokens))]
    for text in texts:
        if ours.encode(text.encode()) != theirs.encode(text.encode()):
            raise RuntimeError(f"the tokenizer encodes {text[:60]!r} otherwise than tekken")


def _is_text(token: bytes) -> bool:
    try:
        return bool(token.decode())
    except UnicodeDecodeError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_argument(parser)
    sys.stdout.write(f"{pinned_model(parser.parse_args().models)}\n")


if __name__ == "__main__":
    main()
