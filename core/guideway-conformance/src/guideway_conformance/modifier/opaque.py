"""A device whose arrays can do what every array library's can, and nothing else.

They are immutable, belong to no library, and refuse an index outside and what would wait for an accelerator. What a
transform does to them is counted. Behind them is NumPy, so results are the reference's.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from guideway.api import Array, ArrayOps, DeviceBackend
from guideway.devices.numpy.device import Downloaded, NumpyOps
from numpy.typing import NDArray

from guideway_conformance.modifier.strict import expect_promised

__all__ = ["OpaqueArray", "OpaqueDevice"]

IN_PLACE = frozenset({"fill", "itemset", "partition", "put", "resize", "setfield", "setflags", "sort"})
WAITING = frozenset({"dump", "dumps", "item", "tobytes", "tofile", "tolist", "tostring"})


class OpaqueArray:
    """An array of `OpaqueDevice`."""

    __array_ufunc__ = None
    __hash__ = None  # type: ignore[assignment]  # elementwise comparison, as for every array

    def __init__(self, array: Any, device: OpaqueDevice) -> None:
        self._array = np.asarray(array)
        self._device = device

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def ndim(self) -> int:
        return self._array.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, key: Any) -> OpaqueArray:
        keys = tuple(map(_plain, key)) if isinstance(key, tuple) else _plain(key)
        for axis, one in enumerate(keys if isinstance(keys, tuple) else (keys,)):
            if isinstance(one, np.ndarray) and one.dtype.kind == "i" and one.ndim and (one < 0).any():
                raise IndexError(f"it asks for place {one.min()} of axis {axis}: places are counted from 0")
        return self._device.made(self._array[keys])

    def __iter__(self) -> Iterator[OpaqueArray]:
        return (self[i] for i in range(len(self)))

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        raise TypeError("it hands an array of the device to NumPy, which only works where the device's are NumPy's")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name in IN_PLACE:
            raise AttributeError(f"no attribute {name!r} that arrays of every library have")
        if name in WAITING:
            self._device.wait(f".{name}()")
        value = getattr(self._array, name)
        if not callable(value):
            return self._device.made(value) if isinstance(value, np.ndarray) else value

        def method(*args: Any, **kwargs: Any) -> Any:
            plain = value(*map(_plain, args), **{key: _plain(arg) for key, arg in kwargs.items()})
            return self._device.made(plain) if isinstance(plain, np.ndarray | np.generic) else plain

        return method


def _plain(value: Any) -> Any:
    """The NumPy array behind an opaque one."""
    return value._array if isinstance(value, OpaqueArray) else value


def _binary(function: Callable[[Any, Any], Any], *, reflected: bool = False) -> Any:
    def method(self: OpaqueArray, other: Any) -> Any:
        if isinstance(other, np.ndarray) and other.ndim > 0:
            raise TypeError("it mixes an array of the device with a NumPy array; `Step.ops.asarray` takes it there")
        if not isinstance(other, OpaqueArray | int | float | np.generic | np.ndarray):
            return NotImplemented
        plain = _plain(other)
        with np.errstate(all="ignore"):
            made = function(plain, self._array) if reflected else function(self._array, plain)
        return self._device.made(made)

    return method


def _unary(function: Callable[[Any], Any]) -> Any:
    return lambda self: self._device.made(function(self._array))


def _waiting(how: str) -> Any:
    def method(self: OpaqueArray, *args: Any) -> Any:
        self._device.wait(f"{how} of an array")
        return getattr(self._array, f"__{how}__")(*args)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor", "lshift", "rshift"):
    _function, _dunder = getattr(operator, _name), _name.rstrip("_")
    setattr(OpaqueArray, f"__{_dunder}__", _binary(_function))
    setattr(OpaqueArray, f"__r{_dunder}__", _binary(_function, reflected=True))
for _name in ("matmul", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(OpaqueArray, f"__{_name}__", _binary(getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(OpaqueArray, f"__{_name}__", _unary(getattr(operator, _name)))
for _name in ("bool", "int", "float", "complex", "index", "contains"):
    setattr(OpaqueArray, f"__{_name}__", _waiting(_name))


class _Delegating:
    """The operations, by NumPy's."""

    def __init__(self, device: OpaqueDevice) -> None:
        self._device, self._numpy = device, NumpyOps()

    def asarray(self, array: NDArray[Any]) -> Array:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"`Step.ops.asarray` takes a NumPy array, not a {type(array).__name__}")
        return OpaqueArray(array.copy(), self._device)


def _operation(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        values = [_copied(name, arg) for arg in args]
        named = {key: _copied(name, arg) for key, arg in kwargs.items()}
        expect_promised(name, tuple(values), named)
        result = getattr(self._numpy, name)(*values, **named)
        if isinstance(result, tuple):
            return tuple(map(self._device.made, result))
        return self._device.made(result)

    return method


def _copied(name: str, value: Any) -> Any:
    if isinstance(value, OpaqueArray):
        return value._array.copy()
    if isinstance(value, np.ndarray) and value.ndim > 0:
        raise TypeError(
            f"`Step.ops.{name}` takes arrays of the device, not NumPy's; `Step.ops.asarray` takes one there"
        )
    return value


_OPERATIONS = {name: _operation(name) for name in ArrayOps.__abstractmethods__ if name != "asarray"}
_OpaqueOps: Any = type("_OpaqueOps", (_Delegating, ArrayOps), _OPERATIONS)


class OpaqueDevice(DeviceBackend):
    """See the module."""

    name = "opaque"
    arrays = "opaque"

    def __init__(self, device: str = "opaque") -> None:
        super().__init__(device)
        self.ops = _OpaqueOps(self)
        self.may_wait = True
        """True if looking at values is let pass."""
        self.count = 0
        """Operations so far."""

    def made(self, array: Any) -> OpaqueArray:
        """The outcome of an operation."""
        self.count += 1
        return OpaqueArray(np.array(array), self)

    def wait(self, how: str) -> None:
        """Something looks at values."""
        if not self.may_wait:
            raise AssertionError(f"it waits for the device: {how}")

    def from_logits(self, logits: Array) -> OpaqueArray:
        return OpaqueArray(np.array(logits), self)

    def apply_bitmask(self, logits: Array, bitmask: Array, rows: Array) -> Array:
        return self.ops.where_rows(logits, rows, self.ops.unpack_bitmask(bitmask, logits.shape[1]) == 0, -np.inf)

    def download(self, arrays: Mapping[str, Array]) -> Downloaded:
        return Downloaded({name: array._array.copy() for name, array in arrays.items()})
