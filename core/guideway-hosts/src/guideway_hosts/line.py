"""The sockets between the serving process, its fork server and its hosts."""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Callable
from typing import Any, TypeVar

from guideway_hosts.process import Process

__all__ = ["LOOKS_EVERY", "MAX_FRAME", "Line"]

T = TypeVar("T")
R = TypeVar("R")

HEADER = struct.Struct("!Q")
MAX_FRAME = 1 << 28
"""Most bytes of an answer. A larger answer means that the host is broken."""
MOST_AT_ONCE = 1 << 20
"""Most bytes to read from a socket at a time."""
LOOKS_EVERY = 0.02
"""Seconds between two calls of `Line.look`."""


class Line:
    """A socket over which frames of JSON or bytes are sent, each preceded by its length. Raises EOFError if the other
    end is closed.

    In the serving process, neither sending nor receiving outlasts the process at the other end: the socket alone would
    not show its end, since a process that it forked may keep the other end open.
    """

    def __init__(self, sock: socket.socket, process: Process | None = None, *, serves: bool = False) -> None:
        """`process` is the one at the other end, None if it is not known yet. With `serves` it is the serving process,
        which is trusted with frames of any size."""
        sock.setblocking(serves)
        self.socket = sock
        self.process = process
        self._most = 1 << 40 if serves else MAX_FRAME
        self.look: Callable[[], object] = lambda: None
        """Called every `LOOKS_EVERY` seconds of waiting. Its errors end the waiting."""

    def send(self, value: Any) -> None:
        """Send a value as JSON, None as an empty frame."""
        text = "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        self.send_bytes(text.encode("utf-8", "surrogatepass"))

    def receive(self) -> Any:
        """Receive a value that `send` sent."""
        data = self.receive_bytes()
        return json.loads(data.decode("utf-8", "surrogatepass")) if data else None

    def send_bytes(self, data: bytes) -> None:
        left = memoryview(HEADER.pack(len(data)) + data)
        while left:
            if (sent := self._try(self.socket.send, left)) is None:
                self.wait(select.POLLOUT)
            else:
                left = left[sent:]

    def receive_bytes(self) -> bytes:
        (size,) = HEADER.unpack(self.receive_exactly(HEADER.size))
        if size > self._most:
            raise EOFError(f"a frame of {size} bytes")
        return self.receive_exactly(size)

    def receive_exactly(self, size: int) -> bytes:
        """Receive `size` bytes without a length before them."""
        data = bytearray()
        while len(data) < size:
            if (more := self._try(self.socket.recv, min(size - len(data), MOST_AT_ONCE))) is None:
                self.wait()
            elif not more:
                raise EOFError("the other end is closed")
            else:
                data += more
        return bytes(data)

    def has_news(self) -> bool:
        """Return whether there are bytes to receive, or the other end is closed."""
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return bool(poll.poll(0))

    def is_ready(self, seconds: float, event: int = select.POLLIN) -> bool:
        """Return whether something arrives within `seconds`; with POLLOUT, whether something can be sent. Raises
        EOFError if the process has ended, and nothing arrived before."""
        poll = select.poll()
        poll.register(self.socket, event)
        if self.process is not None and self.process.handle is not None:
            poll.register(self.process.handle, select.POLLIN)
        found = dict(poll.poll(seconds * 1000))
        if found and self.socket.fileno() not in found:
            raise EOFError("it has ended")
        return bool(found)

    def wait(self, event: int = select.POLLIN) -> None:
        """Wait until `is_ready`. Raises the errors of `look`, too."""
        while not self.is_ready(LOOKS_EVERY, event):
            self.look()

    def close(self) -> None:
        self.socket.close()

    @staticmethod
    def _try(transfer: Callable[[T], R], given: T) -> R | None:
        """Return the result of a transfer, or None if it would wait."""
        try:
            return transfer(given)
        except BlockingIOError:
            return None
        except OSError as error:
            raise EOFError(str(error)) from error
