"""Random numbers and the draw."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import Bench, Host, expect_bits, expect_close
from guideway_conformance.device.golden import EXTREMES, KNOWN_ANSWERS
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

SMALLEST, LARGEST = 2.0**-24, 1 - 2.0**-24
"""The bounds of all numbers that `ArrayOps.uniform` gives."""


@check("device")
def uniform_known_answers(subject: DeviceSubject) -> None:
    """`uniform` gives the words that the authors of Philox published, as ``((word >> 9) + 0.5) * 2**-23``."""
    bench = subject.bench()
    for (seed, sequence, position, purpose), words in KNOWN_ANSWERS:
        wanted = np.array([[((word >> 9) + 0.5) * 2.0**-23 for word in words]], dtype=np.float32)
        got = _uniform(bench, [seed], [sequence], [position], purpose, 4)
        expect_bits(got, wanted, f"uniform of seed {seed}, sequence {sequence}, position {position}")


@check("device")
def uniform_words(subject: DeviceSubject) -> None:
    """`uniform` is Philox4x32-10 of seed, sequence, position and purpose, each in its place, with the same bits on
    every device."""
    bench = subject.bench()
    seeds = [0, 1, 2**32, 2**32 + 1, 2**63 - 1, -1, 0x0123456789ABCDEF, 5, -(2**63), 6]
    sequences = [0, 1, 2, 2**31 - 1, 0, 7, 1000, -1, -5, -(2**31)]
    positions = [0, 2, 1, 0, 2**31 - 1, 7, 131_071, 3, -(2**31), -1]
    for purpose in (0, 1, 2**31, 2**32 - 1):
        got = _uniform(bench, seeds, sequences, positions, purpose, 9)
        wanted = oracles.uniforms(seeds, sequences, positions, purpose, 9)
        expect_bits(got, wanted, f"uniform of purpose {purpose}")


@check("device")
def uniform_extremes(subject: DeviceSubject) -> None:
    """`uniform` reaches 2**-24 and 1 - 2**-24, and neither 0 nor 1."""
    bench = subject.bench()
    for seed, column, wanted in EXTREMES:
        got = _uniform(bench, [seed], [0], [0], 0, column + 1)[0, column]
        expect(got == wanted, f"uniform of seed {seed} is {float(got)!r} in column {column} instead of {wanted!r}")


@check("device")
def uniform_widths(subject: DeviceSubject) -> None:
    """`uniform` is float32 and as wide as asked; a column's number does not depend on how many there are."""
    bench = subject.bench()
    wanted = oracles.uniforms([5, 2**40], [1, 2], [3, 4], 6, 33)
    for width in (1, 3, 4, 5, 33):
        expect_bits(_uniform(bench, [5, 2**40], [1, 2], [3, 4], 6, width), wanted[:, :width], f"uniform of {width}")


@check("device")
def uniform_is_a_function(subject: DeviceSubject) -> None:
    """`uniform` depends on its arguments alone: not on earlier calls, nor on the other rows of the call."""
    bench = subject.bench()
    seeds, sequences, positions = [9, 9, 2**50], [0, 1, 2], [5, 5, 6]
    wanted = oracles.uniforms(seeds, sequences, positions, 3, 6)
    for rows in ([0, 1, 2], [2, 0], [1], [0, 1, 2]):
        some_seeds, some_sequences, some_positions = (
            [values[row] for row in rows] for values in (seeds, sequences, positions)
        )
        got = _uniform(bench, some_seeds, some_sequences, some_positions, 3, 6)
        expect_bits(got, wanted[rows], f"uniform of rows {rows} of three")


def _uniform(
    bench: Bench, seeds: Sequence[int], sequences: Sequence[int], positions: Sequence[int], purpose: int, width: int
) -> Host:
    arrays = bench.array(seeds, np.int64), bench.ints(sequences), bench.ints(positions)
    return bench.read(bench.ops.uniform(*arrays, purpose, width))


@check("device", tier="stress")
def uniform_of_two_processes(subject: DeviceSubject) -> None:
    """Two processes get the same numbers from `uniform`."""
    subject.require_hardware()
    drawn = [_drawn_by_a_process(subject) for _ in range(2)]
    wanted = oracles.uniforms([77], [3], [9], 1, 64).tobytes()
    for number, found in enumerate(drawn):
        expect(found == wanted, f"process {number} of two got other numbers than Philox gives ({len(found)} bytes)")


