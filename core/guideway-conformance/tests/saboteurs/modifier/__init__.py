"""Logit modifiers, transforms and samplers that break one rule each."""

from saboteurs.modifier import (
    bounds,
    compiling,
    declarations,
    devices,
    edges,
    growth,
    hearing,
    hosting,
    payloads,
    samplers,
    states,
    transforms,
    variety,
)

__all__ = [
    "bounds",
    "compiling",
    "declarations",
    "devices",
    "edges",
    "growth",
    "hearing",
    "hosting",
    "payloads",
    "samplers",
    "states",
    "transforms",
    "variety",
]
