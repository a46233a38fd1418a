"""The scores returned to callers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from guideway.api import GuidewayError, OutputProcessor, Prepared, Task

__all__ = ["MaxSimScore", "Scores"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSimScore:
    """The relevance of a document to a query."""

    request_id: str
    num_tokens: int = 0
    """Tokens of query and document."""
    truncated: bool = False
    error: GuidewayError | None = None
    """The reason why there is no score."""
    index: int = 0
    """The document's index in the input."""
    score: float | None = None
    """At most the number of tokens of the query."""


class Scores(OutputProcessor):
    """Returns one number for each pair."""

    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return [self._result(request, float(score)) for request, score in zip(work, output, strict=True)]

    def _result(self, request: Prepared, score: float) -> MaxSimScore | GuidewayError:
        if not math.isfinite(score):
            return GuidewayError("the model gave a score that is not finite")
        return MaxSimScore(
            request_id=request.task.request_id,
            num_tokens=request.num_tokens,
            truncated=request.truncated,
            score=score,
        )

    def failed(self, task: Task, error: GuidewayError) -> MaxSimScore:
        return MaxSimScore(request_id=task.request_id, error=error)
