"""The vLLM a stock backend is built for.

A strategy is given a vocabulary and options, and nothing of the host it runs in. vLLM's backends want more: its
configuration and its tokenizer. A context variable hands them over while the guest builds its strategies, so that two
engines in one process, or two threads that each build one, never see each other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from guideway.api import PluginUnavailable

__all__ = ["Server", "missing_server", "server_for", "serving"]


@dataclass(frozen=True, slots=True)
class Server:
    """The objects that vLLM gives its backends."""

    vllm_config: Any
    tokenizer: Any


_SERVER: ContextVar[Server | None] = ContextVar("guideway_vllm_server", default=None)


@contextmanager
def serving(server: Server) -> Iterator[None]:
    """Strategies built inside are for `server`."""
    token = _SERVER.set(server)
    try:
        yield
    finally:
        _SERVER.reset(token)


OUTSIDE = (
    "it is one of vLLM's own backends, and needs vLLM's configuration and tokenizer: it runs inside vLLM only; "
    "elsewhere use the plugin for its library (guideway-xgrammar, -llguidance, -outlines, -lmfe)"
)


def missing_server() -> str | None:
    """Why no stock backend can be built now; None while strategies are being built for a server."""
    return OUTSIDE if _SERVER.get() is None else None


def server_for(plugin: str) -> Server:
    """The server strategies are being built for. Raises `PluginUnavailable`, naming `plugin`, outside vLLM."""
    server = _SERVER.get()
    if server is None:
        raise PluginUnavailable(f"{plugin} cannot run here: {OUTSIDE}", plugin=plugin)
    return server
