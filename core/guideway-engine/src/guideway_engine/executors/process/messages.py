"""The messages that go to workers and come back, as the parts of a block; arrays are parts of their own, without a
copy."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Sequence
from typing import Any

from guideway.errors import GuidewayError, RemoteError, contain

__all__ = ["pack", "pack_error", "unpack", "unpack_error"]


def pack(value: Any) -> list[memoryview]:
    """`value` as a pickle and the memory of its arrays. Raises what pickling raises."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return [memoryview(data), *(buffer.raw() for buffer in buffers)]


def unpack(parts: Sequence[memoryview]) -> Any:
    """Return what was packed; its arrays lie in the memory of `parts`."""
    return pickle.loads(parts[0], buffers=parts[1:])


def pack_error(error: BaseException) -> tuple[bytes | None, RemoteError]:
    """`error` for another process: its pickle, if that can be read again, and all that can be said in plain text."""
    if not isinstance(error, GuidewayError):  # those say all there is to know
        trace = "".join(traceback.format_exception(error)).rstrip()
        error.add_note(f"raised in the worker's process {os.getpid()}:\n{trace}")
    remote = RemoteError.of(error)
    if not isinstance(error, Exception):
        return None, remote  # a SystemExit is a worker's failure, not the wish to end its caller
    try:
        pickled = pickle.dumps(error)
        if type(pickle.loads(pickled)) is type(error):
            return pickled, remote
    except BaseException as unpicklable:  # whatever a stranger's class raises there
        contain(unpicklable)
    return None, remote


def unpack_error(pickled: bytes | None, remote: RemoteError) -> BaseException:
    """The exception itself, or what it said if it cannot be had here."""
    if pickled is None:
        return remote
    try:
        error: BaseException = pickle.loads(pickled)
    except BaseException as unreadable:
        contain(unreadable)
        return remote
    return error
