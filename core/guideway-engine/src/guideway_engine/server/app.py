"""The HTTP application: its routes, and limits on requests in memory."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from guideway.errors import GuidewayError, InvalidRequest
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from guideway_engine.engine import Engine
from guideway_engine.errors import EngineClosed
from guideway_engine.server.answering import ROUTES, Call, Route
from guideway_engine.server.bodies import read_body
from guideway_engine.server.errors import (
    Busy,
    ModelNotFound,
    NoRoute,
    TooLarge,
    UnknownEncoding,
    UnsupportedMediaType,
    code_of,
    content_of,
    status_of,
)
from guideway_engine.server.gate import ANY_HOST, Gate
from guideway_engine.server.limits import Limits
from guideway_engine.server.metrics import ERRORS
from guideway_engine.server.turns import Turn, Turns

__all__ = ["make_app"]

LARGE_BODY = 64 << 10
"""Bytes of a body above which bodies are parsed one at a time, so that large ones do not block all others."""

NUM_CALLS = 64
"""Maximum number of calls that wait for results at once; their inputs are batched together."""

LEFT = 499
"""Status for a client that has disconnected; it is not sent."""

CHAT = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


@dataclass(slots=True)
class _Reading:
    """The part of a request's body that has arrived."""

    chunks: list[bytes] = field(default_factory=list)
    size: int = 0
    refusal: GuidewayError | None = None
    """Reason for dropping its bytes meanwhile."""


