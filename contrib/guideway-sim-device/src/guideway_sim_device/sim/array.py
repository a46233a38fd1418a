"""Arrays in memory that the host cannot access."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from guideway_sim_device.sim.errors import DeviceFault, HostAccess, UseAfterDonation
from guideway_sim_device.sim.streams import Event

__all__ = ["SimArray"]


class Computes(Protocol):
    """The machine that an array belongs to."""

    def compute(self, name: str, work: Callable[..., Any], *operands: Any, **how: Any) -> SimArray: ...


class SimArray:
    """An array of the device, which may not have been computed yet.

    It supports the operations that all array libraries have: ``+ - * /`` with arrays of the device and plain numbers,
    unary minus, comparisons, ``& | ~``, ``.sum(axis=...)``, ``.reshape(...)``, indices of slices, whole numbers, None
    and other arrays of whole numbers, ``.shape``, ``.dtype``, ``len``. Only `DeviceBackend.download` returns its
    values.
    """

    __slots__ = ("_consumed_by", "_data", "_machine", "_parent", "dtype", "ready", "shape")
    __hash__ = None  # type: ignore[assignment]  # elementwise comparison, as for every array

    def __init__(
        self, machine: Computes, shape: tuple[int, ...], dtype: np.dtype[Any], parent: SimArray | None = None
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.ready: Event
        """The event after which its values exist."""
        self._machine = machine
        self._parent = parent
        """The array that it may share memory with."""
        self._data: NDArray[Any] | DeviceFault | None = None
        self._consumed_by: str | None = None

    def __repr__(self) -> str:
        return f"SimArray({self.dtype}{list(self.shape)})"

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of an array without axes")
        return self.shape[0]

    # for the machine

    def check(self, use: str, machine: Computes) -> None:
        """Raise `UseAfterDonation`, or `HostAccess` for an array of another device."""
        if self._machine is not machine:
            raise HostAccess(f"{use} was given an array of another device, whose memory it cannot reach")
        array: SimArray | None = self
        while array is not None:
            if array._consumed_by is not None:
                what = f"{self!r}" if array is self else f"{self!r}, a part of {array!r},"
                raise UseAfterDonation(
                    f"{use} was given {what} after {array._consumed_by} had it as its argument: that array is dead; "
                    f"use the one {array._consumed_by} returned"
                )
            array = array._parent

    def donate(self, consumed_by: str, ready: Event) -> None:
        """Forbid further uses; the array that it is a part of changes at `ready`."""
        self._consumed_by = consumed_by
        whole = self._parent
        while whole is not None:
            whole.ready, whole = ready, whole._parent

    @property
    def is_part(self) -> bool:
        """True if it may share memory with another array."""
        return self._parent is not None

    def read(self) -> NDArray[Any] | DeviceFault:
        """Return the contents of its memory now, on the device: garbage before it was written."""
        return garbage(self.shape, self.dtype) if self._data is None else self._data

    def write(self, data: NDArray[Any] | DeviceFault) -> None:
        """Set the values, on the device."""
        self._data = data

    # allowed to the host

    def sum(self, axis: int) -> SimArray:
        """Return the sum along one axis."""
        return self._machine.compute("sum", lambda x: x.sum(axis=axis), self, static=(axis,))

    def reshape(self, *shape: Any) -> SimArray:
        """Return the same values in another shape, which may have one -1."""
        return self._machine.compute("reshape", lambda x: x.reshape(*shape), self, static=shape, part=True)

    def __getitem__(self, key: Any) -> SimArray:
        keys = [_index(one) for one in (key if isinstance(key, tuple) else (key,))]
        arrays = [one for one in keys if isinstance(one, SimArray)]
        static = tuple("array" if isinstance(one, SimArray) else str(one) for one in keys)

        def take(x: NDArray[Any], *indices: NDArray[Any]) -> NDArray[Any]:
            for index in indices:
                forbid_negative(index)
            given = iter(indices)
            return np.asarray(x[tuple(next(given) if isinstance(one, SimArray) else one for one in keys)])

        return self._machine.compute("indexing", take, self, *arrays, static=static, part=not arrays)

    def __neg__(self) -> SimArray:
        return self._machine.compute("negative", operator.neg, self)

    def __invert__(self) -> SimArray:
        return self._machine.compute("invert", operator.invert, self)

    # forbidden to the host

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise HostAccess(
            "arrays of some libraries never change, so no array is assigned to; ops.where_rows and ops.scatter return "
            "one with other values"
        )

    def __iter__(self) -> Iterator[Any]:
        self._refuse("a loop over its rows")

    def __contains__(self, value: object) -> bool:
        self._refuse("the operator `in`")

    def __bool__(self) -> bool:
        self._refuse("bool() or a branch on it")

    def __int__(self) -> int:
        self._refuse("int()")

    def __index__(self) -> int:
        self._refuse("its use as an index of something on the host")

    def __float__(self) -> float:
        self._refuse("float()")

    def __complex__(self) -> complex:
        self._refuse("complex()")

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        self._refuse("a conversion to NumPy")

    def __array_function__(self, function: Callable[..., Any], *_: Any) -> NoReturn:
        self._refuse(f"np.{function.__name__}")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        plain = [_number(one) for one in inputs]
        if ufunc not in UFUNCS or method != "__call__" or kwargs:
            self._refuse(f"np.{ufunc.__name__}")
        if any(isinstance(one, np.ndarray) for one in plain):
            raise HostAccess(f"the operator {ufunc.__name__} was given {MIXED}")
        return UFUNCS[ufunc](*plain)  # the first operand was a NumPy scalar, which is a number like any other

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse("copying or pickling it")

    def __getattr__(self, name: str) -> Any:
        if name in PROTOCOLS:
            self._refuse("a conversion to another library")
        if name in WAITING:
            self._refuse(f".{name}()")
        raise AttributeError(
            f"a SimArray has no {name!r}, which not every array library has; ArrayOps lists what all do"
        )

    def _refuse(self, how: str) -> NoReturn:
        raise HostAccess(
            f"{how} reads {self!r} from the host, which would have to wait for the device. Compute with ArrayOps what "
            "depends on its values; a host gets them by DeviceBackend.download(...).result(), a transform's scheduler "
            "side by Step.emit"
        )


PROTOCOLS = frozenset({"__array_interface__", "__array_struct__", "__dlpack__", "__dlpack_device__"})
WAITING = frozenset({"cpu", "item", "numpy", "tobytes", "tolist"})
MIXED = "an array of the device and one of NumPy, which it cannot reach; ops.asarray takes that to the device"


def garbage(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return conspicuous values for memory that was never written."""
    if dtype.kind == "f":
        return np.full(shape, np.nan, dtype)
    return np.full(shape, np.iinfo(dtype).min if dtype.kind in "iu" else True, dtype)


