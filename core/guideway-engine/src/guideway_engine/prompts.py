"""Conversion of callers' prompts to token ids."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import isfunction
from itertools import chain
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from guideway.api.options import short_repr
from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidRequest, LimitExceeded, contain, text_of
from guideway.runtime.admission.sampling import is_text

from guideway_engine.chat import ChatTemplate, Plain

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["BYTES", "Message", "Prompt", "PromptReader", "Read", "Tool", "conversations", "most_bytes", "read_tools"]

Message: TypeAlias = Mapping[str, Any]
"""A chat message: ``{"role": ..., "content": ...}``."""

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages (``{"role": ..., "content": ...}``) for the model's chat template. Content is text,
or a list of text parts (``{"type": "text", "text": ...}``), which are joined without separators."""

Tool: TypeAlias = Mapping[str, Any] | Callable[..., Any]
"""``{"type": "function", "function": {"name": ..., "description": ..., "parameters": ...}}`` as in OpenAI's API, or a
function with type hints and a docstring that describes it and has an ``Args:`` section for its parameters."""

MOST_LEVELS = 100
"""Maximum nesting of lists and mappings in a chat message or a tool."""

BYTES = bytes | bytearray | memoryview
"""Sequences of integers that are not token ids."""


Read: TypeAlias = str | tuple[int, ...] | tuple[Mapping[str, Any], ...]
"""A prompt of a known form."""


class PromptReader:
    """Converts prompts to token ids. Its methods may be called from several threads at once.

    `max_bytes` is the maximum number of bytes of text in a prompt that fits (`most_bytes`); longer prompts are not
    tokenized.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, template: ChatTemplate, max_bytes: int | None) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._max_bytes = max_bytes
        # the first call configures truncation and padding, which must not happen in two calls at once
        tokenizer("")

    @property
    def has_chat_template(self) -> bool:
        """True if chat messages can be tokenized."""
        return self._template.exists

    def read(self, prompt: Prompt) -> Read:
        """Return `prompt` in a known form. Raises `InvalidRequest` if it has none."""
        with _as_invalid("read"):
            return _read(prompt)

    def tokenize(self, prompt: Read, tools: Sequence[Mapping[str, Any]] = ()) -> tuple[int, ...]:
        """Return the token ids of a prompt, with tools for its chat template. Raises `InvalidRequest`."""
        with _as_invalid("tokenized"):
            if tools and not (prompt and isinstance(prompt[0], Mapping)):
                raise InvalidRequest(
                    "tools need the model's chat template, but this prompt does not use it; give the prompt as chat "
                    "messages",
                    field="tools",
                )
            if isinstance(prompt, str):
                self._check_bytes(_valid_text(prompt, "the prompt"))
                return tuple(self._tokenizer(prompt).input_ids)
            if prompt and isinstance(prompt[0], Mapping):
                parts = self._template.render(prompt, tools, self._check_bytes)
                self._check_bytes(_valid_text("".join(parts), "a chat message"))
                return tuple(chain.from_iterable(map(self._encode, parts)))
            return cast("tuple[int, ...]", prompt)

    def _encode(self, part: str) -> Sequence[int]:
        if isinstance(part, Plain):
            return self._template.encode_plain(part)
        ids: list[int] = self._tokenizer(part, add_special_tokens=False).input_ids
        return ids

    def _check_bytes(self, text: str) -> None:
        if self._max_bytes is not None and 4 * len(text) > self._max_bytes:  # a character has at most 4
            num_bytes = len(text.encode())
            if num_bytes > self._max_bytes:
                raise LimitExceeded(
                    f"the prompt has {num_bytes} bytes of text, but the tokens of a full context have at most "
                    f"{self._max_bytes}; shorten it",
                    field="prompt",
                )


def most_bytes(tokenizer: PreTrainedTokenizerFast, vocabulary: Vocabulary, num_tokens: int) -> int | None:
    """Return the number of bytes of the longest text that `num_tokens` tokens can encode; None if the tokenizer may
    drop parts of a text, or encode text of any length as one token."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    bytewise = spec["model"].get("byte_fallback") or (spec["decoder"] or {}).get("type") == "ByteLevel"
    greedy = any(token["lstrip"] or token["rstrip"] for token in spec["added_tokens"])
    if spec["normalizer"] is not None or greedy or not bytewise:
        return None
    longest = max(map(len, vocabulary.tokens))
    return num_tokens * max([longest, *(len(name.encode()) for name in vocabulary.special_tokens.values())])


