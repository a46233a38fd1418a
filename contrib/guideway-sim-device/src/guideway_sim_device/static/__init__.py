"""The component ``device.sim_static``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api import DeviceBackend


@hookimpl
def guideway_device_backend() -> type[DeviceBackend]:
    from guideway_sim_device.static.device import StaticSimDevice

    return StaticSimDevice
