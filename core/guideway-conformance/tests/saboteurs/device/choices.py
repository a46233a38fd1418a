"""Bugs of choosing tokens under a mask."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from guideway.api.device import Draw
from guideway.api.steps import Array

from saboteurs import saboteur
from saboteurs.device.base import Fused, Sabotaged


@saboteur("device.masked_argmax_finds", "refusal")
@saboteur("device.masked_argmax_of_tokens", "refusal")
@saboteur("device.masked_argmax_of_nothing", "refusal")
@saboteur("device.masked_argmax_of_nan", "refusal")
class ChoosesUnasked(Sabotaged):
    """Has its own `masked_argmax` and does not say so."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        return super().masked_argmax(logits, bitmask, rows, num_tokens)


@saboteur("device.masked_sample_draws", "refusal")
@saboteur("device.masked_sample_at_zero", "refusal")
@saboteur("device.masked_sample_alone", "refusal")
@saboteur("device.masked_sample_never_forbidden", "refusal")
@saboteur("device.masked_sample_of_nothing", "refusal")
@saboteur("device.masked_sample_largest", "refusal")
class DrawsUnasked(Sabotaged):
    """Has its own `masked_sample` and does not say so."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        return super().masked_sample(logits, bitmask, rows, num_tokens, draw)


@saboteur("device.masked_argmax_finds")
class ChoosesTheLast(Fused):
    """`masked_argmax` takes the last of equals."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        x = self.apply_bitmask(logits.copy(), bitmask, rows)[:, num_tokens - 1 :: -1]
        return num_tokens - 1 - x.argmax(axis=1), x.max(axis=1).astype(np.float32)


@saboteur("device.masked_argmax_finds")
class ChoosesInMaskedRows(Fused):
    """`masked_argmax` forgets the rows that have no mask."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        columns, largest = super().masked_argmax(logits, bitmask, rows, num_tokens)
        others = np.setdiff1d(np.arange(len(logits)), rows)
        columns[others], largest[others] = 0, logits[others, 0]
        return columns, largest


@saboteur("device.masked_argmax_of_tokens")
class ChoosesPastTheTokens(Fused):
    """`masked_argmax` finds the largest of all columns, and then looks for the one it is in among tokens."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        columns, largest = super().masked_argmax(logits, bitmask, rows, logits.shape[1])
        return np.minimum(columns, num_tokens - 1), largest


@saboteur("device.masked_argmax_of_nothing")
class StartsFromTheLeast(Fused):
    """`masked_argmax` gives the least finite number where nothing is allowed."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        columns, largest = super().masked_argmax(logits, bitmask, rows, num_tokens)
        return columns, np.maximum(largest, np.finfo(np.float32).min)


@saboteur("device.masked_argmax_of_nothing")
class NoColumn(Fused):
    """`masked_argmax` gives column -1 where nothing is allowed."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        columns, largest = super().masked_argmax(logits, bitmask, rows, num_tokens)
        return np.where(np.isneginf(largest), -1, columns), largest


@saboteur("device.masked_argmax_of_nan")
class ChoosesNumbers(Fused):
    """`masked_argmax` passes over what is not a number."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        return super().masked_argmax(np.where(np.isnan(logits), -np.inf, logits), bitmask, rows, num_tokens)


@saboteur("device.masked_argmax_of_nan")
class HearsOfForbiddenNan(Fused):
    """`masked_argmax` gives NaN also for a row in which a NaN is forbidden."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        columns, largest = super().masked_argmax(logits, bitmask, rows, num_tokens)
        return columns, np.where(np.isnan(logits[:, :num_tokens]).any(axis=1), np.float32(np.nan), largest)


