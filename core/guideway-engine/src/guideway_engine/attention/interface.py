"""The interface to the attention of `transformers`: functions that are registered in its tables under our names.

A model with such an attention name calls the function for every layer, and passes on the keyword ``guideway_step`` of
the model's own call, so no global state is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from guideway.errors import InvalidConfiguration
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

__all__ = ["ATTENTION_NAME", "HARMLESS_OPTIONS", "PROBE_NAME", "AttentionStep", "Mask", "MaskUsed", "attention"]

ATTENTION_NAME = "guideway_step"

PROBE_NAME = "guideway_probe"
"""Name of the attention for probing a model: the same function, but with masks."""

HARMLESS_OPTIONS = frozenset({
    "cu_seq_lens_k", "cu_seq_lens_q", "dropout", "is_causal", "max_length_k", "max_length_q", "position_ids",
    "scaling", "sliding_window", "softcap", "use_cache",
})  # fmt: skip
"""Keywords that a layer may pass to its attention: they have no effect here or are handled. Windows are read from the
mask, which takes precedence if the two differ. Other keywords that are set are refused."""

MaskFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Function of batch, head, query and key index that returns whether the query sees the key."""


class AttentionStep(Protocol):
    """Handler of the attention calls of one forward pass, layer by layer."""

    def attend(
        self, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """Return the attention output ``[1, tokens, heads, value_dim]`` of one layer for a packed row.

        `query`, `key` and `value` are ``[1, heads or kv heads, tokens, dim]``; `options` are the keywords passed by the
        layer, including ``attention_mask`` and ``scaling``.
        """


class MaskUsed(Exception):
    """Raised if a layer reads its mask."""


@dataclass(frozen=True, slots=True)
class Mask:
    """Placeholder for the mask of a layer in a probed model; layers may only pass it on."""

    sees: MaskFunction

    def __getattr__(self, name: str) -> Any:
        raise MaskUsed


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    guideway_step: AttentionStep | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Pass the attention call of a layer to the step. Registered in `transformers`."""
    if guideway_step is None:
        raise InvalidConfiguration(
            f"{type(module).__name__} was called without a step: its model does not hand keywords on to its attention, "
            "or was called other than by the runner that took it over",
            field="model",
        )
    return guideway_step.attend(module, query, key, value, options | {"attention_mask": attention_mask}), None


def _remember(*, mask_function: MaskFunction, **_: Any) -> Mask:
    return Mask(mask_function)


# Process-wide tables; registering the same function again changes nothing. The first name is in no table of masks, so
# transformers builds none and passes attention_mask=None.
AttentionInterface.register(ATTENTION_NAME, attention)
AttentionInterface.register(PROBE_NAME, attention)
AttentionMaskInterface.register(PROBE_NAME, _remember)
