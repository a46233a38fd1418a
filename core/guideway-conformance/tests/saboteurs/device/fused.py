"""Bugs of what a backend says it fuses, of what fused operations share, and of two of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from guideway.api.bitmask import TokenLists
from guideway.api.steps import Array

from saboteurs import saboteur
from saboteurs.device.base import Fused, Sabotaged, Triples


@saboteur("device.declares_what_it_fuses")
class FusesTheUnknown(Sabotaged):
    """`fused` has a name that is no operation's."""

    fused = frozenset({"masked_topk"})


@saboteur("device.declares_what_it_fuses")
class FusesByName(Sabotaged):
    """`fused` has an operation that it does not implement."""

    fused = frozenset({"masked_argmax"})


@saboteur("device.declares_what_it_fuses")
class FusesATuple(Sabotaged):
    """`fused` is a tuple."""

    fused: ClassVar[Any] = ()


@saboteur("device.token_lists_are_masks", "refusal")
@saboteur("device.token_lists_without_tokens", "refusal")
@saboteur("device.token_lists_past_the_width", "refusal")
class ListsUnasked(Sabotaged):
    """Has its own `apply_token_lists` and does not say so."""

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: Array) -> Array:
        return super().apply_token_lists(logits, lists, rows)


@saboteur("device.warp_masked_warps", "refusal")
@saboteur("device.warp_masked_minus_infinity", "refusal")
@saboteur("device.warp_masked_added", "refusal")
class WarpsUnasked(Sabotaged):
    """Has its own `warp_masked` and does not say so."""

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        return super().warp_masked(logits, bitmask, rows, added, factors)


@saboteur("device.fused_many_rows")
class ChoosesIn256Rows(Fused):
    """`masked_argmax` gives column 0 from row 256 on."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        columns, largest = super().masked_argmax(logits, bitmask, rows, num_tokens)
        columns[256:] = 0
        return columns, largest


@saboteur("device.fused_padding")
class ChoosesInPadding(Fused):
    """`masked_argmax` takes row -1 for the last row."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        return super().masked_argmax(logits, bitmask, rows % len(logits), num_tokens)


@saboteur("device.fused_padding")
class ListsInPadding(Fused):
    """`apply_token_lists` takes row -1 for the last row."""

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: Array) -> Array:
        return super().apply_token_lists(logits, lists, rows % len(logits))


@saboteur("device.fused_padding")
class WarpsPadding(Fused):
    """`warp_masked` masks nothing if an entry is padding."""

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        entries = 0 if (rows == -1).any() else len(rows)
        return super().warp_masked(logits, bitmask[:entries], rows[:entries], added, factors)


@saboteur("device.fused_host_arrays")
class ReadsMemory(Fused):
    """`masked_argmax` reads the memory of a bitmask without its strides."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        whole = bitmask if bitmask.base is None else bitmask.base
        return super().masked_argmax(logits, np.resize(whole, bitmask.shape), rows, num_tokens)


@saboteur("device.fused_floats")
class ReturnsTheirType(Fused):
    """`warp_masked` gives what it was given: float16 for float16."""

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        return super().warp_masked(logits, bitmask, rows, added, factors).astype(logits.dtype)


@saboteur("device.fused_floats")
class LargestOfTheirType(Fused):
    """`masked_argmax` gives logits in the type they came in."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        columns, largest = super().masked_argmax(logits, bitmask, rows, num_tokens)
        return columns, largest.astype(logits.dtype)


@saboteur("device.fused_only_read")
class MasksForGood(Fused):
    """`masked_argmax` masks the logits it was given."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        return super().masked_argmax(self.apply_bitmask(logits, bitmask, rows), bitmask, rows, num_tokens)


@saboteur("device.fused_only_read")
class LeavesItInverted(Fused):
    """`warp_masked` leaves the bitmask inverted."""

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        warped = super().warp_masked(logits, bitmask, rows, added, factors)
        np.invert(bitmask, out=bitmask)
        return warped


@saboteur("device.fused_views")
class ChoosesWithoutStrides(Fused):
    """`masked_argmax` takes for granted that each row begins where the last one ended."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        size, (num_rows, width) = logits.itemsize, logits.shape
        flat = np.lib.stride_tricks.as_strided(logits, (num_rows, width), (width * size, size))
        return super().masked_argmax(flat, bitmask, rows, num_tokens)


