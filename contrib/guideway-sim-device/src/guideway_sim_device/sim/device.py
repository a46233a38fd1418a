"""The simulated device. It computes the same as guideway's NumPy reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from guideway.api import Array, ArrayOps, DeviceBackend, InvalidConfiguration
from guideway.devices.numpy.device import NumpyDevice
from numpy.typing import NDArray

from guideway_sim_device.sim.array import SimArray, forbid_negative
from guideway_sim_device.sim.errors import HostAccess
from guideway_sim_device.sim.machine import Machine, SimDownload

__all__ = ["REFERENCE", "SimDevice", "SimOps"]

Host = NDArray[Any]

REFERENCE = NumpyDevice("cpu")
numpy = REFERENCE.ops


class SimOps(ArrayOps):
    """All operations, launched on a machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def asarray(self, array: Host) -> SimArray:
        """Copy an array late: its memory may be shared until then, as in other libraries. A payload is copied first."""
        if isinstance(array, SimArray):
            raise HostAccess("asarray takes an array of the host; this one is on the device already")
        return self._machine.upload(np.asarray(array))

    def add_at(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return self._change("add_at", numpy.add_at, x, (rows, columns), values)

    def scale_rows(self, x: Array, rows: Array, factors: Array) -> Array:
        return self._change("scale_rows", numpy.scale_rows, x, (rows,), factors)

    def where_rows(self, x: Array, rows: Array, condition: Array | bool, values: Array) -> Array:
        plain = [one if isinstance(one, bool | int | float) else None for one in (condition, values)]
        arrays = [one for one in (condition, values) if not isinstance(one, bool | int | float)]

        def work(x: Host, rows: Host, *given: Host) -> Array:
            both = iter(given)
            return numpy.where_rows(x, rows, *(next(both) if one is None else one for one in plain))

        return self._change("where_rows", work, x, (rows,), *arrays, static=tuple(type(one).__name__ for one in plain))

    def gather(self, x: Array, rows: Array, columns: Array | None = None) -> Array:
        indices = (rows,) if columns is None else (rows, columns)
        return self._machine.compute("gather", _check_indices(numpy.gather, len(indices)), x, *indices)

    def scatter(self, x: Array, rows: Array, columns: Array, values: Array) -> Array:
        return self._change("scatter", numpy.scatter, x, (rows, columns), values)

    def cumsum(self, x: Array) -> Array:
        return self._machine.compute("cumsum", numpy.cumsum, x)

    def forbid_from(self, x: Array, column: int) -> Array:
        work = lambda x: numpy.forbid_from(x, column)  # noqa: E731
        return self._machine.compute("forbid_from", work, x, static=(column,), donates=True)

    def exp(self, x: Array) -> Array:
        return self._machine.compute("exp", numpy.exp, x)

    def log(self, x: Array) -> Array:
        return self._machine.compute("log", numpy.log, x)

    def log_softmax(self, x: Array) -> Array:
        return self._machine.compute("log_softmax", numpy.log_softmax, x)

    def topk(self, x: Array, k: int) -> tuple[Array, Array]:
        def work(x: Host) -> tuple[Host, Host]:
            values, columns = numpy.topk(x, k)
            return values, columns.astype(np.int32)

        values, columns = self._machine.launch("topk", work, x, static=(k,))
        return values, columns

    def argmax(self, x: Array) -> Array:
        return self._machine.compute("argmax", lambda x: numpy.argmax(x).astype(np.int32), x)

    def categorical(self, logprobs: Array, uniforms: Array) -> Array:
        work = lambda *given: numpy.categorical(*given).astype(np.int32)  # noqa: E731
        return self._machine.compute("categorical", work, logprobs, uniforms)

    def uniform(self, seeds: Array, sequences: Array, positions: Array, purpose: int, width: int) -> Array:
        def work(seeds: Host, sequences: Host, positions: Host) -> Array:
            return numpy.uniform(seeds, sequences, positions, purpose, width)

        return self._machine.compute("uniform", work, seeds, sequences, positions, static=(width,))

    def unpack_bitmask(self, bitmask: Array, width: int) -> Array:
        work = lambda bitmask: numpy.unpack_bitmask(bitmask, width)  # noqa: E731
        return self._machine.compute("unpack_bitmask", work, bitmask, static=(width,))

    def _change(
        self, name: str, work: Any, x: Array, indices: tuple[Array, ...], *values: Array, static: tuple[Any, ...] = ()
    ) -> Array:
        checked = _check_indices(work, len(indices))
        return self._machine.compute(name, checked, x, *indices, *values, static=static, donates=True)


def _check_indices(work: Any, num_indices: int) -> Any:
    """Return `work` with a check that raises for a negative index in the `num_indices` operands after the first."""

    def checked(x: Host, *given: Host) -> Any:
        for indices in given[:num_indices]:
            forbid_negative(indices)
        return work(x, *given)

    return checked


class SimDevice(DeviceBackend):
    """An accelerator with an array library: only mandatory operations, for arrays of any shape."""

    contract = "1.0"
    name = "sim"
    arrays = "sim"
    donates = True
    ops: SimOps

    def __init__(self, device: str = "cpu") -> None:
        if device != "cpu":
            raise InvalidConfiguration(
                f"device backend {self.name!r} is simulated on 'cpu' only, not on {device!r}", field="device"
            )
        super().__init__(device)
        self.machine = Machine()
        self.ops = SimOps(self.machine)

    @property
    def syncs(self) -> int:
        """The number of times that the host waited for the device."""
        return self.machine.syncs

    def from_logits(self, logits: Array) -> SimArray:
        """Return a copy of logits of the host, of NumPy's or another library's. Like `ArrayOps.asarray`, it copies
        late."""
        if isinstance(logits, SimArray):
            logits.check("from_logits", self.machine)
            return logits
        return self.machine.upload(REFERENCE.from_logits(logits))

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        operands = self.on_device(bitmask, rows)
        return self.machine.compute("apply_bitmask", REFERENCE.apply_bitmask, logits, *operands, donates=True)

    def download(self, arrays: Mapping[str, Array]) -> SimDownload:
        return self.machine.download(arrays)

    def on_device(self, bitmask: Array, rows: Array) -> tuple[Array, Array]:
        """Copy masks and rows to the device if both are on the host."""
        return (
            (self.ops.asarray(bitmask), self.ops.asarray(rows)) if isinstance(bitmask, np.ndarray) else (bitmask, rows)
        )
