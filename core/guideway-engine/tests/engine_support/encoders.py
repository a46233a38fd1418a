"""Tiny encoders, classifiers and decoders with random weights, stored as folders that an engine opens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from engine_support.models import randomized
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import AutoModel, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

WORDS = [f"w{i}" for i in range(280)]
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES: dict[str, Any] = {
    "vocab_size": len(SPECIALS) + len(WORDS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 80,
    "pad_token_id": 0,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": {},
    "DistilBert": {"dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4},
    "Electra": {"embedding_size": 16},
    "ModernBert": {"local_attention": 8, "global_attn_every_n_layers": 2, "cls_token_id": 2, "sep_token_id": 3},
    "Roberta": {},
    "XLMRoberta": {},
    "Camembert": {},
    "MPNet": {},
    "Llama": {"num_key_value_heads": 2},
    "Mistral": {"num_key_value_heads": 2, "sliding_window": 16},
    "Qwen2": {"num_key_value_heads": 2},
    "Qwen3": {"num_key_value_heads": 2, "head_dim": 8},
    "Phi3": {"num_key_value_heads": 2},
    "Gemma": {"num_key_value_heads": 1, "head_dim": 8},
    "Gemma2": {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 8},
}
"""Configuration of each architecture in addition to `SIZES`."""


def encoder(name: str, head: str = "Model", seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """Return a random model of the architecture `name` with the class of `head`, such as
    ``ForSequenceClassification``."""
    config = getattr(transformers, f"{name}Config")(**SIZES | FAMILIES[name] | overrides)
    model = randomized(getattr(transformers, f"{name}{head}")(config), seed, scale=6)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.ones_(module.weight)
    return model


def stored(model: PreTrainedModel, folder: Path) -> Path:
    """Store `model` with a word tokenizer that adds ``[CLS] ... [SEP]``, and return the folder."""
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(SPECIALS + WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    fast.save_pretrained(folder)  # type: ignore[no-untyped-call]
    return folder


def write_recipe(folder: Path, pooling: str, *, normalize: bool, max_length: int | None = None) -> None:
    """Write the files that sentence-transformers would add to the model."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalize else [])]
    modules = [
        {"idx": i, "path": "" if i == 0 else f"{i}_{kind}", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({pooling: True, "word_embedding_dimension": 32}))
    if max_length is not None:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_length}))


def ids_of(folder: Path, inputs: Sequence[str]) -> list[list[int]]:
    """Return the token ids of texts. For models whose type makes `transformers` expect another tokenizer."""
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    return [list(ids) for ids in tokenizer(list(inputs)).input_ids]


def texts(number: int, longest: int = 60) -> list[str]:
    """Return texts of various lengths."""
    return [" ".join(WORDS[(7 * i + j) % len(WORDS)] for j in range(1 + (i * 13) % longest)) for i in range(number)]


@torch.inference_mode()
def reference(folder: Path, inputs: Sequence[str | tuple[str, str]], *, head: bool = False) -> list[Tensor]:
    """Return the results of `transformers` itself for a padded batch: the vectors of each input's tokens, or its
    logits."""
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(folder)
    made: Any = (AutoModelForSequenceClassification if head else AutoModel).from_pretrained(folder)
    made.train(False)
    batch = tokenizer(list(inputs), padding=True, return_tensors="pt", padding_side="right")
    if (made.config.to_dict().get("type_vocab_size") or 0) < 2:
        batch.pop("token_type_ids", None)
    output = made(**batch)
    if head:
        return list(output.logits)
    lengths = batch["attention_mask"].sum(1).tolist()
    return [row[:length] for row, length in zip(output.last_hidden_state, lengths, strict=True)]
