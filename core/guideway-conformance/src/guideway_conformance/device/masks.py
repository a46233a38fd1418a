"""Checks of what a bitmask does to logits."""

from __future__ import annotations

import numpy as np

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import Bench, expect_equal
from guideway_conformance.device.golden import GOLDEN
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect


@check("device", tier="smoke")
def zero_bits_forbid(subject: DeviceSubject) -> None:
    """A token whose bit is 0 gets -inf, and no other changes."""
    bench = subject.bench()
    host = bench.read(bench.masked(bench.floats(np.zeros((1, 32))), [[5]], [0]))
    finite = np.flatnonzero(np.isfinite(host[0])).tolist()
    expect(finite == [0, 2], f"of a mask that allows tokens 0 and 2, {finite} stayed finite")


@check("device")
def golden_masks(subject: DeviceSubject) -> None:
    """Bit t of a row's words stands for token t: bit t % 32 of word t // 32, lowest first."""
    bench = subject.bench()
    for case in GOLDEN:
        words = np.array(case.words, dtype=np.uint32).view(np.int32)
        host = bench.read(bench.masked(bench.floats(np.ones((case.num_rows, case.width))), words, case.rows))
        for row, words_of_row, wanted in zip(case.rows, case.words, case.allowed, strict=True):
            got = tuple(np.flatnonzero(host[row] == 1).tolist())
            shown = " ".join(f"{word:#010x}" for word in words_of_row)
            expect(got == wanted, f"of {case.width} tokens the words {shown} left {got}, not {wanted}")
        others = [row for row in range(case.num_rows) if row not in case.rows and not (host[row] == 1).all()]
        expect(not others, f"of {case.num_rows} rows only {case.rows} were to be masked, but {others} changed too")


@check("device")
def each_bit_is_read(subject: DeviceSubject) -> None:
    """Each of a word's 32 bits counts, its sign among them, and none stands for another token."""
    bits = (1 << np.arange(32, dtype=np.int64)).astype(np.uint32).view(np.int32)
    other = np.zeros(32, dtype=np.int32)
    bench, rows = subject.bench(), np.arange(64, dtype=np.int32)
    single = np.concatenate([np.stack([bits, other], axis=1), np.stack([other, bits], axis=1)])
    for words in (single, ~single):
        bench.expect_masked(bench.floats(np.ones((64, 64))), words, rows)


@check("device")
def forbidden_whatever_it_was(subject: DeviceSubject) -> None:
    """A forbidden logit is -inf afterwards, also where it was infinite, not a number or -inf already."""
    bench = subject.bench()
    logits = bench.floats(oracles.special("float32", 2, 64))
    bench.expect_masked(logits, np.array([[0, 0], [5, -6]], dtype=np.int32), np.array([0, 1]))


@check("device")
def allowed_logits_keep_their_bits(subject: DeviceSubject) -> None:
    """Allowed logits keep their bits, those of zeros, infinities and NaN among them."""
    bench = subject.bench()
    logits = bench.floats(oracles.special("float32", 2, 70))
    bench.expect_masked(logits, np.array([[-1, -1, -1], [0x55555555, -1, 0x2A]], dtype=np.int32), np.array([0, 1]))


@check("device")
def other_rows_keep_their_bits(subject: DeviceSubject) -> None:
    """Rows that are not in `rows` keep their bits, those of zeros, infinities and NaN among them."""
    bench = subject.bench()
    for rows in ([2], [5, 1], [0, 6, 3]):
        logits = bench.floats(oracles.special("float32", 7, 50))
        bench.expect_masked(logits, oracles.bitmask(1, len(rows), 2), np.array(rows))


@check("device")
def rows_in_any_order(subject: DeviceSubject) -> None:
    """Entry i of the bitmask is for row ``rows[i]``, in whatever order the rows are."""
    bench = subject.bench()
    for rows in ([3, 2, 1, 0], [1, 3, 0, 2], [2, 0]):
        bench.expect_masked(bench.floats(oracles.logits(2, 4, 64)), oracles.bitmask(3, len(rows), 2), np.array(rows))


@check("device")
def no_rows_no_change(subject: DeviceSubject) -> None:
    """A mask for no rows changes nothing."""
    bench = subject.bench()
    logits = bench.floats(oracles.special("float32", 3, 40))
    bench.expect_masked(logits, np.empty((0, 2), dtype=np.int32), np.empty(0, dtype=np.int32))


@check("device")
def padding_changes_nothing(subject: DeviceSubject) -> None:
    """Entries whose row is -1 are padding: wherever and however many they are, they change nothing."""
    bench = subject.bench()
    for rows in ([-1, 2], [2, -1, -1], [-1, 3, -1, 0, -1, -1], [-1], [-1] * 7):
        for width in (40, 64):
            words = oracles.bitmask(16, len(rows), 2)
            words[np.array(rows) == -1] = 0
            bench.expect_masked(bench.floats(oracles.special("float32", 4, width)), words, np.array(rows))


