"""Logit modifiers, transforms and samplers that break one rule each."""

from saboteurs.modifier import (
    compiling,
    declarations,
    devices,
    edges,
    growth,
    hearing,
    hosting,
    limits,
    payloads,
    samplers,
    states,
    transforms,
    variety,
)

__all__ = [
    "compiling",
    "declarations",
    "devices",
    "edges",
    "growth",
    "hearing",
    "hosting",
    "limits",
    "payloads",
    "samplers",
    "states",
    "transforms",
    "variety",
]
