"""A CPU that poses as an accelerator, and punishes what would go wrong on one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

from guideway_sim_device.errors import DeviceFault, HostAccess, UseAfterDonation

if TYPE_CHECKING:
    from guideway.api import DeviceBackend

__all__ = ["DeviceFault", "HostAccess", "UseAfterDonation", "guideway_device_backend"]


@hookimpl
def guideway_device_backend(name: str) -> type[DeviceBackend]:
    from guideway_sim_device.device import FusedSimDevice, SimDevice, StaticSimDevice

    return {cls.name: cls for cls in (SimDevice, FusedSimDevice, StaticSimDevice)}[name]
