"""Calls of functions in a forked process, which has all of this one's state and leaves nothing behind."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import TypeVar

__all__ = ["apart"]

T = TypeVar("T")


def apart(function: Callable[[], T]) -> T:
    """Return the result of `function` in a copy of this process. Raises `AssertionError` with the error that it raises
    there. The process must have one thread."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(receiving)
            try:
                told = (True, function())
            except BaseException as error:
                told = (False, str(error) or repr(error))  # type: ignore[assignment]
            with os.fdopen(sending, "wb") as out:
                pickle.dump(told, out)
            code = 0
        finally:
            os._exit(code)
    os.close(sending)
    with os.fdopen(receiving, "rb") as came:
        content = came.read()
    os.waitpid(child, 0)
    if not content:
        raise AssertionError("a copy of its process ended")
    good, found = pickle.loads(content)
    if not good:
        raise AssertionError(found)
    return found  # type: ignore[no-any-return]
