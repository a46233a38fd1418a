"""Muon: orthogonalized momentum for matrices; all matrices of one shape are updated as one stack."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["Muon"]

MOMENTUM = 0.95
DECAY = 0.01
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


class Muon:
    """Updates `matrices` in place from their ``grad``.

    A matrix that combines several in a column, such as query, key and value, is passed with the number of its `parts`;
    each part is orthogonalized separately.
    """

    def __init__(self, matrices: Sequence[tuple[Tensor, int]]) -> None:
        self._stacks: dict[tuple[int, int], list[Tensor]] = {}
        for matrix, parts in matrices:
            self._stacks.setdefault((matrix.shape[0] // parts, matrix.shape[1]), []).append(matrix)
        self._momentum = {
            shape: torch.zeros(sum(matrix.numel() for matrix in stack) // (shape[0] * shape[1]), *shape)
            for shape, stack in self._stacks.items()
        }

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update once; the update has the root mean square of Adam's at a fifth of `learning_rate`."""
        for shape, stack in self._stacks.items():
            gradient = torch.cat([_gradient(matrix).view(-1, *shape) for matrix in stack])
            momentum = self._momentum[shape].lerp_(gradient, 1 - MOMENTUM)
            update = _orthogonal(gradient.lerp(momentum, MOMENTUM))
            scale = learning_rate * 0.2 * max(shape) ** 0.5
            counts = [matrix.numel() // (shape[0] * shape[1]) for matrix in stack]
            for matrix, part in zip(stack, torch.split(update, counts), strict=True):
                matrix.mul_(1 - learning_rate * DECAY).add_(part.reshape(matrix.shape), alpha=-scale)

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": list(self._momentum.values())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for mine, saved in zip(self._momentum.values(), state["momentum"], strict=True):
            mine.copy_(saved)


def _gradient(matrix: Tensor) -> Tensor:
    assert matrix.grad is not None
    return matrix.grad


def _orthogonal(stack: Tensor) -> Tensor:
    """Move the singular values of each matrix near one, by a Newton-Schulz iteration in bfloat16."""
    tall = stack.shape[1] > stack.shape[2]
    x = (stack.mT if tall else stack).bfloat16()
    x = x / (x.norm(dim=(1, 2), keepdim=True) * 1.01 + 1e-7)
    a, b, c = NEWTON_SCHULZ
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).float()
