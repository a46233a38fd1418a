"""The loops over masks and logits, compiled by numba.

They take addresses instead of arrays: passing a tensor's memory to NumPy costs as much as masking a row of it. Logits
are handled as the integers of their bits. The loops release the GIL, start no threads and allocate nothing.

All of them are in one file, because numba's cache checks only the file of the compiled function for changes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import carray, types  # type: ignore[attr-defined]
from numba.core import cgutils
from numba.extending import intrinsic

__all__ = ["Kernel", "argmax_kernel", "choose_kernel", "forbid_kernel"]

Kernel: TypeAlias = Callable[..., None]

CHUNK = 64
"""Words of a mask that are compared at once."""
SCATTERED = 8
"""Forbidding fills a chunk run by run if more words than this allow nothing, otherwise word by word."""
BLOCK = 256
"""Logits per block: the argmax first finds the block of the largest logit, then its column."""
MANY = 48
"""The argmax reduces whole blocks under their masks if more words of a chunk than this allow something."""
FEW = 8
"""Up to this many allowed tokens of a word are compared one by one."""
EVERY = np.uint64(0xFFFFFFFFFFFFFFFF)
LOWEST_BIT = np.uint64(1)
FULL = np.int32(-1)
NONE = np.int32(0)


def _instruction(result: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that turns ``emit(builder, *values)``, which writes LLVM instructions, into a function for
    kernels. `result` returns its numba type for the types of its arguments."""

    def decorate(emit: Callable[..., Any]) -> Any:
        def typed(_: Any, *kinds: Any) -> Any:
            def generate(context: Any, builder: Any, _: Any, values: Any) -> Any:
                value = emit(builder, *values)
                return context.get_dummy_value() if value is None else value

            return result(*kinds)(*kinds), generate

        typed.__signature__ = inspect.signature(emit)  # type: ignore[attr-defined]  # numba counts arguments by it
        return intrinsic(typed)

    return decorate


def _helper(function: Callable[..., Any]) -> Any:
    """Compile `function` for use in kernels."""
    return numba.njit(function)


