"""Tiny encoders, classifiers and headless decoders with random weights, by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from guideway_engine.prefill.forward import Ragged
from transformers import PreTrainedModel

VOCABULARY_SIZE = 300
CONTEXT = 96
PADDING = 1
WINDOW = 8

SIZES = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": PADDING,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "num_labels": 3,
}
DECODER = {"num_key_value_heads": 2, "head_dim": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "Albert": {"embedding_size": 16},
    "Bert": {},
    "Camembert": {},
    "DistilBert": {"dim": 32, "hidden_dim": 64, "n_layers": 3, "n_heads": 4},
    "Electra": {},
    "EuroBert": {**DECODER, "mask_token_id": 4},
    "GPT2": {"n_positions": CONTEXT},
    "Llama": DECODER,
    "Mistral": {**DECODER, "sliding_window": WINDOW},
    "ModernBert": {"local_attention": 2 * WINDOW, "cls_token_id": 2, "sep_token_id": 3},
    "NomicBert": {},
    "Qwen2": DECODER,
    "Qwen3": DECODER,
    "Roberta": {},
    "XLMRoberta": {},
}


def model_of(name: str, **overrides: Any) -> PreTrainedModel:
    """Return a random model of the class `name` of `transformers`, such as ``BertForSequenceClassification``."""
    family = max((family for family in FAMILIES if name.startswith(family)), key=len)
    config = getattr(transformers, f"{family}Config")(**SIZES | FAMILIES[family] | overrides)
    model: PreTrainedModel = getattr(transformers, name)(config)
    generator = torch.Generator().manual_seed(0)
    for parameter_name, parameter in model.named_parameters():
        if "norm" not in parameter_name.lower():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.train(False)
    return model


def batch_of(*lengths: int, types: bool = False) -> Ragged:
    """Return a batch of random token ids without padding tokens."""
    generator = np.random.default_rng(len(lengths))
    total = sum(lengths)
    token_ids = generator.integers(4, VOCABULARY_SIZE, total)
    return Ragged(token_ids, np.array(lengths, dtype=np.int32), generator.integers(0, 2, total) if types else None)


@torch.no_grad()
def padded(model: PreTrainedModel, batch: Ragged) -> torch.Tensor:
    """Return the results of `transformers` for the batch, padded to its longest sequence: logits, or each token's
    vector."""
    count, longest = len(batch.lengths), int(batch.lengths.max())
    real = torch.arange(longest) < torch.from_numpy(batch.lengths)[:, None]
    arguments = {"input_ids": torch.full((count, longest), PADDING), "attention_mask": real.long()}
    arguments["input_ids"][real] = torch.from_numpy(batch.token_ids)
    if batch.token_types is not None:
        arguments["token_type_ids"] = torch.zeros_like(arguments["input_ids"])
        arguments["token_type_ids"][real] = torch.from_numpy(batch.token_types)
    if type(model).__name__.endswith("ForSequenceClassification"):
        logits: torch.Tensor = model(**arguments).logits
        return logits
    hidden: torch.Tensor = model.base_model(**arguments).last_hidden_state
    return hidden[real]
