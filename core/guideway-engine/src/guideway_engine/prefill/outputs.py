"""Output processors: convert arrays to results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from guideway.api.workflow import OutputProcessor, Prepared, Task, WorkflowContext
from guideway.errors import GuidewayError

from guideway_engine.prefill.families import num_labels
from guideway_engine.prefill.sentence_transformers import activation_of, is_embedder, recipe_of
from guideway_engine.task_results import Classification, Embedding, Score

__all__ = ["Classifications", "Embeddings", "Scores"]

Row = np.ndarray[Any, Any]


class _Outputs(OutputProcessor):
    """Base of output processors that convert one row of numbers per request."""

    result: Any

    def results(self, work: Sequence[Prepared], output: Any) -> list[Any | GuidewayError]:
        return [self._result(request, row) for request, row in zip(work, output, strict=True)]

    def failed(self, task: Task, error: GuidewayError) -> Any:
        return self.result(request_id=task.request_id, error=error)

    def _result(self, request: Prepared, row: Row) -> Any:
        if not np.isfinite(row).all():
            return GuidewayError("the model gave numbers that are not finite; try float32, or another input")
        return self.result(
            request_id=request.task.request_id,
            num_tokens=request.num_tokens,
            truncated=request.truncated,
            **self.fields(request, row),
        )

    @abstractmethod
    def fields(self, request: Prepared, row: Row) -> dict[str, Any]:
        """Return the fields of the result for a row of numbers."""


class Embeddings(_Outputs):
    """Vectors, truncated to the requested dimensions (Matryoshka) and then normalized."""

    result = Embedding

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        said = recipe_of(context.model).normalize if is_embedder(context.model) else True
        self._normalize = context.options.normalize if context.options.normalize is not None else said

    def fields(self, request: Prepared, row: Row) -> dict[str, Any]:
        vector = row[: request.task.params.get("dimensions") or len(row)].astype(np.float32)
        if self._normalize:
            vector /= max(float(np.linalg.norm(vector)), 1e-12)
        return {"vector": vector}


class Scores(_Outputs):
    """Scores: the sigmoid of the only logit, or the logit itself if the model's files configure that."""

    result = Score

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self._is_raw = activation_of(context.model) == "Identity"

    def fields(self, request: Prepared, row: Row) -> dict[str, Any]:
        logit = float(row[0])
        score = logit if self._is_raw else float(_sigmoid(row[:1])[0])
        return {"score": score, "logit": logit}


class Classifications(_Outputs):
    """Probabilities by label, with the label names of the model's configuration."""

    result = Classification

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        names = context.model.config.get("id2label") or {}
        self._labels = [str(names.get(str(i), f"LABEL_{i}")) for i in range(num_labels(context.model))]
        self._independent = context.model.config.get("problem_type") == "multi_label_classification"

    def fields(self, request: Prepared, row: Row) -> dict[str, Any]:
        shares = _sigmoid(row) if self._independent else _softmax(row)
        probabilities = {label: float(share) for label, share in zip(self._labels, shares, strict=True)}
        return {"label": self._labels[int(np.argmax(row))], "probabilities": probabilities}


def _sigmoid(row: Row) -> Row:
    shares: Row = 0.5 * (1.0 + np.tanh(0.5 * row.astype(np.float64)))  # this form never overflows
    return shares


def _softmax(row: Row) -> Row:
    powers = np.exp(row.astype(np.float64) - row.max())
    shares: Row = powers / powers.sum()
    return shares
