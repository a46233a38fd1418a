"""A server that runs until it is asked to stop, and then ends what it has begun."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn
from fastapi import FastAPI
from guideway.errors import InvalidConfiguration

__all__ = ["listen", "run"]


def listen(host: str, port: int) -> socket.socket:
    """A socket of this address, of which nobody knows before `run`. Raises `InvalidConfiguration`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidConfiguration(f"cannot serve at {host!r}: {error.strerror}", field="host") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except (OSError, OverflowError) as error:
        sock.close()
        raise InvalidConfiguration(
            f"cannot serve at {host} port {port}: {getattr(error, 'strerror', None) or error}; --host and --port name "
            "another place, --port 0 a free one",
            field="port",
        ) from error
    return sock


def run(app: FastAPI, sock: socket.socket, grace: int, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, and then what is under way for `grace` more seconds at most. `on_ready` is called
    with the address once requests are taken."""

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                host, port = sock.getsockname()[:2]
                on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")

    config = uvicorn.Config(
        app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=grace, server_header=False
    )
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again, once all has ended
        Server(config).run(sockets=[sock])
