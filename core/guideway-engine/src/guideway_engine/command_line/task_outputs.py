"""Output of ``guideway embed``, ``rerank`` and ``classify``: a matrix, JSON lines or a table."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

import numpy as np
from guideway.api.options import short_repr
from guideway.command_line.terminal import as_stdout_can, print_table
from guideway.errors import InvalidRequest, printable
from guideway.files import claim, disclaim, reason, replacing

from guideway_engine.command_line.lines import OutputLost
from guideway_engine.command_line.task_inputs import Entry
from guideway_engine.task_results import Classification, Embedding, Score

__all__ = ["Matrix", "Result", "line_of", "print_results", "reason_of"]

Result = Embedding | Score | Classification

SHOWN_NUMBERS = 4

FLOAT = np.dtype(np.float32)

ROWS_AT_ONCE = 256
"""Number of rows of NaN written at a time."""


class Matrix:
    """Writes vectors to the new file `path` in NumPy's format: float32 ``[num_rows, dimensions]``, with rows of NaN
    where there is no vector.

    The file is empty and locked until all rows are written. Raises `InvalidRequest` if it exists or cannot be created,
    and `OutputLost` if it cannot be written: all rows are written together with the first vector, so a full disk is
    found early. The file is not memory-mapped, because a full disk would then end the process with a signal.
    """

    def __init__(self, path: str, num_rows: int) -> None:
        self._path = path
        self._num_rows = num_rows
        self._stack = ExitStack()
        self._file: BinaryIO | None = None
        self._first_row = 0
        """Position in the file where the rows begin."""
        self._dimensions = 0
        try:
            self._stack.callback(disclaim, claim(path, new=True), path)
        except (OSError, ValueError) as error:  # ValueError: a path with a NUL
            why = reason(error)
            more = "; name a new file" if isinstance(error, FileExistsError) else ""
            raise InvalidRequest(f"cannot write the output {path!r}: {why}{more}", field="output") from error

    def __enter__(self) -> Matrix:
        return self

    def __exit__(self, *raised: Any) -> None:
        with self._report_lost():
            self._stack.__exit__(*raised)

    def write(self, index: int, result: Embedding) -> None:
        """Write the row of a vector. Raises `OutputLost` for one that has another shape."""
        if result.vector is None:
            return
        row = np.asarray(result.vector, FLOAT)
        with self._report_lost():
            if self._file is None and row.ndim == 1:
                self._file, self._dimensions = self._stack.enter_context(replacing(self._path)), len(row)
                self._first_row = self._write_rows_of_nan(self._file, len(row))
            if self._file is None or row.shape != (self._dimensions,):
                raise OutputLost(
                    f"result {index} is of the shape {row.shape}, and a row of {self._path!r} is one vector, as "
                    "long as the first; write JSON lines (a name that ends with .jsonl)"
                )
            self._file.seek(self._first_row + index * row.nbytes)
            self._file.write(row.tobytes())

    def _write_rows_of_nan(self, file: BinaryIO, dimensions: int) -> int:
        """Write the matrix without vectors, and return the position where its rows begin."""
        shape = (self._num_rows, dimensions)
        npy: Any = np.lib.format
        npy.write_array_header_1_0(file, {"descr": FLOAT.str, "fortran_order": False, "shape": shape})
        begin = file.tell()
        for first in range(0, self._num_rows, ROWS_AT_ONCE):
            number = min(ROWS_AT_ONCE, self._num_rows - first)
            file.write(np.full((number, dimensions), np.nan, FLOAT).tobytes())
        file.flush()
        return begin

    @contextmanager
    def _report_lost(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OutputLost(
                f"cannot write the output {self._path!r}: {reason(error)}; a matrix is whole or not "
                "there, and JSON lines (a name that ends with .jsonl) keep what is done"
            ) from error


def reason_of(result: Result) -> str:
    """Return one word for the outcome, which a resumed run reads."""
    if result.error is None:
        return "done"
    return "refused" if isinstance(result.error, InvalidRequest) else "internal_error"


def line_of(index: int, entry: Entry, result: Result) -> dict[str, Any]:
    """Return the object of a JSON line."""
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
    """Print a table; the best documents are first."""
    first = answered[0][1]
    if isinstance(first, Score):
        answered = sorted(answered, key=_rank)
    header = {Embedding: "VECTOR", Score: "SCORE", Classification: "LABEL"}[type(first)]
    rows = [[_describe(result), _readable(entry.shown)] for entry, result in answered]
    print_table((header, "TEXT"), rows)
    sys.stdout.flush()


def _rank(answered: tuple[Entry, Result]) -> float:
    _, result = answered
    return -result.score if isinstance(result, Score) and result.score is not None else math.inf


def _describe(result: Result) -> str:
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
