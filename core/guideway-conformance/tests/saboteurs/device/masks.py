"""Bugs of masks."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from guideway.api.steps import Array
from guideway.devices.numpy.device import NumpyDevice

from saboteurs import saboteur
from saboteurs.device.base import BFloat16, Sabotaged, SabotagedTensors, Tensor, allowed_tokens


@saboteur("device.zero_bits_forbid")
class OnesForbid(Sabotaged):
    """Reads a set bit as forbidden."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return super().apply_bitmask(logits, ~bitmask, rows)


@saboteur("device.zero_bits_forbid")
class ReturnsTheOldArray(Sabotaged):
    """Masks a copy and returns what it was given."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        super().apply_bitmask(logits.copy(), bitmask, rows)
        return logits


@saboteur("device.golden_masks")
class LaterWordsBackwards(Sabotaged):
    """Reads all words but the first from the highest bit on."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        turned = allowed_tokens(bitmask, bitmask.shape[1] * 32).reshape(len(bitmask), -1, 32)
        turned[:, 1:] = turned[:, 1:, ::-1]
        for i, row in enumerate(rows):
            allowed = np.resize(turned[i].ravel(), max(turned[i].size, logits.shape[1]))
            allowed[turned[i].size :] = False
            logits[row, ~allowed[: logits.shape[1]]] = -np.inf
        return logits


@saboteur("device.each_bit_is_read")
class LosesTheSign(Sabotaged):
    """Clears the highest bit of each word."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return super().apply_bitmask(logits, bitmask & 0x7FFFFFFF, rows)


@saboteur("device.forbidden_whatever_it_was")
class AddsMinusInfinity(Sabotaged):
    """Adds -inf instead of writing it, so that +inf and NaN become NaN."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        allowed = allowed_tokens(bitmask, logits.shape[1])
        for i, row in enumerate(rows):
            logits[row, ~allowed[i]] += -np.inf
        return logits


@saboteur("device.allowed_logits_keep_their_bits")
class AddsZero(Sabotaged):
    """Adds 0 to allowed logits, so that -0.0 loses its sign."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        logits[rows] += 0.0
        return super().apply_bitmask(logits, bitmask, rows)


@saboteur("device.other_rows_keep_their_bits")
class CleansOtherRows(Sabotaged):
    """Replaces what is not a number in rows it was not given."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        others = np.setdiff1d(np.arange(len(logits)), rows)
        logits[others] = np.nan_to_num(logits[others], nan=0.0, posinf=np.inf, neginf=-np.inf)
        return super().apply_bitmask(logits, bitmask, rows)


@saboteur("device.rows_in_any_order")
class SortsRows(Sabotaged):
    """Takes entry i for the i-th row from above."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return super().apply_bitmask(logits, bitmask, np.sort(rows))


@saboteur("device.no_rows_no_change")
class NoRowsMeansAll(Sabotaged):
    """Takes no rows for all of them."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        if len(rows) == 0:
            logits[:] = -np.inf
        return super().apply_bitmask(logits, bitmask, rows)


@saboteur("device.padding_changes_nothing")
class CountsFromTheEnd(Sabotaged):
    """Takes row -1 for the last row."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return super().apply_bitmask(logits, bitmask, rows % max(len(logits), 1))


@saboteur("device.padding_changes_nothing")
class PadsAtTheEnd(Sabotaged):
    """Stops at the first entry that is padding."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        padding = np.flatnonzero(rows == -1)
        size = padding[0] if len(padding) else len(rows)
        return super().apply_bitmask(logits, bitmask[:size], rows[:size])


@saboteur("device.masks_of_host_arrays")
class WantsItsOwnArrays(SabotagedTensors):
    """Fails for arrays of the host."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        if not isinstance(bitmask, Tensor) or not isinstance(rows, Tensor):
            raise TypeError("expected a Tensor")
        return super().apply_bitmask(logits, bitmask, rows)


@saboteur("device.past_the_last_word_forbidden")
class AllowsPastTheLastWord(Sabotaged):
    """Leaves logits past the mask as they are."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        covered = logits[:, : bitmask.shape[1] * 32]
        super().apply_bitmask(covered, bitmask, rows)
        return logits


@saboteur("device.bits_past_the_width_mean_nothing")
class RunsIntoTheNextRow(Sabotaged):
    """Applies whole words, whose last bits lie in the next row."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        flat, width = logits.reshape(-1), logits.shape[1]
        for i, row in enumerate(rows):
            past = np.flatnonzero(~allowed_tokens(bitmask, bitmask.shape[1] * 32)[i]) + row * width
            flat[past[past < flat.size]] = -np.inf
        return super().apply_bitmask(flat.reshape(logits.shape), bitmask, rows)


@saboteur("device.float16_logits")
class WidensFloat16(Sabotaged):
    """Returns float32 for float16."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return super().apply_bitmask(logits.astype(np.float32), bitmask, rows)


