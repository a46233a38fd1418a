"""Rules for every operation alike: it depends on its arguments alone, whatever their memory, size and type."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np
from guideway.api.steps import Array

from guideway_conformance.device.bench import Bench, Host, expect_bits, expect_equal
from guideway_conformance.device.operations import INDICES, Given, Operation, Size, operations_of
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.threads import interleaved

SIZES = (
    Size(rows=1, width=1),
    Size(rows=3, width=64),
    Size(rows=9, width=9, every=True),
    Size(rows=2, width=1025),
)
THREADS, TURNS, PAUSES, LONG = 2, 12, 20_000, 10.0
GONE = 6
"""So often an operation is called with an argument that is dropped before the next is made."""


def _operations(subject: DeviceSubject) -> dict[str, Operation]:
    return operations_of(subject.declared(subject.component))


def _read(bench: Bench, results: Any) -> list[Host]:
    return [bench.read(array) for array in results]


@check("device", seconds=120)
def operations_do_not_remember(subject: DeviceSubject) -> None:
    """The result of every operation depends on the arguments of that call alone, be it the same call again or one with
    a single argument changed; no later call changes it, and no call changes an argument that it only reads."""
    bench, size = subject.bench(), Size(every=True)
    for name, operation in _operations(subject).items():
        found = []
        for anew in (False, True):
            base = operation.hosts(1, size)
            kept = {key: operation.moved(bench, key, host) for key, host in base.items()}
            for changed in ("", *(turn for key in operation.arguments for turn in (key, ""))):
                hosts = operation.hosts(1, size, changed)
                given = {
                    key: operation.moved(bench, key, host)
                    if anew or key == changed or (key == "x" and operation.changes)
                    else kept[key]
                    for key, host in hosts.items()
                }
                what = f"{name}, called with another `{changed}` than before," if changed else f"{name}, called again,"
                results = operation.call(bench, given)
                before = _read(bench, results)
                operation.expect(hosts, before, "float32", what)
                found.append((what, given, hosts, results, before))
        for what, given, hosts, results, before in found:
            for array, first in zip(_read(bench, results), before, strict=True):
                expect_bits(array, first, f"the result of {what} after later calls")
            _expect_arguments(bench, operation, given, hosts, what)


def _expect_arguments(bench: Bench, operation: Operation, given: Given, hosts: Given, what: str) -> None:
    """Expect that the arguments that are only read are what they were."""
    for name, array in given.items():
        if isinstance(hosts[name], np.ndarray) and not (name == "x" and operation.changes):
            got = array if name in operation.stays else bench.read(array)
            expect_equal(got, hosts[name], f"`{name}` after {what}")


@check("device", seconds=120)
def arguments_that_are_gone(subject: DeviceSubject) -> None:
    """The result of every operation depends on what its arguments hold, also where an array is made when that of the
    call before is gone, so that it has the same memory and the same `id`."""
    bench, size = subject.bench(), Size(every=True)
    for name, operation in _operations(subject).items():
        base = operation.hosts(1, size)
        for changed in operation.arguments:
            kept = {
                key: operation.moved(bench, key, host)
                for key, host in base.items()
                if key != changed and not (key == "x" and operation.changes)
            }
            for turn in range(GONE):
                hosts = {**base, changed: operation.hosts(100 + turn, size)[changed]}
                given = {key: kept[key] if key in kept else operation.moved(bench, key, hosts[key]) for key in hosts}
                got = _read(bench, operation.call(bench, given))
                del given
                what = f"{name}, called with a new `{changed}` when the one before was gone,"
                operation.expect(hosts, got, "float32", what)


@check("device", tier="extended", seconds=240)
def operations_of_every_size(subject: DeviceSubject) -> None:
    """Every operation takes a single row, a single column, as many rows as columns and more than a thousand columns,
    with floats and indices of each type."""
    bench = subject.bench()
    for name, operation in _operations(subject).items():
        for number, size in enumerate(SIZES):  # each with one of the types, as many libraries compile for each
            hosts = operation.hosts(number + 10, size)
            dtype, index = subject.floats[number % len(subject.floats)], (np.int32, np.int64)[number % 2]
            for key in set(hosts) & set(INDICES) - set(operation.stays):
                hosts[key] = hosts[key].astype(index)
            given = {key: operation.moved(bench, key, host, dtype) for key, host in hosts.items()}
            before = bench.read(given["x"]).dtype if operation.keeps else None
            what = f"{name} of {dtype}[{size.rows}, {size.width}]"
            got = _read(bench, operation.call(bench, given))
            operation.expect(hosts, got, dtype, what)
            kept = before is None or got[0].dtype == before
            expect(kept, f"{what} gives {got[0].dtype} instead of {before}")


LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "columns 3 to -4 of an array": lambda base: base[:, 3:-4],
    "every other row of an array": lambda base: base[1::2],
    "every other column of an array": lambda base: base[:, ::2],
    "all but the first row of an array": lambda base: base[1:],
}
"""Views that the array library of a device takes of an array, by what they are called."""


LYING: dict[str, Callable[[Host], Host]] = {
    "transposed": lambda host: np.array(host, order="F"),
    "with the last row first": lambda host: host[::-1].copy()[::-1],
    "with the last column first": lambda host: host[:, ::-1].copy()[:, ::-1],
}
"""By how they lie in memory: logits of the host with the values of an array."""


def _within(host: Host, take: Callable[[Any], Any]) -> Host:
    """An array of sevens of which `take` takes `host`."""
    rows, width = host.shape
    for shape in ((rows, width + 7), (2 * rows + 1, width), (rows, 2 * width), (rows + 1, width)):
        base = np.full(shape, 7, dtype=host.dtype)
        if take(base).shape == host.shape:
            take(base)[...] = host
            return base
    raise AssertionError(f"no array has such a view of shape {host.shape}")


@check("device", tier="extended", seconds=60)
def operations_on_views(subject: DeviceSubject) -> None:
    """Every operation takes arrays that are part of another one, with gaps between rows or columns, or that lie
    transposed in memory, and changes nothing of what lies in the gaps. A result does not change when the whole array
    does."""
    bench, size = subject.bench(), Size()
    for number, (name, operation) in enumerate(_operations(subject).items()):
        if "x" not in operation.arguments or "x" in operation.stays:
            continue
        hosts = operation.hosts(20 + number, size)
        others = {key: operation.moved(bench, key, host) for key, host in hosts.items() if key != "x"}
        for layout, take in LAYOUTS.items():
            host = _within(hosts["x"], take)
            base = bench.floats(host)
            what = f"{name} of {layout}"
            results = operation.call(bench, {**others, "x": take(base)})
            operation.expect(hosts, _read(bench, results), "float32", what)
            if not bench.backend.donates:
                gaps = np.ones(host.shape, dtype=np.bool_)
                take(gaps)[...] = False
                expect_equal(bench.read(base)[gaps], host[gaps], f"what lies between the numbers after {what}")
            if not operation.changes:
                bench.read(bench.ops.forbid_from(base, 0))
                operation.expect(hosts, _read(bench, results), "float32", f"{what} which was changed afterwards,")
        for lies, put in LYING.items():
            lying = bench.backend.from_logits(put(hosts["x"]))
            got = _read(bench, operation.call(bench, {**others, "x": lying}))
            operation.expect(hosts, got, "float32", f"{name} of logits that lie {lies} in memory")


@check("device", tier="extended", seconds=60)
def arguments_that_are_views(subject: DeviceSubject) -> None:
    """Rows, columns, values and all other arrays that an operation takes may be part of another array, such as a column
    of a payload's."""
    bench, size = subject.bench(), Size()
    for number, (name, operation) in enumerate(_operations(subject).items()):
        hosts = operation.hosts(50 + number, size)
        for key, host in hosts.items():
            if key == "x" or key in operation.stays or not isinstance(host, np.ndarray):
                continue
            given = {other: operation.moved(bench, other, array) for other, array in hosts.items()}
            given[key] = _part(bench, host)
            what = f"{name}, whose `{key}` is part of another array,"
            operation.expect(hosts, _read(bench, operation.call(bench, given)), "float32", what)


