"""An architecture that the engine would run incorrectly is refused with the reason; an unreachable limit is ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from engine_support.driver import Driver, recompute
from engine_support.models import CONTEXT, FACTORIES, WINDOW, gpt2, llama
from guideway.api import InvalidConfiguration
from guideway_engine.runners.transformers.model_runner import PackedModel
from guideway_engine.runners.transformers.model_support import probe_attention
from transformers import PreTrainedModel

from tests.support.stages import one_in

SIZES: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
    "factor": CONTEXT / 40,
    "original_max_position_embeddings": 40,
}


def tiny(name: str, **overrides: Any) -> PreTrainedModel:
    """Return a random model of the `transformers` architecture `name`."""
    config = getattr(transformers, f"{name}Config")(**SIZES | overrides)
    model: PreTrainedModel = getattr(transformers, f"{name}ForCausalLM")(config)
    return model


def chunked() -> PreTrainedModel:
    """Return a model with two layers that attend within chunks of 32 tokens."""
    config = transformers.Llama4TextConfig(
        **SIZES, attention_chunk_size=32, layer_types=["chunked_attention"] * 2, intermediate_size_mlp=64, moe_layers=[]
    )
    return transformers.Llama4ForCausalLM(config)


def quiet_bert() -> PreTrainedModel:
    """Return an encoder with a language model's head. It is created as a decoder, which avoids a warning, and then
    switched."""
    model = transformers.BertLMHeadModel(transformers.BertConfig(**SIZES, is_decoder=True))
    for module in model.modules():
        if hasattr(module, "is_causal"):
            setattr(module, "is_causal", False)  # noqa: B010  a plain attribute, which torch types as a tensor
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    one_in(
        3,
        [
            (lambda: tiny("Flint"), "its attention uses s_aux"),
            (lambda: tiny("Doge"), "its attention uses attention_mask"),
            (lambda: tiny("Mamba"), "layers of type linear_attention"),
            (lambda: tiny("Qwen3Next", layer_types=["linear_attention", "full_attention"]), "of type linear_attention"),
            (lambda: tiny("Bloom", n_head=4), "its forward takes no 'position_ids'"),
            (lambda: tiny("XGLM", attention_heads=4), r"attention of layers \[\] goes through the interface"),
            (lambda: tiny("StableLm"), "its model does not hand keywords on to its attention"),
            (lambda: tiny("Roberta", is_decoder=True, pad_token_id=1), "its positions depend on padding"),
            (quiet_bert, "BertSelfAttention is not causal"),
        ],
    ),
    ids=[
        "sinks",
        "own-mask",
        "no-attention",
        "linear-attention",
        "alibi",
        "no-interface",
        "no-keywords",
        "positions",
        "encoder",
    ],
)
def test_attention_of_another_kind(model: Callable[[], PreTrainedModel], reason: str) -> None:
    with pytest.raises(InvalidConfiguration, match=reason) as refusal:
        PackedModel(model(), num_cells=16, max_length=16)
    assert refusal.value.field == "model"


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        (lambda: llama(rope_parameters=LONGROPE), 40),
        (chunked, 32),
    ],
    ids=["longrope", "chunks"],
)
def test_a_limited_span_is_refused_only_where_it_would_be_reached(
    model: Callable[[], PreTrainedModel], limit: int
) -> None:
    whole, taken = model(), model()
    taken.load_state_dict(whole.state_dict())
    token_ids = [i % 50 for i in range(limit)]
    driver = Driver(taken, num_slots=1, max_length=limit)
    output = driver.forward([(driver.cache.allocate(), token_ids)])
    assert torch.allclose(output.logits[0], recompute(whole, [token_ids])[0][-1], atol=1e-4)
    with pytest.raises(InvalidConfiguration, match=f"max_length can be at most {limit}, not {limit + 1}") as refusal:
        PackedModel(model(), num_cells=64, max_length=limit + 1)
    assert refusal.value.field == "max_length"


@pytest.mark.parametrize(
    ("model", "windows"),
    [
        (lambda: tiny("Mistral", sliding_window=24), (24, 24)),
        (lambda: tiny("Mistral", sliding_window=100), (None, None)),
        (lambda: tiny("Mistral", sliding_window=None), (None, None)),
        (lambda: tiny("Qwen2", sliding_window=24, use_sliding_window=True, max_window_layers=1), (None, 24)),
        (lambda: tiny("Qwen2", sliding_window=24, use_sliding_window=False), (None, None)),
        (lambda: FACTORIES["qwen2-moe"](0), (WINDOW, None, None)),
        (lambda: FACTORIES["olmoe"](0), (None, None, None)),
        (lambda: FACTORIES["gemma3"](0), (WINDOW, None, WINDOW)),
        (gpt2, (None, None, None)),
    ],
    ids=["all", "out-of-reach", "none", "some", "off", "masks-only", "attention-only", "mixed", "unheard-of"],
)
def test_windows_are_those_of_the_masks(model: Callable[[], PreTrainedModel], windows: tuple[int | None, ...]) -> None:
    assert probe_attention(model()).windows(100) == windows


def test_a_mask_that_is_no_window_is_refused() -> None:
    profile = probe_attention(chunked())
    assert profile.windows(32) == (None, None)
    with pytest.raises(InvalidConfiguration, match="Llama4ForCausalLM yet: some of its layers see neither") as refusal:
        profile.windows(33)
    assert refusal.value.field == "model"


@pytest.mark.parametrize(
    "model",
    [
        lambda: tiny("Granite", attention_multiplier=2.0),
        lambda: tiny(
            "DeepseekV3",
            head_dim=8,
            num_key_value_heads=4,
            kv_lora_rank=16,
            q_lora_rank=16,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=12,
            first_k_dense_replace=2,
        ),
    ],
    ids=["scaling-of-its-own", "values-narrower-than-keys"],
)
def test_what_an_architecture_does_differently_is_kept(model: Callable[[], PreTrainedModel]) -> None:
    whole, taken = model(), model()
    for parameter in whole.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0, 0.2)
    taken.load_state_dict(whole.state_dict())
    whole.train(False)
    driver = Driver(taken, num_slots=2, max_length=40)
    first, second = driver.cache.allocate(), driver.cache.allocate()
    texts = {first: list(range(20)), second: [7, 8]}
    driver.forward(list(texts.items()))
    output = driver.forward([(first, [30]), (second, [31, 32])])  # one padded call
    texts[first].append(30)
    texts[second] += [31, 32]
    expected = torch.stack([rows[-1] for rows in recompute(whole, list(texts.values()))])
    assert torch.allclose(output.logits, expected, atol=1e-4)
