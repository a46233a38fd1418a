"""From what a caller gives as a prompt to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from guideway.api.options import short_repr
from guideway.errors import InvalidRequest, contain, text_of
from guideway.runtime.sampling import is_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["BYTES", "Message", "Prompt", "conversations", "tokenize"]

Message: TypeAlias = Mapping[str, Any]
"""``{"role": ..., "content": ...}``"""

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]
"""Text, token ids, or chat messages (``{"role": ..., "content": ...}``) for the model's chat template. Content is text,
or a list of text parts (``{"type": "text", "text": ...}``), which are joined as they stand."""

BYTES = bytes | bytearray | memoryview
"""Sequences of whole numbers, but not of token ids."""


def tokenize(prompt: Prompt, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """The token ids of `prompt`. Raises `InvalidRequest`."""
    try:
        return _token_ids(prompt, tokenizer)
    except InvalidRequest:
        raise
    except BaseException as error:  # whatever a tokenizer, a template or a value of any type raises
        contain(error)
        raise InvalidRequest(f"the prompt cannot be tokenized: {text_of(error)}", field="prompt") from error


def conversations(messages: Any) -> list[Any]:
    """One conversation, a list of messages, or several, a list of such lists, as a list of them. Raises
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


def _are(items: object, cls: type) -> bool:
    return isinstance(items, Sequence) and all(isinstance(item, cls) for item in items)


def _token_ids(prompt: Any, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    if isinstance(prompt, str):
        return list(tokenizer(_valid_text(prompt, "the prompt")).input_ids)
    if isinstance(prompt, Mapping):
        raise InvalidRequest(
            "a prompt of chat messages is a list of mappings, and this is one mapping: write [{'role': ..., 'content': "
            "...}] for one prompt, and in a list of prompts [[{'role': ..., 'content': ...}]]",
            field="prompt",
        )
    if not isinstance(prompt, Sequence) or isinstance(prompt, BYTES):
        raise InvalidRequest(
            f"a prompt is text, a list of token ids or a list of chat messages, not {type(prompt).__name__}",
            field="prompt",
        )
    if prompt and all(isinstance(item, Mapping) for item in prompt):
        return _apply_chat_template(prompt, tokenizer)
    for item in prompt:
        if not isinstance(item, Integral) or isinstance(item, bool):  # NumPy's integers are Integral
            raise InvalidRequest(
                "a prompt that is a list holds token ids or chat messages, whole numbers or mappings; this one "
                f"holds a value of type {type(item).__name__}",
                field="prompt",
            )
    return [int(item) for item in prompt]


def _apply_chat_template(messages: Sequence[Any], tokenizer: PreTrainedTokenizerFast) -> list[int]:
    if tokenizer.chat_template is None:
        raise InvalidRequest("this model has no chat template; give the prompt as text", field="prompt")
    if not all({"role", "content"} <= message.keys() for message in messages):
        raise InvalidRequest("each chat message is a mapping with 'role' and 'content'", field="prompt")
    messages = [{**message, "content": _joined(message["content"])} for message in messages]
    try:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # whatever a template's own code raises
        raise InvalidRequest(f"the model's chat template refused the messages: {error}", field="prompt") from error
    return list(tokenizer(_valid_text(str(text), "a chat message"), add_special_tokens=False).input_ids)


def _joined(content: Any) -> Any:
    """Content in parts, as OpenAI's API has it, as the text it is."""
    if not isinstance(content, list | tuple):
        return content
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        if kind != "text":
            raise InvalidRequest(
                f"a chat message has a part of type {short_repr(kind)}, and this engine reads text: parts must be "
                "{'type': 'text', 'text': ...}",
                field="prompt",
            )
        if not isinstance(part.get("text"), str):
            raise InvalidRequest(
                f"the 'text' of a part of a chat message must be a string, not {short_repr(part.get('text'))}",
                field="prompt",
            )
        texts.append(part["text"])
    return "".join(texts)


def _valid_text(text: str, what: str) -> str:
    if not is_text(text):
        raise InvalidRequest(
            f"{what} holds a lone surrogate, which no text can contain; where its bytes were decoded, decode them with "
            "errors='replace'",
            field="prompt",
        )
    return text
