"""Checks of things that go on at once: downloads while arrays change, and operations in the midst of others."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from guideway_conformance.device.bench import Bench, Host, expect_equal
from guideway_conformance.device.operations import Operation, Size, operations_of
from guideway_conformance.device.subject import DeviceSubject
from guideway_conformance.registry import check
from guideway_conformance.threads import amid, interleaved

__all__: list[str] = []

LARGE = (16, 1 << 17)
"""The shape of an array whose copy takes a while."""
LONG = 4.0
"""After so many seconds no operation is interrupted any more."""
TIMES = 3
"""So often an operation is done in the midst of another, by a step that keeps all results."""


def _read(bench: Bench, results: Any) -> list[Host]:
    return [bench.read(array) for array in results]


@check("device", tier="stress", seconds=60)
def downloads_bring_everything(subject: DeviceSubject) -> None:
    """`download` brings all of its arrays, small ones and large ones of each type, to who asks for the result at
    once."""
    with interleaved(subject.component):
        bench = subject.bench()
        small = {f"array {i}": np.arange(i + 1, dtype=np.float32) for i in range(12)}
        moved = {name: bench.array(host) for name, host in small.items()}
        for _ in range(20):
            _expect_brought(bench, moved, small)
        for dtype in subject.floats:
            large = bench.floats(np.full(LARGE, 1.5), dtype)
            for before in (0, 1, len(small)):  # so many small ones before the large one
                names = list(small)
                names.insert(before, "large")
                wanted = {"large": np.full(LARGE, 1.5, dtype=np.float32), **small}
                _expect_brought(bench, {name: {**moved, "large": large}[name] for name in names}, wanted)


def _expect_brought(bench: Bench, arrays: dict[str, Any], wanted: dict[str, Host]) -> None:
    found = bench.backend.download(arrays).result()
    missing = sorted(set(arrays) - set(found))
    if missing:
        raise AssertionError(f"a download of {len(arrays)} arrays came without {missing[0]!r}")
    for name in arrays:
        expect_equal(np.array(found[name]), wanted[name], f"{name!r} of a download whose result was asked for at once")


@check("device", tier="stress", seconds=60)
def downloads_under_way(subject: DeviceSubject) -> None:
    """An array that is downloaded stays as it was when the download began, whatever operation changes it while a large
    array before it is on its way, and whatever is made of memory that nobody needs any more."""
    bench = subject.bench()
    large = bench.floats(np.full(LARGE, 2.5))
    for number, (name, operation) in enumerate(operations_of(subject.declared(subject.component)).items()):
        if not operation.changes:
            continue
        hosts = operation.hosts(600 + number, Size())
        given = {key: operation.moved(bench, key, host) for key, host in hosts.items()}
        download = bench.backend.download({"large": large, "x": given["x"]})
        results = operation.call(bench, given)
        del given
        made = [bench.floats(np.full(hosts["x"].shape, 7.0)) for _ in range(4)]
        found = download.result()
        expect_equal(np.array(found["x"]), hosts["x"], f"what was on its way when {name} changed it")
        operation.expect(hosts, _read(bench, results), "float32", f"{name} of an array that was on its way")
        for array in made:
            expect_equal(bench.read(array), np.full(hosts["x"].shape, 7.0), "an array made while one was on its way")


@check("device", tier="stress", seconds=120)
def steps_amid_others(subject: DeviceSubject) -> None:
    """An operation gives what it would give alone where another step of its backend does the same, several times and
    with other arrays, in the midst of it, at whatever line; and so does that step's."""
    began = time.monotonic()
    for number, (name, operation) in enumerate(operations_of(subject.declared(subject.component)).items()):
        if time.monotonic() - began > LONG:
            return
        _expect_undisturbed(subject, operation, name, number, began)


def _expect_undisturbed(subject: DeviceSubject, operation: Operation, name: str, number: int, began: float) -> None:
    bench = subject.bench()  # a new one: what it keeps is not there yet
    hosts, others = (operation.hosts(seed + number, Size()) for seed in (700, 800))
    what = f"{name}, in whose midst another step did the same,"
    kept: list[Any] = []
    errors: list[BaseException] = []

    def moved(hosts: dict[str, Any]) -> dict[str, Any]:
        return {key: operation.moved(bench, key, host) for key, host in hosts.items()}

    def other() -> None:
        try:
            with bench.backend.scope():
                for _ in range(TIMES):
                    given = moved(others)
                    kept.append((given, operation.call(bench, given)))
        except BaseException as error:
            errors.append(error)

    given = moved(hosts)

    def call() -> Any:
        fresh = {"x": operation.moved(bench, "x", hosts["x"])} if operation.changes else {}
        return operation.call(bench, {**given, **fresh})

    for results in amid(subject.component, call, other):
        if errors:
            raise AssertionError(f"{name} in the midst of another step's raised {errors[0]!r}") from errors[0]
        operation.expect(hosts, _read(bench, results), "float32", what)
        for _, found in kept[-1:]:
            operation.expect(others, _read(bench, found), "float32", f"{name}, in the midst of another step's,")
        if time.monotonic() - began > LONG:
            break
