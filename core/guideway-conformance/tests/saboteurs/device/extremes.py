"""Bugs that show where numbers are large or small, wide rows and other types among them."""

from __future__ import annotations

import numpy as np
from guideway.api.steps import Array

from saboteurs import saboteur
from saboteurs.device.base import Fused, Sabotaged


@saboteur("device.operations_at_extremes")
class ScalesInHalf(Sabotaged):
    """`scale_rows` makes factors numbers of float16 where x is."""

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        with np.errstate(all="ignore"):
            x[rows] *= factors[:, None].astype(x.dtype)
        return x


@saboteur("device.operations_at_extremes")
class SumsOfEightThousand(Sabotaged):
    """`cumsum` adds what came before 8,000 columns in the type of x."""

    def cumsum(self, x: Array) -> Array:
        with np.errstate(all="ignore"):
            before = x[:, :8000].sum(axis=1, keepdims=True)
        return np.concatenate([super().cumsum(x[:, :8000]), before + super().cumsum(x[:, 8000:])], axis=1)


@saboteur("device.operations_at_extremes")
class NaNOfTheLastColumns(Fused):
    """`masked_argmax` looks for NaN in the last 4,000 columns."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        logits = logits.copy()
        early = logits[:, : max(0, num_tokens - 4000)]
        early[np.isnan(early)] = -np.inf
        return super().masked_argmax(logits, bitmask, rows, num_tokens)


@saboteur("device.extremes_of_large_vocabularies")
class LargestOfTwentyThousand(Sabotaged):
    """`log_softmax` subtracts the largest of 20,000 columns."""

    def log_softmax(self, x: Array) -> Array:
        x = x.astype(np.float32)
        with np.errstate(all="ignore"):
            shifted = x - x[:, :20_000].max(axis=1, keepdims=True)
            return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


@saboteur("device.operations_of_all_digits")
class FromATable(Sabotaged):
    """`exp` is looked up in a table of 64ths."""

    def exp(self, x: Array) -> Array:
        return super().exp(np.round(x * x.dtype.type(64)) / x.dtype.type(64))
