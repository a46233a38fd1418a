"""Existing logits processors as a guideway modifier: `LegacyModifier`, configured by `Processor`."""

from __future__ import annotations

from typing import Any

from guideway.api import LogitModifier, hookimpl

from guideway_legacy.modifier import LegacyModifier
from guideway_legacy.processors import Processor

__all__ = ["LegacyModifier", "Processor", "guideway_logit_modifier"]


@hookimpl
def guideway_logit_modifier() -> type[LogitModifier[Any]]:
    return LegacyModifier
