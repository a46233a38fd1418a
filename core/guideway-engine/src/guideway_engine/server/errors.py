"""Errors in the form of OpenAI's API, with the status that each is sent with."""

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
    """There is no such model here."""


class NoRoute(InvalidRequest):
    """There is no such address here, or it takes another method."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message, field="url")
        self.status = status


class TooLarge(InvalidRequest):
    """The body has more bytes than the server reads."""


class UnknownEncoding(InvalidRequest):
    """The body is compressed, which the server does not undo: a few bytes could become any number."""


class UnsupportedMediaType(InvalidRequest):
    """The body is not declared as JSON. A web page of another site can send all else without asking the server."""


class InvalidApiKey(InvalidRequest):
    """The request has no API key that the server knows."""


class MalformedHttp(InvalidRequest):
    """The request is not HTTP/1, or another server might read it as a different request."""


class RequestTimeout(GuidewayError):
    """The client took too long to send its request."""


class Busy(GuidewayError):
    """The server has as much to do as it takes; nothing is wrong with the request."""


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
    """The status of an answer that is this error."""
    if isinstance(error, NoRoute):
        return error.status
    return next((int(status) for cls, status in STATUS if isinstance(error, cls)), 500)


def code_of(error: BaseException) -> str:
    """Return the error's code: the name of its class, in OpenAI's spelling."""
    name = type(error).__name__ if isinstance(error, GuidewayError) else "InternalError"
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def content_of(error: BaseException, request_id: str, user: str = "") -> dict[str, Any]:
    """The error as the sender of the request `request_id` is told it: ``{"message", "type", "param", "code"}``. What a
    plugin's exception says, and what guideway itself did not foresee, is for the operator's log alone."""
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
    """That something failed, and when; the rest is logged."""
    trace = printable("".join(traceback.format_exception(error)).rstrip())
    whose = f" of user {user!r}" if user else ""
    log.error("guideway: request %s%s: %s\n%s", request_id, printable(whose), passable(str(error)), trace)
    if not isinstance(error, PluginError):
        return f"request {request_id} failed"
    return f"{error.plugin} failed{' ' if error.phase else ''}{error.phase} over request {request_id}"
