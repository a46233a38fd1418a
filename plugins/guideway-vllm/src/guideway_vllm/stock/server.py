"""The vLLM objects that stock backends are built with.

A strategy gets a vocabulary and options, but vLLM's backends also need its configuration and tokenizer. A context
variable provides them while the guest builds its strategies, so that two engines in one process, or two threads, do not
mix them up.
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
    """The objects that vLLM passes to its backends."""

    vllm_config: Any
    tokenizer: Any


_SERVER: ContextVar[Server | None] = ContextVar("guideway_vllm_server", default=None)


@contextmanager
def serving(server: Server) -> Iterator[None]:
    """Provide `server` to strategies that are built inside this context."""
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
    """Return the reason why no stock backend can be built now; None inside `serving`."""
    return OUTSIDE if _SERVER.get() is None else None


def server_for(plugin: str) -> Server:
    """Return the server of the surrounding `serving`. Raises `PluginUnavailable`, naming `plugin`, outside vLLM."""
    server = _SERVER.get()
    if server is None:
        raise PluginUnavailable(f"{plugin} cannot run here: {OUTSIDE}", plugin=plugin)
    return server
