"""Linear layers in float32 on a CPU, by oneDNN where that is quicker.

torch multiplies float32 matrices with MKL, which on CPUs of other makers than its own leaves half of their width
unused: for more than a few rows oneDNN, in the same torch, takes half the time. It rearranges a weight matrix before it
multiplies, which for a decode step's few rows takes as long as the multiplication; of a model that is not large it is
therefore given a copy arranged beforehand.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

__all__ = ["MAX_PACKED_BYTES", "use_onednn"]

MAX_PACKED_BYTES = 1 << 30
"""The linear layers of a model that have more than this stay as they are: the copy takes as much again."""
MIN_PRODUCTS = 1 << 20
"""Fewer multiplications do not repay what a call of oneDNN costs more than one of MKL."""
MIN_PRODUCTS_PACKED = 1 << 19
BATCH_SIZE = 16
"""The number of rows that the copies are arranged for; from 8 to 256 rows this was measured to make no difference."""


def use_onednn(model: torch.nn.Module) -> None:
    """From now on each linear layer of `model` decides by the size of its input which library multiplies. The weights
    stay what they are, and may be changed: by assignment, or in place; once the layer has been used not through
    ``.data``, which torch keeps no count of. Without effect where this torch has no such operator."""
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if operator is None:
        return
    multiply: Any = operator.default

    def forward(self: torch.nn.Linear, x: Tensor) -> Tensor:
        if x.numel() * self.out_features < MIN_PRODUCTS or torch.is_grad_enabled():
            return linear(x, self.weight, self.bias)
        result: Tensor = multiply(x, self.weight, self.bias, "none", [], "")
        return result

    def forward_packed(self: torch.nn.Linear, x: Tensor) -> Tensor:
        if x.numel() * self.out_features < MIN_PRODUCTS_PACKED or torch.is_grad_enabled():
            return linear(x, self.weight, self.bias)
        packed = cast("_Packed", self._guideway_packed)
        result: Tensor = multiply(x, packed.of(self.weight), self.bias, "none", [], "")
        return result

    modules = [module for module in model.modules() if type(module) is torch.nn.Linear and _is_plain(module.weight)]
    packs = sum(module.weight.nbytes for module in modules) <= MAX_PACKED_BYTES
    for module in modules:
        if packs:
            module._guideway_packed = _Packed()  # type: ignore[assignment]
        module.forward = MethodType(forward_packed if packs else forward, module)  # type: ignore[method-assign]


class _Packed:
    """oneDNN's copy of one layer's weights, made when it is first needed, and anew when they have changed."""

    def __init__(self) -> None:
        self._weight: Tensor | None = None
        self._version = 0
        self._packed: Tensor | None = None

    def of(self, weight: Tensor) -> Tensor:
        if self._packed is None or weight is not self._weight or weight._version != self._version:
            self._weight, self._version = weight, weight._version
            self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), BATCH_SIZE)
        return self._packed

    def __deepcopy__(self, memo: dict[int, Any]) -> _Packed:
        return _Packed()


def _is_plain(weight: Tensor) -> bool:
    """Return whether `weight` is float32 in this process' memory, and no part of one shared among workers."""
    return (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and type(weight) is torch.nn.Parameter
        and not weight.is_inference()  # such have no version
    )
