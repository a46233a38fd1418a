"""An attention backend under test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from guideway.api import ATTENTION_CAPABILITIES, AttentionBackend

from guideway_conformance.subjects import CannotRunHere, Subject

if TYPE_CHECKING:
    import torch

__all__ = ["AttentionSubject"]

DTYPES = ("float32", "float16", "bfloat16")


class AttentionSubject(Subject):
    """Makes the backend, and says where its tensors are made: on the configured device, else on the first it names."""

    kind = "attention"
    component: type[AttentionBackend]

    @classmethod
    def prepare(cls) -> None:
        import torch  # noqa: F401 - slow to import

    @classmethod
    def declared(cls, component: Any) -> frozenset[str]:
        """The capabilities of the contract that its class names."""
        named = getattr(component, "capabilities", None)
        return frozenset(ATTENTION_CAPABILITIES) & (named if isinstance(named, frozenset) else frozenset())

    @property
    def dtype(self) -> str:
        """The type of numbers for checks that are about something else: the most exact that it has."""
        declared = self.declared(self.component)
        return next((dtype for dtype in DTYPES if dtype in declared), DTYPES[0])

    @property
    def device(self) -> torch.device:
        """The device of its tensors. Raises `CannotRunHere` if that is not here."""
        import torch

        name = self.settings.device or next(iter(sorted(self.component.devices)), "cpu")
        try:
            return torch.zeros(1, device=name).device
        except Exception as error:  # of each device its own
            raise CannotRunHere(f"there is no {name} here: {str(error).splitlines()[0]}") from error

    def backend(self) -> AttentionBackend:
        """A new backend. Raises `CannotRunHere` if it says that it cannot run here."""
        reason = self.component.available()
        if reason is not None:
            raise CannotRunHere(reason)
        return self.component()