@saboteur("device.masked_sample_draws")
class DrawsByInversion(Fused):
    """`masked_sample` inverts the cumulative distribution, in rows that do not choose the largest."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        x = self.forbid_from(self.apply_bitmask(logits.astype(np.float32), bitmask, rows), num_tokens)
        columns, largest = self.masked_argmax(logits, bitmask, rows, num_tokens)
        for row in np.flatnonzero((draw.temperatures != 0) & np.isfinite(largest)):
            at = draw.seeds[[row]], draw.sequences[[row]], draw.positions[[row]]
            uniforms = self.uniform(*at, draw.purpose, 1)[:, 0]
            columns[row] = self.categorical(self.log_softmax(x[[row]] / draw.temperatures[row]), uniforms)[0]
        return columns, largest


@saboteur("device.masked_sample_draws")
class DrawsCold(Fused):
    """`masked_sample` draws at temperature 1 where one is less."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        warm = np.where(draw.temperatures == 0, np.float32(0), np.maximum(draw.temperatures, np.float32(1)))
        return super().masked_sample(logits, bitmask, rows, num_tokens, replace(draw, temperatures=warm))


@saboteur("device.masked_sample_draws")
class DrawsForPurposeZero(Fused):
    """`masked_sample` draws for another purpose."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        return super().masked_sample(logits, bitmask, rows, num_tokens, replace(draw, purpose=0))


@saboteur("device.masked_sample_draws")
class NeverSoCold(Fused):
    """`masked_sample` takes temperatures below a hundredth for one."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        warm = np.where(draw.temperatures > 0, np.maximum(draw.temperatures, np.float32(0.01)), 0)
        return super().masked_sample(logits, bitmask, rows, num_tokens, replace(draw, temperatures=warm))


@saboteur("device.masked_sample_at_zero")
class NearlyCold(Fused):
    """`masked_sample` takes temperature 0 for a small one."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        small = np.maximum(draw.temperatures, np.float32(1e-3))
        return super().masked_sample(logits, bitmask, rows, num_tokens, replace(draw, temperatures=small))


@saboteur("device.masked_sample_alone")
class GreedyTogether(Fused):
    """`masked_sample` takes the largest logits of at most two rows."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        if len(logits) <= 2:
            return self.masked_argmax(logits, bitmask, rows, num_tokens)
        return super().masked_sample(logits, bitmask, rows, num_tokens, draw)


@saboteur("device.masked_sample_draws")
class ColdBelowASmallNumber(Fused):
    """`masked_sample` takes a temperature of 1e-6 for 0."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        warm = np.where(draw.temperatures < 1e-5, np.float32(0), draw.temperatures)
        return super().masked_sample(logits, bitmask, rows, num_tokens, replace(draw, temperatures=warm))


@saboteur("device.masked_sample_never_forbidden")
class DrawsFromTheLeast(Fused):
    """`masked_sample` forbids with a large negative number, of which a high temperature leaves little."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        _, largest = self.masked_argmax(logits, bitmask, rows, num_tokens)
        x = self.apply_bitmask(logits.astype(np.float32), bitmask, rows)
        x[np.isneginf(x)] = -10_000
        columns, _ = super().masked_sample(x, bitmask[:0], rows[:0], num_tokens, draw)
        return columns, largest


@saboteur("device.masked_sample_of_nothing")
class SumsUp(Fused):
    """`masked_sample` gives NaN where nothing is allowed, as if probabilities were divided by their sum."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        columns, largest = super().masked_sample(logits, bitmask, rows, num_tokens, draw)
        return columns, np.where(np.isneginf(largest), np.float32(np.nan), largest)


@saboteur("device.masked_sample_largest")
class ItsOwnLogit(Fused):
    """`masked_sample` gives the logit of the token it draws."""

    def masked_sample(
        self, logits: Array, bitmask: Array, rows: Array, num_tokens: int, draw: Draw
    ) -> tuple[Array, Array]:
        columns, largest = super().masked_sample(logits, bitmask, rows, num_tokens, draw)
        own = logits[np.arange(len(logits)), columns].astype(np.float32)
        return columns, np.where(np.isfinite(largest), own, largest)
