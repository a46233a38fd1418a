"""Whether a model can be run faithfully by the engine's own attention, and the shape of its keys and values.

What cannot is refused before the first request, with the reason: attention that looks at less than everything before
it, adds something to the scores, or depends on more than queries, keys and values.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from guideway.api.errors import InvalidConfiguration
from guideway.engine.attention import ATTENTION_NAME
from guideway.engine.kv_cache import KVShape

__all__ = ["AttentionProfile", "check_spans", "probe_attention"]

HARMLESS_OPTIONS = frozenset({
    "cu_seq_lens_k", "cu_seq_lens_q", "dropout", "is_causal", "max_length_k", "max_length_q", "position_ids",
    "scaling", "sliding_window", "use_cache",
})  # fmt: skip
"""Keywords a layer may pass to its attention without changing what it computes here; `check_spans` has judged
``sliding_window``, and ``is_causal`` is looked at. Any other that is set is refused."""


@dataclass(frozen=True, slots=True)
class AttentionProfile:
    """What one token sent through a model showed."""

    kv_shape: KVShape
    num_query_heads: int
    logits_width: int


def check_spans(model: PreTrainedModel, max_length: int) -> None:
    """Raises `InvalidConfiguration` if within `max_length` tokens some layer would see less than its whole past, or
    if positions would mean something else in a longer batch."""
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
    window = getattr(config, "sliding_window", None)
    # where layers are not told apart, a window in the configuration is used unless it says otherwise
    windowed = "sliding_attention" in layer_types if layer_types else getattr(config, "use_sliding_window", True)
    if window is not None and windowed:
        yield window, "attends only to the last"
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None and "chunked_attention" in layer_types:
        yield chunk, "attends only within chunks of"
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in rope.values() if all(isinstance(value, Mapping) for value in rope.values()) else [rope]:
        # one set of frequencies is chosen for the whole batch, by the longest sequence in it
        if parameters.get("rope_type") == "longrope":
            yield parameters["original_max_position_embeddings"], "changes its rotary frequencies beyond"


@torch.inference_mode()
def probe_attention(model: PreTrainedModel) -> AttentionProfile:
    """Give `model` the engine's attention, for good, and send one token through it.

    Raises `InvalidConfiguration` if any layer's attention does not go through `transformers`' interface or asks for
    more than causal attention.
    """
    accepted = inspect.signature(model.forward).parameters
    for parameter in ("position_ids", "logits_to_keep"):
        if parameter not in accepted:
            raise _unsupported(model, f"its forward takes no {parameter!r}")
    try:
        model.set_attn_implementation(ATTENTION_NAME)
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
    except Exception as error:  # whatever that model's code does not expect
        raise _unsupported(model, f"one token sent through it failed with {type(error).__name__}: {error}") from error
    num_layers = model.config.get_text_config().num_hidden_layers
    if sorted(probe.layers) != list(range(num_layers)):
        raise _unsupported(
            model, f"attention of layers {sorted(probe.layers)} goes through the interface, not of all {num_layers}"
        )
    if len(set(probe.layers.values())) != 1:
        raise _unsupported(model, "its layers differ in the number or size of their heads")
    num_query_heads, num_kv_heads, key_dim, value_dim = probe.layers[0]
    return AttentionProfile(
        KVShape(num_layers, num_kv_heads, key_dim, value_dim), num_query_heads, output.logits.shape[-1]
    )


class _Probe:
    """Answers the attention calls of one forward pass with zeros and notes what each layer asked for."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self.layers: dict[int, tuple[int, int, int, int]] = {}
        """By layer: query heads, kv heads, key and value dimension."""

    def attend(
        self, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        index = getattr(layer, "layer_idx", None)
        if not isinstance(index, int) or index in self.layers:
            raise _unsupported(self._model, f"{type(layer).__name__} is not the one attention of a numbered layer")
        if options.get("is_causal", getattr(layer, "is_causal", True)) is False:
            raise _unsupported(self._model, f"{type(layer).__name__} is not causal")
        extra = sorted(k for k, v in options.items() if v is not None and v is not False and k not in HARMLESS_OPTIONS)
        if extra:
            raise _unsupported(self._model, f"its attention uses {', '.join(extra)}")
        self.layers[index] = (query.shape[1], key.shape[1], key.shape[3], value.shape[3])
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def _unsupported(model: PreTrainedModel, reason: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"the engine cannot run {type(model).__name__} yet: {reason}", field="model")
