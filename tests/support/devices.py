"""NumPy devices with the requirements of other devices: static shapes, and operations in one pass."""

from __future__ import annotations

from typing import Any

from guideway.api.device import FUSED_OPERATIONS
from guideway.devices.numpy.device import NumpyDevice, NumpyOps

__all__ = ["FusedNumpy", "StaticNumpy"]


class StaticNumpy(NumpyDevice):
    """A device that records the shapes of all arguments of its operations."""

    name = "static"
    static_shapes = True

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.shapes: set[tuple[Any, ...]] = set()
        self.ops = _Watched(self.shapes)


class FusedNumpy(NumpyDevice):
    """A device that declares every optional operation, in the contract's default implementation."""

    contract = "1.0"
    name = "fused"
    fused = frozenset(FUSED_OPERATIONS)


class _Watched(NumpyOps):
    def __init__(self, shapes: set[tuple[Any, ...]]) -> None:
        self._shapes = shapes

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_"):
            return value

        def watched(*args: Any) -> Any:
            self._shapes.add((name, *(getattr(argument, "shape", argument) for argument in args)))
            return value(*args)

        return watched
