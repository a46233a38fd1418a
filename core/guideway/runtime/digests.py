"""Digests of constraints."""

from __future__ import annotations

import hashlib

from guideway.api.types import Constraint

__all__ = ["constraint_digest"]


def constraint_digest(constraint: Constraint, text: str | None = None) -> bytes:
    """Return the SHA-256 digest of everything that decides how a constraint compiles, except the strategy: its source,
    or `text` in its place, and its white space. Raises `InvalidGrammar` if it is malformed."""
    what = f"{constraint.spacing}\n{constraint.source() if text is None else text}"
    return hashlib.sha256(what.encode("utf-8", "surrogatepass")).digest()