@check("device")
def masks_of_host_arrays(subject: DeviceSubject) -> None:
    """Bitmask and rows may both be arrays of the host, and do what they do on the device."""
    bench, frozen = subject.bench(), oracles.bitmask(17, 3, 2)
    frozen.flags.writeable = False
    for dtype in (np.int32, np.int64):
        for words in (oracles.bitmask(18, 3, 2), oracles.bitmask(19, 3, 4)[:, ::2], frozen):
            rows = np.array([3, -1, 0], dtype=dtype)
            logits = bench.floats(oracles.special("float32", 4, 50))
            before = bench.read(logits)
            got = bench.read(bench.backend.apply_bitmask(logits, words, rows))
            bench.expect_loop(before, got, words, rows)


@check("device")
def past_the_last_word_forbidden(subject: DeviceSubject) -> None:
    """Tokens past a row's last word are forbidden."""
    bench = subject.bench()
    for width, words in ((33, 1), (64, 1), (100, 2), (1000, 30)):
        bench.expect_masked(
            bench.floats(np.ones((2, width))), np.full((2, words), -1, dtype=np.int32), np.array([1, 0])
        )


@check("device")
def bits_past_the_width_mean_nothing(subject: DeviceSubject) -> None:
    """Bits and words past the width of the logits change nothing, not even the next row."""
    bench = subject.bench()
    for width, words in ((1, 1), (31, 1), (33, 2), (20, 3), (64, 5)):
        for word in (-1, 0):
            bitmask = np.full((2, words), word, dtype=np.int32)
            bitmask[:, 0] = 0x5
            bench.expect_masked(bench.floats(oracles.special("float32", 4, width)), bitmask, np.array([2, 0]))


@check("device")
def float16_logits(subject: DeviceSubject) -> None:
    """Logits of float16 are masked as those of float32 are, and keep their shape, dtype and bits."""
    _expect_dtype(subject.bench(), "float16")


@check("device", trait=DeviceSubject.bfloat16)
def bfloat16_logits(subject: DeviceSubject) -> None:
    """Logits of bfloat16 are masked as those of float32 are, and keep their shape, dtype and bits."""
    bench = subject.bench()
    _expect_dtype(bench, "bfloat16")
    logits = bench.floats(np.ones((1, 32)), "bfloat16")
    before = str(logits.dtype)
    after = str(bench.masked(logits, [[1]], [0]).dtype)
    expect(after == before, f"logits of {before} came back as {after}")


def _expect_dtype(bench: Bench, dtype: str) -> None:
    for seed, width in enumerate((1, 32, 50, 1000)):
        words = oracles.bitmask(seed, 3, -(-width // 32))
        source = oracles.special("float32", 5, width)
        bench.expect_masked(bench.floats(source, dtype), words, np.array([4, 0, 2]))


@check("device")
def rows_of_either_integer(subject: DeviceSubject) -> None:
    """`rows` are integers: int32 and int64 mean the same."""
    bench, words = subject.bench(), oracles.bitmask(4, 2, 2)
    source, rows = oracles.logits(5, 4, 64), np.array([3, 1])
    for dtype in (np.int32, np.int64):
        logits = bench.floats(source)
        before = bench.read(logits)
        got = bench.backend.apply_bitmask(logits, bench.ints(words), bench.array(rows, dtype))
        bench.expect_loop(before, bench.read(got), words, rows)


@check("device")
def masks_are_not_remembered(subject: DeviceSubject) -> None:
    """Each call applies the mask and the rows it is given, also where the caller wrote them into the same memory."""
    bench = subject.bench()
    words, rows = np.empty((2, 2), dtype=np.int32), np.empty(2, dtype=np.int32)
    for seed, chosen in enumerate(([0, 1], [0, 1], [2, 0], [1, 2], [1, 2])):
        if seed > 2:
            words, rows = np.empty_like(words), np.empty_like(rows)
        words[:], rows[:] = oracles.bitmask(10 + seed, 2, 2), chosen
        logits = bench.floats(oracles.logits(5, 3, 64))
        before = bench.read(logits)
        got = bench.backend.apply_bitmask(logits, bench.ops.asarray(words), bench.ops.asarray(rows))
        bench.expect_loop(before, bench.read(got), words, rows)


@check("device")
def masks_are_only_read(subject: DeviceSubject) -> None:
    """A call changes neither the bitmask nor the rows, so that they can be applied to other logits."""
    bench = subject.bench()
    words, rows = oracles.bitmask(6, 3, 2), np.array([4, 0, 3], dtype=np.int32)
    bitmask, chosen = bench.ints(words), bench.ints(rows)
    for width in (50, 64):
        logits = bench.floats(oracles.logits(7, 5, width))
        before = bench.read(logits)
        got = bench.backend.apply_bitmask(logits, bitmask, chosen)
        bench.expect_loop(before, bench.read(got), words, rows)
        expect_equal(bench.read(bitmask), words, f"the bitmask after logits {width} wide")
        expect_equal(bench.read(chosen), rows, f"the rows after logits {width} wide")


@check("device")
def masks_add_up(subject: DeviceSubject) -> None:
    """A second mask on logits that are masked already forbids more and allows nothing again."""
    bench = subject.bench()
    logits = bench.floats(np.ones((2, 32)))
    for words in ([[0x0F]], [[0x3C]]):
        logits = bench.masked(logits, words, [1])
    got = np.flatnonzero(np.isfinite(bench.read(logits)[1])).tolist()
    expect(got == [2, 3], f"masks of tokens 0 to 3 and then 2 to 5 left {got}")