def _drawn_by_a_process(subject: DeviceSubject) -> bytes:
    reader, writer = os.pipe()
    pid = os.fork()  # before any backend is there, whose library might not outlive a fork
    if pid == 0:
        code = 1
        try:
            os.close(reader)
            os.write(writer, _uniform(subject.bench(), [77], [3], [9], 1, 64).tobytes())
            code = 0
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        drawn = pipe.read()
    _, status = os.waitpid(pid, 0)
    expect(status == 0, f"in a process of its own uniform failed (status {status}): {drawn.decode(errors='replace')}")
    return drawn


@check("device", tier="stress")
def uniform_of_large_vocabularies(subject: DeviceSubject) -> None:
    """`uniform` gives a number for each of 131,072 tokens."""
    got = _uniform(subject.bench(), [2**33 + 5, 1], [4, 0], [100, 3], 8, 131_072)
    expect(got.shape == (2, 131_072), f"uniform has shape {got.shape}")
    expect(got.min() > 0 and got.max() < 1, f"uniform lies between {got.min()} and {got.max()}")
    for block in (0, 1, 16_384, 32_767):
        for row, (seed, sequence, position) in enumerate(((2**33 + 5, 4, 100), (1, 0, 3))):
            words = oracles.philox((block, position, sequence, 8), (seed & oracles.WORD, seed >> 32))
            wanted = np.array([((word >> 9) + 0.5) * 2.0**-23 for word in words], dtype=np.float32)
            expect_bits(got[row, 4 * block : 4 * block + 4], wanted, f"block {block} of uniform")


@check("device")
def categorical_inverts(subject: DeviceSubject) -> None:
    """`categorical` draws the first column up to which the probabilities sum to more than the uniform number."""
    rng = np.random.default_rng(70)
    weights = rng.integers(0, 5, (60, 37)) + np.eye(60, 37)
    uniforms = (rng.integers(0, 2**10, 60) + 0.5) * 2.0**-10
    # float32 need not tell a border from a number closer to it than a few of its roundings
    borders = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    uniforms += np.where(np.abs(borders - uniforms[:, None]).min(axis=1) < 1e-5, 1e-4, 0)
    wanted = [oracles.inverted(row, uniform) for row, uniform in zip(weights.tolist(), uniforms.tolist(), strict=True)]
    bench = subject.bench()
    _expect_drawn(bench, _logs(weights), uniforms, wanted)
    # powers of two of columns that are equally probable: all sums are exact, and the number is one of them
    equal = np.full((7, 16), -np.inf)
    equal[:, [1, 4, 5, 13]] = 0.0
    _expect_drawn(bench, equal, [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875], [1, 4, 4, 5, 5, 13, 13])


@check("device")
def categorical_of_any_total(subject: DeviceSubject) -> None:
    """`categorical` takes rows that are not normalized."""
    row = _logs(np.array([1, 0, 4, 3]))
    bench = subject.bench()
    for offset in (0.0, 80.0, -1000.0):
        uniforms = [0.0625, 0.124, 0.126, 0.624, 0.626, 0.99]
        _expect_drawn(bench, np.tile(row + offset, (6, 1)), uniforms, [0, 0, 2, 2, 3, 3])


@check("device")
def categorical_never_forbidden(subject: DeviceSubject) -> None:
    """`categorical` never draws a column whose log-probability is -inf, whatever the uniform number."""
    rng = np.random.default_rng(71)
    x = rng.normal(size=(64, 500)).astype(np.float32) * 4
    allowed = rng.random(x.shape) < np.repeat([0.004, 0.5], 32)[:, None]
    allowed[np.arange(64), rng.integers(0, 500, 64)] = True
    allowed[:32, 0] = allowed[:32, -1] = False  # the extremes have to look further in
    allowed[:32, 250] = True
    x[~allowed] = -np.inf
    bench = subject.bench()
    for uniform in (SMALLEST, 0.5, LARGEST):
        drawn = _drawn(bench, x, np.full(64, uniform))
        expect(drawn.min() >= 0 and drawn.max() < 500, f"at {uniform} it drew column {drawn.max()} of 500")
        wrong = np.flatnonzero(~allowed[np.arange(64), drawn])
        expect(not len(wrong), f"at {uniform} it drew a column at -inf in {len(wrong)} of 64 rows")


