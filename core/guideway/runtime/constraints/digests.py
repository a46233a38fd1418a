"""Digests of constraints."""

from __future__ import annotations

import hashlib

from guideway.api.types import Constraint, JsonSchema
from guideway.json_schema.tracking import TrackedSchema

__all__ = ["constraint_digest"]


def constraint_digest(constraint: Constraint, text: str | None = None) -> bytes:
    """Return the SHA-256 digest of everything that decides how a constraint compiles, except the strategy: its source,
    or `text` in its place, its white space, the order of properties, and what the host tracks of its schema. Raises
    `InvalidGrammar` if it is malformed."""
    what = f"{constraint.spacing}\n{constraint.source() if text is None else text}"
    if isinstance(constraint, JsonSchema):
        what += f"\n{constraint.takes_any_order}"
    if isinstance(constraint, TrackedSchema):
        what += f"\n{constraint.whole}\n{constraint.ordered}"
    return hashlib.sha256(what.encode("utf-8", "surrogatepass")).digest()
