"""The component ``device.sim_fused``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api import DeviceBackend


@hookimpl
def guideway_device_backend() -> type[DeviceBackend]:
    from guideway_sim_device.fused.device import FusedSimDevice

    return FusedSimDevice
