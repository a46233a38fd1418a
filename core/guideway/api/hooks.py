"""The context passed to validation hooks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ValidationContext"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationContext:
    """Facts about the host that validates a request."""

    model: str
    max_model_len: int
    vocabulary_size: int
    grammars: tuple[str, ...]
    """Configured grammar strategies, in order of preference."""
    modifiers: tuple[str, ...]
    """Configured logit modifiers."""
