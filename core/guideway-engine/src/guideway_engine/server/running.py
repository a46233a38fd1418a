"""Running a server until it is asked to stop, then finishing requests in progress."""

from __future__ import annotations

import asyncio
import functools
import logging
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import cast

import uvicorn
from fastapi import FastAPI
from guideway.errors import InvalidConfiguration

from guideway_engine.server.connections import BoundedProtocol, Connections
from guideway_engine.server.limits import Limits

__all__ = ["Server", "allow_connections", "listen", "run"]

BACKLOG = 128
"""Connections that the operating system queues until they are accepted. As many may be accepted at once before the
oldest ones are closed."""

OTHER_FILES = 256
"""Number of files that the process may need for everything else."""


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket, which does not listen before `run`. Raises `InvalidConfiguration`."""
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


class Server(uvicorn.Server):
    """A server of `app` whose connections have deadlines."""

    def __init__(
        self, app: FastAPI, limits: Limits, grace: int = 30, on_ready: Callable[[str], None] = lambda _: None
    ) -> None:
        protocol = functools.partial(BoundedProtocol, all_connections=Connections(limits))
        super().__init__(
            uvicorn.Config(
                app,
                loop="asyncio",
                http=cast("type[asyncio.Protocol]", protocol),
                ws="none",
                lifespan="off",
                log_config=None,
                log_level=logging.ERROR,  # lower levels would let any client write to the log
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=cast("int", limits.keep_alive_timeout),
                timeout_graceful_shutdown=grace,
            )
        )
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to serve, and call `on_ready` with the address."""
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            self._on_ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")


def run(app: FastAPI, sock: socket.socket, limits: Limits, grace: int, on_ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish requests in progress for at most `grace` seconds. `on_ready` is called
    with the address once requests are accepted."""
    with suppress(KeyboardInterrupt):  # uvicorn raises the signal again after shutdown
        Server(app, limits, grace, on_ready).run(sockets=[sock])


def allow_connections(limits: Limits) -> None:
    """Raise the process's limit of open files to the number that the connections need. Raises `InvalidConfiguration` if
    the operating system refuses."""
    needed = limits.max_connections + BACKLOG + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        except (ValueError, OSError) as error:
            raise InvalidConfiguration(
                f"{limits.max_connections} connections need {needed} open files, and this process may have {hard}; "
                "raise that (ulimit -n), or lower --max-connections and --max-requests",
                field="max_connections",
            ) from error
