"""Rendering of chat messages to a prompt in which text written by users never becomes a special token."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from guideway.api.options import short_repr
from guideway.errors import InvalidRequest, UnsupportedCapability, did_you_mean
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["ChatTemplate", "Plain"]

MARKS = range(0xA000, 0xA48D)
"""Yi syllables, which `upper` or `repr` in a template do not change. One that occurs in no message marks the place of a
special token."""


ROLES = ("system", "developer", "user", "assistant", "tool", "function")
"""Roles of OpenAI's API."""
LITERAL = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"")


class Plain(str):
    """Part of a prompt in which special tokens are encoded as ordinary text."""

    __slots__ = ()


class ChatTemplate:
    """The chat template of a tokenizer.

    `special_token_ids` are tokens that text must not become; None allows all. A special token written in a message is
    hidden from the template and from the tokenizer's search for special tokens: it is replaced by a numbered mark, the
    messages go through the template, and the prompt is split at the marks. A prompt without such tokens is a single
    part, tokenized as usual.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, special_token_ids: frozenset[int] | None) -> None:
        self._tokenizer = tokenizer
        written = LITERAL.findall(str(tokenizer.chat_template))
        self._roles = {*ROLES, *(one or other for one, other in written)}
        """Roles that messages may have: those of OpenAI's API, and each string in the template."""
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
        if self._normalize is not None:  # the tokenizer also finds a token by its normalized name
            names |= {normalizer.normalize_str(token["content"]) for token in added if token["normalized"]}
        longest_first = sorted(filter(None, names), key=len, reverse=True)
        self._written = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        for token in added:
            token["special"] = True
        self._plain = Tokenizer.from_str(json.dumps(spec))
        self._plain.encode_special_tokens = True

    @property
    def exists(self) -> bool:
        """False if the tokenizer has no chat template."""
        return self._tokenizer.chat_template is not None

    def render(self, messages: Sequence[Any], tools: Sequence[Any], check: Callable[[str], None]) -> list[str]:
        """Return the prompt as parts to tokenize one after the other.

        `check` is called with all text of messages and tools before it is tokenized, if any may hold a special token.
        Raises `InvalidRequest`, `UnsupportedCapability` if the template ignores the tools, and the errors of `check`.
        """
        if not self.exists:
            raise InvalidRequest("this model has no chat template; give the prompt as text", field="prompt")
        if not all({"role", "content"} <= message.keys() for message in messages):
            raise InvalidRequest("each chat message is a mapping with 'role' and 'content'", field="prompt")
        for role in (message["role"] for message in messages):
            if not isinstance(role, str) or role not in self._roles:
                advice = did_you_mean(role, ROLES) or f"roles are {', '.join(ROLES)}"
                raise InvalidRequest(f"a chat message has the role {short_repr(role)}; {advice}", field="prompt")
        joined = [{**message, "content": _join(message["content"])} for message in messages]
        given: tuple[Any, Any] = joined, list(tools)
        hidden: list[str] = []
        texts = [] if self._written is None else list(_texts(given))
        if any(map(self._may_hold, texts)):
            check("".join(texts))
            mark = _find_unused("".join(texts))

            def hide(text: str) -> str:
                return self._hide(text, mark, hidden)

            given = _map(given, hide)
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
        escaped = mark.encode("unicode_escape").decode()  # a template's `tojson` may escape it
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
        except Exception as error:  # any error of the template's code
            raise InvalidRequest(f"the model's chat template refused the messages: {error}", field="prompt") from error

    def encode_plain(self, text: str) -> list[int]:
        """Return the token ids of `text` with special tokens encoded as ordinary text. Raises `InvalidRequest` if the
        tokenizer cannot do that."""
        ids: list[int] = _encode(self._plain, text).ids
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
        """Replace the special tokens that the tokenizer finds in `text` by marks, and append them to `hidden`."""
        encoding = _encode(self._tokenizer.backend_tokenizer, text)
        parts, end = [], 0
        for token_id, (first, last) in zip(encoding.ids, encoding.offsets, strict=True):
            if token_id in self._special_token_ids and self._may_hold(text[first:last]):
                parts += [text[end:first], f"{mark}{len(hidden)}{mark}"]
                hidden.append(text[first:last])
                end = last
        return "".join([*parts, text[end:]])


def _encode(tokenizer: Tokenizer, text: str) -> Any:
    # `encode` holds the GIL and `encode_batch` does not, so other threads can decode meanwhile
    (encoding,) = tokenizer.encode_batch([text], add_special_tokens=False)
    return encoding


def _marks(tokenizer: PreTrainedTokenizerFast, added: frozenset[int]) -> set[int]:
    """Return the added tokens that the template puts around messages; some tokenizers do not call them special."""
    for roles in (("system", "user"), ("user",)):
        probe: Any = [{"role": role, "content": "x"} for role in roles]
        try:
            before = str(tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=False))
            whole = str(tokenizer.apply_chat_template(probe, tokenize=False, add_generation_prompt=True))
        except Exception:  # no template, or one that refuses these messages
            continue

        def found(text: str) -> list[int]:
            ids = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
            return [token_id for token_id in ids if token_id in added]

        # only the first token of the generation prompt: the rest, such as a start of reasoning, is part of the answer
        return {*found(before), *found(whole.removeprefix(before))[:1]}
    return set()


def _texts(value: Any) -> Iterator[str]:
    """Yield all strings in a JSON value. Raises `InvalidRequest` for other types, whose text would not be checked."""
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


def _map(value: Any, change: Callable[[str], str]) -> Any:
    """Return `value` with `change` applied to every string in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {_map(key, change): _map(item, change) for key, item in value.items()}
    return [_map(item, change) for item in value] if isinstance(value, list | tuple) else value


def _find_unused(text: str) -> str:
    return next(char for char in map(chr, MARKS) if char not in text)


def _join(content: Any) -> Any:
    """Return `content` as text; text parts, as in OpenAI's API, are joined."""
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
