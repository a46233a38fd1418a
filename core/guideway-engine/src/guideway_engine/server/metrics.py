"""Metrics of the server, in the same registry as the library's."""

from __future__ import annotations

from prometheus_client import Counter

__all__ = ["ERRORS"]

ERRORS = Counter(
    "guideway_http_errors",
    "Error responses by their code, and connections that the server closed: malformed, head_timeout, body_timeout, "
    "write_timeout, evicted (to make room for another)",
    ["code"],
)