class _Server:
    def __init__(self, engine: Engine, model: str, limits: Limits, trusts_clients: bool) -> None:
        self.engine = engine
        self.model = model
        self.created = int(time.time())
        self._limits = limits
        self._trusts_clients = trusts_clients
        self._threads = ThreadPoolExecutor(NUM_CALLS, thread_name_prefix="guideway-call")
        self._large = ThreadPoolExecutor(1, thread_name_prefix="guideway-large-body")
        self._turns = Turns(NUM_CALLS)
        self._arrivals = itertools.count()
        self._num_requests = 0
        self._num_bytes = 0
        self._arriving: dict[int, _Reading] = {}
        """Incomplete bodies, oldest first."""

    async def answer(self, route: Route, request: Request) -> Response:
        """Return the response to one request, also if it fails."""
        call = Call(self.engine, self.model, _new_id())
        reading = _Reading()
        try:
            _check_headers(request)
            await self._read(request, reading)
            return await self._counted(route, request, call, reading)
        except ClientDisconnect:
            return Response(status_code=LEFT)
        except asyncio.CancelledError:  # only a server that stops, after its grace period, cancels a request
            error = EngineClosed("the server is stopping, and took no more time for this; try again")
            return _failure(error, call.request_id)
        except Exception as error:
            return _failure(error, call.request_id, call.user)
        finally:
            self._forget(reading)

    async def _read(self, request: Request, reading: _Reading) -> None:
        """Read the body. Raises `Busy` and `TooLarge`."""
        self._check_size(int(request.headers.get("content-length", "0")))
        self._arriving[id(reading)] = reading
        try:
            async for chunk in request.stream():
                if reading.refusal is not None:
                    raise reading.refusal
                self._check_size(reading.size + len(chunk))
                self._make_room(reading, len(chunk))
                self._num_bytes += len(chunk)
                reading.size += len(chunk)
                reading.chunks.append(chunk)
        finally:
            del self._arriving[id(reading)]

    def _check_size(self, size: int) -> None:
        if size > self._limits.max_body_bytes:
            raise TooLarge(f"the body has more than {self._limits.max_body_bytes} bytes; send several calls")

    def _make_room(self, reading: _Reading, size: int) -> None:
        """Drop incomplete bodies, oldest first, until `size` more bytes fit. Raises `Busy` if they do not, because
        complete requests take all the memory."""
        for other in list(self._arriving.values()):
            if self._num_bytes + size <= self._limits.max_bytes:
                return
            if other is not reading:
                self._forget(other)
                other.refusal = Busy("the server has too many bodies in memory, and this one took longest; try again")
        if self._num_bytes + size > self._limits.max_bytes:
            raise Busy(f"requests of {self._num_bytes} bytes are under way; try again")

    def _forget(self, reading: _Reading) -> None:
        self._num_bytes -= reading.size
        reading.size = 0
        reading.chunks.clear()

    async def _counted(self, route: Route, request: Request, call: Call, reading: _Reading) -> Response:
        """Return the response to a request whose body is complete. Raises `Busy`."""
        if self._num_requests >= self._limits.max_requests:
            raise Busy(f"{self._limits.max_requests} requests are under way; try again")
        self._num_requests += 1
        try:
            return await self._computed(route, request, call, b"".join(reading.chunks))
        finally:
            self._num_requests -= 1

    async def _computed(self, route: Route, request: Request, call: Call, raw: bytes) -> Response:
        loop = asyncio.get_running_loop()
        body = await loop.run_in_executor(self._large if len(raw) > LARGE_BODY else None, read_body, route.body, raw)
        call.user = body.user or ""
        if self._trusts_clients:
            call.tenant = call.user
        elif body.priority:
            raise InvalidRequest(
                "this server takes no priority from its clients; leave it out, or have its operator start it with "
                "--trust-clients",
                field="priority",
            )

        async def compute() -> bytes:
            async with self._turns.take(Turn(body.priority, call.tenant, next(self._arrivals))):
                return await loop.run_in_executor(self._threads, lambda: _encoded(call.answer(route, body)))

        computing = asyncio.create_task(compute())
        leaving = asyncio.create_task(_gone(request))
        try:
            await asyncio.wait({computing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not computing.done():  # a queued call is cancelled; a running one stops when its thread sees `left`
                call.left.set()
                computing.cancel()
                return Response(status_code=LEFT)
            return _response(computing.result(), call.request_id)
        finally:
            leaving.cancel()
            if not computing.done():
                call.left.set()
                computing.cancel()

    def models(self) -> dict[str, Any]:
        """Return the list of models, in the form of OpenAI's API."""
        return {"object": "list", "data": [self.described()]}

    def described(self) -> dict[str, Any]:
        """Return the description of the model, in the form of OpenAI's API."""
        return {"id": self.model, "object": "model", "created": self.created, "owned_by": "guideway"}


def make_app(
    engine: Engine,
    model: str,
    limits: Limits,
    *,
    hosts: Collection[str] = (ANY_HOST,),
    keys: Sequence[str] = (),
    trusts_clients: bool = False,
) -> FastAPI:
    """Return the application that serves `engine`, whose model clients call `model`. It does not close the engine.

    `hosts` are the allowed names in a Host header. With `keys`, all paths but `OPEN_PATHS` need a key. With
    `trusts_clients`, the `priority` of bodies counts, and `user` names a tenant.
    """
    from guideway.version import __version__

    server = _Server(engine, model, limits, trusts_clients)
    app = FastAPI(title="guideway", version=__version__, docs_url=None, redoc_url=None)
    app.add_middleware(Gate, hosts=hosts, keys=keys, on_error=lambda error: _failure(error, _new_id()))
    for route in ROUTES:
        schema = {"content": {"application/json": {"schema": route.body.model_json_schema()}}, "required": True}
        app.add_api_route(
            route.path,
            _endpoint(server, route),
            methods=["POST"],
            summary=route.summary,
            operation_id=route.task,
            openapi_extra={"requestBody": schema},
        )

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="Whether requests are served")
    def health() -> Response:
        try:
            engine.check_health()
        except GuidewayError as error:
            return _failure(error, _new_id())
        return _response(_encoded({"status": "ok"}), _new_id())

    @app.get("/metrics", summary="Metrics in the format of Prometheus")
    def metrics() -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/v1/models", summary="The model")
    async def models() -> Response:
        return _response(_encoded(server.models()), _new_id())

    @app.get("/v1/models/{name:path}", summary="The model, by its name")
    async def described(name: str) -> Response:
        if name != model:
            return _failure(ModelNotFound(f"there is no model {name!r} here; there is {model!r}", field="model"), "")
        return _response(_encoded(server.described()), _new_id())

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        return _failure(NoRoute(_why_not(request, error.status_code), status=error.status_code), _new_id())

    return app


def _endpoint(server: _Server, route: Route) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await server.answer(route, request)

    return endpoint


def _why_not(request: Request, status: int) -> str:
    path = request.url.path
    if path in CHAT:
        return f"this server generates no text, so there is no {path}; it has {', '.join(r.path for r in ROUTES)}"
    if status == 405:
        return f"{path} takes no {request.method}"
    return f"there is no {path}; there are {', '.join(r.path for r in ROUTES)}, /v1/models and /health"


async def _gone(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _new_id() -> str:
    return f"req-{uuid4().hex}"


def _encoded(content: dict[str, Any]) -> bytes:
    """Encode as ASCII JSON, so that any input text can be sent back. Lists are encoded item by item, because
    `json.dumps` blocks all other threads."""

    def dumped(value: Any) -> str:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)

    members = (
        f"{dumped(name)}:" + (f"[{','.join(map(dumped, value))}]" if isinstance(value, list) else dumped(value))
        for name, value in content.items()
    )
    return f"{{{','.join(members)}}}".encode()


def _check_headers(request: Request) -> None:
    """Refuse a body whose headers do not declare plain JSON. Raises `UnsupportedMediaType` and `UnknownEncoding`."""
    given = request.headers.get("content-type", "")
    parsed = Message()
    parsed["content-type"] = given
    charset = str(parsed.get_param("charset", "utf-8")).lower()
    if parsed.get_content_type() != "application/json" or charset not in ("utf-8", "utf8"):
        raise UnsupportedMediaType(f"the body must be sent as Content-Type: application/json, not {given[:100]!r}")
    if (encoding := request.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
        raise UnknownEncoding(f"the body is encoded as {encoding!r}; send it without Content-Encoding, as it is")


def _response(content: bytes, request_id: str, status: int = 200) -> Response:
    headers = {"x-request-id": request_id}
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        headers["retry-after"] = "1"
    elif status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return Response(content, status_code=status, media_type="application/json", headers=headers)


def _failure(error: BaseException, request_id: str, user: str = "") -> Response:
    ERRORS.labels(code_of(error)).inc()
    content = {"error": content_of(error, request_id, user)}
    return _response(_encoded(content), request_id, status_of(error))
