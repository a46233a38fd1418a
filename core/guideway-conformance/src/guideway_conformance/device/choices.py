"""Choosing tokens under a mask: the largest logit, and a draw."""

from __future__ import annotations

import numpy as np

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import expect_equal
from guideway_conformance.device.calls import Case, chosen, expect_chosen, expect_drawn
from guideway_conformance.device.fused import default
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

ARGMAX, SAMPLE = default("masked_argmax"), default("masked_sample")


@check("device", capability="masked_argmax", refusal=ARGMAX)
def masked_argmax_finds(subject: DeviceSubject) -> None:
    """`masked_argmax` gives of every row the largest logit its mask allows, and its column, the first of equals."""
    bench = subject.bench()
    for seed, width in enumerate((1, 32, 50, 5000)):
        for rows in ([1, 3, 0], [], [4]):
            logits = bench.floats(oracles.logits(110 + seed, 5, width))
            words = oracles.bitmask(120 + seed, len(rows), -(-width // 32)) | 1
            expect_chosen(
                bench, Case(logits=logits, bitmask=words, rows=np.array(rows, dtype=np.int32), num_tokens=width)
            )
    special = np.array([[-0.0, 0.0, -1.0], [3e38, np.inf, np.inf], [-3e38, -2e38, -2e38]], dtype=np.float32)
    none = np.empty(0, dtype=np.int32)
    expect_chosen(bench, Case(logits=bench.floats(special), bitmask=none.reshape(0, 1), rows=none, num_tokens=3))


@check("device", capability="masked_argmax", refusal=ARGMAX)
def masked_argmax_of_tokens(subject: DeviceSubject) -> None:
    """`masked_argmax` considers no column from `num_tokens` on, masked or not, not even one that is NaN."""
    bench = subject.bench()
    for num_tokens in (1, 31, 32, 45):
        x = oracles.logits(130, 4, 64)
        x[:, num_tokens:] = [[9.0], [np.inf], [np.nan], [8.0]]
        words = np.full((2, 2), -1, dtype=np.int32)
        case = Case(logits=bench.floats(x), bitmask=words, rows=np.array([0, 2]), num_tokens=num_tokens)
        expect_chosen(bench, case)


@check("device", capability="masked_argmax", refusal=ARGMAX)
def masked_argmax_of_nothing(subject: DeviceSubject) -> None:
    """The logit of `masked_argmax` is -inf where nothing is allowed, and its column that of some token."""
    bench, x = subject.bench(), oracles.logits(131, 4, 64)
    x[2] = -np.inf
    words = np.array([[0, 0], [0, 2**20]], dtype=np.int32)
    expect_chosen(bench, Case(logits=bench.floats(x), bitmask=words, rows=np.array([0, 3]), num_tokens=50))


@check("device", capability="masked_argmax", refusal=ARGMAX)
def masked_argmax_of_nan(subject: DeviceSubject) -> None:
    """The logit of `masked_argmax` is NaN exactly where one that is considered is NaN."""
    bench, x = subject.bench(), np.ones((5, 64), dtype=np.float32)
    x[[0, 1, 2, 3], [40, 5, 5, 0]] = np.nan
    x[1, 6] = np.inf
    words = np.array([[-1, -1], [~(1 << 5), -1], [1 << 5, 0]], dtype=np.int32)
    case = Case(logits=bench.floats(x), bitmask=words, rows=np.array([1, 2, 3]), num_tokens=64)
    _, largest = chosen(bench, case, greedy=True)
    # the mask of row 3 forbids its NaN and leaves a 1, that of row 2 forbids its only one
    _expect_nan(largest, [True, True, False, False, False], "masked_argmax")


def _expect_nan(largest: np.ndarray[tuple[int, ...], np.dtype[np.float32]], wanted: list[bool], name: str) -> None:
    got = np.isnan(largest).tolist()
    expect(got == wanted, f"the logits of {name} are {largest.tolist()}, of which {wanted} should be NaN")


@check("device", capability="masked_sample", refusal=SAMPLE, seconds=60)
def masked_sample_draws(subject: DeviceSubject) -> None:
    """`masked_sample` draws the column of the largest ``logits / temperature - log(-log(u))``, u being `uniform`, at
    the smallest and largest temperatures too."""
    bench = subject.bench()
    for seed, (width, rows) in enumerate(((1, [1, 0]), (33, [3, 1, 4, 0, 2]), (200, []), (1000, [2, 5]))):
        logits = bench.floats(oracles.logits(140 + seed, 6, width))
        words = oracles.bitmask(150 + seed, len(rows), -(-width // 32)) | 1
        case = Case(
            logits=logits,
            bitmask=words,
            rows=np.array(rows, dtype=np.int32),
            num_tokens=width,
            temperatures=[1.0, 0.5, 2.0, 0.8, 1.0, 1.5],
            seeds=[3, 2**40 + 1, -1, 0, 2**63 - 1, 12],
        )
        expect_drawn(bench, case)
    extremes = (0.01, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-10, 1e-20, 1e-30, 1e6, 1e20)
    temperatures = np.repeat(np.array(extremes, dtype=np.float32), 24)
    logits = bench.floats(np.arange(4, dtype=np.float32) * np.float32(-2) * temperatures[:, None])
    every = np.arange(len(temperatures), dtype=np.int32)
    words = np.full((len(every), 1), -1, dtype=np.int32)
    case = Case(logits=logits, bitmask=words, rows=every, num_tokens=4, temperatures=temperatures.tolist())
    expect_drawn(bench, case)


@check("device", capability="masked_sample", refusal=SAMPLE)
def masked_sample_at_zero(subject: DeviceSubject) -> None:
    """At temperature 0 `masked_sample` takes what `masked_argmax` would, beside rows that draw."""
    bench = subject.bench()
    x, words, rows = oracles.logits(160, 12, 300), oracles.bitmask(161, 4, 10) | 1, np.array([3, 0, 7, 6])
    for temperatures in ([0.0] * 12, [0.0, 1.0] * 6):
        logits = bench.floats(x)
        case = Case(logits=logits, bitmask=words, rows=rows, num_tokens=300, temperatures=temperatures)
        columns, _ = chosen(bench, case, greedy=False)
        wanted = oracles.considered(x, words.tolist(), rows.tolist(), 300).argmax(axis=1)
        wrong = [i for i, t in enumerate(temperatures) if t == 0 and columns[i] != wanted[i]]
        expect(not wrong, f"of temperatures {temperatures} rows {wrong} got {columns[wrong]} and not {wanted[wrong]}")


@check("device", capability="masked_sample", refusal=SAMPLE)
def masked_sample_alone(subject: DeviceSubject) -> None:
    """A draw of `masked_sample` in a row depends on that row alone, not on what else is in the batch."""
    bench = subject.bench()
    x, words = oracles.logits(162, 6, 100), oracles.bitmask(163, 6, 4) | 1
    temperatures, seeds = np.array([1.0, 0.0, 0.7, 3.0, 1.0, 0.0]), np.array([5, 6, 7, 8, 9, 10])

    def drawn(taken: list[int], masked: list[int]) -> list[int]:
        case = Case(
            logits=bench.floats(x[taken]),
            bitmask=words[[taken[row] for row in masked]],
            rows=np.array(masked, dtype=np.int32),
            num_tokens=100,
            temperatures=temperatures[taken].tolist(),
            seeds=seeds[taken].tolist(),
        )
        columns: list[int] = chosen(bench, case, greedy=False)[0].tolist()
        return columns

    together = drawn([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5])
    for taken in ([0], [3], [5], [4, 2], [1, 3], [5, 4, 3, 2, 1, 0]):
        got, wanted = drawn(taken, list(range(len(taken)))), [together[row] for row in taken]
        expect(got == wanted, f"rows {taken} alone draw {got}, among six rows {wanted}")


@check("device", capability="masked_sample", refusal=SAMPLE)
def masked_sample_never_forbidden(subject: DeviceSubject) -> None:
    """`masked_sample` draws nothing its mask forbids, nothing from `num_tokens` on, at whatever temperature."""
    bench, rng = subject.bench(), np.random.default_rng(164)
    x = (rng.normal(size=(32, 500)) * 4).astype(np.float32)
    allowed = rng.random((32, 500)) < np.repeat([0.01, 0.5], 16)[:, None]
    allowed[np.arange(32), rng.integers(0, 450, 32)] = True
    x[~allowed] += 30
    words = np.packbits(np.pad(allowed, ((0, 0), (0, 12))), axis=1, bitorder="little").view("<i4").astype(np.int32)
    allowed[:, 450:] = False
    for temperature in (1e-4, 1.0, 100.0, 1e6):
        case = Case(
            logits=bench.floats(x),
            bitmask=words,
            rows=np.arange(32),
            num_tokens=450,
            temperatures=[temperature] * 32,
        )
        columns, _ = chosen(bench, case, greedy=False)
        wrong = np.flatnonzero(~allowed[np.arange(32), columns])
        expect(not len(wrong), f"at temperature {temperature} {len(wrong)} of 32 rows got a token that is forbidden")


@check("device", capability="masked_sample", refusal=SAMPLE)
def masked_sample_of_nothing(subject: DeviceSubject) -> None:
    """The logit of `masked_sample` is -inf where nothing is allowed, and its column that of some token."""
    bench, x = subject.bench(), oracles.logits(165, 4, 64)
    x[2] = -np.inf
    words = np.array([[0, 0], [0, 2**20]], dtype=np.int32)
    for temperatures in ([1.0] * 4, [0.0, 1.0, 0.0, 0.0]):
        rows = np.array([0, 3])
        case = Case(logits=bench.floats(x), bitmask=words, rows=rows, num_tokens=50, temperatures=temperatures)
        _, largest = chosen(bench, case, greedy=False)
        expect_equal(np.isneginf(largest), [True, False, True, True], "whether the logit is -inf")


@check("device", capability="masked_sample", refusal=SAMPLE)
def masked_sample_largest(subject: DeviceSubject) -> None:
    """Beside its token `masked_sample` gives the row's largest logit, not the token's own, and NaN if one is NaN."""
    bench, x = subject.bench(), oracles.logits(166, 6, 90)
    x[[1, 2], [40, 5]] = np.nan
    words, rows = np.full((2, 3), -1, dtype=np.int32), np.array([2, 4])
    words[0, 0] = ~(1 << 5)
    case = Case(logits=bench.floats(x), bitmask=words, rows=rows, num_tokens=90, temperatures=[4.0, 1.0] * 3)
    _, largest = chosen(bench, case, greedy=False)
    _expect_nan(largest, [False, True, False, False, False, False], "masked_sample")
    wanted = oracles.considered(x, words.tolist(), rows.tolist(), 90).max(axis=1)
    wrong = np.flatnonzero((largest != wanted) & ~np.isnan(wanted))
    expect(not len(wrong), f"the largest logits of rows {wrong} are {wanted[wrong]}, and it gave {largest[wrong]}")
