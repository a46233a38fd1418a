"""Changes to vLLM's HTTP server. Not every version has all of these places; missing features are logged.

=====================================  ================================================================================
several prompts                        ``request_output_to_completion_response``,
                                       ``chat_completion_full_generator_batch``
calls of xgrammar                      ``validate_structural_tag_payload``, ``_xgrammar_supports``
requests                               ``to_sampling_params``, ``to_beam_search_params``
streams                                ``chat_completion_stream_generator``, ``completion_stream_generator``
errors of failed requests              ``_raise_if_error``
streams that end with an error         ``responses_stream_generator``, ``message_stream_converter``
shutdown                               ``_SwappableExecutor.submit``, which runs the tokenizer
metrics                                ``attach_router``, which adds ``/metrics``
=====================================  ================================================================================
"""

from __future__ import annotations

import inspect
import json
import logging
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

import vllm
from guideway.api import InvalidConfiguration
from guideway.errors import passable

from guideway_vllm.answers import StreamReports, add_up, shutdown_error
from guideway_vllm.metrics import show_cores
from guideway_vllm.requests import ON_UNENFORCED_KEY, SHORT_BUDGET_KEY, asks_of_beams, is_strict, requires_call
from guideway_vllm.steps import ATTRIBUTE
from guideway_vllm.wrapping import lacks, wrap

__all__ = ["IN_SERVER", "SERVING", "change_server"]

log = logging.getLogger("vllm.guideway")

SERVING: weakref.WeakSet[Any] = weakref.WeakSet()
"""Front ends of this process that a server may have."""


def change_server(strict_refuses: bool) -> None:
    """Change parts that only an HTTP server has, and not in every version, and log which features are missing without
    them. Raises `InvalidConfiguration` if an option needs a missing one."""
    for path, (around, parameters, lost) in IN_SERVER.items():
        if (why := lacks(path, parameters)) is None:
            wrap(path, around)
        elif strict_refuses and around is _around_to_sampling_params:
            raise InvalidConfiguration(
                f"strict_refuses is on, and {lost} in vLLM {vllm.__version__}: {why}; leave it out, and have clients "
                f"set {ON_UNENFORCED_KEY}",
                field="strict_refuses",
            )
        else:
            log.warning("in vLLM %s %s: %s", vllm.__version__, lost, why)