@check("device")
def categorical_extremes(subject: DeviceSubject) -> None:
    """`categorical` reaches the first and the last column, and a single allowed one at every uniform number."""
    bench = subject.bench()
    _expect_drawn(bench, np.zeros((2, 1000)), [SMALLEST, LARGEST], [0, 999])
    one = np.full((3, 1000), -np.inf)
    one[[0, 1, 2], [0, 999, 500]] = -5
    for uniform in (SMALLEST, 0.5, LARGEST):
        _expect_drawn(bench, one, [uniform] * 3, [0, 999, 500])
    _expect_drawn(bench, np.zeros((1, 1)), [0.5], [0])


@check("device", tier="extended")
def draws_follow_the_distribution(subject: DeviceSubject) -> None:
    """Tokens drawn by `categorical` at numbers of `uniform` are as frequent as they are probable."""
    probabilities, n = np.array([0.3, 0.2, 0.15, 0.1, 0.1, 0.08, 0.05, 0.02]), 10_000
    bench = subject.bench()
    zeros, positions = bench.ints(np.zeros(n)), bench.ints(np.arange(n))
    uniforms = bench.ops.uniform(bench.array(np.full(n, 42), np.int64), zeros, positions, 1, 1).sum(axis=1)
    drawn = bench.read(bench.ops.categorical(bench.floats(np.tile(np.log(probabilities) + 3, (n, 1))), uniforms))
    counts = np.bincount(drawn, minlength=8)
    # the numbers are the same everywhere, so this is no matter of luck
    expect_close(counts / n, probabilities, "the frequencies of eight tokens in 10000 draws", 0.012)


@check("device", tier="stress")
def draws_from_large_vocabularies(subject: DeviceSubject) -> None:
    """`log_softmax`, `argmax`, `topk` and `categorical` reach every part of 131,072 tokens."""
    width, places = 131_072, [0, 70_001, 131_071]
    x = np.full((4, width), -30.0, dtype=np.float32)
    x[:, places] = [5.0, 6.0, 4.0]
    bench = subject.bench()
    logprobs = bench.ops.log_softmax(bench.floats(x))
    wanted = oracles.log_softmax(x[0].tolist())
    expect_close(bench.read(logprobs), np.tile(wanted, (4, 1)), "log_softmax of 131,072 tokens")
    expect(bench.read(bench.ops.argmax(logprobs)).tolist() == [70_001] * 4, "argmax missed the largest of 131,072")
    _, columns = bench.ops.topk(logprobs, 3)
    expect(bench.read(columns).tolist() == [[70_001, 0, 131_071]] * 4, "topk missed some of the largest of 131,072")
    drawn = bench.ops.categorical(logprobs, bench.array([0.1, 0.4, 0.8, 0.95], np.float32))
    expect(bench.read(drawn).tolist() == [0, 70_001, 70_001, 131_071], f"it drew {bench.read(drawn).tolist()}")


def _logs(weights: Host) -> Host:
    return np.array([[math.log(w) if w else -np.inf for w in row] for row in np.atleast_2d(weights)], dtype=np.float32)


def _drawn(bench: Bench, logprobs: ArrayLike, uniforms: ArrayLike) -> Host:
    got = bench.read(bench.ops.categorical(bench.floats(logprobs), bench.array(uniforms, np.float32)))
    expect(got.dtype.kind in "iu", f"categorical gives {got.dtype} instead of integers")
    expect(got.shape == np.shape(uniforms), f"categorical of {np.shape(uniforms)} numbers has shape {got.shape}")
    return got


def _expect_drawn(bench: Bench, logprobs: ArrayLike, uniforms: Sequence[float] | Host, wanted: list[int]) -> None:
    got = _drawn(bench, logprobs, uniforms).tolist()
    wrong = [i for i, column in enumerate(got) if column != wanted[i]]
    if wrong:
        i = wrong[0]
        raise AssertionError(
            f"{len(wrong)} of {len(got)} draws are wrong, first at {uniforms[i]}: {got[i]}, not {wanted[i]}"
        )
