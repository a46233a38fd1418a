"""The simulated accelerator: separate memory, and three streams that run asynchronously to the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from guideway_sim_device.sim.array import SimArray, garbage
from guideway_sim_device.sim.errors import DeviceFault, HostAccess
from guideway_sim_device.sim.streams import Event, Stream

__all__ = ["Machine", "Signature", "SimDownload"]

Host: TypeAlias = NDArray[Any]
Signature: TypeAlias = tuple[Any, ...]
"""The name of an operation, its static parameters, and the shape and dtype of each array."""
Type: TypeAlias = tuple[tuple[int, ...], np.dtype[Any]]
"""Shape and dtype."""


class Machine:
    """Launches work on arrays. The host gets the shape and dtype of the result at once, and continues."""

    def __init__(self) -> None:
        self.syncs = 0
        """The number of times that the host waited."""
        self.programs: dict[Signature, list[Type]] = {}
        """The operations launched before, with the types of their results."""
        lock = RLock()
        self._uploads, self._computing, self._downloads = Stream(lock), Stream(lock), Stream(lock)

    def upload(self, host: Host) -> SimArray:
        """Return a device array with the values of `host`, which are read late: until then it must not change."""
        array = SimArray(self, host.shape, host.dtype)
        array.ready = self._uploads.launch(lambda: array.write(np.array(host)))
        return array

    def compute(self, name: str, work: Callable[..., Any], *operands: Any, **how: Any) -> SimArray:
        """Call `launch` for work with one result."""
        (outcome,) = self.launch(name, work, *operands, **how)
        return outcome

    def launch(
        self,
        name: str,
        work: Callable[..., Any],
        *operands: Any,
        static: tuple[Any, ...] = (),
        donates: bool = False,
        part: bool = False,
    ) -> list[SimArray]:
        """Launch `work`, which takes and returns NumPy arrays: one, or a tuple.

        `static` are the other parameters that decide its code. With `donates` the first operand is unusable afterwards;
        with `part` the result may share memory with it. Errors in shapes and dtypes are raised at once, errors in
        values later.
        """
        for operand in operands:
            if not isinstance(operand, SimArray):
                raise HostAccess(
                    f"{name} was given a {type(operand).__name__}, memory of the host, where it takes an array of the "
                    "device; ops.asarray takes one there"
                )
            operand.check(name, self)
        signature = (name, static, *((operand.shape, str(operand.dtype)) for operand in operands))
        if signature not in self.programs:
            self.programs[signature] = _trace(work, operands, donates)
        parent = operands[0] if part else None
        outcome = [SimArray(self, shape, dtype, parent) for shape, dtype in self.programs[signature]]
        for operand in operands:
            self._computing.wait(operand.ready)

        def run() -> None:
            values = [operand.read() for operand in operands]
            for array, value in zip(outcome, _run(name, work, values, donates, len(outcome)), strict=True):
                array.write(value)
            if donates and operands[0].is_part and isinstance(values[0], np.ndarray):
                # in some libraries the whole changes with its part, in others not, so code may rely on neither
                values[0][...] = garbage(values[0].shape, values[0].dtype)

        ready = self._computing.launch(run)
        for array in outcome:
            array.ready = ready
        if donates:
            operands[0].donate(name, ready)
        return outcome

    def download(self, arrays: Mapping[str, Any]) -> SimDownload:
        """Launch the copies of `arrays` to the host."""
        for name, array in arrays.items():
            if not isinstance(array, SimArray):
                raise HostAccess(f"download was given a {type(array).__name__} as {name!r}, not an array of the device")
            array.check("download", self)
            self._downloads.wait(array.ready)
        wanted = dict(arrays)
        copies: dict[str, Host | DeviceFault] = {}

        def copy() -> None:
            for name, array in wanted.items():
                data = array.read()
                copies[name] = data.copy() if isinstance(data, np.ndarray) else data

        return SimDownload(self, self._downloads.launch(copy), copies)


class SimDownload:
    """Arrays that are being copied to the host."""

    def __init__(self, machine: Machine, event: Event, copies: Mapping[str, Host | DeviceFault]) -> None:
        self._machine, self._event, self._copies = machine, event, copies
        self._waited = False

    def result(self) -> Mapping[str, Host]:
        """Return the arrays, read-only as in some libraries. Raises `DeviceFault`."""
        if not self._waited:
            self._machine.syncs += 1
            self._waited = True
            self._event.synchronize()
        for copied in self._copies.values():
            if isinstance(copied, DeviceFault):
                raise copied
            copied.flags.writeable = False
        return dict(cast("Mapping[str, Host]", self._copies))


def _trace(work: Callable[..., Any], operands: tuple[SimArray, ...], donates: bool) -> list[Type]:
    """Return the types of the results of `work`, found by running it on zeros."""
    zeros = [np.broadcast_to(np.zeros((), operand.dtype), operand.shape) for operand in operands]
    if donates:
        zeros[0] = zeros[0].copy()
    with np.errstate(all="ignore"):
        traced = work(*zeros)
    return [(one.shape, one.dtype) for one in (traced if isinstance(traced, tuple) else (traced,))]


def _run(
    name: str, work: Callable[..., Any], values: list[Host | DeviceFault], donates: bool, num_outcomes: int
) -> list[Host | DeviceFault]:
    """Compute the results for `values`. A fault in a value becomes the result of everything computed from it."""
    fault = next((value for value in values if isinstance(value, DeviceFault)), None)
    if fault is not None:
        return [fault] * num_outcomes
    arrays = cast("list[Host]", values)
    if donates:
        arrays = [arrays[0].copy(), *arrays[1:]]
    try:
        with np.errstate(all="ignore"):
            outcome = work(*arrays)
    except Exception as error:
        fault = DeviceFault(
            f"{name} failed on the device, after the host had gone on: {error}. An accelerator would compute nonsense "
            "or stop here: check such values on the host, before they are uploaded"
        )
        fault.__cause__ = error
        return [fault] * num_outcomes
    return [np.asarray(one) for one in (outcome if isinstance(outcome, tuple) else (outcome,))]
