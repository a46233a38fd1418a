"""Grammar strategies that break one rule each."""

from __future__ import annotations

from saboteurs.grammar import (
    accepting,
    apart,
    extras,
    fills,
    growth,
    hosting,
    languages,
    lifetime,
    load,
    masks,
    undoing,
)

__all__ = [
    "accepting",
    "apart",
    "extras",
    "fills",
    "growth",
    "hosting",
    "languages",
    "lifetime",
    "load",
    "masks",
    "undoing",
]
