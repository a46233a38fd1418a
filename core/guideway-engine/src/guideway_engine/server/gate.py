"""Checks of every request before routing: its host and its API key."""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING

from guideway.errors import GuidewayError, InvalidConfiguration, InvalidRequest
from starlette.datastructures import Headers

from guideway_engine.server.errors import InvalidApiKey

if TYPE_CHECKING:
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["ANY_HOST", "OPEN_PATHS", "Gate", "check_api_key", "check_host_name", "default_hosts"]

ANY_HOST = "*"

OPEN_PATHS = frozenset({"/health"})
"""Paths that need no API key."""

HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]*)?", re.IGNORECASE)


def default_hosts(host: str, address: str) -> tuple[str, ...] | None:
    """Return the names by which clients on this machine reach a server on a loopback `address`, given as `host`. None
    if other machines can reach it, because their names for it are unknown."""
    if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
        return None
    return ("localhost", "127.0.0.1", "::1", host, address)


def check_host_name(name: str) -> None:
    """Raise `InvalidConfiguration` unless `name` is valid in a Host header, without a port, or is `ANY_HOST`."""
    if name == ANY_HOST or re.fullmatch("[A-Za-z0-9._-]+", name):
        return
    try:
        ipaddress.IPv6Address(name.strip("[]"))
    except ValueError:
        raise InvalidConfiguration(
            f"--allowed-hosts takes names and addresses without a port, or {ANY_HOST} for any, not {name!r}",
            field="allowed_hosts",
        ) from None


def check_api_key(key: str) -> None:
    """Raise `InvalidConfiguration` unless a client can send `key`."""
    if not re.fullmatch(r"[!-~]+", key):
        raise InvalidConfiguration(
            "--api-key (or GUIDEWAY_API_KEY) takes printable ASCII characters without spaces, at least one",
            field="api_key",
        )


class Gate:
    """Outermost middleware of the application. `on_error` creates the response to a refused request.

    The body of a request is read to its end before any response begins: a client that is still sending would not read
    the response, and closing the connection would discard it.
    """

    def __init__(
        self,
        app: ASGIApp,
        hosts: Collection[str],
        keys: Sequence[str],
        on_error: Callable[[GuidewayError], Response],
    ) -> None:
        self._app = app
        self._hosts = frozenset(name.lower().strip("[]") for name in hosts)
        self._keys = [key.encode() for key in keys]
        self._on_error = on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        expects = headers.get("expect", "").lower() == "100-continue"
        has_begun = has_ended = False

        async def received() -> Message:
            nonlocal has_begun, has_ended
            has_begun = True
            message = await receive()
            has_ended = has_ended or not message.get("more_body", False)
            return message

        async def sent(message: Message) -> None:
            nonlocal has_ended
            # the client sends no body without "100 Continue"
            if message["type"] == "http.response.start" and not has_begun and expects:
                has_ended = True
                message = {**message, "headers": [*message["headers"], (b"connection", b"close")]}
            while not has_ended:
                await received()
            await send(message)

        answer: Callable[[Scope, Receive, Send], Awaitable[None]] = self._app
        try:
            self._check_host(headers, scope["http_version"])
            if self._keys and scope["path"] not in OPEN_PATHS:
                self._check_key(headers)
        except GuidewayError as error:
            answer = self._on_error(error)
        await answer(scope, received, sent)

    def _check_host(self, headers: Headers, version: str) -> None:
        given = headers.get("host")
        if ANY_HOST in self._hosts or (given is None and version == "1.0"):  # browsers always send it
            return
        found = HOST.fullmatch(given or "")
        if found is None or found[1].lower().strip("[]") not in self._hosts:
            raise InvalidRequest(
                f"this server is not {given!r}; its operator names the hosts that it serves with --allowed-hosts",
                field="host",
            )

    def _check_key(self, headers: Headers) -> None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip().encode("latin-1")
        # compare with all keys, so that the time does not reveal which one matches
        matches = [hmac.compare_digest(key, known) for known in self._keys]
        if scheme.lower() != "bearer" or not any(matches):
            raise InvalidApiKey("the API key is missing or wrong; send Authorization: Bearer KEY", field="api_key")
