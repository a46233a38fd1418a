"""The messages between the serving process and a grammar host: frames over a socket.

A host is sent pickles, and answers in JSON, perhaps with one frame of bytes after it: the serving process reads no
pickle from a process that runs what clients send.
"""

from __future__ import annotations

import json
import mmap
import os
import pickle
import select
import socket
import struct
import tempfile
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from guideway.api.types import Constraint
from guideway.errors import (
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
from guideway.runtime.constraints.closing import Budget, Record
from numpy.typing import NDArray

__all__ = ["BROKEN", "Birth", "Frames", "Job", "SharedMasks", "error_of", "words_of"]

HEADER = struct.Struct("!Q")
MAX_FRAME = 1 << 28
"""Bytes of an answer: a host that says more is broken."""
MOST_AT_ONCE = 1 << 20
"""Bytes that are asked of a socket at a time."""
MAX_GRAMMAR = 64 << 20
"""Bytes of a grammar that is handed over; a larger one is compiled again."""
MAX_ROWS = 4096
"""The most rows of a host's block of masks. Memory of rows that are not used is never touched."""
IDLE = -1


@dataclass(frozen=True, slots=True)
class Birth:
    """The facts that a matcher is made from, at the first use in a host."""

    grammar: int
    stop_token_ids: frozenset[int]
    token_ids: tuple[int, ...]
    """Accepted before."""
    strategy: str = ""
    given: Constraint | bytes | None = None
    """The constraint or bytes that its strategy makes the grammar from; None: the host has it."""
    budget: Budget | None = None
    """Within which its output is to be complete; None: it need not."""
    end: Record | None = None
    """The knowledge of its end so far."""


class Job(NamedTuple):
    """One sequence's part of a command: what happened to it since the last one, and what it wants to know. A tuple,
    because there is one for each sequence and step, and it is made, pickled and read in a fraction of the time: it is
    sent as a plain one, without its class."""

    matcher: int
    birth: Birth | None
    """None: the host has it."""
    rollback: int
    accept: tuple[int, ...]
    draft_token_ids: tuple[int, ...] = ()
    first_row: int = 0


class Frames:
    """Frames of bytes, each after its length. Raises EOFError where the other end is gone."""

    def __init__(self, sock: socket.socket, *, most: int = MAX_FRAME) -> None:
        self.socket = sock
        self._most = most

    def send(self, value: Any) -> None:
        """Send a value of ours, pickled."""
        self.send_bytes(pickle.dumps(value, protocol=5))

    def receive(self) -> Any:
        """Receive what `send` sent. Of our own process only."""
        return pickle.loads(self.receive_bytes())

    def answer(self, value: Any) -> None:
        """Send JSON."""
        self.send_bytes(json.dumps(value, separators=(",", ":")).encode())

    def receive_answer(self) -> Any:
        """Receive what `answer` sent."""
        return json.loads(self.receive_bytes())

    def send_bytes(self, data: bytes) -> None:
        try:
            self.socket.sendall(HEADER.pack(len(data)) + data)
        except OSError as error:
            raise EOFError(str(error)) from error

    def receive_bytes(self) -> bytes:
        (size,) = HEADER.unpack(self.receive_exactly(HEADER.size))
        if size > self._most:
            raise EOFError(f"a frame of {size} bytes")
        return self.receive_exactly(size)

    def has_news(self) -> bool:
        """Return whether there is something to receive, or the other end is gone."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.socket.close()

    def receive_exactly(self, size: int) -> bytes:
        """Receive so many bytes, which are no frame."""
        try:
            data = self.socket.recv(min(size, MOST_AT_ONCE))
            if len(data) == size:  # as nearly all are
                return data
            whole = bytearray(data)
            while data and len(whole) < size:
                data = self.socket.recv(min(size - len(whole), MOST_AT_ONCE))
                whole += data
        except OSError as error:
            raise EOFError(str(error)) from error
        if len(whole) < size:
            raise EOFError("the other end is gone")
        return bytes(whole)


class SharedMasks:
    """Memory of the serving process and one host: rows of masks between guards, and what the host is working on."""

    def __init__(self, words: int, descriptor: int | None = None) -> None:
        size = mmap.PAGESIZE + (MAX_ROWS + 2) * words * 4
        self.descriptor = _anonymous_file(size) if descriptor is None else descriptor
        self._memory = mmap.mmap(self.descriptor, size)
        self._work: NDArray[np.int64] = np.frombuffer(self._memory, dtype=np.int64, count=2)
        rows = np.frombuffer(self._memory, dtype=np.int32, offset=mmap.PAGESIZE)
        self.rows: NDArray[np.int32] = rows.reshape(MAX_ROWS + 2, words)
        self.working_on = IDLE
        self.is_closing = False

    @property
    def working_on(self) -> int:
        """The matcher in work; `IDLE` between jobs and in work for several at once."""
        return int(self._work[0])

    @working_on.setter
    def working_on(self, matcher: int) -> None:
        self._work[0] = matcher

    @property
    def is_closing(self) -> bool:
        """True if it looks for the end of an output."""
        return bool(self._work[1])

    @is_closing.setter
    def is_closing(self, value: bool) -> None:
        self._work[1] = value


def words_of(error: BaseException) -> dict[str, Any]:
    """An error for `error_of` in another process."""
    kind = next((cls.__name__ for cls in type(error).__mro__ if cls in PASSING), "")
    remote = RemoteError.of(error)
    found = {name: str(getattr(error, name, "")) for name in ("feature", "field")}
    return {"kind": kind, "type": remote.type_name, "text": str(error if kind else remote), **found}


def error_of(words: dict[str, Any]) -> GuidewayError:
    """The error that `words_of` described: of the types a plugin may raise, or a `RemoteError`."""
    cls = next((known for known in PASSING if known.__name__ == words["kind"]), None)
    if cls is None:
        return RemoteError(words["text"], type_name=words["type"])
    if cls is UnsupportedGrammar:
        return UnsupportedGrammar(words["text"], feature=words["feature"], field=words["field"])
    if issubclass(cls, InvalidRequest | InvalidConfiguration):
        return cls(words["text"], field=words["field"])
    return cls(words["text"])


BROKEN = (EOFError, KeyError, TypeError, ValueError)
"""The errors that reading an answer raises, where the other end is gone or no answer is one."""

PASSING: tuple[type[GuidewayError], ...] = (
    DeadEnd,
    InvalidConfiguration,
    InvalidGrammar,
    InvalidRequest,
    LimitExceeded,
    UnsupportedCapability,
    UnsupportedGrammar,
)
"""The errors that a plugin may raise; of a class that derives from one of them, the nearest."""


def _anonymous_file(size: int) -> int:
    """A descriptor of memory that is gone with the last process that has it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("guideway-masks", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
