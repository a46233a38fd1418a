"""Packing of messages between workers and their parent into the parts of a block; arrays are separate parts and are not
copied."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Sequence
from typing import Any

from guideway.errors import GuidewayError, RemoteError, contain

__all__ = ["pack", "pack_error", "unpack", "unpack_error"]


def pack(value: Any) -> list[memoryview]:
    """Return `value` as a pickle and the memory of its arrays. Raises the errors of pickling."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return [memoryview(data), *(buffer.raw() for buffer in buffers)]


def unpack(parts: Sequence[memoryview]) -> Any:
    """Return the packed value; its arrays use the memory of `parts`."""
    return pickle.loads(parts[0], buffers=parts[1:])


def pack_error(error: BaseException) -> tuple[bytes | None, RemoteError]:
    """Return `error` for another process: its pickle, or None if it cannot be unpickled, and its text."""
    if not isinstance(error, GuidewayError):  # these need no traceback
        trace = "".join(traceback.format_exception(error)).rstrip()
        error.add_note(f"raised in the worker's process {os.getpid()}:\n{trace}")
    remote = RemoteError.of(error)
    if not isinstance(error, Exception):
        return None, remote  # a SystemExit is an error of the worker and must not end the caller
    try:
        pickled = pickle.dumps(error)
        if type(pickle.loads(pickled)) is type(error):
            return pickled, remote
    except BaseException as unpicklable:  # any error of a foreign class
        contain(unpicklable)
    return None, remote


def unpack_error(pickled: bytes | None, remote: RemoteError) -> BaseException:
    """Return the exception itself, or `remote` if it cannot be unpickled here."""
    if pickled is None:
        return remote
    try:
        error: BaseException = pickle.loads(pickled)
    except BaseException as unreadable:
        contain(unreadable)
        return remote
    return error
