"""The component ``device.torch``; torch is imported when the device is requested."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api.hookspecs import hookimpl

if TYPE_CHECKING:
    from guideway.api.device import DeviceBackend


@hookimpl
def guideway_device_backend() -> type[DeviceBackend]:
    from guideway.devices.torch.device import TorchDevice

    return TorchDevice
