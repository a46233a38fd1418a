"""An architecture the engine would run wrongly is refused with the reason; a limit out of reach does not matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from guideway.api import InvalidConfiguration
from guideway.engine.worker.model_runner import ModelRunner
from transformers import PreTrainedModel

from tests.engine.models import CONTEXT, llama

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
    "short_factor": [1.0] * 16,
    "long_factor": [2.0] * 16,
    "factor": CONTEXT / 40,
    "original_max_position_embeddings": 40,
}


def tiny(name: str, **overrides: Any) -> PreTrainedModel:
    """A random model of the `transformers` architecture `name`."""
    config = getattr(transformers, f"{name}Config")(**SIZES | overrides)
    model: PreTrainedModel = getattr(transformers, f"{name}ForCausalLM")(config)
    return model


def quiet_bert() -> PreTrainedModel:
    """An encoder with a language model's head; made as a decoder, which spares a warning, and then switched back."""
    model = transformers.BertLMHeadModel(transformers.BertConfig(**SIZES, is_decoder=True))
    for module in model.modules():
        if hasattr(module, "is_causal"):
            setattr(module, "is_causal", False)  # noqa: B010  a plain attribute, which torch types as a tensor
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (lambda: tiny("Gemma2", sliding_window=None), "its attention uses softcap"),
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
    ids=[
        "softcap",
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
        ModelRunner(model(), num_slots=1, max_length=16)
    assert refusal.value.field == "model"


@pytest.mark.parametrize(
    ("model", "limit"),
    [
        (lambda: tiny("Mistral", sliding_window=32), 32),
        (lambda: tiny("Qwen2", sliding_window=24, use_sliding_window=True, max_window_layers=1), 24),
        (lambda: llama(rope_parameters=LONGROPE), 40),
        (lambda: tiny("Phi3", sliding_window=20), 20),
    ],
    ids=["window", "window-in-some-layers", "longrope", "window-phi3"],
)
def test_a_limited_span_is_refused_only_where_it_would_be_reached(
    model: Callable[[], PreTrainedModel], limit: int
) -> None:
    whole, taken = model(), model()
    taken.load_state_dict(whole.state_dict())
    token_ids = [i % 50 for i in range(limit)]
    runner = ModelRunner(taken, num_slots=1, max_length=limit)
    output = runner.forward([(runner.cache.allocate(), token_ids)])
    with torch.inference_mode():
        assert torch.allclose(output.logits[0], whole(torch.tensor([token_ids])).logits[0, -1], atol=1e-4)
    with pytest.raises(InvalidConfiguration, match=f"max_length can be at most {limit}, not {limit + 1}") as refusal:
        ModelRunner(model(), num_slots=1, max_length=limit + 1)
    assert refusal.value.field == "max_length"


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
    runner = ModelRunner(taken, num_slots=2, max_length=40)
    first, second = runner.cache.allocate(), runner.cache.allocate()
    texts = {first: list(range(20)), second: [7, 8]}
    runner.forward(list(texts.items()))
    output = runner.forward([(first, [30]), (second, [31, 32])])  # one padded call
    texts[first].append(30)
    texts[second] += [31, 32]
    with torch.inference_mode():
        expected = torch.stack([whole(torch.tensor([text])).logits[0, -1] for text in texts.values()])
    assert torch.allclose(output.logits, expected, atol=1e-4)
