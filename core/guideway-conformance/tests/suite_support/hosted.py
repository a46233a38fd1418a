"""The correct modifiers of the suite's tests as components, for modifier hosts."""

from __future__ import annotations

from typing import Any

from guideway.api import LogitModifier, hookimpl
from mistakes import modifiers
from test_correct_modifier import Budget, Follow, Greedy, Length, Probe, Surprise

CORRECT: tuple[type[LogitModifier[Any]], ...] = (
    *(Budget, Follow, Greedy, Length, Probe, Surprise, modifiers.Compiling),
    *(modifiers.Ban, modifiers.Draw, modifiers.Guide, modifiers.Allow, modifiers.Mass, modifiers.Watermark),
)
CLASSES: dict[str, type[LogitModifier[Any]]] = {
    # a class with a name of its own for each, because some derive from others
    cls.__name__.lower(): type(cls.__name__, (cls,), {"contract": "1.0", "name": cls.__name__.lower()})
    for cls in CORRECT
}


@hookimpl
def guideway_logit_modifier(name: str) -> type[LogitModifier[Any]]:
    return CLASSES[name]
