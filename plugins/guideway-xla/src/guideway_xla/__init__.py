"""XLA and TPU through jax as a device and a model runner for guideway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from guideway.api import hookimpl

if TYPE_CHECKING:
    from guideway.api import DeviceBackend
    from guideway.api.forward import ModelRunner


@hookimpl
def guideway_device_backend() -> type[DeviceBackend]:
    from guideway_xla.device import XlaDevice

    return XlaDevice


@hookimpl
def guideway_model_runner() -> type[ModelRunner]:
    from guideway_xla.runner import JaxRunner

    return JaxRunner
