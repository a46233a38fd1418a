"""The seam to the attention of `transformers`: the functions that its tables have under names of our own.

A model that was given such a name calls the function for every layer, and hands it the keyword ``guideway_step`` that
the model itself was called with: so nothing here depends on a step being a global.
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
"""The attention as a model that is asked what it needs has it: the same, but with masks."""

HARMLESS_OPTIONS = frozenset({
    "cu_seq_lens_k", "cu_seq_lens_q", "dropout", "is_causal", "max_length_k", "max_length_q", "position_ids",
    "scaling", "sliding_window", "softcap", "use_cache",
})  # fmt: skip
"""Keywords a layer may pass to its attention: those that change nothing here, and those that are looked at. Windows
are taken from the mask, which is what counts where the two differ. Any other that is set is refused."""

MaskFunction: TypeAlias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""From batch, head, query and key index to whether the query sees the key."""


class AttentionStep(Protocol):
    """The object that answers one forward pass's attention calls, layer by layer."""

    def attend(
        self, layer: torch.nn.Module, query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]
    ) -> Tensor:
        """The attention output ``[1, tokens, heads, value_dim]`` of one layer for a packed row.

        `query`, `key` and `value` are ``[1, heads or kv heads, tokens, dim]``; `options` are the keywords the layer
        passed, ``attention_mask`` and ``scaling`` among them.
        """


class MaskUsed(Exception):
    """A layer looked into its mask."""


@dataclass(frozen=True, slots=True)
class Mask:
    """The object that a layer of a probed model gets for its mask, only to hand it on."""

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
    """Answer the call that `transformers` makes for every layer; the step answers."""
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
