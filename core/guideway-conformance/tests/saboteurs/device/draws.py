"""Bugs of random numbers and the draw."""

from __future__ import annotations

import os

import numpy as np
from guideway.api.steps import Array

from saboteurs import saboteur
from saboteurs.device.base import Sabotaged


@saboteur("device.uniform_known_answers")
class NotHalfway(Sabotaged):
    """`uniform` gives the lower end of each step instead of its middle."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        return super().uniform(seeds, sequences, positions, purpose, width) - np.float32(2**-24)


@saboteur("device.uniform_extremes")
class KeepsAwayFromZero(Sabotaged):
    """`uniform` gives nothing below 2**-23."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        return np.maximum(super().uniform(seeds, sequences, positions, purpose, width), np.float32(2**-23))


@saboteur("device.uniform_words")
class LowWordOnly(Sabotaged):
    """`uniform` uses the low word of a seed alone."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        return super().uniform(seeds & 0xFFFFFFFF, sequences, positions, purpose, width)


@saboteur("device.uniform_words")
class WrongPlaces(Sabotaged):
    """`uniform` takes sequences for positions."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        return super().uniform(seeds, positions, sequences, purpose, width)


@saboteur("device.uniform_words")
class LosesSigns(Sabotaged):
    """`uniform` takes a sequence of -1 for one of 1."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        return super().uniform(seeds, np.abs(sequences), positions, purpose, width)


@saboteur("device.uniform_words")
class FewPurposes(Sabotaged):
    """`uniform` loses the highest bit of the purpose."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        return super().uniform(seeds, sequences, positions, purpose & 0x7FFFFFFF, width)


@saboteur("device.uniform_widths")
class WholeBlocks(Sabotaged):
    """`uniform` gives whole blocks of four."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        return super().uniform(seeds, sequences, positions, purpose, -(-width // 4) * 4)


@saboteur("device.uniform_is_a_function")
class CountsCalls(Sabotaged):
    """`uniform` gives new numbers at each call."""

    calls = 0

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        self.calls += 1
        return super().uniform(seeds + self.calls - 1, sequences, positions, purpose, width)


@saboteur("device.uniform_of_two_processes")
class SaltsByProcess(Sabotaged):
    """`uniform` differs from process to process."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        return super().uniform(seeds ^ os.getpid(), sequences, positions, purpose, width)


@saboteur("device.uniform_of_large_vocabularies")
class RepeatsItself(Sabotaged):
    """`uniform` begins anew after 65,536 columns."""

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        numbers = super().uniform(seeds, sequences, positions, purpose, min(width, 2**16))
        return np.tile(numbers, -(-width // 2**16))[:, :width]


@saboteur("device.categorical_inverts")
class FromTheRight(Sabotaged):
    """`categorical` sums probabilities from the last column on."""

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        return logprobs.shape[1] - 1 - super().categorical(logprobs[:, ::-1], uniforms)


@saboteur("device.categorical_inverts")
class TakesTheBorder(Sabotaged):
    """`categorical` draws the first column up to which the probabilities sum to as much as the uniform number."""

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        weights = self.exp(logprobs.astype(np.float64) - logprobs.max(axis=1, keepdims=True))
        sums = weights.cumsum(axis=1)
        return np.argmax((sums >= uniforms[:, None] * sums[:, -1:]) & (weights > 0), axis=1)


@saboteur("device.categorical_of_any_total")
class TakesTotalsForOne(Sabotaged):
    """`categorical` takes rows for normalized."""

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        return np.argmax(self.exp(logprobs.astype(np.float64)).cumsum(axis=1) > uniforms[:, None], axis=1)


@saboteur("device.categorical_never_forbidden")
class TakesSumsForOne(Sabotaged):
    """`categorical` draws the first column where probabilities sum to less than 1 and than its number."""

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        cumulative = self.exp(self.log_softmax(logprobs)).cumsum(axis=1)
        return np.argmax(cumulative > uniforms[:, None], axis=1)


@saboteur("device.categorical_extremes")
class NoExtremes(Sabotaged):
    """`categorical` keeps away from the ends."""

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        return super().categorical(logprobs, np.clip(uniforms, 0.004, 0.996))


@saboteur("device.draws_follow_the_distribution")
class OneNumberForAll(Sabotaged):
    """`categorical` draws all rows at the first one's number."""

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        return super().categorical(logprobs, np.broadcast_to(uniforms[:1], uniforms.shape))


@saboteur("device.draws_from_large_vocabularies")
class SixteenBitColumns(Sabotaged):
    """`argmax` gives columns in 16 bits."""

    def argmax(self, x: Array) -> Array:
        return super().argmax(x).astype(np.uint16)
