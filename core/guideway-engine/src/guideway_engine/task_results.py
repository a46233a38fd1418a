"""Results of workflows that only prefill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from guideway.errors import GuidewayError

__all__ = ["Classification", "Embedding", "Score"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    request_id: str
    num_tokens: int = 0
    """Number of tokens computed by the model."""
    truncated: bool = False
    """True if the input was too long and was cut as the caller allowed."""
    error: GuidewayError | None = None
    """Error if there is no result; other inputs are not affected."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding(_Result):
    """The vector of an input."""

    vector: np.ndarray[Any, Any] | None = None
    """float32 ``[dimensions]``; None if there is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(_Result):
    """The relevance of a document to a query."""

    index: int = 0
    """Position of the document in the given list."""
    score: float | None = None
    """Score between 0 and 1, or the raw logit if the model is configured so; None if there is an error."""
    logit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(_Result):
    """Label of an input and the probabilities of all labels."""

    label: str | None = None
    """Most probable label; None if there is an error."""
    probabilities: Mapping[str, float] | None = None
    """Probability of each label. They sum to 1, unless the model's labels are independent."""
