"""The messages between the serving process and its hosts: frames of JSON over a socket.

A command is a list: its name, and its arguments as `encode` returns them. An answer has a value or an error, and may be
followed by one frame of bytes. In the usual step both are empty frames: the command to do the last step again, for the
tokens in the shared memory, and the answer that there is nothing to tell. If sequences have left or joined, the command
names these.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from guideway.api.steps import Fault, Payload
from guideway.errors import (
    ConformanceError,
    DeadEnd,
    GuidewayError,
    InvalidConfiguration,
    InvalidGrammar,
    InvalidRequest,
    LimitExceeded,
    RemoteError,
    UnsupportedCapability,
    UnsupportedGrammar,
)
from numpy.typing import NDArray

from guideway_hosts.line import MAX_FRAME

__all__ = [
    "BROKEN",
    "Birth",
    "Job",
    "SharedMasks",
    "describe_error",
    "read_error",
    "read_payload",
    "write_payload",
]

MAX_GRAMMAR = 64 << 20
"""Most bytes of a grammar that is sent. A larger one is compiled again instead."""
MAX_ROWS = 4096
"""Rows of a host's block of masks. Unused rows take no memory, because their pages are never touched."""
IDLE = -1


class Birth(NamedTuple):
    """The source and history of an object, sent with its first job in a host."""

    source: int
    """The number of its grammar or compiled value; -1: it has none."""
    given: Any
    """The encoded arguments of `Plugins.make` for the source; None: the host has the source."""
    history: Sequence[Any]
    """The rest that the object is made from, encoded."""
    num_tokens: int
    """The number of tokens in its history."""


class Job(NamedTuple):
    """One object's part of a command: the tokens accepted since the last command, and the rows that it needs."""

    number: int
    birth: Birth | None
    """None: the host has the object."""
    accept: Sequence[int] = ()
    draft_token_ids: Sequence[int] = ()
    num_forced: int = 0
    """Most forced tokens that the host searches as the job's drafts; 0: it searches none."""

    @classmethod
    def read(cls, given: Sequence[Any]) -> Job:
        """Return a job after a round trip through JSON."""
        number, birth, accept, drafts, num_forced = given
        return cls(number, birth and Birth(*birth), tuple(accept), tuple(drafts), num_forced)


class SharedMasks:
    """Memory shared by the serving process and one host: rows of masks between two guard rows, a token for each object
    of a command, the number of the object that the host is working on, and its threads."""

    def __init__(self, words: int, descriptor: int | None = None) -> None:
        start = mmap.PAGESIZE + MAX_ROWS * 4
        size = start + (MAX_ROWS + 2) * words * 4
        self.descriptor = _anonymous_file(size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self.descriptor, size)
        self._work: NDArray[np.int64] = np.frombuffer(self._memory, dtype=np.int64, count=2)
        self.threads: NDArray[np.int64] = np.frombuffer(self._memory, dtype=np.int64, count=2, offset=16)
        """The kernel's numbers of the host's threads: for commands, and the second one."""
        rows = np.frombuffer(self._memory, dtype=np.int32, offset=start)
        self.rows: NDArray[np.int32] = rows.reshape(MAX_ROWS + 2, words)
        self.working_on = IDLE
        self.is_closing = False

    def write_tokens(self, token_ids: NDArray[np.integer[Any]]) -> None:
        """Write one token for each object of a command."""
        self._memory[mmap.PAGESIZE : mmap.PAGESIZE + 4 * len(token_ids)] = token_ids.astype(np.int32).tobytes()

    def read_tokens(self, count: int) -> NDArray[np.int32]:
        return np.frombuffer(self._memory, np.int32, count, mmap.PAGESIZE).copy()

    @property
    def working_on(self) -> int:
        """The number of the object that the host is working on; `IDLE` between jobs and during a batch."""
        return int(self._work[0])

    @working_on.setter
    def working_on(self, number: int) -> None:
        self._work[0] = number

    @property
    def is_closing(self) -> bool:
        """True while the host searches for a completion of an output."""
        return bool(self._work[1])

    @is_closing.setter
    def is_closing(self, value: bool) -> None:
        self._work[1] = value


