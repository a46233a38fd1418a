"""Backends in two threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from guideway.conformance.device import oracles
from guideway.conformance.device.bench import expect_bits
from guideway.conformance.device.subject import DeviceSubject
from guideway.conformance.registry import check

ROUNDS = 100


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
