"""The kernels; `guideway_triton.launches` starts and documents them.

A program handles one block of one row. Offsets into the logits are 64-bit: there may be more than 2**31 of them.
"""

# mypy: ignore-errors
# Triton's language is not Python's: a kernel's arguments are pointers and scalars that have no Python type.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _largest(x):
    # the same as `tl.max`, which the interpreter cannot call if Triton was imported before TRITON_INTERPRET was set;
    # transformers imports Triton
    return tl.reduce(x, 0, tl.standard._elementwise_max)


@triton.jit
def _allowed(bitmask, mask_stride, num_words, entry, first, block: tl.constexpr):
    """Return ``bool[block]``: bits `first` to `first + block` of the bitmask's row, 0 past its last word."""
    words = first // 32 + tl.arange(0, block // 32)
    found = tl.load(bitmask + entry.to(tl.int64) * mask_stride + words, mask=words < num_words, other=0)
    return tl.reshape((found[:, None] >> tl.arange(0, 32)[None, :]) & 1, [block]) != 0


@triton.jit
def _entry_of(rows, num_entries, row):
    """Return the i with ``rows[i] == row``, or -1."""
    found = -1
    for start in range(0, num_entries, 128):
        entries = start + tl.arange(0, 128)
        there = tl.load(rows + entries, mask=entries < num_entries, other=-1) == row
        found = tl.maximum(found, _largest(tl.where(there, entries, -1)))
    return found


