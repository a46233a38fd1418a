"""Strict HTTP/1 parsing: h11 without the forms that another server might read as different requests."""

from __future__ import annotations

import re
from typing import Any

import h11

__all__ = ["MAX_HEAD_BYTES", "StrictConnection"]

MAX_HEAD_BYTES = 16 << 10
"""Maximum number of bytes of a request line and headers, and of the line with a chunk's size and extension."""

MAX_HEADERS = 100
"""Maximum number of headers of one request, as in Apache."""

MAX_SMALL_CHUNKS = 1024
"""Number of chunks that a body may have regardless of their size. Parsing a chunk costs as much as parsing 10 KiB of a
body."""

SMALL_CHUNK = 64
"""Minimum average size in bytes of the chunks of a body with more chunks."""

END_OF_HEAD = re.compile(rb"\n\r?\n")
BARE_LF = re.compile(rb"(?<!\r)\n")
FOLDED = re.compile(rb"\n[ \t]")
CHUNK = re.compile(rb"(?:\r\n)?([0-9A-Fa-f]{1,20})(?:;[^\r\n]*)?[ \t]*\r\n")


class StrictConnection(h11.Connection):
    """The server's side of a connection. `refusal` is the reason why the client's bytes were refused."""

    def __init__(self) -> None:
        super().__init__(h11.SERVER, MAX_HEAD_BYTES)
        self.refusal = ""
        self._at_chunk = False
        self._num_chunks = 0
        self._num_bytes = 0

    def next_event(self) -> Any:
        """Return the next event of the request. Raises `h11.RemoteProtocolError`."""
        try:
            if self.their_state is h11.IDLE:
                _check_head(self.trailing_data[0])
            elif self._at_chunk and self._is_partial(self.trailing_data[0]):
                return h11.NEED_DATA
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._at_chunk = any(name == b"transfer-encoding" for name, _ in event.headers)
                self._num_chunks = self._num_bytes = 0
            elif isinstance(event, h11.Data):
                self._count(event)
            elif isinstance(event, h11.EndOfMessage):
                self._at_chunk = False
            return event
        except h11.RemoteProtocolError as error:
            self.refusal = str(error)[:200]
            raise

    def _is_partial(self, data: bytes) -> bool:
        """Return whether `data`, which follows a chunk or the headers, ends before the first byte of the next chunk, so
        that h11 never stops between a chunk's size and content. Raises `h11.RemoteProtocolError`."""
        found = CHUNK.match(data)
        if found is None:
            if data.find(b"\n", 2) >= 0 or len(data) > MAX_HEAD_BYTES:
                raise h11.RemoteProtocolError("malformed size of a chunk")
            return True
        is_last = int(found[1], 16) == 0
        following = data[found.end() : found.end() + 2]
        if is_last and not b"\r\n".startswith(following):
            raise h11.RemoteProtocolError("headers after the body are not supported")
        return len(following) < 1 + is_last

    def _count(self, event: h11.Data) -> None:
        if not (self._at_chunk or self._num_chunks):
            return
        self._at_chunk = event.chunk_end
        self._num_chunks += event.chunk_start
        self._num_bytes += len(event.data)
        if self._num_chunks > MAX_SMALL_CHUNKS and self._num_bytes < SMALL_CHUNK * self._num_chunks:
            raise h11.RemoteProtocolError(f"more than {MAX_SMALL_CHUNKS} chunks of less than {SMALL_CHUNK} bytes each")


def _check_head(data: bytes) -> None:
    """Refuse forms in a head, complete or not, that h11 accepts and other servers may read differently. Raises
    `h11.RemoteProtocolError`."""
    end = END_OF_HEAD.search(data)
    head = data if end is None else data[: end.end()]
    if BARE_LF.search(head):
        raise h11.RemoteProtocolError("a line ends without a carriage return")
    if FOLDED.search(head):
        raise h11.RemoteProtocolError("a header is folded over several lines")
    if len(head) > MAX_HEAD_BYTES:
        raise h11.RemoteProtocolError(f"the headers have more than {MAX_HEAD_BYTES} bytes")
    if end is None:
        return
    first, *lines = head.split(b"\r\n")[:-2]
    if len(lines) > MAX_HEADERS:
        raise h11.RemoteProtocolError(f"more than {MAX_HEADERS} headers")
    version = first.rpartition(b" ")[2]
    if version not in (b"HTTP/1.0", b"HTTP/1.1"):
        raise h11.RemoteProtocolError("only HTTP/1.0 and HTTP/1.1 are supported")
    headers = [(name.lower(), value) for name, _, value in (line.partition(b":") for line in lines)]
    lengths = [value for name, value in headers if name == b"content-length"]
    codings = [value for name, value in headers if name == b"transfer-encoding"]
    if len(lengths) + len(codings) > 1 or any(b"," in value for value in lengths):
        raise h11.RemoteProtocolError("the length of the body is given more than once")
    if codings and version == b"HTTP/1.0":
        raise h11.RemoteProtocolError("HTTP/1.0 has no Transfer-Encoding")
