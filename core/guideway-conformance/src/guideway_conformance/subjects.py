"""The subject that a check is handed: the plugin, and what it takes to build and ask it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, cast

if TYPE_CHECKING:
    from guideway_conformance.registry import Act, Check, Mode

__all__ = ["CannotRunHere", "NotPerformed", "Settings", "Subject", "expect", "perform", "subject_class"]


class CannotRunHere(Exception):
    """A check cannot run, because what the plugin needs, such as a device, is not here. Only the suite raises it, never
    a plugin."""


class NotPerformed(Exception):
    """A check found nothing wrong, and shows nothing: the plugin never did what it is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings to build and use the plugin under test with, where the defaults will not do. Plain values."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """The operator's options it is built with."""
    requests: tuple[Mapping[str, Any], ...] = ()
    """A modifier's request options, an example each; default: those its class gives."""
    device: str | None = None
    """A device backend's device; default: its constructor's own, else ``cpu``, else its name."""


class Subject:
    """A plugin under test. Each kind has a subclass with what its checks need."""

    kind: ClassVar[str]

    def __init__(self, component: Any, settings: Settings) -> None:
        self.component = component
        self.settings = settings

    @classmethod
    def prepare(cls) -> None:
        """Import what every check needs, once, before children are forked. Starts no thread."""

    @classmethod
    def prepare_for(cls, check: Check) -> None:
        """The same for what `check` needs and others do not."""

    @classmethod
    def declared(cls, component: Any) -> frozenset[str]:  # noqa: ARG003
        """The capabilities it declares, asked as a host asks them."""
        return frozenset()

    @classmethod
    def traits(cls, component: Any) -> frozenset[str]:  # noqa: ARG003
        """Return what else decides which checks concern it."""
        return frozenset()

    def require(self, acts: tuple[Act, ...]) -> None:
        """Raises `NotPerformed` if the plugin did not do each of `acts` with this subject."""


def perform(check: Check, mode: Mode, subject: Subject) -> None:
    """Perform `check` on `subject`. Raises whatever it fails with, or `NotPerformed`."""
    function = check.positive if mode == "positive" else check.refusal
    assert function is not None
    function(subject)
    if mode == "positive":
        subject.require(check.acts)


def subject_class(kind: str) -> type[Subject]:
    """The subject of plugins of `kind`."""
    module = import_module(f"guideway_conformance.{kind}.subject")
    return cast("type[Subject]", getattr(module, f"{kind.capitalize()}Subject"))


def expect(condition: object, message: str) -> None:
    """Fail the check, saying what the plugin did instead of what the rule asks. `condition`: whether it holds."""
    if not condition:
        raise AssertionError(message)
