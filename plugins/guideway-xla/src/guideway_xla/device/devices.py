"""Devices by their names in jax."""

from __future__ import annotations

import jax
from guideway.api import InvalidConfiguration

__all__ = ["find_device"]


def find_device(name: str) -> jax.Device:
    """Return the device named `name`: a platform of jax, ``cpu``, ``tpu`` or ``cuda``, and for devices after the first
    a number, ``tpu:1``. Raises `InvalidConfiguration`."""
    platform, _, number = name.partition(":")
    if platform and (number.isdecimal() or name == platform):
        try:
            devices = jax.local_devices(backend=platform)
        except Exception as error:  # may be an AssertionError, depending on how jax was installed
            raise _unknown(name, str(error)) from error
        index = int(number or 0)
        if index < len(devices):
            return devices[index]
        raise _unknown(name, f"platform {platform!r} has the numbers 0 to {len(devices) - 1}")
    raise _unknown(name, "write a platform, with a number after the first device, such as 'cpu', 'tpu' or 'tpu:1'")


def _unknown(name: str, reason: str) -> InvalidConfiguration:
    return InvalidConfiguration(f"jax has no device {name!r}: {reason}", field="device")
