"""A device backend under test."""

from __future__ import annotations

import contextlib
import inspect
from contextlib import ExitStack
from importlib.util import find_spec
from typing import Any, ClassVar

from guideway.api import DeviceBackend
from guideway.api.device import FUSED_OPERATIONS

from guideway_conformance.device.bench import BFLOAT16, Bench
from guideway_conformance.registry import Check
from guideway_conformance.subjects import CannotRunHere, Settings, Subject

__all__ = ["DeviceSubject"]


class DeviceSubject(Subject):
    """Builds the backend on the configured device.

    Without one it takes the first of these the class accepts: the default of its own `device` parameter, ``cpu``, its
    name.
    """

    kind = "device"
    component: type[DeviceBackend]
    bfloat16: ClassVar[str] = "bfloat16"
    fused: ClassVar[str] = "fused"
    torch: ClassVar[str] = "torch"

    def __init__(self, component: Any, settings: Settings) -> None:
        super().__init__(component, settings)
        self._scopes = ExitStack()
        """Entered, and mostly never left: the process ends with the check."""

    @classmethod
    def declared(cls, component: Any) -> frozenset[str]:
        """The fused operations a host would call: those in ``fused``."""
        fused = getattr(component, "fused", None)
        return frozenset(FUSED_OPERATIONS) & (fused if isinstance(fused, frozenset) else frozenset())

    @classmethod
    def traits(cls, component: Any) -> frozenset[str]:
        """``bfloat16`` where the suite knows how to make such arrays, which NumPy does not have. Where it does not,
        float16 and float32 stand for all three. ``fused`` where there is an operation that is. ``torch`` where torch is
        installed beside it, whose tensors a model may then give it."""
        found = {cls.bfloat16} if getattr(component, "arrays", None) in BFLOAT16 else set()
        found |= {cls.fused} if cls.declared(component) else set()
        return frozenset(found | ({cls.torch} if find_spec("torch") else set()))

    @classmethod
    def prepare_for(cls, check: Check) -> None:
        if check.trait == cls.torch:
            with contextlib.suppress(Exception):  # one that is broken fails the check and nothing else
                import torch  # noqa: F401 - slow to import

    @property
    def floats(self) -> tuple[str, ...]:
        """The types of logits the suite can make for it."""
        plain = ("float32", "float16")
        return (*plain, "bfloat16") if self.component.arrays in BFLOAT16 else plain

    def require_hardware(self) -> None:
        """Raises `CannotRunHere` if the backend says that it cannot run here."""
        reason = self.component.available()
        if reason is not None:
            raise CannotRunHere(reason)

    def backend(self) -> DeviceBackend:
        """A new backend, in whose scope this thread is from now on, as a host is. Raises `CannotRunHere` if it says
        that it cannot run here."""
        return self.entered(self.backend_outside())

    def entered(self, backend: DeviceBackend) -> DeviceBackend:
        """`backend`, in whose scope this thread is from now on."""
        self._scopes.enter_context(backend.scope())
        return backend

    def leave_scopes(self) -> None:
        """Leave the scope of every backend, as a host has when it closes one."""
        self._scopes.close()

    def backend_outside(self) -> DeviceBackend:
        """A new backend whose scope nobody has entered."""
        self.require_hardware()
        if self.settings.device is not None:
            return self.component(self.settings.device)
        refused: list[str] = []
        for device in self._devices():
            try:
                return self.component(device)
            except Exception as error:
                refused.append(f"{device!r}: {error}")
        raise AssertionError(
            f"it says that it can run here, but takes none of these devices ({'; '.join(refused)}); "
            "if it wants another one, name that as `device` in conformance.toml"
        )

    def bench(self) -> Bench:
        """A new backend with what moves arrays to it and back."""
        return Bench(self.backend())

    def _devices(self) -> list[str]:
        parameter = inspect.signature(self.component).parameters.get("device")
        named = [parameter.default if parameter else None, "cpu", getattr(self.component, "name", None)]
        return list(dict.fromkeys(device for device in named if isinstance(device, str)))
