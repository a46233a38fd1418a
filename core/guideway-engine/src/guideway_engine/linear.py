"""Float32 linear layers on a CPU, computed with oneDNN where that is faster.

torch multiplies float32 matrices with MKL, which uses only half of the vector width on CPUs that are not Intel's: for
more than a few rows oneDNN, part of the same torch, takes half the time. oneDNN reorders the weights before
multiplying, which for the few rows of a decoding step takes as long as the multiplication. Therefore models that are
not large get a copy of their weights that is reordered in advance.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import linear

__all__ = ["MAX_PACKED_BYTES", "use_onednn"]

MAX_PACKED_BYTES = 1 << 30
"""Bytes of linear layers up to which weights are copied; the copies need the same memory again."""
MIN_PRODUCTS = 1 << 20
"""Number of multiplications below which oneDNN's overhead per call costs more than it saves."""
MIN_PRODUCTS_PACKED = 1 << 19
BATCH_SIZE = 16
"""Number of rows that the copies are reordered for. Measured: from 8 to 256 rows it makes no difference."""


def use_onednn(model: torch.nn.Module) -> None:
    """Let each linear layer of `model` choose the library by the size of its input.

    Weights may still be changed, by assignment or in place; once a layer was used, not through ``.data``, whose changes
    torch does not count. Does nothing if this torch lacks the operator.
    """
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
    """oneDNN's copy of one layer's weights, created on first use and again after the weights change."""

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
    """Return whether `weight` is float32 in this process' memory, and not a part of a weight sharded among workers."""
    return (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and type(weight) is torch.nn.Parameter
        and not weight.is_inference()  # inference tensors have no version
    )
