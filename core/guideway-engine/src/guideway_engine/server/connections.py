"""Connections with deadlines: uvicorn's protocol for h11 has only one for idle connections."""

from __future__ import annotations

import asyncio
import json
from enum import StrEnum
from http import HTTPStatus
from typing import Any

import h11
from guideway.errors import GuidewayError
from uvicorn.protocols.http.h11_impl import H11Protocol

from guideway_engine.server.errors import Busy, MalformedHttp, RequestTimeout, content_of, status_of
from guideway_engine.server.framing import StrictConnection
from guideway_engine.server.limits import Limits
from guideway_engine.server.metrics import ERRORS

__all__ = ["BoundedProtocol", "Connections"]

READ_BYTES = 16 << 10
"""Maximum number of bytes read from a connection at a time. Parsing them blocks all other connections."""


class Phase(StrEnum):
    """Phase of a request on a connection. In all phases but `WORK` the server waits for the client."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    WORK = "work"
    WRITE = "write"


class Connections:
    """Open connections of one server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.buffer = bytearray(READ_BYTES)
        self._open: set[BoundedProtocol] = set()
        self._waiting: dict[BoundedProtocol, None] = {}
        """Connections that wait for their clients, the longest waiting first."""

    def enter(self, connection: BoundedProtocol, phase: Phase) -> None:
        """Record that a connection has entered a phase. Close others if there are too many, or if unread responses take
        too much memory."""
        is_new = connection not in self._open
        self._open.add(connection)
        self._waiting.pop(connection, None)
        if phase is not Phase.WORK:
            self._waiting[connection] = None
        if is_new and len(self._open) > self.limits.max_connections:
            next(iter(self._waiting)).evict()
        if phase is Phase.WRITE:
            self._bound_unread()

    def leave(self, connection: BoundedProtocol) -> None:
        """Remove a closed connection."""
        self._open.discard(connection)
        self._waiting.pop(connection, None)

    def _bound_unread(self) -> None:
        writing = [connection for connection in self._waiting if connection.phase is Phase.WRITE]
        sizes = {connection: connection.transport.get_write_buffer_size() for connection in writing}
        excess = sum(sizes.values()) - self.limits.max_bytes
        for connection, size in sizes.items():
            if excess <= 0:
                return
            connection.evict()
            excess -= size


class BoundedProtocol(H11Protocol, asyncio.BufferedProtocol):
    """One connection. A client that is too slow to send its headers or body, or to read the response, gets an error if
    possible and is disconnected."""

    def __init__(self, *args: Any, all_connections: Connections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.conn: StrictConnection = StrictConnection()
        self.phase: Phase | None = None
        self._all = all_connections
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start waiting for the first request."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # pauses writing until the client has read everything
        self._follow()

    def connection_lost(self, exc: Exception | None) -> None:
        """Remove the connection."""
        super().connection_lost(exc)
        self._forget()

    def get_buffer(self, sizehint: int) -> bytearray:
        """Return the buffer to read into. All connections share it, because data is copied at once."""
        return self._all.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Parse the data in the buffer."""
        self.data_received(bytes(memoryview(self._all.buffer)[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Parse `data`."""
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to read the response."""
        super().on_response_complete()
        self._follow()

    def pause_writing(self) -> None:
        """Wait for the client to read the response."""
        super().pause_writing()
        self._follow()

    def resume_writing(self) -> None:
        """Continue after the client has read everything."""
        super().resume_writing()
        self._follow()

    def shutdown(self) -> None:
        """Close the connection once no request on it is being read or answered."""
        if not self.transport.is_closing():
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        """Refuse a request that is not HTTP."""
        self._refuse(MalformedHttp(f"the request is refused: {self.conn.refusal or msg}", field="http"), "malformed")

    def evict(self) -> None:
        """Close the connection to make room for others."""
        if self.phase in (Phase.HEAD, Phase.BODY):
            self._refuse(Busy("there are too many connections, and this one took longest; try again"), "evicted")
        else:
            ERRORS.labels("evicted").inc()
            self.transport.abort()
            self._forget()

    def _follow(self) -> None:
        """Set the deadline when the connection enters another phase."""
        if self.flow.write_paused or self.transport.is_closing():
            phase = Phase.WRITE
        elif self.conn.their_state is h11.SEND_BODY:
            phase = Phase.BODY
        elif self.cycle is not None and not self.cycle.response_complete:
            phase = Phase.WORK
        elif self.cycle is not None and not self.conn.trailing_data[0]:
            phase = Phase.IDLE
        else:
            phase = Phase.HEAD
        if phase is self.phase:
            return
        self._forget_deadline()
        self.phase, limits = phase, self._all.limits
        seconds = {
            Phase.HEAD: limits.head_timeout,
            Phase.BODY: limits.body_timeout,
            Phase.WRITE: limits.write_timeout,
        }.get(phase)
        if seconds is not None:  # uvicorn itself closes idle connections
            self._deadline = self.loop.call_later(seconds, self._expired)
        self._all.enter(self, phase)

    def _forget_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        self._deadline = None
        if self.phase is Phase.WRITE:
            ERRORS.labels("write_timeout").inc()
            self.transport.abort()
        else:
            what = "headers" if self.phase is Phase.HEAD else "body"
            error = RequestTimeout(f"the {what} of the request did not arrive in time; try again")
            self._refuse(error, f"{self.phase}_timeout")

    def _forget(self) -> None:
        self._forget_deadline()
        self._all.leave(self)

    def _refuse(self, error: GuidewayError, code: str) -> None:
        """Answer with `error` if nothing was sent yet, and close."""
        ERRORS.labels(code).inc()
        if self.cycle is not None:  # tell the application that the client is gone
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        has_begun = self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]
        if has_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = HTTPStatus(status_of(error))
            body = json.dumps({"error": content_of(error, "")}).encode()
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()
        self._follow()