@contextmanager
def _as_invalid(what: str) -> Iterator[None]:
    """Raise any error of a tokenizer, a template or a value as `InvalidRequest`."""
    try:
        yield
    except InvalidRequest:
        raise
    except BaseException as error:
        contain(error)
        raise InvalidRequest(f"the prompt cannot be {what}: {text_of(error)}", field="prompt") from error


def conversations(messages: Any) -> list[Any]:
    """Return a list of conversations from one conversation, a list of messages, or a list of such lists. Raises
    `InvalidRequest` if it is neither."""
    if _are(messages, Mapping) and messages:
        return [messages]
    several = isinstance(messages, Sequence) and not isinstance(messages, str | BYTES)
    if not several or not all(_are(conversation, Mapping) for conversation in messages):
        raise InvalidRequest(
            "messages must be one conversation, a list of messages {'role': ..., 'content': ...}, or a list of such "
            f"lists, not {short_repr(messages)}; generate takes text and token ids",
            field="messages",
        )
    return list(messages)


def read_tools(tools: Any) -> tuple[Mapping[str, Any], ...]:
    """Return tools in OpenAI's form; functions are converted. Raises `InvalidRequest`."""
    if tools is None:
        return ()
    if not isinstance(tools, Sequence) or isinstance(tools, str | BYTES):
        raise InvalidRequest(f"tools must be a list of tools, not {short_repr(tools)}", field="tools")
    return tuple(map(_read_tool, tools))


def _read_tool(tool: Any) -> Mapping[str, Any]:
    if isfunction(tool):
        from transformers.utils.chat_template_utils import get_json_schema

        try:
            described: Mapping[str, Any] = get_json_schema(tool)
        except Exception as error:  # any error caused by its type hints or docstring
            raise InvalidRequest(
                f"the function {tool.__name__} cannot be described as a tool: {text_of(error)}", field="tools"
            ) from error
        return described
    function = tool.get("function") if isinstance(tool, Mapping) and tool.get("type") == "function" else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidRequest(
            "a tool is {'type': 'function', 'function': {'name': ..., 'description': ..., 'parameters': ...}} or a "
            f"function with type hints and a docstring, not {short_repr(tool)}",
            field="tools",
        )
    _expect_shallow(tool, "a tool", "tools")
    try:
        # a copy, because hooks see it and the caller owns the original
        copied: Mapping[str, Any] = json.loads(json.dumps(tool))
    except (TypeError, ValueError, RecursionError) as error:
        name = short_repr(function["name"])
        raise InvalidRequest(f"the tool {name} cannot be written as JSON: {text_of(error)}", field="tools") from error
    return copied


def _expect_shallow(value: Any, what: str, field: str) -> None:
    """Raise `InvalidRequest` if lists and mappings in `value` are nested deeper than `MOST_LEVELS`."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        parts = (part for each in level for part in (each.values() if isinstance(each, Mapping) else each))
        level = list({id(part): part for part in parts if isinstance(part, Mapping | list | tuple)}.values())
        if not level:
            return
    raise InvalidRequest(f"{what} is nested deeper than {MOST_LEVELS} levels", field=field)


def _are(items: object, cls: type) -> bool:
    return isinstance(items, Sequence) and all(isinstance(item, cls) for item in items)


def _read(prompt: Any) -> Read:
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Mapping):
        raise InvalidRequest(
            "a prompt of chat messages must be a list of mappings, not one mapping; write [{'role': ..., 'content': "
            "...}] for one prompt, and [[{'role': ..., 'content': ...}]] for a list of prompts",
            field="prompt",
        )
    if not isinstance(prompt, Sequence) or isinstance(prompt, BYTES):
        raise InvalidRequest(
            f"a prompt is text, a list of token ids or a list of chat messages, not {type(prompt).__name__}",
            field="prompt",
        )
    if prompt and all(isinstance(item, Mapping) for item in prompt):
        _expect_shallow(prompt, "the prompt", "prompt")
        return tuple(copy.deepcopy(prompt))  # a copy, because hooks see them and the caller owns the originals
    for item in prompt:
        if not isinstance(item, Integral) or isinstance(item, bool):  # NumPy's integers are Integral
            raise InvalidRequest(
                "a prompt that is a list must hold only token ids (whole numbers) or only chat messages (mappings); "
                f"this one holds a value of type {type(item).__name__}",
                field="prompt",
            )
    return tuple(int(item) for item in prompt)


def _valid_text(text: str, what: str) -> str:
    if not is_text(text):
        raise InvalidRequest(
            f"{what} contains a lone surrogate, which is not valid Unicode text; decode its bytes with "
            "errors='replace'",
            field="prompt",
        )
    return text
