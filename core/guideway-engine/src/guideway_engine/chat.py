"""From chat messages to the text of a prompt, in which what users wrote is never taken for the template's own marks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from guideway.api.options import short_repr
from guideway.errors import InvalidRequest, UnsupportedCapability
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["ChatTemplate", "Plain"]

MARKS = range(0xA000, 0xA48D)
"""The syllables (Yi, which no `upper` or `repr` of a template changes) of which one that nobody wrote stands around a
number in place of a special token."""


class Plain(str):
    """Part of a prompt in which special tokens are the text they look like."""

    __slots__ = ()


class ChatTemplate:
    """The template of a tokenizer. `special_token_ids` are those that text must not become, and None if it may.

    A special token that is written out in a message is kept from the template and from the tokenizer's search for
    special tokens: its place is marked with a number, the messages go through the template, and the prompt falls into
    parts at the marks. A prompt without any is one part, tokenized as it always was.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, special_token_ids: frozenset[int] | None) -> None:
        self._tokenizer = tokenizer
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        spec["truncation"] = spec["padding"] = None
        ids: frozenset[int] = frozenset()
        if special_token_ids is not None:
            ids = special_token_ids | _marks(tokenizer, frozenset(token["id"] for token in spec["added_tokens"]))
        self._special_token_ids = ids
        added = [token for token in spec["added_tokens"] if token["id"] in ids]
        normalizer = tokenizer.backend_tokenizer.normalizer
        self._normalize = normalizer if any(token["normalized"] for token in added) else None
        names = {token["content"] for token in added}
        if self._normalize is not None:  # a token is found by its own name normalized, too
            names |= {normalizer.normalize_str(token["content"]) for token in added if token["normalized"]}
        longest_first = sorted(filter(None, names), key=len, reverse=True)
        self._written = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        for token in added:
            token["special"] = True
        self._plain = Tokenizer.from_str(json.dumps(spec))
        self._plain.encode_special_tokens = True

    def render(self, messages: Sequence[Any], tools: Sequence[Any], check: Callable[[str], None]) -> list[str]:
        """The prompt, in parts to be tokenized one after the other. Raises `InvalidRequest`, `UnsupportedCapability` if
        the template does nothing with the tools, and what `check` raises, which is given all that is in messages and
        tools before any of it is tokenized."""
        if self._tokenizer.chat_template is None:
            raise InvalidRequest("this model has no chat template; give the prompt as text", field="prompt")
        if not all({"role", "content"} <= message.keys() for message in messages):
            raise InvalidRequest("each chat message is a mapping with 'role' and 'content'", field="prompt")
        joined = [{**message, "content": _joined(message["content"])} for message in messages]
        given: tuple[Any, Any] = joined, list(tools)
        hidden: list[str] = []
        texts = [] if self._written is None else list(_texts(given))
        if any(map(self._may_hold, texts)):
            check("".join(texts))
            mark = _unused("".join(texts))

            def hide(text: str) -> str:
                return self._hide(text, mark, hidden)

            given = _mapped(given, hide)
        text = self._apply(*given)
        if tools and text == self._apply(given[0], []):
            raise UnsupportedCapability(
                "this model's chat template does nothing with tools, so the model would not know them; say in a "
                "message what they are, and leave out tools",
                field="tools",
            )
        if not hidden:
            return [text]
        parts = re.split(f"{mark}([0-9]+){mark}", text)
        found = [Plain(hidden[int(part)]) if i % 2 else part for i, part in enumerate(parts)]
        escaped = mark.encode("unicode_escape").decode()  # as a template's `tojson` may have it
        if any(mark in part or escaped in part for part in found):
            raise InvalidRequest(
                f"a chat message or tool holds the special token {short_repr(hidden[0])}, and the model's chat "
                "template takes such messages apart; leave it out",
                field="prompt",
            )
        return [part for part in found if part]

    def _apply(self, messages: Any, tools: Any) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    messages, tools=tools or None, tokenize=False, add_generation_prompt=True
                )
            )
        except Exception as error:  # whatever a template's own code raises
            raise InvalidRequest(f"the model's chat template refused the messages: {error}", field="prompt") from error

    def encode_plain(self, text: str) -> list[int]:
        """The token ids of text in which special tokens are text. Raises `InvalidRequest` where it has none."""
        ids: list[int] = _encoded(self._plain, text).ids
        if not self._special_token_ids.isdisjoint(ids):
            raise InvalidRequest(
                f"a chat message or tool holds the special token {short_repr(text)}, and this model's tokenizer has no "
                "other tokens for its text; leave it out, or set split_special_tokens to False where messages may hold "
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
        encoding = _encoded(self._tokenizer.backend_tokenizer, text)
        parts, end = [], 0
        for token_id, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._special_token_ids and self._may_hold(text[first:last]):
                parts += [text[end:first], f"{mark}{len(hidden)}{mark}"]
                hidden.append(text[first:last])
                end = last
        return "".join([*parts, text[end:]])


def _encoded(tokenizer: Tokenizer, text: str) -> Any:
    # `encode` holds the interpreter's lock until it has done, and `encode_batch` does not: others decode meanwhile
    (encoding,) = tokenizer.encode_batch([text], add_special_tokens=False)
    return encoding


def _marks(tokenizer: PreTrainedTokenizerFast, added: frozenset[int]) -> set[int]:
    """Those of the added tokens that the template puts around messages; some tokenizers do not call them special."""
    for roles in (("system", "user"), ("user",)):
        probe: Any = [{"role": role, "content": "x"} for role in roles]
        try:
            before = str(tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=False))
            whole = str(tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=True))
        except Exception:  # no template, or one that takes other messages
            continue

        def found(text: str) -> list[int]:
            ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
            return [token_id for token_id in ids if token_id in added]

        # of what asks for an answer the first: what else it may begin with, such as reasoning, is the answer's own
        return {*found(before), *found(whole.removeprefix(before))[:1]}
    return set()


def _texts(value: Any) -> Iterator[str]:
    """All strings in a value as JSON has it. Raises `InvalidRequest` for any other, whose text nobody would look at."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(key)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, int | float):
        raise InvalidRequest(
            f"a chat message or tool holds a value of type {type(value).__name__}; it may hold what JSON has: strings, "
            "numbers, true, false, null, lists and mappings",
            field="prompt",
        )


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every string in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_mapped(key, change): _mapped(item, change) for key, item in value.items()}
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
