"""Linear layers in float32 on a CPU, by oneDNN where that is quicker.

torch multiplies float32 matrices with MKL, which on CPUs of other makers than its own leaves half of their width
unused: for more than a few rows oneDNN, in the same torch, takes half the time.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

__all__ = ["use_onednn"]

MIN_PRODUCTS = 1 << 20
"""Fewer multiplications do not repay what a call of oneDNN costs more than one of MKL."""


def use_onednn(model: torch.nn.Module) -> None:
    """From now on each linear layer of `model` decides by the size of its input who multiplies. The weights stay what
    they are. Without effect where this torch has no such operator."""
    operator = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if operator is None:
        return
    multiply: Any = operator.default

    def forward(self: torch.nn.Linear, x: Tensor) -> Tensor:
        size = x.numel()
        # a single row takes as long as its weights take to come from memory, whoever multiplies; and it has no gradient
        if size == self.in_features or size * self.out_features < MIN_PRODUCTS or torch.is_grad_enabled():
            return linear(x, self.weight, self.bias)
        result: Tensor = multiply(x, self.weight, self.bias, "none", [], "")
        return result

    for module in model.modules():
        if type(module) is torch.nn.Linear and _is_plain(module.weight):
            module.forward = MethodType(forward, module)  # type: ignore[method-assign]


def _is_plain(weight: Tensor) -> bool:
    """Whether `weight` is float32 in this process' memory, and no part of one shared among workers."""
    return weight.dtype == torch.float32 and weight.device.type == "cpu" and type(weight) is torch.nn.Parameter