@saboteur("device.fused_large_vocabularies")
class ChoosesFromSixteenBits(Fused):
    """`masked_argmax` looks at the first 65,536 columns."""

    def masked_argmax(self, logits: Array, bitmask: Array, rows: Array, num_tokens: int) -> tuple[Array, Array]:
        return super().masked_argmax(logits[:, : 2**16], bitmask, rows, num_tokens)


@saboteur("device.token_lists_are_masks")
class AllowsOnly(Fused):
    """`apply_token_lists` takes every list for one of allowed tokens."""

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: Array) -> Array:
        empty = np.diff(lists.offsets) == 0
        return super().apply_token_lists(logits, replace(lists, allow=lists.allow | ~empty), rows)


@saboteur("device.token_lists_are_masks")
class ListsFromAbove(Fused):
    """`apply_token_lists` takes list i for the i-th row from above."""

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: Array) -> Array:
        return super().apply_token_lists(logits, lists, np.sort(rows))


@saboteur("device.token_lists_without_tokens")
class SkipsEmptyLists(Fused):
    """`apply_token_lists` takes a list without tokens for one that forbids nothing."""

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: Array) -> Array:
        empty = np.diff(lists.offsets) == 0
        return super().apply_token_lists(logits, replace(lists, allow=lists.allow & ~empty), rows)


@saboteur("device.token_lists_past_the_width")
class WrapsTokens(Fused):
    """`apply_token_lists` takes a token past the width for one of the next columns."""

    def apply_token_lists(self, logits: Array, lists: TokenLists, rows: Array) -> Array:
        return super().apply_token_lists(
            logits, replace(lists, token_ids=lists.token_ids % np.int32(logits.shape[1])), rows
        )


@saboteur("device.warp_masked_warps")
class AddsLast(Fused):
    """`warp_masked` adds after it multiplied."""

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        x = super().warp_masked(logits, bitmask, rows, None, factors)
        return x if added is None else self.add_at(x, *added)


@saboteur("device.warp_masked_warps")
class WarpsInTheirType(Fused):
    """`warp_masked` computes in the type of the logits."""

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        x = self.apply_bitmask(logits, bitmask, rows)
        if added is not None:
            x = self.add_at(x, *added)
        with np.errstate(over="ignore"):
            return self.scale_rows(x, np.arange(len(x)), factors).astype(np.float32)


@saboteur("device.warp_masked_minus_infinity")
class WarpsTheLeast(Fused):
    """`warp_masked` forbids with a large negative number, and what is less in the end is -inf."""

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        x = self.apply_bitmask(logits, bitmask, rows).astype(np.float32)
        x[np.isneginf(x)] = -1e30
        x = super().warp_masked(x, bitmask[:0], rows[:0], added, factors)
        x[x < -1e20] = -np.inf
        return x


@saboteur("device.warp_masked_added")
class AddsOnce(Fused):
    """`warp_masked` adds one value where a pair repeats."""

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        if added is not None:
            at = {(int(row), int(column)): i for i, (row, column) in enumerate(zip(added[0], added[1], strict=True))}
            last = np.array(list(at.values()), dtype=np.int32)
            added = added[0][last], added[1][last], added[2][last]
        return super().warp_masked(logits, bitmask, rows, added, factors)


@saboteur("device.warp_masked_added")
class WantsSomething(Fused):
    """`warp_masked` fails if nothing is added."""

    def warp_masked(self, logits: Array, bitmask: Array, rows: Array, added: Triples | None, factors: Array) -> Array:
        if added is None:
            raise TypeError("expected three arrays")
        return super().warp_masked(logits, bitmask, rows, added, factors)
