"""The application: addresses, what is read and sent, and how much of it at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from guideway.errors import GuidewayError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from guideway_engine.engine import Engine
from guideway_engine.errors import EngineClosed
from guideway_engine.server.answering import ROUTES, Call, Route
from guideway_engine.server.bodies import read_body
from guideway_engine.server.errors import Busy, ModelNotFound, NoRoute, TooLarge, UnknownEncoding, content_of, status_of
from guideway_engine.server.turns import Turn, Turns

__all__ = ["Limits", "make_app"]

NUM_CALLS = 64
"""The calls that wait for results at once; what they bring is computed together."""

LEFT = 499
"""The status for who has gone, and will not read it."""

CHAT = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that the server takes, so that its memory is bounded whatever is sent."""

    max_body_bytes: int = 32 << 20
    """The bytes of one request."""
    max_requests: int = 1024
    """The requests under way."""
    max_bytes: int = 512 << 20
    """The bytes of all requests under way."""


class _Server:
    def __init__(self, engine: Engine, model: str, limits: Limits) -> None:
        self.engine = engine
        self.model = model
        self.created = int(time.time())
        self._limits = limits
        self._threads = ThreadPoolExecutor(NUM_CALLS, thread_name_prefix="guideway-call")
        self._turns = Turns(NUM_CALLS)
        self._arrivals = itertools.count()
        self._num_requests = 0
        self._num_bytes = 0

    async def answer(self, route: Route, request: Request) -> Response:
        """The answer to one request, whatever becomes of it."""
        request_id = _new_id()
        self._num_requests += 1
        chunks: list[bytes] = []
        try:
            await self._read(request, chunks)
            return await self._computed(route, request, b"".join(chunks), request_id)
        except ClientDisconnect:
            return Response(status_code=LEFT)
        except asyncio.CancelledError:  # only a server that ends, and waits no longer, gives a request up
            return _failure(
                EngineClosed("the server is stopping, and took no more time for this; try again"), request_id
            )
        except Exception as error:
            return _failure(error, request_id)
        finally:
            self._num_requests -= 1
            self._num_bytes -= sum(map(len, chunks))

    async def _read(self, request: Request, chunks: list[bytes]) -> None:
        """Read the body into `chunks`. Of one that is not taken the rest is read, and forgotten: who is still sending
        hears no answer. Raises `Busy`, `TooLarge` and `UnknownEncoding`."""
        refused: GuidewayError | None = None
        limits, size = self._limits, 0
        if self._num_requests > limits.max_requests:
            refused = Busy(f"{limits.max_requests} requests are under way; try again")
        elif (encoding := request.headers.get("content-encoding", "identity").strip().lower()) not in ("", "identity"):
            refused = UnknownEncoding(
                f"the body is encoded as {encoding!r}; send it without Content-Encoding, as it is"
            )
        async for chunk in request.stream():
            size += len(chunk)
            if refused is None and size > limits.max_body_bytes:
                refused = TooLarge(f"the body has more than {limits.max_body_bytes} bytes; send several calls")
            elif refused is None and self._num_bytes + len(chunk) > limits.max_bytes:
                refused = Busy(f"requests of {self._num_bytes} bytes are under way; try again")
            if refused is None:
                self._num_bytes += len(chunk)
                chunks.append(chunk)
        if refused is not None:
            raise refused

    async def _computed(self, route: Route, request: Request, raw: bytes, request_id: str) -> Response:
        body = await asyncio.to_thread(read_body, route.body, raw)
        call = Call(self.engine, self.model, request_id)

        async def compute() -> bytes:
            async with self._turns.take(Turn(body.priority, body.tenant, next(self._arrivals))):
                return await asyncio.get_running_loop().run_in_executor(
                    self._threads, lambda: _encoded(call.answer(route, body))
                )

        computing = asyncio.create_task(compute())
        leaving = asyncio.create_task(_gone(request))
        try:
            await asyncio.wait({computing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not computing.done():  # before its turn it gives that up, after that the thread does
                call.left.set()
                computing.cancel()
                return Response(status_code=LEFT)
            return _response(computing.result(), request_id)
        finally:
            leaving.cancel()
            if not computing.done():
                call.left.set()
                computing.cancel()

    def models(self) -> dict[str, Any]:
        """The list of models, in the form of OpenAI's API."""
        return {"object": "list", "data": [self.described()]}

    def described(self) -> dict[str, Any]:
        """The one model."""
        return {"id": self.model, "object": "model", "created": self.created, "owned_by": "guideway"}


def make_app(engine: Engine, model: str, limits: Limits | None = None) -> FastAPI:
    """The application that serves `engine`, whose model clients call `model`. It closes nothing."""
    from guideway.version import __version__

    server = _Server(engine, model, limits or Limits())
    app = FastAPI(title="guideway", version=__version__, docs_url=None, redoc_url=None)
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
        return _failure(NoRoute(_why_not(request, error.status_code), error.status_code), _new_id())

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
    """Wait until the client has left."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _new_id() -> str:
    return f"req-{uuid4().hex}"


def _encoded(content: dict[str, Any]) -> bytes:
    """JSON in ASCII, so that any text that came can be sent back."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def _response(content: bytes, request_id: str, status: int = 200) -> Response:
    headers = {"x-request-id": request_id} | ({"retry-after": "1"} if status == 429 else {})
    return Response(content, status_code=status, media_type="application/json", headers=headers)


def _failure(error: BaseException, request_id: str) -> Response:
    content = {"error": content_of(error, request_id)}
    return _response(_encoded(content), request_id, status_of(error))
