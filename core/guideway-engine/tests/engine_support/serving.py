"""Real servers, and clients that write raw bytes."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

from guideway import Engine
from guideway_engine.server.app import make_app
from guideway_engine.server.limits import Limits
from guideway_engine.server.running import Server

__all__ = ["MODEL", "Raw", "post", "served"]

MODEL = "tiny"

GUARD = 30
"""Seconds after which a test fails instead of waiting longer."""


@contextmanager
def served(
    engine: Engine, limits: Limits | None = None, *, send_bytes: int | None = None, **options: Any
) -> Iterator[str]:
    """Serve in a thread, with options of `make_app`. Yield the address."""
    limits = limits or Limits()
    server = Server(make_app(engine, MODEL, limits, **options), limits)
    with socket.create_server(("127.0.0.1", 0)) as sock:
        if send_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_bytes)
        address = f"http://127.0.0.1:{sock.getsockname()[1]}"
        thread = Thread(target=server.run, args=([sock],))
        thread.start()
        try:
            yield address
        finally:
            server.should_exit = True
            thread.join()


def post(path: str, body: bytes, length: int | None = None, headers: bytes = b"") -> bytes:
    """Return the bytes of a request whose body has `length` bytes and begins with `body`."""
    size = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {size}\r\n"
    return head.encode() + headers + b"\r\n" + body


class Raw:
    """A client that writes bytes and reads responses."""

    def __init__(self, url: str, data: bytes = b"", receive_bytes: int | None = None) -> None:
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(GUARD)
        address = urlsplit(url)
        self.socket.connect((address.hostname, address.port))
        self._rest = b""
        self.write(data)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def write(self, data: bytes) -> None:
        """Send all of `data`."""
        self.socket.sendall(data)

    def response(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """Return the next response: status, headers, body."""
        while b"\r\n\r\n" not in self._rest:
            self._more()
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0")) if has_body else 0
        while len(self._rest) < size:
            self._more()
        body, self._rest = self._rest[:size], self._rest[size:]
        return int(first.split()[1]), headers, body

    def error(self) -> tuple[int, str]:
        """Return status and code of the next response, which must be an error."""
        status, _, body = self.response()
        return status, json.loads(body)["error"]["code"]

    def rest(self) -> bytes:
        """Wait until the server closes the connection. Return the bytes that it sent before."""
        try:
            while data := self.socket.recv(1 << 16):
                self._rest += data
        except ConnectionResetError:
            pass
        return self._rest

    def is_closed(self) -> bool:
        """Wait until the server closes the connection. Return whether it sent nothing more."""
        return not self.rest()

    def _more(self) -> None:
        data = self.socket.recv(1 << 16)
        assert data, f"closed after {self._rest!r}"
        self._rest += data