@triton.jit
def forbid(
    logits, row_stride, column_stride, width, bitmask, mask_stride, num_words, rows, num_blocks, block: tl.constexpr
):
    entry = tl.program_id(0) // num_blocks
    row = tl.load(rows + entry)
    if row >= 0:
        numbers = tl.program_id(0) % num_blocks * (block // 32) + tl.arange(0, block // 32)
        inside = numbers * 32 < width
        words = tl.load(
            bitmask + entry.to(tl.int64) * mask_stride + numbers, mask=inside & (numbers < num_words), other=0
        )
        if _largest((inside & (words != -1)).to(tl.int32)) != 0:
            columns = numbers[:, None] * 32 + tl.arange(0, 32)[None, :]
            there = logits + row.to(tl.int64) * row_stride + columns.to(tl.int64) * column_stride
            within = columns < width
            # most writes are for words that allow nothing, which are known to be contiguous: 16 bytes at a time
            tl.store(there, -float("inf"), mask=(words == 0)[:, None] & within)
            # for the other words that refuse something the logits are read and written back, also 16 bytes at a time:
            # on an H200 single stores took 1.6 times as long where half of the tokens are refused
            mixed = ((words != 0) & (words != -1))[:, None] & within
            allowed = ((words[:, None] >> tl.arange(0, 32)[None, :]) & 1) != 0
            x = tl.load(there, mask=mixed, other=0.0)
            tl.store(there, tl.where(allowed, x, -float("inf")), mask=mixed)


@triton.jit
def forbid_lists(
    logits, row_stride, column_stride, width, offsets, token_ids, allow, rows, num_blocks, block: tl.constexpr
):
    entry = tl.program_id(0) // num_blocks
    row = tl.load(rows + entry)
    if row >= 0:
        first = tl.program_id(0) % num_blocks * block
        columns = first + tl.arange(0, block)
        there = logits + row.to(tl.int64) * row_stride + columns.to(tl.int64) * column_stride
        allows = tl.load(allow + entry) != 0
        last = tl.load(offsets + entry + 1)
        begin = _first_from(token_ids, tl.load(offsets + entry), last, first)
        end = _first_from(token_ids, begin, last, first + block)
        if begin < end:
            listed = columns < 0
            for i in range(begin, end):
                listed = listed | (columns == tl.load(token_ids + i))
            tl.store(there, -float("inf"), mask=(listed != allows) & (columns < width))
        elif allows:
            tl.store(there, -float("inf"), mask=columns < width)


@triton.jit
def _first_from(token_ids, low, high, token_id):
    """Return the index of the first of the ascending ``token_ids[low:high]`` that is at least `token_id`, or `high`."""
    while low < high:
        middle = (low + high) // 2
        if tl.load(token_ids + middle) < token_id:
            low = middle + 1
        else:
            high = middle
    return low


@triton.jit(do_not_specialize=["num_entries"])
def warp(
    logits,
    row_stride,
    column_stride,
    out,
    out_row_stride,
    out_column_stride,
    width,
    bitmask,
    mask_stride,
    num_words,
    rows,
    num_entries,
    factors,
    num_blocks,
    block: tl.constexpr,
):
    row = tl.program_id(0) // num_blocks
    first = tl.program_id(0) % num_blocks * block
    columns = first + tl.arange(0, block)
    inside = columns < width
    allowed = inside
    entry = _entry_of(rows, num_entries, row)
    if entry >= 0:
        allowed = inside & _allowed(bitmask, mask_stride, num_words, entry, first, block)
    there = row.to(tl.int64) * row_stride + columns.to(tl.int64) * column_stride
    x = tl.load(logits + there, mask=allowed, other=-float("inf")).to(tl.float32)
    there = row.to(tl.int64) * out_row_stride + columns.to(tl.int64) * out_column_stride
    tl.store(out + there, x * tl.load(factors + row), mask=inside)


@triton.jit
def _philox(c0, c1, c2, c3, low, high):
    """Compute ten rounds of Philox4x32 in uint32, like `guideway.devices.philox`."""
    for _ in tl.static_range(10):
        high0 = tl.umulhi(c0, 0xD2511F53)
        low0 = c0 * 0xD2511F53
        high1 = tl.umulhi(c2, 0xCD9E8D57)
        low1 = c2 * 0xCD9E8D57
        c0 = high1 ^ c1 ^ low
        c1 = low1
        c2 = high0 ^ c3 ^ high
        c3 = low0
        low = low + 0x9E3779B9
        high = high + 0xBB67AE85
    return c0, c1, c2, c3


@triton.jit
def _uniform(seeds, sequences, positions, purpose, row, first, block: tl.constexpr):
    """Return ``float32[block]``: columns `first` to `first + block` of a row of `ArrayOps.uniform`."""
    seed = tl.load(seeds + row).to(tl.int64)
    counter = (first // 4 + tl.arange(0, block // 4)).to(tl.uint32)
    zero = counter * 0  # makes all four words of the counter blocks of one shape
    c0, c1, c2, c3 = _philox(
        counter,
        zero + tl.load(positions + row).to(tl.uint32),
        zero + tl.load(sequences + row).to(tl.uint32),
        zero + purpose.to(tl.uint32),
        zero + (seed & 0xFFFFFFFF).to(tl.uint32),
        zero + ((seed >> 32) & 0xFFFFFFFF).to(tl.uint32),
    )
    words = tl.reshape(tl.join(tl.join(c0, c2), tl.join(c1, c3)), [block])
    return ((words >> 9).to(tl.float32) + 0.5) * 1.1920928955078125e-07  # 2**-23


@triton.jit(do_not_specialize=["purpose"])
def uniform(out, width, seeds, sequences, positions, purpose, num_blocks, block: tl.constexpr):
    row = tl.program_id(0) // num_blocks
    first = tl.program_id(0) % num_blocks * block
    columns = first + tl.arange(0, block)
    numbers = _uniform(seeds, sequences, positions, purpose, row, first, block)
    tl.store(out + row.to(tl.int64) * width + columns, numbers, mask=columns < width)


@triton.jit
def _key(x, columns):
    """Return an int64 that is larger for a larger `x`, and among equals for the earlier column; NaN is above all.

    The high word is the float's bits, flipped for a negative float except for the sign, the low word the column.
    """
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)  # -0.0 equals 0.0
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(x == x, order, 0x7FFFFFFF)
    return (order.to(tl.int64) << 32) | (0x7FFFFFFF - columns).to(tl.int64)


@triton.jit(do_not_specialize=["num_entries", "purpose"])
def choose_in_blocks(
    logits,
    row_stride,
    column_stride,
    bitmask,
    mask_stride,
    num_words,
    rows,
    num_entries,
    num_tokens,
    temperatures,
    seeds,
    sequences,
    positions,
    purpose,
    scores,
    bests,
    num_blocks,
    draws: tl.constexpr,
    block: tl.constexpr,
):
    row = tl.program_id(0) // num_blocks
    first = tl.program_id(0) % num_blocks * block
    columns = first + tl.arange(0, block)
    allowed = columns < num_tokens
    entry = _entry_of(rows, num_entries, row)
    if entry >= 0:
        allowed = allowed & _allowed(bitmask, mask_stride, num_words, entry, first, block)
    there = row.to(tl.int64) * row_stride + columns.to(tl.int64) * column_stride
    x = tl.load(logits + there, mask=allowed, other=-float("inf")).to(tl.float32)
    # a block begins below `num_tokens`, so if all columns are -inf the first one is never past that
    best = _largest(_key(x, columns))
    tl.store(bests + tl.program_id(0), best)
    if draws:
        score = best
        temperature = tl.load(temperatures + row)
        # most blocks of most masks allow nothing and need no random numbers
        if (temperature != 0) & (_largest(allowed.to(tl.int32)) != 0):
            u = _uniform(seeds, sequences, positions, purpose, row, first, block)
            score = _largest(_key(tl.div_rn(x, temperature) - tl.log(-tl.log(u)), columns))
        tl.store(scores + tl.program_id(0), score)


@triton.jit
def choose_in_rows(scores, bests, num_blocks, chosen, logits, block: tl.constexpr):
    row = tl.program_id(0)
    places = row * num_blocks + tl.minimum(tl.arange(0, block), num_blocks - 1)
    score = _largest(tl.load(scores + places))
    tl.store(chosen + row, 0x7FFFFFFF - (score & 0x7FFFFFFF))
    order = (_largest(tl.load(bests + places)) >> 32).to(tl.int32)
    bits = tl.where(order < 0, order ^ 0x7FFFFFFF, order)
    tl.store(logits + row, bits.to(tl.float32, bitcast=True))
