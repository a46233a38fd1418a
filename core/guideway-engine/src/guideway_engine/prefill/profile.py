"""Checking whether a model can run on a ragged row, and with which attention masks.

The check needs no list of architectures: one token is sent through the model with masks that only record their
function, and each attention call shows its needs. `guideway_engine.prefill.forward` compares the results.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from guideway.errors import InvalidConfiguration
from torch import Tensor
from transformers import PreTrainedModel

from guideway_engine.attention.interface import ATTENTION_NAME, HARMLESS_OPTIONS, PROBE_NAME, Mask, MaskUsed
from guideway_engine.attention.ragged import Sight

__all__ = ["Profile", "last_hidden_state", "probe", "unsupported"]

MAX_CELLS = 1 << 22
"""Number of (query, key) pairs that are evaluated to classify a mask."""
UNKNOWN_LENGTH = 1 << 15
"""Length up to which masks are evaluated if a model has no maximum length."""
OWN_OPTIONS = HARMLESS_OPTIONS - {"softcap"} | {"deterministic"}
"""Keywords that a layer may pass to its attention. The contract allows no change of scores other than a factor."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Facts about a model that its forward pass on a ragged row needs."""

    sights: tuple[Sight, ...]
    """Visible positions of each attention call."""
    grouped: bool
    """True if there are fewer key heads than query heads."""
    padding_id: int | None
    """Id of the padding token if positions are counted from it, as in RoBERTa: the first position is one more, and
    padding tokens get the id itself. None: positions start at 0."""
    max_length: int | None
    """Maximum number of tokens of a sequence; None if no limit is known."""
    takes_types: bool
    """True if the model's forward takes token types."""
    takes_cache: bool
    """True if its forward can keep a KV cache, which must be turned off."""

    @property
    def needs(self) -> frozenset[str]:
        """Capabilities of a backend that it needs, except its data type."""
        found = {"grouped_query"} if self.grouped else set()
        found |= {"causal" for sight in self.sights if sight.causal}
        found |= {"window" if s.causal else "two_sided_window" for s in self.sights if s.window is not None}
        return frozenset(found)

    def arguments(self, token_ids: Tensor, positions: Tensor, token_types: Tensor | None) -> dict[str, Any]:
        """Return the keyword arguments of the model's forward for a ragged row; each given tensor is ``[total]``."""
        found: dict[str, Any] = {"input_ids": token_ids[None], "position_ids": positions[None]}
        if token_types is not None:  # without them, a model may have defaults of its own, or take none
            found["token_type_ids"] = token_types[None]
        if self.takes_cache:
            found["use_cache"] = False
        return found


