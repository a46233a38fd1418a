"""A CPU that simulates an accelerator, and raises errors for mistakes that a real one would not report."""

from __future__ import annotations

from guideway_sim_device.sim.errors import DeviceFault, HostAccess, UseAfterDonation

__all__ = ["DeviceFault", "HostAccess", "UseAfterDonation"]
