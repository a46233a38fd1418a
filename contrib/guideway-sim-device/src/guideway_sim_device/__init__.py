"""A CPU that poses as an accelerator, and punishes what would go wrong on one."""

from __future__ import annotations

from guideway_sim_device.sim.errors import DeviceFault, HostAccess, UseAfterDonation

__all__ = ["DeviceFault", "HostAccess", "UseAfterDonation"]
