"""Errors in the form of OpenAI's API, with their HTTP status."""

from __future__ import annotations

import logging
import re
import traceback
from http import HTTPStatus
from typing import Any

from guideway.errors import GuidewayError, InvalidRequest, PluginError, Unhealthy, passable, printable

from guideway_engine.errors import EngineClosed

__all__ = [
    "Busy",
    "InvalidApiKey",
    "MalformedHttp",
    "ModelNotFound",
    "NoRoute",
    "RequestTimeout",
    "TooLarge",
    "UnknownEncoding",
    "UnsupportedMediaType",
    "code_of",
    "content_of",
    "status_of",
]

log = logging.getLogger("guideway_engine")


class ModelNotFound(InvalidRequest):
    """Raised for a model that is not served here."""


class NoRoute(InvalidRequest):
    """Raised for an unknown path, or a method that the path does not take."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message, field="url")
        self.status = status


class TooLarge(InvalidRequest):
    """Raised for a body that is larger than the server reads."""


class UnknownEncoding(InvalidRequest):
    """Raised for a compressed body. The server decompresses nothing, because a few bytes could become any number."""


class UnsupportedMediaType(InvalidRequest):
    """Raised for a body that is not declared as JSON. Web pages of other sites can send all other types without asking
    the server."""


class InvalidApiKey(InvalidRequest):
    """Raised for a missing or unknown API key."""


class MalformedHttp(InvalidRequest):
    """Raised for a request that is not HTTP/1, or that another server might read as a different request."""


class RequestTimeout(GuidewayError):
    """Raised if the client took too long to send its request."""


class Busy(GuidewayError):
    """Raised if the server is at its limits; the request itself is valid."""


STATUS: tuple[tuple[type[BaseException], int], ...] = (
    (ModelNotFound, HTTPStatus.NOT_FOUND),
    (TooLarge, HTTPStatus.REQUEST_ENTITY_TOO_LARGE),
    (UnknownEncoding, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (UnsupportedMediaType, HTTPStatus.UNSUPPORTED_MEDIA_TYPE),
    (InvalidApiKey, HTTPStatus.UNAUTHORIZED),
    (InvalidRequest, HTTPStatus.BAD_REQUEST),
    (Busy, HTTPStatus.TOO_MANY_REQUESTS),
    (RequestTimeout, HTTPStatus.REQUEST_TIMEOUT),
    (EngineClosed, HTTPStatus.SERVICE_UNAVAILABLE),
    (Unhealthy, HTTPStatus.SERVICE_UNAVAILABLE),
)


def status_of(error: BaseException) -> int:
    """Return the HTTP status of a response with this error."""
    if isinstance(error, NoRoute):
        return error.status
    return next((int(status) for cls, status in STATUS if isinstance(error, cls)), 500)


def code_of(error: BaseException) -> str:
    """Return the error's code: the name of its class, in OpenAI's spelling."""
    name = type(error).__name__ if isinstance(error, GuidewayError) else "InternalError"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def content_of(error: BaseException, request_id: str, user: str = "") -> dict[str, Any]:
    """Return the error as the client sees it: ``{"message", "type", "param", "code"}``. Exceptions of plugins and
    unexpected ones are only logged for the operator, under `request_id`."""
    status = status_of(error)
    if isinstance(error, InvalidRequest):
        kind, said = "invalid_request_error", _of_request(error, request_id, user)
    elif isinstance(error, Busy):
        kind, said = "rate_limit_error", str(error)
    elif isinstance(error, GuidewayError) and not isinstance(error, PluginError):
        kind, said = "server_error", str(error)
    else:
        kind, said = "server_error", f"{_in_public(error, request_id, user)}; the server's log says why"
    return {
        "message": passable(said),
        "type": kind,
        "param": passable(error.field) if isinstance(error, InvalidRequest) and status == 400 else None,
        "code": code_of(error),
    }


def _of_request(error: InvalidRequest, request_id: str, user: str) -> str:
    cause = error.__cause__
    if isinstance(cause, PluginError):
        return f"validator {_in_public(cause, request_id, user)}, so the request is refused"
    return str(error)


def _in_public(error: BaseException, request_id: str, user: str) -> str:
    """Log the error, and return a message for the client that only names the failed part and the request."""
    trace = printable("".join(traceback.format_exception(error)).rstrip())
    whose = f" of user {user!r}" if user else ""
    log.error("guideway: request %s%s: %s\n%s", request_id, printable(whose), passable(str(error)), trace)
    if not isinstance(error, PluginError):
        return f"request {request_id} failed"
    return f"{error.plugin} failed{' ' if error.phase else ''}{error.phase} over request {request_id}"
