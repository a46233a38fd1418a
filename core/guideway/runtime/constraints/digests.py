"""Digests of constraints."""

from __future__ import annotations

import hashlib

from guideway.api.types import Constraint
from guideway.json_schema.tracking import TrackedSchema

__all__ = ["constraint_digest"]


def constraint_digest(constraint: Constraint, text: str | None = None) -> bytes:
    """Return the SHA-256 digest of everything that decides how a constraint compiles, except the strategy: its source,
    or `text` in its place, its white space, and what the host tracks of its schema. Raises `InvalidGrammar` if it is
    malformed."""
    what = f"{constraint.spacing}\n{constraint.source() if text is None else text}"
    if isinstance(constraint, TrackedSchema):
        what += f"\n{constraint.whole}"
    return hashlib.sha256(what.encode("utf-8", "surrogatepass")).digest()
