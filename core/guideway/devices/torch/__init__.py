"""The built-in devices as components; each one's array library is imported when that device is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.device import DeviceBackend


@hookimpl
def guideway_device_backend(name: str) -> type[DeviceBackend]:
    if name == "torch":
        from guideway.builtin.torch_device import TorchDevice

        return TorchDevice
    from guideway.builtin.numpy_device import NumpyDevice

    return NumpyDevice
