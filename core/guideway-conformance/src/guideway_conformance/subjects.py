"""The subject of a check: the plugin, and the means to construct and call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, cast

if TYPE_CHECKING:
    from guideway_conformance.registry import Act, Check, Mode

__all__ = ["CannotRunHere", "NotPerformed", "Settings", "Subject", "expect", "perform", "subject_class"]


class CannotRunHere(Exception):
    """A check cannot run, because something that the plugin needs, such as a device, is missing. Raised only by the
    suite, never by a plugin."""


class NotPerformed(Exception):
    """A check found nothing wrong, but shows nothing: the plugin never did the tested thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings to construct and use the plugin under test, if the defaults will not do. Plain values."""

    options: Mapping[str, Any] = field(default_factory=dict)
    """The operator's options to construct it with."""
    requests: tuple[Mapping[str, Any], ...] = ()
    """A modifier's request options, one example each; default: its class's examples."""
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
        """Import modules for all checks, once, before children are forked. Must not start a thread."""

    @classmethod
    def prepare_for(cls, check: Check) -> None:
        """Import modules that only `check` needs, in the same way."""

    @classmethod
    def declared(cls, component: Any) -> frozenset[str]:  # noqa: ARG003
        """Return the capabilities that it declares, as a host finds them."""
        return frozenset()

    @classmethod
    def traits(cls, component: Any) -> frozenset[str]:  # noqa: ARG003
        """Return the other properties that decide which checks apply to it."""
        return frozenset()

    def require(self, acts: tuple[Act, ...]) -> None:
        """Raise `NotPerformed` if the plugin did not do each of `acts` with this subject."""


def perform(check: Check, mode: Mode, subject: Subject) -> None:
    """Perform `check` on `subject`. Raises the error of the check, or `NotPerformed`."""
    function = check.positive if mode == "positive" else check.refusal
    assert function is not None
    function(subject)
    if mode == "positive":
        subject.require(check.acts)


def subject_class(kind: str) -> type[Subject]:
    """Return the subject class for plugins of `kind`."""
    module = import_module(f"guideway_conformance.{kind}.subject")
    return cast("type[Subject]", getattr(module, f"{kind.capitalize()}Subject"))


def expect(condition: object, message: str) -> None:
    """Fail the check unless `condition` holds. `message` describes the actual behavior of the plugin."""
    if not condition:
        raise AssertionError(message)
