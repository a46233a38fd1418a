"""The errors of the simulated accelerator."""

from __future__ import annotations

from guideway.api import GuidewayError

__all__ = ["DeviceFault", "HostAccess", "UseAfterDonation"]


class HostAccess(GuidewayError, TypeError):
    """The host accessed memory of the device, or the device was given memory of the host."""


class UseAfterDonation(GuidewayError, RuntimeError):
    """An array was used again after an operation took it as its argument and may have changed it in place."""


class DeviceFault(GuidewayError, RuntimeError):
    """An operation failed on the device after the host had continued; raised where the host waits for a result that
    depends on it."""
