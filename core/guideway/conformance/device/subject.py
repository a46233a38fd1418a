"""A device backend under test."""

from __future__ import annotations

from typing import Any

from guideway.api import DeviceBackend
from guideway.conformance.subjects import HardwareAbsent, Subject

__all__ = ["DeviceSubject"]


class DeviceSubject(Subject):
    """Builds the backend, on the configured device or ``cpu``."""

    kind = "device"

    def backend(self) -> DeviceBackend:
        """A new backend. Raises `HardwareAbsent` if it says that it cannot run here."""
        cls: Any = self.component
        reason = cls.available()
        if reason is not None:
            raise HardwareAbsent(reason)
        backend: DeviceBackend = cls(self.settings.device or "cpu")
        return backend
