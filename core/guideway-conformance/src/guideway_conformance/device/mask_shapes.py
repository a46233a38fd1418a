"""Bitmasks on logits of every width, layout and make."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Callable

import numpy as np
from guideway.api.steps import Array

from guideway_conformance.device import oracles
from guideway_conformance.device.bench import expect_equal
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

MANY = 131_072


@check("device", tier="extended")
def masks_of_every_width(subject: DeviceSubject) -> None:
    """Logits may be as wide as a vocabulary is: 1, 31, 32, 33 or 1000 tokens are not special."""
    bench = subject.bench()
    for seed, width in enumerate((1, 31, 32, 33, 1000)):
        for num_rows, rows in ((1, [0]), (5, [3, 1, 4])):
            words = oracles.bitmask(20 + seed, len(rows), -(-width // 32))
            bench.expect_masked(bench.floats(oracles.logits(seed, num_rows, width)), words, np.array(rows))


@check("device", tier="extended")
def masks_of_many_rows(subject: DeviceSubject) -> None:
    """Hundreds of rows are masked as one is."""
    bench = subject.bench()
    for num_rows, masked in ((128, 100), (320, 300)):
        rows = np.random.default_rng(3).permutation(num_rows)[:masked]
        bench.expect_masked(bench.floats(oracles.logits(8, num_rows, 70)), oracles.bitmask(9, masked, 3), rows)


@check("device", tier="extended")
def sparse_and_dense_masks_together(subject: DeviceSubject) -> None:
    """Rows that allow nearly nothing and rows that allow nearly everything may share a call."""
    shares = np.array([0.0, 0.001, 1.0, 0.999, 0.5, 0.02, 0.98])
    allowed = np.random.default_rng(4).random((7, 2016)) < shares[:, None]
    words = np.packbits(allowed, axis=1, bitorder="little").view("<u4").astype(np.uint32).view(np.int32)
    bench, rows = subject.bench(), np.array([6, 2, 8, 0, 5, 1, 3])
    for width in (2016, 2010):
        bench.expect_masked(bench.floats(oracles.special("float32", 9, width)), words, rows)


@check("device", tier="extended")
def logits_that_are_views(subject: DeviceSubject) -> None:
    """Logits may be part of another array, with gaps between their rows or columns, and what lies in the gaps stays."""
    takes: dict[str, Callable[[Array], Array]] = {
        "columns 7 to 57 of it": lambda base: base[:, 7:57],
        "every other row of it": lambda base: base[::2],
        "rows 3 to 9 of it": lambda base: base[3:9],
        "every other column of it": lambda base: base[:, 1::2],
    }
    bench = subject.bench()
    for name, take in takes.items():
        base = bench.floats(oracles.special("float32", 12, 130))
        logits = take(base)
        before, outside = bench.read(base), np.ones((12, 130), dtype=np.bool_)
        take(outside)[:] = False
        words, rows = oracles.bitmask(11, 3, -(-take(before).shape[1] // 32)), np.array([4, 0, 5])
        got = bench.read(bench.masked(logits, words, rows))
        bench.expect_loop(np.ascontiguousarray(take(before)), got, words, rows)
        changed = outside & (bench.read(base).view(np.int32) != before.view(np.int32))
        expect(
            not changed.any(),
            f"the logits were {name}, and {changed.sum()} values of it changed that were none of them, first at "
            f"{np.argwhere(changed)[:1].tolist()}",
        )


@check("device", tier="extended")
def logits_of_read_only_memory(subject: DeviceSubject) -> None:
    """Logits the model keeps in memory nobody may write to are masked all the same, and that memory stays as it is."""
    bench, source = subject.bench(), oracles.logits(12, 3, 40)
    source.flags.writeable = False
    words, rows = oracles.bitmask(13, 2, 2), np.array([2, 0])
    logits = bench.backend.from_logits(bench.ops.asarray(source))
    bench.expect_loop(source, bench.read(bench.masked(logits, words, rows)), words, rows)
    with tempfile.TemporaryFile() as file:
        file.write(source.tobytes())
        file.flush()
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as pages:  # a write ends the process
            mapped = np.frombuffer(pages, dtype=np.float32).reshape(source.shape)
            got = bench.read(bench.masked(bench.backend.from_logits(mapped), words, rows))
            bench.expect_loop(source, got, words, rows)
            del mapped
    kept = source.copy()
    bench.read(bench.masked(bench.backend.from_logits(source), words, rows))
    expect_equal(source, kept, "read-only logits after they were masked")


@check("device", tier="stress")
def masks_of_large_vocabularies(subject: DeviceSubject) -> None:
    """A vocabulary of 131,072 tokens, and one that is no multiple of anything, are masked to the last token."""
    bench = subject.bench()
    for width in (MANY, MANY - 5):
        logits = bench.floats(oracles.logits(14, 3, width))
        bench.expect_masked(logits, oracles.bitmask(15, 2, MANY // 32), np.array([2, 0]))
