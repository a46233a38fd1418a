"""Limits of the server: connections, requests, bytes, and the time for each part of a request."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from guideway.errors import InvalidConfiguration

__all__ = ["Limits"]


def _limit(default: float, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of memory, connections and time, whatever clients send. Raises `InvalidConfiguration`."""

    max_connections: int = _limit(2048, "open connections; above, the oldest that waits for its client is closed")
    max_requests: int = _limit(1024, "requests whose body is complete and that have no response yet; above: 429")
    max_body_bytes: int = _limit(32 << 20, "bytes of one body; above: 413")
    max_bytes: int = _limit(512 << 20, "bytes of all bodies in memory, and of all responses that clients do not read")
    head_timeout: float = _limit(10, "seconds from the connection, or the first byte, to the end of the headers")
    body_timeout: float = _limit(60, "seconds from the headers to the last byte of the body")
    write_timeout: float = _limit(60, "seconds until the client has read the response")
    keep_alive_timeout: float = _limit(5, "seconds that an idle connection stays open after a response")

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) <= 0:
                raise InvalidConfiguration(f"{each.name} must be positive", field=each.name)
        if self.max_connections <= self.max_requests:
            raise InvalidConfiguration(
                f"max_connections is {self.max_connections}, and must be more than max_requests ({self.max_requests}), "
                "so that a connection is left to answer that the server is busy",
                field="max_connections",
            )
