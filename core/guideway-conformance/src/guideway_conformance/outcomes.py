"""The outcomes of an obligation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from guideway_conformance.registry import Obligation

__all__ = ["Outcome", "Result"]

Outcome: TypeAlias = Literal["pass", "fail", "not_run", "known_failure", "error"]
"""``not_run``: something that it needs is missing. ``error``: the suite itself failed, or there is no result."""


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of one obligation."""

    obligation: Obligation
    outcome: Outcome
    detail: str = ""
    """The actual behavior of the plugin; empty if all was well."""
    seconds: float = 0.0