@saboteur("device.bfloat16_logits")
class LeastBFloat16(SabotagedTensors):
    """Forbids with the least finite number of bfloat16 instead of -inf."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        logits = super().apply_bitmask(logits, bitmask, rows)
        if isinstance(logits, BFloat16):
            logits[np.isneginf(logits)] = -3.3895314e38
        return logits


@saboteur("device.rows_of_either_integer")
class TakesRowsForInt32(Sabotaged):
    """Reads the memory of any rows as int32."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return super().apply_bitmask(logits, bitmask, rows.view(np.int32)[: len(rows)])


@saboteur("device.masks_are_not_remembered")
class RemembersMasksByShape(Sabotaged):
    """Copies a mask once for each shape."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.copies: dict[tuple[int, ...], Any] = {}

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return super().apply_bitmask(logits, self.copies.setdefault(bitmask.shape, bitmask.copy()), rows)


@saboteur("device.masks_are_not_remembered")
class RemembersMasksByMemory(Sabotaged):
    """Copies a mask once for each array it is in."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.copies: dict[int, Any] = {}

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        _, copied = self.copies.setdefault(id(bitmask), (bitmask, bitmask.copy()))
        return super().apply_bitmask(logits, copied, rows)


@saboteur("device.masks_are_only_read")
class InvertsTheBitmask(Sabotaged):
    """Leaves the bitmask inverted."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        logits = super().apply_bitmask(logits, bitmask, rows)
        np.invert(bitmask, out=bitmask)
        return logits


@saboteur("device.masks_add_up")
class AllowsAgain(Sabotaged):
    """Gives logits that the mask allows and that are -inf the value 0."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        logits[np.isneginf(logits)] = 0
        return super().apply_bitmask(logits, bitmask, rows)


@saboteur("device.masks_of_every_width")
class SkipsTheRest(Sabotaged):
    """Masks whole words only, except in logits of less than one."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        width = logits.shape[1]
        super().apply_bitmask(logits[:, : max(width // 32 * 32, min(width, 32))], bitmask, rows)
        return logits


@saboteur("device.masks_of_many_rows")
class SixtyFourRows(Sabotaged):
    """Masks the first 64 of its rows."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return super().apply_bitmask(logits, bitmask[:64], rows[:64])


@saboteur("device.masks_of_many_rows")
class RowsOfEightBits(Sabotaged):
    """Counts rows in 8 bits."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return super().apply_bitmask(logits, bitmask, np.where(rows < 0, rows, rows % 256))


@saboteur("device.sparse_and_dense_masks_together")
class AllSparse(Sabotaged):
    """Keeps at most 256 tokens of each row where the first row allows few."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        allowed = allowed_tokens(bitmask, logits.shape[1])
        logits = super().apply_bitmask(logits, bitmask, rows)
        if len(rows) and allowed[0].mean() < 0.5:
            for i, row in enumerate(rows):
                logits[row, np.flatnonzero(allowed[i])[256:]] = -np.inf
        return logits


@saboteur("device.logits_that_are_views")
class IgnoresStrides(Sabotaged):
    """Takes for granted that each row begins where the last one ended."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        size, (num_rows, width) = logits.itemsize, logits.shape
        flat = np.lib.stride_tricks.as_strided(logits, (num_rows, width), (width * size, size))
        super().apply_bitmask(flat, bitmask, rows)
        return logits


@saboteur("device.logits_of_read_only_memory")
class KeepsReadOnlyLogits(Sabotaged):
    """Hands on memory that it cannot write to."""

    def from_logits(self, logits: Array) -> Array:
        return np.asarray(logits)


@saboteur("device.logits_of_read_only_memory")
class WritesToReadOnlyLogits(Sabotaged):
    """Takes memory that it must not write to for its own."""

    def from_logits(self, logits: Array) -> Array:
        address = logits.__array_interface__["data"][0]
        size = logits.nbytes
        memory = (ctypes.c_char * size).from_address(address)
        return np.ndarray(logits.shape, logits.dtype, memory, strides=logits.strides)


@saboteur("device.masks_of_large_vocabularies")
class SixteenBits(Sabotaged):
    """Counts tokens in 16 bits."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        super().apply_bitmask(logits[:, : 2**16], bitmask, rows)
        return logits


@saboteur("device.masks_are_only_read")
class WritesTheRows(NumpyDevice):
    """Leaves its rows sorted."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        logits = super().apply_bitmask(logits, bitmask, rows)
        rows.sort()
        return logits


_SCRATCH: dict[int, Any] = {}


@saboteur("device.large_masks_in_several_threads")
class OneScratchForLargeMasks(Sabotaged):
    """Unpacks large masks into memory that all backends share."""

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        width = logits.shape[1]
        if width < 65_536:
            return super().apply_bitmask(logits, bitmask, rows)
        scratch = _SCRATCH.setdefault(width, np.empty((4, width), dtype=np.bool_))
        scratch[: len(rows)] = allowed_tokens(bitmask, width)
        for i, row in enumerate(rows):
            if row != -1:
                logits[row, ~scratch[i]] = -np.inf
        return logits
