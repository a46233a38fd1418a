"""Checking whether the engine's attention can run a model faithfully, and with which masks.

Unsupported models are refused before the first request, with the reason: attention that sees anything but a range of
tokens ending at its own, adds something to the scores, or depends on more than queries, keys and values.

The check does not use a list of architectures or configuration fields, because not every architecture follows them. One
token is sent through the model with masks that only record their function, and each layer's call shows its needs.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from guideway.errors import InvalidConfiguration
from torch import Tensor
from transformers import PreTrainedModel

from guideway_engine.attention.interface import ATTENTION_NAME, HARMLESS_OPTIONS, PROBE_NAME, Mask, MaskUsed
from guideway_engine.runners.transformers.kv_store import KVShape

__all__ = ["AttentionProfile", "check_spans", "probe_attention"]


@dataclass(frozen=True, slots=True)
class AttentionProfile:
    """Properties of a model's attention, found by sending one token through it."""

    model: str
    """Class name of the model."""
    kv_shape: KVShape
    """Shape of this worker's shard of the model."""
    num_query_heads: int
    """Number of query heads of this worker's shard."""
    logits_width: int
    masks: tuple[Mask | None, ...]
    """Mask of each layer; None: all tokens up to its own."""

    def windows(self, max_length: int) -> tuple[int | None, ...]:
        """Return for each layer the number of keys that each query sees, its own included; None: all up to its own,
        within `max_length` tokens. Raises `InvalidConfiguration` if a layer sees any other set of keys."""
        known = {mask: self._window(mask, max_length) for mask in set(self.masks)}
        return tuple(known[mask] for mask in self.masks)

    def _window(self, mask: Mask | None, max_length: int) -> int | None:
        if mask is None:
            return None
        # all queries would need max_length ** 2 numbers; masks that vary by position vary within this sample
        queries = np.unique(np.linspace(0, max_length - 1, 64, dtype=np.int64))
        query, key = torch.from_numpy(queries)[:, None], torch.arange(max_length)
        zero = torch.zeros((), dtype=torch.int64)
        seen = torch.as_tensor(mask.sees(zero, zero, query, key)).expand(len(queries), max_length)
        window = int(seen[-1].sum())
        if not torch.equal(seen, (key <= query) & (key > query - window)):
            raise InvalidConfiguration(
                f"the engine cannot run {self.model} yet: some of its layers see neither all tokens before their own "
                f"nor the last few of them, within max_length {max_length}",
                field="model",
            )
        return None if window == max_length else window


def check_spans(model: PreTrainedModel, max_length: int) -> None:
    """Raise `InvalidConfiguration` if within `max_length` tokens a layer sees only a part of its past that is not a
    sliding window, or if positions mean something else in a longer batch."""
    config = model.config.get_text_config()
    layer_types = set(getattr(config, "layer_types", None) or ())
    unknown = layer_types - {"full_attention", "sliding_attention", "chunked_attention"}
    if unknown:
        raise _unsupported(model, f"it has layers of type {', '.join(sorted(unknown))}")
    for limit, reason in _span_limits(config, layer_types):
        if max_length > limit:
            raise InvalidConfiguration(
                f"{type(model).__name__} {reason} {limit} tokens, which the engine does not support yet; "
                f"max_length can be at most {limit}, not {max_length}",
                field="max_length",
            )


def _span_limits(config: Any, layer_types: set[str]) -> Iterator[tuple[int, str]]:
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None and "chunked_attention" in layer_types:
        yield chunk, "attends only within chunks of"
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in rope.values() if all(isinstance(value, Mapping) for value in rope.values()) else [rope]:
        # the longest sequence of the batch decides the frequencies of all
        if parameters.get("rope_type") == "longrope":
            yield parameters["original_max_position_embeddings"], "changes its rotary frequencies beyond"


@torch.inference_mode()
def probe_attention(model: PreTrainedModel) -> AttentionProfile:
    """Replace the attention of `model` permanently by the engine's, and send one token through it.

    Raises `InvalidConfiguration` if any layer's attention does not use the interface of `transformers` or needs more
    than the engine's attention supports.
    """
    accepted = inspect.signature(model.forward).parameters
    for parameter in ("position_ids", "logits_to_keep"):
        if parameter not in accepted:
            raise _unsupported(model, f"its forward takes no {parameter!r}")
    try:
        model.set_attn_implementation(PROBE_NAME)
    except ValueError as error:
        raise _unsupported(model, f"its attention cannot be replaced: {error}") from error
    if any(hasattr(module, "create_position_ids_from_input_ids") for module in model.modules()):
        raise _unsupported(model, "its positions depend on padding and do not start at 0")
    probe = _Probe(model)
    zero = torch.zeros(1, dtype=torch.int64, device=model.device)
    try:
        output = model(
            input_ids=zero[None], position_ids=zero[None], use_cache=False, logits_to_keep=zero, guideway_step=probe
        )
    except InvalidConfiguration:
        raise
    except MaskUsed:
        raise _unsupported(model, "its attention uses attention_mask") from None
    except Exception as error:  # any error of the model's code
        raise _unsupported(model, f"one token sent through it failed with {type(error).__name__}: {error}") from error
    model.set_attn_implementation(ATTENTION_NAME)
    num_layers = model.config.get_text_config().num_hidden_layers
    if sorted(probe.layers) != list(range(num_layers)):
        raise _unsupported(
            model, f"attention of layers {sorted(probe.layers)} goes through the interface, not of all {num_layers}"
        )
    if len(set(probe.layers.values())) != 1:
        raise _unsupported(model, "its layers differ in the number or size of their heads")
    num_query_heads, num_kv_heads, key_dim, value_dim = probe.layers[0]
    return AttentionProfile(
        model=type(model).__name__,
        kv_shape=KVShape(num_layers, num_kv_heads, key_dim, value_dim),
        num_query_heads=num_query_heads,
        logits_width=output.logits.shape[-1],
        masks=tuple(probe.masks[layer] for layer in range(num_layers)),
    )


class _Probe:
    """Answers the attention calls of one forward pass with zeros and records the arguments of each layer."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self.layers: dict[int, tuple[int, int, int, int]] = {}
        """Query heads, kv heads, key and value dimension of each layer."""
        self.masks: dict[int, Mask | None] = {}

    def attend(
        self, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        index = getattr(layer, "layer_idx", None)
        if not isinstance(index, int) or index in self.layers:
            raise _unsupported(self._model, f"{type(layer).__name__} is not the one attention of a numbered layer")
        if options.get("is_causal", getattr(layer, "is_causal", True)) is False:
            raise _unsupported(self._model, f"{type(layer).__name__} is not causal")
        mask = options.pop("attention_mask")
        if mask is not None and not isinstance(mask, Mask):
            raise _unsupported(self._model, "its attention uses attention_mask")
        if mask is None and options.get("sliding_window") is not None:
            raise _unsupported(self._model, "its attention has a window but no mask")
        extra = sorted(k for k, v in options.items() if v is not None and v is not False and k not in HARMLESS_OPTIONS)
        if extra:
            raise _unsupported(self._model, f"its attention uses {', '.join(extra)}")
        self.masks[index] = mask
        self.layers[index] = (query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def _unsupported(model: PreTrainedModel, reason: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"the engine cannot run {type(model).__name__} yet: {reason}", field="model")
