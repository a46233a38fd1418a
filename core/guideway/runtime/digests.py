"""The digests that tell two constraints of a kind apart."""

from __future__ import annotations

import hashlib

from guideway.api.types import Constraint

__all__ = ["constraint_digest"]


def constraint_digest(constraint: Constraint, text: str | None = None) -> bytes:
    """Compute the digest of all that decides how a constraint compiles, but for who compiles it: its source, or `text`
    in place of it, and its white space. Raises `InvalidGrammar` if it is malformed."""
    what = f"{constraint.spacing}\n{constraint.source() if text is None else text}"
    return hashlib.sha256(what.encode("utf-8", "surrogatepass")).digest()
