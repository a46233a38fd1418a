"""Tiny causal LMs with random weights, one factory per architecture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

VOCABULARY_SIZE = 300
CONTEXT = 256


def randomized(model: PreTrainedModel, seed: int, scale: float) -> PreTrainedModel:
    """`model` with random weights of its own seed, `scale` times as large as `transformers` would draw them, so that
    logits spread over several units and an attention error shows. Biases are drawn too; norms stay as they are."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" not in name and "ln_" not in name:
            drawn = torch.randn(parameter.shape, generator=generator) * (0.02 * scale)
            parameter.data.copy_(drawn)
    model.train(False)
    return model


def llama(seed: int = 0, *, num_kv_heads: int = 4, scale: float = 3, **overrides: Any) -> PreTrainedModel:
    """Rotary positions, RMS norm; fewer than 4 kv heads: grouped-query attention."""
    config = LlamaConfig(
        **{
            "vocab_size": VOCABULARY_SIZE,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": num_kv_heads,
            "max_position_embeddings": CONTEXT,
        }
        | overrides
    )
    return randomized(LlamaForCausalLM(config), seed, scale)


def llama_gqa(seed: int = 0) -> PreTrainedModel:
    """`llama` with two kv heads for four query heads."""
    return llama(seed, num_kv_heads=2)


def qwen2(seed: int = 0) -> PreTrainedModel:
    """Like Llama with biased projections, one kv head for all, and a window its configuration switches off."""
    config = Qwen2Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=1,
        max_position_embeddings=CONTEXT,
        sliding_window=16,
        use_sliding_window=False,
    )
    return randomized(Qwen2ForCausalLM(config), seed, scale=3)


def gpt2(seed: int = 0) -> PreTrainedModel:
    """Learned absolute positions: a wrong position in a packed row shows at once."""
    config = GPT2Config(
        vocab_size=VOCABULARY_SIZE, n_embd=128, n_layer=3, n_head=4, n_positions=CONTEXT, bos_token_id=0, eos_token_id=0
    )
    return randomized(GPT2LMHeadModel(config), seed, scale=3)


def gpt_neox(seed: int = 0) -> PreTrainedModel:
    """Rotary positions on a part of each head, attention and MLP side by side."""
    config = GPTNeoXConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=CONTEXT,
    )
    return randomized(GPTNeoXForCausalLM(config), seed, scale=3)


FACTORIES: dict[str, Callable[[int], PreTrainedModel]] = {
    "llama": llama,
    "llama-gqa": llama_gqa,
    "qwen2": qwen2,
    "gpt2": gpt2,
    "gpt-neox": gpt_neox,
}
"""A seed gives the same weights every time: two calls make a model to run and one to compare with."""