@_instruction(lambda *_: types.uint64)
def _which(builder: Any, address: Any, word: Any) -> Any:
    """Return a ``uint64`` whose bit i is set if word i of the 64 at `address` equals `word`."""
    i64, part = ir.IntType(64), ir.VectorType(ir.IntType(32), 16)
    found = ir.Constant(i64, 0)
    for i in range(CHUNK // 16):
        words = builder.load(_shift(builder, address, 64 * i, part), align=4)
        equal = builder.bitcast(builder.icmp_signed("==", words, _splat(builder, word, 16)), ir.IntType(16))
        found = builder.or_(found, builder.shl(builder.zext(equal, i64), ir.Constant(i64, 16 * i)))
    return found


@_instruction(lambda *_: types.void)
def _select(builder: Any, address: Any, word: Any, forbidden: Any) -> None:
    """Set each of the 32 logits at `address` whose bit of `word` is 0 to `forbidden`."""
    place, align = _shift(builder, address, 0, ir.VectorType(forbidden.type, 32)), forbidden.type.width // 8
    logits = builder.load(place, align=align)
    builder.store(builder.select(_lanes(builder, word), logits, _splat(builder, forbidden, 32)), place, align=align)


@_instruction(lambda *_: types.int64)
def _lowest(builder: Any, word: Any) -> Any:
    """Return the number of the lowest bit set in a uint64 that is not 0."""
    return builder.cttz(word, ir.Constant(ir.IntType(1), 1))


@_instruction(lambda *_: types.int64)
def _count(builder: Any, word: Any) -> Any:
    """Return the number of bits set in a uint64."""
    return builder.ctpop(word)


@_instruction(lambda *kinds: types.CPointer(kinds[1]))  # type: ignore[no-untyped-call]
def _pointer(builder: Any, address: Any, like: Any) -> Any:
    """Return `address` as a pointer to elements of the type of `like`."""
    return _shift(builder, address, 0, like.type)


@_instruction(lambda *kinds: kinds[-1])
def _narrow(builder: Any, number: Any, like: Any) -> Any:
    """Truncate an int64 to the integer type of `like`; numba's own arithmetic widens all integers."""
    return builder.trunc(number, like.type)


@_instruction(lambda *kinds: kinds[-1])
def _most_of_word(builder: Any, address: Any, mask: Any, lowest: Any) -> Any:
    """Return the largest, by `_order`, of the 32 logits at `address` whose bit of the word at `mask` is 1, or
    `lowest`."""
    return _reduce(builder, "smax", address, 32, mask, lowest, lowest)


@_instruction(lambda *kinds: kinds[-1])
def _least_of_word(builder: Any, address: Any, mask: Any, lowest: Any) -> Any:
    """Return the smallest of the same logits, or 0."""
    return _reduce(builder, "smin", address, 32, mask, lowest, ir.Constant(lowest.type, 0))


@_instruction(lambda *kinds: kinds[-1])
def _most_of_some(builder: Any, address: Any, mask: Any, lowest: Any) -> Any:
    """Return the largest of the `BLOCK` logits at `address` whose bit of the words at `mask` is 1, or `lowest`."""
    return _reduce(builder, "smax", address, BLOCK, mask, lowest, lowest)


@_instruction(lambda *kinds: kinds[-1])
def _least_of_some(builder: Any, address: Any, mask: Any, lowest: Any) -> Any:
    """Return the smallest of the same logits, or 0."""
    return _reduce(builder, "smin", address, BLOCK, mask, lowest, ir.Constant(lowest.type, 0))


@_instruction(lambda *kinds: kinds[-1])
def _most_of_block(builder: Any, address: Any, lowest: Any) -> Any:
    """Return the largest of the `BLOCK` logits at `address`."""
    return _reduce(builder, "smax", address, BLOCK, None, lowest, lowest)


@_instruction(lambda *kinds: kinds[-1])
def _least_of_block(builder: Any, address: Any, lowest: Any) -> Any:
    """Return the smaller of 0 and the smallest of the same logits."""
    return _reduce(builder, "smin", address, BLOCK, None, lowest, ir.Constant(lowest.type, 0))


def _reduce(builder: Any, what: str, address: Any, count: int, mask: Any, lowest: Any, start: Any) -> Any:
    width = lowest.type.width
    kind = ir.VectorType(lowest.type, 32)
    zeros, lowests, starts = ir.Constant(kind, [0] * 32), _splat(builder, lowest, 32), _splat(builder, start, 32)
    found = starts
    for i in range(0, count, 32):
        bits = builder.load(_shift(builder, address, i * width // 8, kind), align=width // 8)
        ordered = builder.select(builder.icmp_signed("<", bits, zeros), builder.sub(lowests, bits), bits)
        if mask is not None:
            word = builder.load(_shift(builder, mask, i // 8, ir.IntType(32)), align=4)
            ordered = builder.select(_lanes(builder, word), ordered, starts)
        better = builder.icmp_signed(">" if what == "smax" else "<", ordered, found)
        found = builder.select(better, ordered, found)
    function = ir.FunctionType(lowest.type, [kind])
    name = f"llvm.vector.reduce.{what}.v32i{width}"
    reduce = cgutils.get_or_insert_function(builder.module, function, name)  # type: ignore[no-untyped-call]
    return builder.call(reduce, [found])


def _shift(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    """Return a pointer to a `kind` at `address` + `offset`."""
    return builder.inttoptr(builder.add(address, ir.Constant(address.type, offset)), kind.as_pointer())


def _lanes(builder: Any, word: Any) -> Any:
    """Return the 32 bits of a word as a vector."""
    return builder.bitcast(word, ir.VectorType(ir.IntType(1), 32))


def _splat(builder: Any, value: Any, count: int) -> Any:
    """Return a vector of `count` copies of `value`."""
    vector, index = ir.VectorType(value.type, count), ir.VectorType(ir.IntType(32), count)
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), ir.Constant(index, [0] * count))


@_helper
def _forbid_run(row: int, step: int, first: int, stop: int, size: int, forbidden: Any) -> None:
    """Forbid tokens `first` to `stop` - 1 of the row at address `row`, whose logits are `step` bytes apart."""
    if step == size:
        carray(_pointer(row + first * size, forbidden), stop - first)[:] = forbidden
    else:
        for token in range(first, stop):
            carray(_pointer(row + token * step, forbidden), 1)[0] = forbidden


@_helper
def _forbid_some(row: int, step: int, first: int, count: int, word: Any, size: int, forbidden: Any) -> None:
    """Forbid each of the `count` tokens from `first` whose bit of `word` is 0."""
    if step == size and count == 32:
        _select(row + first * size, word, forbidden)
    else:
        for bit in range(count):
            if not (word >> bit) & 1:
                carray(_pointer(row + (first + bit) * step, forbidden), 1)[0] = forbidden


@_helper
def _forbid_row(row: int, step: int, width: int, mask: int, num_words: int, size: int, forbidden: Any) -> None:
    whole = min(num_words, width // 32)
    words = carray(_pointer(mask, NONE), num_words)
    begin, at = -1, 0  # if `begin` is not -1, the words from `begin` to `at` allow nothing
    while at + CHUNK <= whole:
        none = _which(mask + 4 * at, NONE)
        if begin < 0 and _count(none) > SCATTERED:
            begin = at
        if none == EVERY:
            pass
        elif _count(none) > SCATTERED:
            left = ~none
            while left:
                place = at + _lowest(left)
                left &= left - LOWEST_BIT
                _forbid_run(row, step, 32 * begin, 32 * place, size, forbidden)
                _forbid_some(row, step, 32 * place, 32, words[place], size, forbidden)
                begin = place + 1
        else:
            if begin >= 0:
                _forbid_run(row, step, 32 * begin, 32 * at, size, forbidden)
                begin = -1
            left = ~_which(mask + 4 * at, FULL)
            while left:  # no branch depends on the words, so none is mispredicted
                place = at + _lowest(left)
                left &= left - LOWEST_BIT
                _forbid_some(row, step, 32 * place, 32, words[place], size, forbidden)
        at += CHUNK
    if begin >= 0:
        _forbid_run(row, step, 32 * begin, 32 * at, size, forbidden)
    while at < num_words and 32 * at < width:
        _forbid_some(row, step, 32 * at, min(32, width - 32 * at), words[at], size, forbidden)
        at += 1
    if 32 * at < width:
        _forbid_run(row, step, 32 * at, width, size, forbidden)


@_helper
def _row_of(rows: int, rows_step: int, row_size: int, i: int, num_rows: int) -> Any:
    """Return entry `i` of `rows`."""
    place = rows + i * rows_step
    number = np.int64(carray(_pointer(place, NONE), 1)[0]) if row_size == 4 else carray(_pointer(place, 0), 1)[0]
    if not -1 <= number < num_rows:
        raise IndexError("a mask is for a row that the logits do not have")
    return number


def _forbid(
    logits: int, num_rows: int, row_step: int, step: int, width: int,
    bitmask: int, mask_step: int, num_words: int,
    rows: int, rows_step: int, row_size: int, first: int, stop: int, every: int,
    size: int, forbidden: int,
) -> None:  # fmt: skip
    for i in range(stop):  # each thread checks all rows, so nothing is written if one raises
        _row_of(rows, rows_step, row_size, i, num_rows)
    for i in range(first, stop, every):
        number = _row_of(rows, rows_step, row_size, i, num_rows)
        if number == -1:
            continue
        row, mask = logits + number * row_step, bitmask + i * mask_step
        if size == 2:
            _forbid_row(row, step, width, mask, num_words, 2, np.int16(forbidden))
        else:
            _forbid_row(row, step, width, mask, num_words, 4, np.int32(forbidden))


# The argmax compares integers: a logit's sign and magnitude as two's complement sorts like the logits, and both zeros
# are equal. A NaN sorts beyond infinity on either side, so the smallest value is needed as well.


@_helper
def _order(bits: Any, lowest: Any) -> Any:
    return _narrow(bits if bits >= 0 else lowest - bits, lowest)


@_helper
def _extremes(row: int, first: int, count: int, size: int, lowest: Any) -> Any:
    """Return the largest and the smallest of `count` logits from `first`."""
    if count == BLOCK:
        return _most_of_block(row + first * size, lowest), _least_of_block(row + first * size, lowest)
    logits = carray(_pointer(row + first * size, lowest), count)
    most, least = lowest, _narrow(0, lowest)
    for i in range(count):
        number = _order(logits[i], lowest)
        most, least = max(most, number), min(least, number)
    return most, least


@_helper
def _extremes_of_some(row: int, first: int, count: int, mask: int, size: int, lowest: Any) -> Any:
    """Return the largest and the smallest of the `count` logits from `first` whose bit of the word at `mask` is 1."""
    allowed = np.uint64(carray(_pointer(mask, NONE), 1)[0]) & ((LOWEST_BIT << np.uint64(count)) - LOWEST_BIT)
    if count == 32 and _count(allowed) > FEW:
        return _most_of_word(row + first * size, mask, lowest), _least_of_word(row + first * size, mask, lowest)
    logits = carray(_pointer(row + first * size, lowest), count)
    most, least = lowest, _narrow(0, lowest)
    while allowed:
        number = _order(logits[_lowest(allowed)], lowest)
        most, least = max(most, number), min(least, number)
        allowed &= allowed - LOWEST_BIT
    return most, least


@_helper
def _argmax_row(
    row: int, num_tokens: int, masked: bool, mask: int, num_words: int, size: int, lowest: Any, infinity: int
) -> Any:
    """Return the column of the largest allowed logit and its bits; without a mask every token is allowed."""
    logits = carray(_pointer(row, lowest), num_tokens)
    words = carray(_pointer(mask, NONE), num_words)
    most, least, where = lowest, _narrow(0, lowest), 0
    stop, at = (num_tokens + 31) // 32, 0
    if masked:
        stop = min(stop, num_words)
    while at < stop:
        count = min(CHUNK, stop - at)
        first, end = 32 * at, min(32 * (at + count), num_tokens)
        some = (
            ~_which(mask + 4 * at, NONE) if masked and count == CHUNK else (LOWEST_BIT << np.uint64(count)) - LOWEST_BIT
        )
        if not masked or (count == CHUNK and _which(mask + 4 * at, FULL) == EVERY):
            while first < end:
                high, low = _extremes(row, first, min(BLOCK, end - first), size, lowest)
                least = min(least, low)
                if high > most:
                    most, where = high, first
                first += BLOCK
            some = np.uint64(0)
        elif _count(some) > MANY and end - first == 32 * CHUNK:
            while first < end:
                part, allowed = row + first * size, mask + first // 8
                high, low = _most_of_some(part, allowed, lowest), _least_of_some(part, allowed, lowest)
                least = min(least, low)
                if high > most:
                    most, where = high, first
                first += BLOCK
            some = np.uint64(0)
        while some:
            place = at + _lowest(some)
            some &= some - LOWEST_BIT
            first = 32 * place
            high, low = _extremes_of_some(row, first, min(32, num_tokens - first), mask + 4 * place, size, lowest)
            least = min(least, low)
            if high > most:
                most, where = high, first
        at += count
    if most > infinity or least < -infinity:
        return 0, _narrow(-1, lowest)  # a NaN
    if most == lowest:
        return 0, _narrow(lowest + infinity, lowest)  # -inf, as no token is allowed
    while not ((not masked or (words[where // 32] >> (where % 32)) & 1) and _order(logits[where], lowest) == most):
        where += 1
    return where, logits[where]


def _choose(rows: int, rows_step: int, row_size: int, count: int, masks: int, num_rows: int) -> None:
    mask_of = carray(_pointer(masks, 0), num_rows)
    mask_of[:] = -1
    for i in range(count):
        number = _row_of(rows, rows_step, row_size, i, num_rows)
        if number != -1:
            mask_of[number] = i


def _argmax(
    logits: int, row_step: int, num_tokens: int,
    bitmask: int, mask_step: int, num_words: int,
    columns: int, first: int, stop: int, every: int,
    best: int, infinity: int, size: int,
) -> None:  # fmt: skip
    found = carray(_pointer(columns, 0), stop)
    for i in range(first, stop, every):
        row, masked, mask = logits + i * row_step, found[i] >= 0, bitmask + found[i] * mask_step
        if size == 2:
            short = np.int16(-(2**15))
            found[i], carray(_pointer(best, short), stop)[i] = _argmax_row(
                row, num_tokens, masked, mask, num_words, 2, short, infinity
            )
        else:
            long = np.int32(-(2**31))
            found[i], carray(_pointer(best, long), stop)[i] = _argmax_row(
                row, num_tokens, masked, mask, num_words, 4, long, infinity
            )


@cache
def forbid_kernel() -> Kernel:
    """Return the kernel of `DeviceBackend.apply_bitmask` for logits of `size` bytes, 2 or 4, and the entries
    ``range(first, stop, every)`` of `rows`, integers of `row_size` bytes, 4 or 8. Steps are in bytes; `forbidden` are
    the bits of -inf. It raises IndexError before it writes if any of the `stop` entries is not a row."""
    return _compile(_forbid)


@cache
def choose_kernel() -> Kernel:
    """Return the kernel that writes to `masks`, ``int64[num_rows]``, for each row the index of its entry in `rows`, or
    -1. `rows` are `count` integers of `row_size` bytes. It raises the IndexError of `forbid_kernel`."""
    return _compile(_choose)


@cache
def argmax_kernel() -> Kernel:
    """Return the kernel of `DeviceBackend.masked_argmax` for logits of `size` bytes, 2 or 4, contiguous in each row,
    and the rows ``range(first, stop, every)``. `columns`, int64, contains the index of each row's mask, or -1, and is
    overwritten with the chosen columns; `best` receives their logits. `infinity` are the bits of infinity."""
    return _compile(_argmax)


def _compile(function: Callable[..., None]) -> Kernel:
    """Compile `function` for integers, using numba's cache if it can be written."""
    signature = types.void(*[types.int64] * len(inspect.signature(function).parameters))
    try:
        kernel: Kernel = numba.njit(signature, cache=True, nogil=True)(function)
    except RuntimeError as error:  # raised if neither this folder nor the home folder is writable
        if "cannot cache" not in str(error):
            raise
        kernel = numba.njit(signature, nogil=True)(function)
    return kernel
