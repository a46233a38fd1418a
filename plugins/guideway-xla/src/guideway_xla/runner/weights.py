"""Reads a Llama of `transformers` from its folder. Refuses models that the forward pass here does not compute."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from guideway.api import InvalidConfiguration
from guideway.api.forward import ModelInfo

from guideway_xla.runner.llama import Llama, Weights

__all__ = ["load"]

DTYPES = ("float32", "float16", "bfloat16")

LAYER = {
    "input_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "post_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}
"""A layer's weights by their names here, with their names in the files."""


def load(folder: str, dtype: str, device: jax.Device) -> tuple[Llama, Weights, ModelInfo]:
    """Read the model in `folder`, with its weights on `device` as `dtype` (``auto``: as stored). Raises
    `InvalidConfiguration`."""
    from transformers import AutoConfig, GenerationConfig

    if dtype not in ("auto", *DTYPES):
        raise InvalidConfiguration(f"dtype must be auto or one of {', '.join(DTYPES)}, not {dtype!r}", field="dtype")
    path = Path(folder)
    try:
        config: Any = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        has_defaults = (path / "generation_config.json").is_file()
        generation: Any = GenerationConfig.from_pretrained(path, local_files_only=True) if has_defaults else config
    # errors may come from json, huggingface_hub, or the checks of the class
    except Exception as error:
        raise _refusal(folder, f"its configuration cannot be used: {error}") from error
    model = _check(folder, config)
    weights = _weights(folder, config, dict(_tensors(path)), None if dtype == "auto" else jnp.dtype(dtype))
    stops = generation.eos_token_id
    info = ModelInfo(
        logits_width=len(weights["head"]),
        max_context=config.max_position_embeddings,
        stop_token_ids=() if stops is None else (stops,) if isinstance(stops, int) else tuple(stops),
    )
    return model, jax.device_put(weights, device), info


def _check(folder: str, config: Any) -> Llama:
    if config.architectures not in (None, ["LlamaForCausalLM"]) or config.model_type != "llama":
        found = ", ".join(map(str, config.architectures or [config.model_type]))
        raise _refusal(folder, f"it holds {found}, and only LlamaForCausalLM is known here")
    rope = dict(config.rope_parameters)
    theta = rope.pop("rope_theta")
    for name, there, known in (
        ("rope_parameters", rope, {"rope_type": "default"}),
        ("hidden_act", config.hidden_act, "silu"),
        ("attention_bias", config.attention_bias, False),
        ("mlp_bias", config.mlp_bias, False),
        ("quantization_config", getattr(config, "quantization_config", None), None),
    ):
        if there != known:
            raise _refusal(folder, f"its {name} is {there!r}, and only {known!r} is known here")
    return Llama(
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=float(theta),
    )


def _tensors(path: Path) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yield the names and arrays of the weight files, on the host."""
    from safetensors import SafetensorError, safe_open

    index = path / "model.safetensors.index.json"
    try:
        names = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
        for name in sorted(names):
            with jax.default_device(jax.local_devices(backend="cpu")[0]), safe_open(path / name, "flax") as file:
                for key in file.keys():  # noqa: SIM118 (it is not a mapping)
                    yield key, np.asarray(file.get_tensor(key))
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise _refusal(str(path), f"its weights cannot be read: {error}") from error


def _weights(folder: str, config: Any, tensors: Mapping[str, Any], dtype: Any) -> Weights:
    width, heads = config.hidden_size, config.head_dim * config.num_attention_heads
    kv_heads, inner = config.head_dim * config.num_key_value_heads, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "input_norm": (width,), "q": (heads, width), "k": (kv_heads, width), "v": (kv_heads, width),
        "o": (width, heads), "post_norm": (width,),
        "gate": (inner, width), "up": (inner, width), "down": (width, inner),
    }  # fmt: skip

    def take(name: str, shape: tuple[int, ...]) -> Any:
        if name not in tensors:
            raise _refusal(folder, f"it lacks the weights {name!r}")
        if tensors[name].shape != shape:
            raise _refusal(folder, f"its weights {name!r} are {list(tensors[name].shape)}, not {list(shape)}")
        return tensors[name].astype(dtype or tensors[name].dtype)

    embedding = take("model.embed_tokens.weight", (config.vocab_size, width))
    tied = config.tie_word_embeddings
    return {
        "embedding": embedding,
        "norm": take("model.norm.weight", (width,)),
        "head": embedding if tied else take("lm_head.weight", (config.vocab_size, width)),
        "layers": {
            name: np.stack(
                [take(f"model.layers.{i}.{theirs}.weight", shapes[name]) for i in range(config.num_hidden_layers)]
            )
            for name, theirs in LAYER.items()
        },
    }


def _refusal(folder: str, reason: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"the jax runner cannot run the model {folder!r}: {reason}", field="model")
