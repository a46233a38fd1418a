"""From chat messages to the text of a prompt, in which what users wrote is never taken for the template's own marks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from guideway.api.options import short_repr
from guideway.errors import InvalidRequest
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["ChatTemplate", "Plain"]

MARKS = range(0xE000, 0xF8FF)
"""Private characters, of which one that nobody wrote stands around a number in place of a special token."""


class Plain(str):
    """Part of a prompt in which special tokens are the text they look like."""

    __slots__ = ()


class ChatTemplate:
    """The template of a tokenizer. `special_token_ids` are those that text must not become, and None if it may.

    A special token that is written out in a message is kept from the template and from the tokenizer's search for
    special tokens: its place is marked with a number, the messages go through the template, and the prompt falls into
    parts at the marks. A prompt without any is one part, tokenised as it always was.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, special_token_ids: frozenset[int] | None) -> None:
        self._tokenizer = tokenizer
        self._special_token_ids = special_token_ids or frozenset()
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        added = [token for token in spec["added_tokens"] if token["id"] in self._special_token_ids]
        names = sorted((token["content"] for token in added), key=len, reverse=True)
        self._written = re.compile("|".join(map(re.escape, names))) if names else None
        self._normalize = tokenizer.backend_tokenizer.normalizer if any(t["normalized"] for t in added) else None
        for token in added:
            token["special"] = True
        self._plain = Tokenizer.from_str(json.dumps(spec))
        self._plain.encode_special_tokens = True

    def render(self, messages: Sequence[Any]) -> list[str]:
        """The prompt, in parts to be tokenised one after the other. Raises `InvalidRequest`."""
        if self._tokenizer.chat_template is None:
            raise InvalidRequest("this model has no chat template; give the prompt as text", field="prompt")
        if not all({"role", "content"} <= message.keys() for message in messages):
            raise InvalidRequest("each chat message is a mapping with 'role' and 'content'", field="prompt")
        given: Any = [{**message, "content": _joined(message["content"])} for message in messages]
        hidden: list[str] = []
        if self._written is not None and any(map(self._may_hold, _texts(given))):
            mark = _unused("".join(_texts(given)))

            def hide(text: str) -> str:
                return self._hide(text, mark, hidden)

            given = _mapped(given, hide)
        try:
            text = str(self._tokenizer.apply_chat_template(given, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # whatever a template's own code raises
            raise InvalidRequest(f"the model's chat template refused the messages: {error}", field="prompt") from error
        if not hidden:
            return [text]
        parts = re.split(f"{mark}([0-9]+){mark}", text)
        found = [Plain(hidden[int(part)]) if i % 2 else part for i, part in enumerate(parts)]
        if any(mark in part for part in found):
            raise InvalidRequest(
                f"a chat message holds the special token {short_repr(hidden[0])}, and the model's chat template takes "
                "such messages apart; leave it out",
                field="prompt",
            )
        return [part for part in found if part]

    def encode_plain(self, text: str) -> list[int]:
        """The token ids of text in which special tokens are text. Raises `InvalidRequest` where it has none."""
        ids: list[int] = self._plain.encode(text, add_special_tokens=False).ids
        if not self._special_token_ids.isdisjoint(ids):
            raise InvalidRequest(
                f"a chat message holds the special token {short_repr(text)}, and this model's tokenizer has no other "
                "tokens for its text; leave it out, or set split_special_tokens to False where messages may hold "
                "special tokens",
                field="prompt",
            )
        return ids

    def _may_hold(self, text: str) -> bool:
        assert self._written is not None
        return bool(
            self._written.search(text)
            or (self._normalize is not None and self._written.search(self._normalize.normalize_str(text)))
        )

    def _hide(self, text: str, mark: str, hidden: list[str]) -> str:
        """`text` with marks for what the tokenizer takes for special tokens in it; these go to `hidden`."""
        encoding = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
        parts, end = [], 0
        for token_id, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._special_token_ids and self._may_hold(text[first:last]):
                parts += [text[end:first], f"{mark}{len(hidden)}{mark}"]
                hidden.append(text[first:last])
                end = last
        return "".join([*parts, text[end:]])


def _texts(value: Any) -> Iterator[str]:
    """All strings in a value of mappings and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every string in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    return [_mapped(item, change) for item in value] if isinstance(value, list | tuple) else value


def _unused(text: str) -> str:
    return next(char for char in map(chr, MARKS) if char not in text)


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
