"""A transform that names no array library runs on every device."""

from __future__ import annotations

import numpy as np
from guideway.api import DeviceBackend

from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.comparison import expect_same_steps
from guideway_conformance.modifier.opaque import OpaqueDevice
from guideway_conformance.modifier.records import Applied
from guideway_conformance.modifier.subject import ModifierSubject, device_classes
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

FEW, MANY = 8, 40


@check("modifier", trait="ops", seconds=60, acts=("rows",))
def runs_on_every_device(subject: ModifierSubject) -> None:
    """A transform without `arrays` uses `Step.ops` alone, and asks for no row or column that an array has not, so it
    gives the same on every device."""
    wanted = _step(subject, None)
    devices: list[DeviceBackend] = [OpaqueDevice()]
    devices += [cls("cpu") for cls in device_classes(builtin_only=True) if cls.available() is None]
    for device in devices:
        where = "with arrays of no library" if device.arrays == OpaqueDevice.arrays else f"on device {device.name!r}"
        try:
            found = _step(subject, device)
        except Exception as error:
            raise AssertionError(f"{where} it fails, though it declares no `arrays`") from error
        _compare(found, wanted, where)


@check("modifier", trait="ops", acts=("rows",))
def waits_for_no_device(subject: ModifierSubject) -> None:
    """A transform does not wait for the device: it looks at no value of an array."""
    _step(subject, OpaqueDevice(), may_wait=False)


@check("modifier", tier="extended", trait="ops")
def loops_over_no_rows(subject: ModifierSubject) -> None:
    """A transform has no loop over rows: more rows do not mean more operations for each of them."""
    counts = []
    for size in (FEW, MANY):
        device = OpaqueDevice()
        bench = Bench(subject, device=device)
        request = bench.request(bench.examples[0], 0)
        sequences = [bench.begin(request, slot, slot) for slot in range(size)]
        work = bench.work(sequences)
        payload = bench.prepare(work)
        device.count = 0
        bench.apply(work, payload)
        counts.append(device.count)
    expect(
        counts[1] - counts[0] < MANY - FEW,
        f"for {FEW} rows it took {counts[0]} operations, for {MANY} rows {counts[1]}",
    )


def _step(subject: ModifierSubject, device: DeviceBackend | None, *, may_wait: bool = True) -> Applied:
    """One step of a crowd that got its tokens on the reference device."""
    reference = Bench(subject)
    crowd = reference.crowd()
    work = reference.work(crowd, reference.drafts(crowd))
    payload = reference.prepare(work)
    if device is None:
        return reference.apply(work, payload)
    bench = Bench(subject, device=device)
    if isinstance(device, OpaqueDevice):
        device.may_wait = may_wait  # from here on: to build a transform may take what time it wants
    return bench.apply(work, payload)


def _compare(found: Applied, wanted: Applied, where: str) -> None:
    expect_same_steps(found, wanted, f"{where} it gives something else")
    for name, array in wanted.emitted.items():
        expect(
            np.allclose(found.emitted[name], array, rtol=1e-3, atol=1e-4, equal_nan=True),
            f"{where} it emits another {name!r}",
        )
