"""The errors of the simulated accelerator, and what to do instead."""

from __future__ import annotations

from guideway.api import GuidewayError

__all__ = ["DeviceFault", "HostAccess", "UseAfterDonation"]


class HostAccess(GuidewayError, TypeError):
    """The host reached into memory of the device, or the device was handed memory of the host."""


class UseAfterDonation(GuidewayError, RuntimeError):
    """An array was used again after an operation had it as its argument and may have changed it in place."""


class DeviceFault(GuidewayError, RuntimeError):
    """An operation failed on the device, when the host had long gone on; raised where the host waits for what came of
    it."""
