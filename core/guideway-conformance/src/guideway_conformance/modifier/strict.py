"""The reference device with eyes: what the operations do not promise is refused, where other devices do what they
like."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from guideway.api import Array, Payload
from guideway.devices.numpy.device import NumpyDevice, NumpyOps
from numpy.typing import NDArray

__all__ = ["StrictDevice", "expect_promised"]

INDEXED = {"add_at": (1, 2), "scale_rows": (1,), "where_rows": (1,), "gather": (1, 2), "scatter": (1, 2)}
"""By operation the places of its arguments that are rows and columns of the first one."""


WRITING = ("add_at", "forbid_from", "scale_rows", "scatter", "where_rows")
"""The operations that may change their first argument."""


def expect_promised(name: str, args: tuple[Any, ...], named: dict[str, Any] | None = None) -> None:
    """Fail if the operation `name` of `ArrayOps` is asked for what it does not promise: a row or column that the array
    has not, a place that is written twice, a factor or a number that makes -inf finite or NaN."""
    _expect_own(name, args, named)
    _expect_inside(name, args, named)
    _expect_values(name, {**dict(zip(ARGUMENTS.get(name, ()), args, strict=False)), **(named or {})})


ARGUMENTS = {
    "add_at": ("x", "rows", "columns", "values"),
    "scale_rows": ("x", "rows", "factors"),
    "scatter": ("x", "rows", "columns", "values"),
    "topk": ("x", "k"),
}
"""By operation the names of its arguments."""


def _expect_values(name: str, given: dict[str, Any]) -> None:
    """Fail if arguments of an operation are of values that it does not take."""
    what = f"`Step.ops.{name}`"
    if name == "scatter":
        rows, columns = np.asarray(given["rows"]), np.asarray(given["columns"])
        pairs = np.stack([np.broadcast_to(rows[:, None], columns.shape), columns], axis=-1).reshape(-1, 2)
        found, counts = np.unique(pairs, axis=0, return_counts=True)
        if (counts > 1).any():
            row, column = found[counts > 1][0].tolist()
            raise ValueError(
                f"it asks {what} to write twice to row {row}, column {column}: which write stays is undefined"
            )
    elif name == "scale_rows":
        factors = np.asarray(given["factors"])
        if wrong := factors[~(factors > 0)].tolist():
            raise ValueError(f"it gives {what} the factor {wrong[0]}; factors are positive")
    elif name == "add_at":
        values = np.asarray(given["values"])
        if wrong := values[np.isnan(values) | np.isposinf(values)].tolist():
            raise ValueError(f"it gives {what} the value {wrong[0]}; values are finite or -inf")
    elif name == "topk" and not 0 < given["k"] <= given["x"].shape[1]:
        raise ValueError(f"it asks {what} for the {given['k']} largest of {given['x'].shape[1]} columns")


def _expect_own(name: str, args: tuple[Any, ...], named: dict[str, Any] | None) -> None:
    """Fail if an operation that may change its first argument is given one that is shared, and only to be read."""
    x = args[0] if args else (named or {}).get("x")
    if name in WRITING and isinstance(x, np.ndarray) and not x.flags.writeable:
        raise ValueError(
            f"it gives `Step.ops.{name}`, which may change it, an array that is shared and only to be read, such as "
            "`Step.positions` or one of the payload; `gather` makes one of its own"
        )


def _expect_inside(name: str, args: tuple[Any, ...], named: dict[str, Any] | None = None) -> None:
    """Fail if an operation is asked for a row or column that the array has not."""
    places = INDEXED.get(name, ())
    given = (*args, *(None for _ in range(len(args), 3)))
    for axis, place in enumerate(places):
        indices = (named or {}).get("rows" if axis == 0 else "columns", given[place])
        if indices is None:
            continue
        found: NDArray[Any] = np.asarray(indices)
        size = given[0].shape[axis]
        outside = found[(found < 0) | (found >= size)]
        if len(outside):
            raise IndexError(
                f"it asks `Step.ops.{name}` for {'column' if axis else 'row'} {outside[0]} of an array that has {size}"
            )


def _checked(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Array:
        expect_promised(name, args, kwargs)
        return getattr(NumpyOps, name)(self, *args, **kwargs)

    return method


_StrictOps: Any = type("_StrictOps", (NumpyOps,), {name: _checked(name) for name in {*INDEXED, *ARGUMENTS}})


class StrictDevice(NumpyDevice):
    """NumPy, whose operations look at the indices they are given, and where a payload can only be read."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.ops = _StrictOps()

    def upload(self, payload: Payload) -> Payload:
        uploaded = super().upload(payload)
        return replace(
            uploaded,
            rows=_to_be_read(uploaded.rows),
            arrays={name: _to_be_read(array) for name, array in uploaded.arrays.items()},
            shared={name: _to_be_read(array) for name, array in uploaded.shared.items()},
        )


def _to_be_read(array: Any) -> Any:
    """The same memory, which cannot be written there."""
    view = array.view()
    view.setflags(write=False)
    return view