def describe_error(error: BaseException) -> dict[str, Any]:
    """Return an error as JSON, for `read_error` in another process."""
    kind = next((cls.__name__ for cls in type(error).__mro__ if cls in PASSING), "")
    remote = RemoteError.of(error)
    found = {name: str(getattr(error, name, "")) for name in ("feature", "field")}
    return {"kind": kind, "type": remote.type_name, "text": str(error if kind else remote), **found}


def read_error(words: dict[str, Any]) -> GuidewayError:
    """Return the error that `describe_error` described: of a type in `PASSING`, or a `RemoteError`."""
    cls = next((known for known in PASSING if known.__name__ == words["kind"]), None)
    if cls is None:
        return RemoteError(words["text"], type_name=words["type"])
    if cls is UnsupportedGrammar:
        return UnsupportedGrammar(words["text"], feature=words["feature"], field=words["field"])
    if issubclass(cls, InvalidRequest | InvalidConfiguration):
        return cls(words["text"], field=words["field"])
    return cls(words["text"])


BROKEN = (EOFError, KeyError, TypeError, ValueError)
"""The errors that reading an answer raises if the other end is closed or the answer is malformed."""

PASSING: tuple[type[GuidewayError], ...] = (
    DeadEnd,
    InvalidConfiguration,
    InvalidGrammar,
    InvalidRequest,
    LimitExceeded,
    UnsupportedCapability,
    UnsupportedGrammar,
)
"""The error types that a plugin may raise. An error of a subclass is sent as its nearest base class in this list."""


def _anonymous_file(size: int) -> int:
    """Return a descriptor of memory that is freed when its last process ends."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("guideway-masks", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def write_payload(payload: Payload) -> tuple[dict[str, Any], bytes]:
    """Return a checked payload as JSON, and the bytes of its arrays."""
    data: list[bytes] = []

    def describe(name: str, array: NDArray[Any]) -> list[Any]:
        if np.dtype(array.dtype.str) != array.dtype:
            raise ConformanceError(
                f"payload array {name!r} is of type {array.dtype}, which cannot leave a modifier host; use one of "
                "NumPy's own types, or set modifier_host to 'inline'"
            )
        data.append(array.tobytes())
        return [array.dtype.str, list(array.shape)]

    words = {
        "rows": describe("rows", payload.rows),
        "arrays": {name: describe(name, array) for name, array in payload.arrays.items()},
        "shared": {name: describe(name, array) for name, array in payload.shared.items()},
        "faults": [[i, fault.plugin, fault.phase, fault.message] for i, fault in payload.faults.items()],
    }
    found = b"".join(data)
    if len(found) > MAX_FRAME:
        raise ConformanceError(f"a payload has {len(found)} bytes; a modifier host can send at most {MAX_FRAME}")
    return words, found


def read_payload(words: Mapping[str, Any], data: bytes) -> Payload:
    """Return the payload that `write_payload` wrote, with arrays of its own. Raises KeyError, TypeError or ValueError
    if it is malformed."""
    at = 0

    def read(described: Sequence[Any]) -> NDArray[Any]:
        nonlocal at
        dtype, shape = np.dtype(str(described[0])), tuple(int(length) for length in described[1])
        size = dtype.itemsize * math.prod(shape)
        if dtype.hasobject or min(shape, default=0) < 0 or at + size > len(data):
            raise ValueError(f"no array {described!r} in {len(data)} bytes")
        array = np.frombuffer(data, dtype, math.prod(shape), at) if size else np.empty(shape, dtype)
        at += size
        return array.reshape(shape).copy()

    rows = read(words["rows"])
    arrays = {str(name): read(described) for name, described in words["arrays"].items()}
    shared = {str(name): read(described) for name, described in words["shared"].items()}
    faults = {int(i): Fault(str(plugin), str(phase), str(message)) for i, plugin, phase, message in words["faults"]}
    return Payload(rows, arrays, shared, faults)
