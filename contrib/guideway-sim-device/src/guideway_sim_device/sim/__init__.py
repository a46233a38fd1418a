"""The component ``device.sim``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api import DeviceBackend


@hookimpl
def guideway_device_backend() -> type[DeviceBackend]:
    from guideway_sim_device.sim.device import SimDevice

    return SimDevice
