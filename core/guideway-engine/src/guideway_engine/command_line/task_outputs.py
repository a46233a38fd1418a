"""The output of ``guideway embed``, ``rerank`` and ``classify``: a matrix, JSON lines or a table."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from guideway.api.options import short_repr
from guideway.command_line.terminal import as_stdout_can, print_table
from guideway.errors import InvalidRequest, printable

from guideway_engine.command_line.task_inputs import Entry
from guideway_engine.task_results import Classification, Embedding, Score

__all__ = ["Matrix", "Result", "line_of", "print_results", "reason_of"]

Result = Embedding | Score | Classification

SHOWN_NUMBERS = 4


class Matrix:
    """Writes vectors into the file `path` as NumPy reads them: float32 ``[num_rows, dimensions]``, a row of NaN where
    there is no vector. The file is there once all rows are. Raises `InvalidRequest` if it exists or cannot be made."""

    def __init__(self, path: str, num_rows: int) -> None:
        self._path = Path(path)
        self._beside = self._path.with_name(f"{self._path.name}.part")
        self._num_rows = num_rows
        self._rows: np.memmap[Any, Any] | None = None
        if self._path.exists():
            raise InvalidRequest(f"the output {path!r} is there already; name a new file", field="output")
        try:
            self._beside.touch()
        except OSError as error:
            why = error.strerror or error
            raise InvalidRequest(f"cannot write the output {path!r}: {why}", field="output") from error

    def __enter__(self) -> Matrix:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None and self._rows is not None:
            self._rows.flush()
            self._beside.replace(self._path)
        else:
            self._beside.unlink(missing_ok=True)
        self._rows = None

    def write(self, index: int, result: Embedding) -> None:
        """Write the row of a vector."""
        if result.vector is None:
            return
        if self._rows is None:
            shape = (self._num_rows, len(result.vector))
            open_memmap: Any = np.lib.format.open_memmap
            self._rows = open_memmap(self._beside, mode="w+", dtype=np.float32, shape=shape)
            self._rows[:] = np.nan
        self._rows[index] = result.vector


def reason_of(result: Result) -> str:
    """One word for how it ended, as a run that resumes reads it."""
    if result.error is None:
        return "done"
    return "refused" if isinstance(result.error, InvalidRequest) else "internal_error"


def line_of(index: int, entry: Entry, result: Result) -> dict[str, Any]:
    """A line of JSON."""
    line: dict[str, Any] = {"index": index, "id": entry.id, "finish_reason": reason_of(result)}
    if isinstance(result, Embedding):
        line["embedding"] = None if result.vector is None else result.vector.tolist()
    elif isinstance(result, Score):
        line |= {"score": result.score, "logit": result.logit}
    else:
        line |= {"label": result.label, "probabilities": result.probabilities and dict(result.probabilities)}
    error = None if result.error is None else {"type": type(result.error).__name__, "message": str(result.error)}
    return line | {"num_tokens": result.num_tokens, "truncated": result.truncated, "error": error}


def print_results(answered: Sequence[tuple[Entry, Result]]) -> None:
    """A table for a person; documents are shown with the best first."""
    first = answered[0][1]
    if isinstance(first, Score):
        answered = sorted(answered, key=_rank)
    header = {Embedding: "VECTOR", Score: "SCORE", Classification: "LABEL"}[type(first)]
    rows = [[_said(result), _readable(entry.shown)] for entry, result in answered]
    print_table((header, "TEXT"), rows)
    sys.stdout.flush()


def _rank(answered: tuple[Entry, Result]) -> float:
    _, result = answered
    return -result.score if isinstance(result, Score) and result.score is not None else math.inf


def _said(result: Result) -> str:
    if result.error is not None:
        return reason_of(result)
    if isinstance(result, Embedding):
        assert result.vector is not None
        numbers = " ".join(f"{value:+.3f}" for value in result.vector[:SHOWN_NUMBERS].tolist())
        return f"{numbers} ... of {len(result.vector)}"
    if isinstance(result, Score):
        return f"{result.score:.4f}"
    assert result.label is not None and result.probabilities is not None
    return as_stdout_can(printable(f"{result.label} {result.probabilities[result.label]:.3f}"))


def _readable(text: str) -> str:
    return as_stdout_can(printable(short_repr(" ".join(text.split()))))
