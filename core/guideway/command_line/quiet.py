"""Hide warnings and other diagnostics of libraries from the users of a program."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["quiet_libraries"]


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress Python's warnings, and the standard error of native code, in this process and in those started in the
    block; Python code can still write to `sys.stderr`. No effect if warnings are enabled (``python -W``,
    PYTHONWARNINGS, PYTHONDEVMODE) or if `sys.stderr` is replaced."""
    ours = sys.__stderr__
    if sys.warnoptions or sys.flags.dev_mode or ours is None or sys.stderr is not ours or ours.fileno() != 2:
        yield
        return
    ours.flush()
    kept = os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    errors: TextIO = open(kept, "w", buffering=1, encoding=ours.encoding, errors=ours.errors)  # noqa: SIM115, PTH123
    sys.stderr = errors
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.stderr = ours
        os.dup2(kept, 2)
        errors.close()
