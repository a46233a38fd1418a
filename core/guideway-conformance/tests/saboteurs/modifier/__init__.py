"""Logit modifiers, transforms and samplers that break one rule each."""

from saboteurs.modifier import (
    declarations,
    devices,
    payloads,
    samplers,
    states,
    transforms,
)

__all__ = ["declarations", "devices", "payloads", "samplers", "states", "transforms"]
