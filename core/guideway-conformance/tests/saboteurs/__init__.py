"""Plugins that break one rule each, and the check that has to catch them.

They are what tests the suite: a check that no saboteur fails pins nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

from guideway_conformance.outcomes import Outcome
from guideway_conformance.registry import KIND_MODULES, Mode

__all__ = ["Saboteur", "saboteur", "saboteurs"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Saboteur:
    """A plugin with one bug; its docstring says which."""

    component: Any
    """A class, or for the kind ``hooks`` an object that carries hooks."""
    killer: str
    """The id of the check that has to catch it."""
    mode: Mode = "positive"
    outcome: Outcome = "fail"
    """``error`` of one that breaks no rule, but shows nothing: the check is then not performed."""

    @property
    def kind(self) -> str:
        return self.killer.partition(".")[0]

    @property
    def name(self) -> str:
        """The name of its class."""
        component = self.component
        return component.__name__ if isinstance(component, type) else type(component).__name__


_SABOTEURS: list[Saboteur] = []


def saboteur(killer: str, mode: Mode = "positive", outcome: Outcome = "fail") -> Callable[[T], T]:
    """Register a class, or for the kind ``hooks`` an object, as what the check `killer` has to catch in `mode`, with
    `outcome`."""

    def register(component: T) -> T:
        _SABOTEURS.append(Saboteur(component, killer, mode, outcome))
        return component

    return register


def saboteurs(kind: str) -> tuple[Saboteur, ...]:
    """All of one kind, from the module ``saboteurs.KIND``."""
    assert kind in KIND_MODULES
    import_module(f"{__name__}.{kind}")
    return tuple(found for found in _SABOTEURS if found.kind == kind)
