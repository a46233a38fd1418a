"""Workflows that break one rule each."""

from __future__ import annotations

from saboteurs.workflow import failing, models, parameters, scheduling, serving

__all__ = ["failing", "models", "parameters", "scheduling", "serving"]
