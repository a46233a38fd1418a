"""Logit modifiers, transforms and samplers that break one rule each."""

from saboteurs.modifier import (
    compiling,
    declarations,
    devices,
    hosting,
    payloads,
    samplers,
    states,
    transforms,
)

__all__ = ["compiling", "declarations", "devices", "hosting", "payloads", "samplers", "states", "transforms"]
