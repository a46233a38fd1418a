"""Logit modifiers, transforms and samplers that break one rule each."""

from saboteurs.modifier import (
    compiling,
    declarations,
    devices,
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
    "compiling",
    "declarations",
    "devices",
    "growth",
    "hearing",
    "hosting",
    "payloads",
    "samplers",
    "states",
    "transforms",
    "variety",
]
