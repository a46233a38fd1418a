"""Extraction of an object from a text in one call."""

from __future__ import annotations

import logging
import os
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar, Unpack, overload

from guideway.api.options import short_repr
from guideway.api.types import Completion, FinishReason, GenerationResult, SamplingParams
from guideway.errors import InvalidAnswer, InvalidConfiguration, InvalidRequest
from guideway.objects import constraint_of, is_type
from guideway.runtime.admission.sampling import ANY_VOCABULARY, validated

from guideway_engine.async_engine import AsyncEngine
from guideway_engine.config import EngineArguments, EngineConfig
from guideway_engine.engine import Engine
from guideway_engine.prompts import Prompt

__all__ = ["extract"]

log = logging.getLogger(__name__)

T = TypeVar("T")


@overload
def extract(
    target: type[T],
    text: str,
    engine: AsyncEngine,
    *,
    instruction: str | None = None,
    params: SamplingParams | None = None,
) -> Coroutine[Any, Any, T]: ...
@overload
def extract(
    target: Any,
    text: str,
    engine: AsyncEngine,
    *,
    instruction: str | None = None,
    params: SamplingParams | None = None,
) -> Coroutine[Any, Any, Any]: ...
@overload
def extract(
    target: type[T],
    text: str,
    engine: Engine | str | os.PathLike[str] | EngineConfig,
    *,
    instruction: str | None = None,
    params: SamplingParams | None = None,
    **settings: Unpack[EngineArguments],
) -> T: ...
@overload
def extract(
    target: Any,
    text: str,
    engine: Engine | str | os.PathLike[str] | EngineConfig,
    *,
    instruction: str | None = None,
    params: SamplingParams | None = None,
    **settings: Unpack[EngineArguments],
) -> Any: ...
def extract(
    target: Any,
    text: str,
    engine: Engine | AsyncEngine | str | os.PathLike[str] | EngineConfig,
    *,
    instruction: str | None = None,
    params: SamplingParams | None = None,
    **settings: Unpack[EngineArguments],
) -> Any:
    """Return an instance of the type `target`, such as a pydantic model, a dataclass or ``list[int]``, that the model
    extracts from `text`. With an `AsyncEngine`, return a coroutine for it.

    `engine` is an engine, which stays open; or a model or `EngineConfig`, from which ``Engine(engine, **settings)`` is
    created for this call only, loading the model.

    The model reads one chat message, or plain text if it has no chat template: the `instruction`, a space, and the
    text. The default `instruction` is ``Extract
    name, age.``, with the names of the type's properties, each followed by its ``description`` in parentheses; it is
    empty for a type without properties. An empty instruction is left out. `params` are the parameters of the request,
    without a constraint; with `max_retries`, an answer that the type refuses is drawn again.

    An answer that is `closed_early` is returned, with a warning in the log. Raises `InvalidAnswer` if a limit, a stop
    string or the closing of the engine cut the answer short, or if the type refuses it; `InvalidRequest` if the request
    is refused; `LimitExceeded` if the text is longer than the context; any other error that ended the request; and the
    errors of creating an engine.
    """
    if settings and isinstance(engine, AsyncEngine | Engine):
        name = next(iter(settings))
        raise InvalidConfiguration(
            f"{name} is a setting for a new engine, but an engine is given; set it where that engine is created",
            field=name,
        )
    content, asked = _ask(target, text, instruction, params)  # before a model is loaded, so that errors come early
    if isinstance(engine, AsyncEngine):
        return _extract_async(engine, content, asked)
    if isinstance(engine, Engine):
        return _object_of(engine.generate([_prompt(engine, content)], asked)[0])
    with Engine(engine, **settings) as own:
        return _object_of(own.generate([_prompt(own, content)], asked)[0])


async def _extract_async(engine: AsyncEngine, content: str, asked: SamplingParams) -> Any:
    return _object_of(await engine.generate(_prompt(engine, content), asked))


def _prompt(engine: Engine | AsyncEngine, content: str) -> Prompt:
    return [{"role": "user", "content": content}] if engine.has_chat_template else content


def _ask(target: Any, text: str, instruction: str | None, params: SamplingParams | None) -> tuple[str, SamplingParams]:
    """Return the text to read and its parameters. Raises `InvalidRequest`."""
    if not is_type(target):
        raise InvalidRequest(
            "extract needs a type, such as a pydantic model, a dataclass or list[int], not "
            f"{short_repr(target)}; for a schema, call Engine.chat with SamplingParams(constraint=...)",
            field="target",
        )
    for name, value in (("text", text), ("instruction", instruction)):
        if not isinstance(value, str) and not (name == "instruction" and value is None):
            raise InvalidRequest(f"{name} must be a string, not {short_repr(value)}", field=name)
    params = SamplingParams() if params is None else params
    if not isinstance(params, SamplingParams):
        raise InvalidRequest(f"params must be SamplingParams, not {type(params).__name__}", field="params")
    if params.constraint is not None:
        raise InvalidRequest(
            "params has a constraint, but extract uses the type as constraint; remove it from params",
            field="constraint",
        )
    validated(params, ANY_VOCABULARY)
    if instruction is None:
        instruction = _instruction(constraint_of(target).parsed)  # type: ignore[attr-defined]
    return f"{instruction} {text}" if instruction else text, replace(params, constraint=target)


def _instruction(schema: dict[str, Any]) -> str:
    """Return an instruction with the names of an object's properties; empty for any other schema."""
    if "$ref" in schema:  # a recursive type
        schema = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    wanted = [
        f"{name} ({about['description']})" if "description" in about else name
        for name, about in schema.get("properties", {}).items()
    ]
    return f"Extract {', '.join(wanted)}." if wanted else ""


def _object_of(result: GenerationResult) -> Any:
    output = result.outputs[0]
    if output.error is not None:
        raise output.error
    if not output.is_complete:
        raise InvalidAnswer(_why_not_whole(output))
    if output.closed_early:
        log.warning(
            "tokens were excluded so that this answer of %d tokens fits its limit; with a larger max_tokens it may be "
            "another one: %s",
            len(output.token_ids),
            short_repr(output.answer),
        )
    return output.parsed


def _why_not_whole(output: Completion) -> str:
    num_tokens = len(output.token_ids)
    if output.finish_reason is FinishReason.ABORT:
        return f"the request was aborted after {num_tokens} tokens, before its answer was complete"
    if output.finish_reason is FinishReason.LENGTH:
        return (
            f"the answer was cut after {num_tokens} tokens by its limit; raise max_tokens, or limit the lengths of "
            f"strings and lists in the type: {short_repr(output.answer)}"
        )
    return f"{short_repr(output.stop)} ended the answer before it was complete: {short_repr(output.answer)}"
