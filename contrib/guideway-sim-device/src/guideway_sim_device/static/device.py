"""The simulated device behind a compiler."""

from __future__ import annotations

from guideway_sim_device.fused.device import FusedSimDevice
from guideway_sim_device.sim.machine import Signature

__all__ = ["StaticSimDevice"]


class StaticSimDevice(FusedSimDevice):
    """An accelerator with a compiler, which compiles a program for each shape."""

    name = "sim_static"
    static_shapes = True

    @property
    def compiled(self) -> frozenset[Signature]:
        """The compiled programs: each names operation, parameters, shapes and dtypes."""
        return frozenset(self.machine.programs)
