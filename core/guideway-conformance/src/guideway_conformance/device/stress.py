"""Backends in two threads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError

import numpy as np
from guideway.api.bitmask import unpack
from numpy.typing import NDArray

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import expect_bits
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.threads import interleaved

ROUNDS, TURNS, PAUSES = 100, 20, 2_000
ENOUGH, LONG = 5, 5.0
"""So many of the turns, once they took so many seconds: an interpreted kernel is slow."""
LARGEST = 262_144
"""Tokens of the largest vocabularies."""


@check("device", tier="stress", seconds=60)
def largest_vocabularies(subject: DeviceSubject) -> None:
    """Masks, `argmax` and `uniform` reach every part of 262,144 tokens."""
    bench, x = subject.bench(), oracles.logits(17, 3, LARGEST)
    bench.expect_masked(bench.floats(x), oracles.bitmask(18, 2, LARGEST // 32), np.array([2, 0]))
    places = [200_000, LARGEST - 1, 131_072]
    x[[0, 1, 2], places] = 30.0
    found = bench.read(bench.ops.argmax(bench.floats(x))).tolist()
    expect(found == places, f"argmax of {LARGEST} tokens gives columns {found} instead of {places}")
    one = bench.ints([1])
    got = bench.read(bench.ops.uniform(bench.array([7], np.int64), one, one, 9, LARGEST))
    expect(got.shape == (1, LARGEST), f"uniform has shape {got.shape}")
    for block in (32_768, 50_001, LARGEST // 4 - 1):
        words = oracles.philox((block, 1, 1, 9), (7, 0))
        wanted = np.array([((word >> 9) + 0.5) * 2.0**-23 for word in words], dtype=np.float32)
        expect_bits(got[0, 4 * block : 4 * block + 4], wanted, f"block {block} of uniform")


@check("device", tier="stress", seconds=60)
def large_masks_in_several_threads(subject: DeviceSubject) -> None:
    """Backends in four threads that take turns at any line each apply large masks of their own."""
    width, number = 131_072, 4
    source, rows = np.zeros((4, width), dtype=np.float32), np.array([2, 0, -1, 3])
    masks = [oracles.bitmask(seed, 4, width // 32) for seed in range(number)]
    together, began = Barrier(number), time.monotonic()

    def work(words: NDArray[np.int32]) -> None:
        bench, wanted = subject.bench(), source.copy()
        wanted[[2, 0, 3]] = np.where(unpack(words, width)[[0, 1, 3]], 0, -np.inf)
        try:
            for turn in range(TURNS):
                if turn >= ENOUGH and time.monotonic() - began > LONG:
                    together.abort()
                together.wait()  # on a busy machine one thread would be done before the next begins
                got = bench.read(bench.masked(bench.floats(source), words, rows))
                expect_bits(got, wanted, f"of {number} large masks in as many threads, one")
        except BrokenBarrierError:  # another one tells why
            return
        except BaseException:
            together.abort()
            raise

    with interleaved(subject.component, PAUSES), ThreadPoolExecutor(number) as pool:
        for done in [pool.submit(work, words) for words in masks]:
            done.result()


@check("device", tier="stress")
def backends_in_two_threads(subject: DeviceSubject) -> None:
    """Two backends, each in a thread of its own, do not disturb one another."""
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(_work, subject, seed) for seed in (1, 2)]:
            done.result()


def _work(subject: DeviceSubject, seed: int) -> None:
    bench = subject.bench()
    wanted = oracles.uniforms([seed], [0], [0], seed, 40)
    words, rows, source = oracles.bitmask(seed, 2, 7), np.array([2, 0]), oracles.logits(seed, 3, 200)
    for _ in range(ROUNDS):
        bench.expect_masked(bench.floats(source), words, rows)
        zero = bench.ints([0])
        got = bench.read(bench.ops.uniform(bench.array([seed], np.int64), zero, zero, seed, 40))
        expect_bits(got, wanted, "uniform in one of two threads")
