"""The component ``device.numpy``; NumPy is imported when the device is requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.device import DeviceBackend


@hookimpl
def guideway_device_backend() -> type[DeviceBackend]:
    from guideway.devices.numpy.device import NumpyDevice

    return NumpyDevice
