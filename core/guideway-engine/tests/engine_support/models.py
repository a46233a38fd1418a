"""Tiny causal LMs with random weights, one factory per architecture."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel

VOCABULARY_SIZE = 300
CONTEXT = 256
WINDOW = 24


def randomized(model: PreTrainedModel, seed: int, scale: float) -> PreTrainedModel:
    """Give `model` random weights for its seed, `scale` times as large as in `transformers`, so that logits
    spread over several units and an attention error is visible. Biases are random too; norms stay unchanged."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if "norm" not in name and "ln_" not in name:
            drawn = torch.randn(parameter.shape, generator=generator) * (0.02 * scale)
            parameter.data.copy_(drawn)
    model.train(False)
    return model


def decoder(
    name: str, seed: int = 0, *, scale: float = 4, config_name: str | None = None, **overrides: Any
) -> PreTrainedModel:
    """Return a random model of the `transformers` architecture `name`, such as ``Llama``."""
    sizes = {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    config = getattr(transformers, f"{config_name or name}Config")(**sizes | overrides)
    return randomized(getattr(transformers, f"{name}ForCausalLM")(config), seed, scale)


def llama(seed: int = 0, *, num_kv_heads: int = 4, scale: float = 4, **overrides: Any) -> PreTrainedModel:
    """Return a model with rotary positions and RMS norm; fewer than 4 kv heads: grouped-query attention."""
    return decoder("Llama", seed, scale=scale, num_key_value_heads=num_kv_heads, **overrides)


def llama_gqa(seed: int = 0) -> PreTrainedModel:
    """Return a `llama` with two kv heads for four query heads."""
    return llama(seed, num_kv_heads=2)


def gpt2(seed: int = 0) -> PreTrainedModel:
    """Return a model with learned absolute positions, where a wrong position in a packed row is visible at once."""
    config = GPT2Config(
        vocab_size=VOCABULARY_SIZE, n_embd=64, n_layer=3, n_head=4, n_positions=CONTEXT, bos_token_id=0, eos_token_id=0
    )
    return randomized(GPT2LMHeadModel(config), seed, scale=4)


MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2}

FACTORIES: dict[str, Callable[[int], PreTrainedModel]] = {
    "llama": llama,
    "llama-gqa": llama_gqa,
    # biased projections, one kv head for all, and a window that its configuration turns off
    "qwen2": partial(decoder, "Qwen2", num_key_value_heads=1, sliding_window=WINDOW, use_sliding_window=False),
    # a window in all layers but the first
    "qwen2-window": partial(
        decoder, "Qwen2", sliding_window=WINDOW, use_sliding_window=True, max_window_layers=1, num_key_value_heads=2
    ),
    "qwen3": partial(decoder, "Qwen3", head_dim=24, num_key_value_heads=2),
    "mistral": partial(decoder, "Mistral", sliding_window=WINDOW, num_key_value_heads=2),
    # scaled embeddings, and heads wider than the hidden size implies
    "gemma": partial(decoder, "Gemma", head_dim=24, num_key_value_heads=1),
    # local and global layers, capped scores (of a size at which capping matters)
    "gemma2": partial(
        decoder, "Gemma2", head_dim=16, num_key_value_heads=2, sliding_window=WINDOW, attn_logit_softcapping=1.0,
        layer_types=MIXED, scale=8,
    ),
    # local and global layers with different rotary frequencies
    "gemma3": partial(
        decoder, "Gemma3", config_name="Gemma3Text", head_dim=16, num_key_value_heads=2, sliding_window=WINDOW,
        layer_types=MIXED,
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 1_000_000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    ),
    # rotary positions on a part of each head, parallel attention and MLP
    "phi": partial(decoder, "Phi"),
    "phi3": partial(decoder, "Phi3", sliding_window=WINDOW, num_key_value_heads=2),
    "gpt2": gpt2,
    "gpt-neox": partial(decoder, "GPTNeoX"),
    "mixtral": partial(decoder, "Mixtral", num_local_experts=4, num_key_value_heads=2, sliding_window=WINDOW),
    # windows in its masks that are not passed to its attention
    "qwen2-moe": partial(
        decoder, "Qwen2Moe", moe_intermediate_size=32, shared_expert_intermediate_size=32, use_sliding_window=True,
        sliding_window=WINDOW, max_window_layers=1, **EXPERTS,
    ),
    # a window that is passed to its attention but not in its masks
    "olmoe": partial(decoder, "Olmoe", sliding_window=WINDOW, **EXPERTS),
}  # fmt: skip
"""Factories of models. A seed always gives the same weights, so two calls return a model to run and one to compare
with."""
