"""The reference device with eyes: an index that an array has not is refused, where other devices do what they like."""

from __future__ import annotations

from typing import Any

import numpy as np
from guideway.api import Array
from guideway.devices.numpy.device import NumpyDevice, NumpyOps
from numpy.typing import NDArray

__all__ = ["StrictDevice", "expect_inside"]

INDEXED = {"add_at": (1, 2), "scale_rows": (1,), "where_rows": (1,), "gather": (1, 2), "scatter": (1, 2)}
"""By operation the places of its arguments that are rows and columns of the first one."""


def expect_inside(name: str, args: tuple[Any, ...], named: dict[str, Any] | None = None) -> None:
    """Fail if the operation `name` of `ArrayOps` is asked for a row or column that the array has not."""
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
        expect_inside(name, args, kwargs)
        return getattr(NumpyOps, name)(self, *args, **kwargs)

    return method


_StrictOps: Any = type("_StrictOps", (NumpyOps,), {name: _checked(name) for name in INDEXED})


class StrictDevice(NumpyDevice):
    """NumPy, whose operations look at the indices they are given."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.ops = _StrictOps()
