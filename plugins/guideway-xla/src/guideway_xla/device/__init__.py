"""The component ``device.xla``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api import DeviceBackend


@hookimpl
def guideway_device_backend() -> type[DeviceBackend]:
    from guideway_xla.device.device import XlaDevice

    return XlaDevice
