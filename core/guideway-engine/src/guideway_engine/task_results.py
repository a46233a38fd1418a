"""The results of workflows that only prefill."""

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
    """The number of tokens that passed through the model."""
    truncated: bool = False
    """True if the input was longer, and cut as the caller allowed."""
    error: GuidewayError | None = None
    """The reason why there is no result; other inputs have theirs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Embedding(_Result):
    """The vector of an input."""

    vector: np.ndarray[Any, Any] | None = None
    """float32 ``[dimensions]``; None if there is an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score(_Result):
    """The relevance of a document to a query."""

    index: int = 0
    """The document's place in what was given."""
    score: float | None = None
    """Between 0 and 1, unless the model says that its logit is the score; None if there is an error."""
    logit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(_Result):
    """The labels of an input."""

    label: str | None = None
    """The likeliest; None if there is an error."""
    probabilities: Mapping[str, float] | None = None
    """By label. They sum to 1, unless the model gives each label its own, independent of the others."""