def _around_to_sampling_params(to_sampling_params: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        params = to_sampling_params(self, *args, **kwargs)
        if SERVING and params.structured_outputs is not None and requires_call(self):
            params.extra_args = {SHORT_BUDGET_KEY: "refuse", **(params.extra_args or {})}
        if any(front_end.strict_refuses for front_end in SERVING) and is_strict(self):
            params.extra_args = {ON_UNENFORCED_KEY: "refuse", **(params.extra_args or {})}
        return params

    return wrapped


def _around_to_beam_search_params(to_beam_search_params: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        if SERVING and (field := asks_of_beams(self)) is not None:
            from vllm.exceptions import VLLMValidationError

            raise VLLMValidationError(
                f"{field} is not heard in a beam search, where vLLM drops it; leave out one or the other, or ask for "
                "several answers with n",
                parameter=field,
            )
        return to_beam_search_params(self, *args, **kwargs)

    return wrapped


def _around_stream(stream: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(stream)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not SERVING:
            return stream(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        reports = StreamReports(given.arguments["result_generator"], given.arguments["request"].n or 1)
        given.arguments["result_generator"] = reports
        return reports.add_to(stream(*given.args, **given.kwargs))

    return wrapped


def _around_raise_if_error(raise_if_error: Callable[..., Any]) -> Callable[..., Any]:
    """Name the request in the error of an output that failed, as the log does."""

    def wrapped(self: Any, finish_reason: Any, request_id: str) -> None:
        from vllm.exceptions import GenerationError

        try:
            raise_if_error(self, finish_reason, request_id)
        except GenerationError as error:
            if not SERVING:
                raise
            said = f"{error}: request {request_id} failed; the server's log says why"
            raise type(error)(passable(said)) from None

    return wrapped


def _around_responses_stream(stream: Callable[..., Any]) -> Callable[..., Any]:
    """End a stream with an error event: vLLM drops the connection if a request fails or is aborted during its
    stream."""

    signature = inspect.signature(stream)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if not SERVING:
            return stream(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        raised: list[Exception] = []
        given.arguments["result_generator"] = _keep_error(given.arguments["result_generator"], raised)
        return _end_with_error(given.arguments["self"], stream(*given.args, **given.kwargs), raised)

    return wrapped


async def _keep_error(results: Any, raised: list[Exception]) -> AsyncIterator[Any]:
    """Yield `results` and append the error that they raise to `raised`."""
    try:
        async with aclosing(results):
            async for result in results:
                yield result
    except Exception as error:
        raised.append(error)
        raise


async def _end_with_error(serving: Any, events: Any, raised: list[Exception]) -> AsyncIterator[Any]:
    """Yield the `events` of a response and, if they raise, an error event, as OpenAI's server does. `raised` has the
    error of the request, if there is one."""
    number = 0
    try:
        async with aclosing(events):
            async for event in events:
                number = getattr(event, "sequence_number", number) + 1
                yield event
    except Exception as error:
        from openai.types.responses import ResponseErrorEvent
        from pydantic import ValidationError
        from vllm.exceptions import GenerationError

        # vLLM's event for a failed response does not pass its own validation
        if isinstance(error, ValidationError):
            error = raised[0] if raised else GenerationError()
        said = serving.create_error_response(error).error
        if said.code == HTTPStatus.INTERNAL_SERVER_ERROR:
            log.exception("guideway: the stream of a response ends with an error")
        yield ResponseErrorEvent(
            type="error", code=str(said.code), message=said.message, param=said.param, sequence_number=number
        )


def _around_messages_stream(convert: Callable[..., Any]) -> Callable[..., Any]:
    """Pass errors on: vLLM converts a chat stream to a message stream, and takes its error for a malformed chunk."""

    def wrapped(self: Any, generator: Any, *args: Any, **kwargs: Any) -> Any:
        if not SERVING:
            return convert(self, generator, *args, **kwargs)
        said: list[str] = []
        return _with_error(convert(self, _until_error(generator, said), *args, **kwargs), said)

    return wrapped


async def _until_error(events: Any, said: list[str]) -> AsyncIterator[str]:
    """Yield the `events` of a chat up to an error, and append that error as an event of a message to `said`."""
    async with aclosing(events):
        async for event in events:
            if event.startswith('data: {"error"'):
                error = json.loads(event.removeprefix("data: "))["error"]
                error_event = {"type": "error", "error": {"type": error["type"], "message": error["message"]}}
                said.append(f"event: error\ndata: {json.dumps(error_event)}\n\n")
                return
            yield event


async def _with_error(events: Any, said: list[str]) -> AsyncIterator[str]:
    """Yield `events`, then the events in `said`."""
    async with aclosing(events):
        async for event in events:
            yield event
    for event in said:
        yield event


def _around_completion_response(respond: Callable[..., Any]) -> Callable[..., Any]:
    """Combine the reports of several prompts: vLLM returns the first one's."""

    def wrapped(self: Any, final_res_batch: Any, *args: Any, **kwargs: Any) -> Any:
        if SERVING and len(final_res_batch) > 1:
            add_up(*final_res_batch)
        return respond(self, final_res_batch, *args, **kwargs)

    return wrapped


def _around_batch(respond: Callable[..., Any]) -> Callable[..., Any]:
    """Add the reports to a batch of chats: vLLM returns none."""

    async def wrapped(self: Any, request: Any, generators: Any, *args: Any, **kwargs: Any) -> Any:
        last: dict[int, Any] = {}

        async def record(number: int, results: Any) -> AsyncIterator[Any]:
            async with aclosing(results):
                async for result in results:
                    last[number] = result
                    yield result

        if SERVING:
            generators = [record(number, results) for number, results in enumerate(generators)]
        response = await respond(self, request, generators, *args, **kwargs)
        if last and hasattr(response, "kv_transfer_params"):
            results = [last[number] for number in sorted(last)]
            add_up(*results)
            report = (results[0].kv_transfer_params or {}).get(ATTRIBUTE)
            response.kv_transfer_params = None if report is None else {ATTRIBUTE: report}
        return response

    return wrapped


def _around_validate_tag(validate: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(payload: Any, *, parameter: str) -> None:
        if not (SERVING and isinstance(payload, str)):  # payloads that are not text are refused unread
            validate(payload, parameter=parameter)

    return wrapped


def _around_xgrammar_supports(supports: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(structured_outputs: Any) -> bool:
        from guideway_vllm.requests import is_bearable
        from guideway_vllm.stock.xgrammar.backend import Xgrammar

        # if not, the constraint is checked against the limits like any other
        bearable = not SERVING or is_bearable(structured_outputs, Xgrammar.limits)
        return bearable and bool(supports(structured_outputs))

    return wrapped


def _around_submit(submit: Callable[..., Any]) -> Callable[..., Any]:
    """Answer during shutdown: vLLM closes the tokenizer's pool first, and would return Python's error about a closed
    pool."""

    def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return submit(self, *args, **kwargs)
        except RuntimeError:
            if not any(front_end.ending for front_end in SERVING):
                raise
            raise shutdown_error() from None

    return wrapped


def _around_attach_metrics(attach: Callable[..., Any]) -> Callable[..., Any]:
    def wrapped(app: Any) -> None:
        attach(app)
        if SERVING:
            show_cores(app)

    return wrapped


OPENAI = "vllm.entrypoints.openai"
UNHEARD = "`strict` of a request is not heard"
UNTOLD = "streams do not have what guideway tells"
UNTOLD_OF_OTHERS = "of several prompts guideway tells about the first alone"
UNENDED = "streams of responses and messages do not say why they end"
UNSAID = "requests that are not tokenized yet when the server is told to stop do not say so"
UNNAMED = "errors of requests that failed do not name them"
UNREFUSED = "a beam search drops constraints and what is asked of guideway without a word"

IN_SERVER: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    # vLLM calls xgrammar in its own process while it parses a request, on the event loop and before any limit is
    # checked, so that a crash there ends the server
    "vllm.entrypoints.generate.base.protocol:validate_structural_tag_payload": (
        _around_validate_tag,
        ("payload", "parameter"),
        "structural tags may reach xgrammar before they are counted",
    ),
    "vllm.parser.abstract_parser:_xgrammar_supports": (
        _around_xgrammar_supports,
        ("structured_outputs",),
        "constraints beside tools may reach xgrammar before they are counted",
    ),
    f"{OPENAI}.chat_completion.protocol:ChatCompletionRequest.to_sampling_params": (
        _around_to_sampling_params,
        (),
        UNHEARD,
    ),
    f"{OPENAI}.completion.protocol:CompletionRequest.to_sampling_params": (_around_to_sampling_params, (), UNHEARD),
    f"{OPENAI}.responses.protocol:ResponsesRequest.to_sampling_params": (_around_to_sampling_params, (), UNHEARD),
    f"{OPENAI}.chat_completion.protocol:ChatCompletionRequest.to_beam_search_params": (
        _around_to_beam_search_params,
        (),
        UNREFUSED,
    ),
    f"{OPENAI}.completion.protocol:CompletionRequest.to_beam_search_params": (
        _around_to_beam_search_params,
        (),
        UNREFUSED,
    ),
    f"{OPENAI}.completion.serving:OpenAIServingCompletion.request_output_to_completion_response": (
        _around_completion_response,
        ("final_res_batch",),
        UNTOLD_OF_OTHERS,
    ),
    f"{OPENAI}.chat_completion.batch_serving:OpenAIServingChatBatch.chat_completion_full_generator_batch": (
        _around_batch,
        ("request", "generators"),
        UNTOLD_OF_OTHERS,
    ),
    f"{OPENAI}.chat_completion.serving:OpenAIServingChat.chat_completion_stream_generator": (
        _around_stream,
        ("request", "result_generator"),
        UNTOLD,
    ),
    f"{OPENAI}.completion.serving:OpenAIServingCompletion.completion_stream_generator": (
        _around_stream,
        ("request", "result_generator"),
        UNTOLD,
    ),
    "vllm.entrypoints.generate.base.serving:GenerateBaseServing._raise_if_error": (
        _around_raise_if_error,
        ("finish_reason", "request_id"),
        UNNAMED,
    ),
    f"{OPENAI}.responses.serving:OpenAIServingResponses.responses_stream_generator": (
        _around_responses_stream,
        ("result_generator",),
        UNENDED,
    ),
    "vllm.entrypoints.anthropic.serving:AnthropicServingMessages.message_stream_converter": (
        _around_messages_stream,
        ("generator",),
        UNENDED,
    ),
    "vllm.renderers.base:_SwappableExecutor.submit": (_around_submit, (), UNSAID),
    "vllm.entrypoints.serve.instrumentator.metrics:attach_router": (
        _around_attach_metrics,
        ("app",),
        "guideway's metrics of the engine core are not at /metrics",
    ),
}
"""Places to change in vLLM's HTTP server, each with the parameters relied on and the feature that is missing without
it. vLLM drops ``strict``, and its streams have no field for guideway's report."""