def forbid_negative(indices: NDArray[Any]) -> None:
    """Raise IndexError for an index below 0, because libraries differ in its meaning."""
    if (indices < 0).any():
        raise IndexError(f"index {indices.min()} is negative")


def _index(one: Any) -> Any:
    """Return a part of an index in NumPy's form."""
    if isinstance(one, SimArray):
        if one.dtype.kind not in "iu":
            raise HostAccess(
                f"an array of {one.dtype} is no index: how many values it picks would have to be known on the host; "
                "use ops.where_rows"
            )
        return one
    if isinstance(one, slice):
        return slice(*(None if bound is None else operator.index(bound) for bound in (one.start, one.stop, one.step)))
    if isinstance(one, np.ndarray | list):
        raise HostAccess(f"an index was given {MIXED}")
    return one if one is None or one is Ellipsis else operator.index(one)


def _number(one: Any) -> Any:
    """Convert a NumPy scalar, which is not in host memory, to a plain number; return anything else unchanged."""
    return one.item() if isinstance(one, np.generic | np.ndarray) and one.ndim == 0 else one


def _binary(name: str, function: Callable[[Any, Any], Any], *, reflected: bool = False) -> Any:
    def method(self: SimArray, other: Any) -> Any:
        if isinstance(other, SimArray):
            return self._machine.compute(name, function, self, other)
        number = _number(other)
        if isinstance(number, np.ndarray):
            raise HostAccess(f"the operator {name} was given {MIXED}")
        if not isinstance(number, int | float):
            return NotImplemented
        work = (lambda x: function(number, x)) if reflected else (lambda x: function(x, number))
        return self._machine.compute(name, work, self, static=(type(number).__name__, reflected))

    return method


UFUNCS: dict[np.ufunc, Callable[..., Any]] = {
    np.add: operator.add,
    np.subtract: operator.sub,
    np.multiply: operator.mul,
    np.divide: operator.truediv,
    np.equal: operator.eq,
    np.not_equal: operator.ne,
    np.less: operator.lt,
    np.less_equal: operator.le,
    np.greater: operator.gt,
    np.greater_equal: operator.ge,
    np.bitwise_and: operator.and_,
    np.bitwise_or: operator.or_,
}
"""The operators by NumPy's function for each."""

for _ufunc, _function in UFUNCS.items():
    _name = _function.__name__.strip("_")
    setattr(SimArray, f"__{_name}__", _binary(_ufunc.__name__, _function))
    if _name not in ("eq", "ne", "lt", "le", "gt", "ge"):  # these are reflections of each other
        setattr(SimArray, f"__r{_name}__", _binary(_ufunc.__name__, _function, reflected=True))