def _part(bench: Bench, host: Host) -> Array:
    """A device array of the values of `host` between others."""
    if host.ndim == 1:
        return bench.array(np.stack([host, host[::-1]], axis=1))[:, 0]
    return bench.array(np.repeat(host, 2, axis=1))[:, ::2]


@check("device", tier="stress", seconds=120)
def overlapping_steps(subject: DeviceSubject) -> None:
    """Steps of one backend that overlap, each in a thread and a scope of its own, with arrays of the same shapes, get
    from every operation what they would get alone."""
    backend, size, began = subject.backend_outside(), Size(), time.monotonic()
    operations = _operations(subject)
    together = Barrier(THREADS)

    def step(number: int) -> None:
        bench = Bench(backend)
        try:
            for turn in range(TURNS):
                if turn > 1 and time.monotonic() - began > LONG:
                    together.abort()
                together.wait()
                with backend.scope():
                    for name, operation in operations.items():
                        hosts = operation.hosts(1000 * number + turn, size)
                        given = {key: operation.moved(bench, key, host) for key, host in hosts.items()}
                        together.wait()  # else each thread would be at an operation of its own
                        got = _read(bench, operation.call(bench, given))
                        operation.expect(hosts, got, "float32", f"{name} in one of {THREADS} steps that overlap")
        except BrokenBarrierError:  # another one tells why, or time is up
            return
        except BaseException:
            together.abort()
            raise

    with interleaved(subject.component, PAUSES), ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(step, number) for number in range(1, THREADS + 1)]:
            done.result()