@torch.inference_mode()
def probe(base: PreTrainedModel) -> Profile:
    """Replace the attention of `base`, a model without a head, permanently by the engine's, and send one token through
    it.

    Raises `InvalidConfiguration` if its attention does not use the interface of `transformers`, or needs more than
    `guideway.api.AttentionBackend` offers.
    """
    accepted = inspect.signature(base.forward).parameters
    if "position_ids" not in accepted:
        raise unsupported(base, "its forward takes no 'position_ids'")
    padding_id = _padding_id(base)
    max_length = _max_length(base, padding_id)
    try:
        base.set_attn_implementation(PROBE_NAME)
    except ValueError as error:
        raise unsupported(base, f"its attention cannot be replaced: {error}") from error
    step = _Probe(base)
    place = torch.full((1,), 0 if padding_id is None else padding_id + 1, device=base.device)
    profile = Profile((), False, padding_id, max_length, "token_type_ids" in accepted, "use_cache" in accepted)
    embeddings: Any = base.get_input_embeddings()
    token = torch.full((1,), embeddings.num_embeddings // 2, device=base.device)
    try:
        base(**profile.arguments(token, place, None), guideway_step=step)
    except InvalidConfiguration:
        raise
    except MaskUsed:
        raise unsupported(base, "its attention uses attention_mask") from None
    except Exception as error:  # any error of the model's code
        raise unsupported(base, f"one token sent through it failed with {type(error).__name__}: {error}") from error
    base.set_attn_implementation(ATTENTION_NAME)
    if not step.masks:
        raise unsupported(base, "none of its layers calls its attention through the interface of transformers")
    known = {mask: _sight(base, mask, max_length or UNKNOWN_LENGTH) for mask in set(step.masks)}
    return Profile(
        sights=tuple(known[mask] for mask in step.masks),
        grouped=step.grouped,
        padding_id=padding_id,
        max_length=max_length,
        takes_types=profile.takes_types,
        takes_cache=profile.takes_cache,
    )


def last_hidden_state(output: Any) -> Tensor:
    """Return ``[rows, tokens, width]`` from the output of a model without a head."""
    hidden: Tensor = output.last_hidden_state
    return hidden


def unsupported(model: PreTrainedModel, reason: str) -> InvalidConfiguration:
    """Return the error for a model that cannot be run on a ragged row."""
    return InvalidConfiguration(
        f"the engine cannot run {type(model).__name__} on whole prompts: {reason}", field="model"
    )


class _Probe:
    """Answers the attention calls of one forward pass with zeros and records the arguments of each."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self.masks: list[Mask | bool] = []
        """Mask of each call; without a mask, True if the layer is causal, else False."""
        self.grouped = False

    def attend(
        self, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        mask = options.pop("attention_mask")
        if mask is not None and not isinstance(mask, Mask):
            raise unsupported(self._model, "its attention uses attention_mask")
        if mask is None and options.get("sliding_window") is not None:
            raise unsupported(self._model, "its attention has a window but no mask")
        extra = sorted(k for k, v in options.items() if v is not None and v is not False and k not in OWN_OPTIONS)
        if extra:
            raise unsupported(self._model, f"its attention uses {', '.join(extra)}")
        if query.shape[3] != value.shape[3]:
            raise unsupported(self._model, "its queries and values differ in size")
        causal = options.get("is_causal")
        self.masks.append(
            bool(getattr(layer, "is_causal", True) if causal is None else causal) if mask is None else mask
        )
        self.grouped |= query.shape[1] != key.shape[1]
        return value.new_zeros(1, query.shape[2], query.shape[1], value.shape[3])


def _sight(model: PreTrainedModel, mask: Mask | bool, max_length: int) -> Sight:
    """Return the positions that `mask` shows within `max_length` tokens. Raises `InvalidConfiguration` unless these are
    all, all up to the query's own, or a window around it."""
    if isinstance(mask, bool):
        return Sight(mask, None)
    key = torch.arange(max_length)
    query = torch.linspace(0, max_length - 1, max(2, min(64, MAX_CELLS // max_length))).long()[:, None]
    zero = torch.zeros((), dtype=torch.int64)
    seen = torch.as_tensor(mask.sees(zero, zero, query, key)).expand(len(query), max_length)
    causal = not bool(seen[0, 1:].any())
    window = int(seen[-1].sum())
    expected = (query - key).abs() < window
    if not torch.equal(seen, expected & (key <= query) if causal else expected):
        raise unsupported(
            model, "some of its layers see neither all tokens, nor all up to their own, nor the nearest few"
        )
    return Sight(causal, None if window == max_length else window)


def _padding_id(model: PreTrainedModel) -> int | None:
    for module in model.modules():
        if hasattr(module, "create_position_ids_from_input_ids"):
            return int(module.padding_idx)  # type: ignore[arg-type]
    return None


def _max_length(model: PreTrainedModel, padding_id: int | None) -> int | None:
    """Return the maximum number of tokens for which positions mean the same in a batch as alone."""
    config = model.config.get_text_config()
    limit = getattr(config, "max_position_embeddings", None)
    if limit is None or limit < 1:
        return None
    rope = getattr(config, "rope_parameters", None) or {}
    for parameters in rope.values() if all(isinstance(value, Mapping) for value in rope.values()) else [rope]:
        # the longest sequence of the batch decides the frequencies of all
        if parameters and parameters.get("rope_type") in ("longrope", "dynamic"):
            limit = min(limit, parameters.get("original_max_position_embeddings") or limit)
    return int(limit) - (0 if padding_id is None else padding_id + 1)
