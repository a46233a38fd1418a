"""The input processor: checks inputs without tokenizing them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from guideway.api.options import Range, mismatch, short_repr
from guideway.api.workflow import InputProcessor, Task
from guideway.errors import InvalidRequest, LimitExceeded, UnsupportedCapability

__all__ = ["PARAMS", "Ids", "TextInputs", "Value", "value_of"]

Ids: TypeAlias = tuple[int, ...]
Value: TypeAlias = str | Ids | tuple[str, str]
"""Text, token ids with their special tokens, or a pair of texts."""

PARAMS: Mapping[str, Mapping[str, Any]] = {
    "embed": {"truncate": Literal["refuse", "right", "left"] | None, "dimensions": Annotated[int, Range(1)] | None},
    "rerank": {"truncate": Literal["refuse", "right", "left"] | None},
    "classify": {"truncate": Literal["refuse", "right", "left"] | None},
}
"""Parameters of a call, by task."""

OF_DECODING = ("params", "constraint", "modifiers", "tools", "logit_bias", "max_tokens", "temperature", "schema")
"""Parameters that apply only to generation."""

KEYS = ("prompt", "prompt_token_ids")


class TextInputs(InputProcessor):
    """Accepts text, token ids, ``{"prompt": text}`` and ``{"prompt_token_ids": ids}``; pairs of texts for ranking or
    classifying."""

    def check(self, task: Task) -> None:
        self._check_params(task)
        value = value_of(task)
        if isinstance(value, str):
            self._check_text(value)
        elif value and isinstance(value[0], str):
            for text in value:
                self._check_text(text)
        else:
            self._check_ids(value)

    def _check_params(self, task: Task) -> None:
        known = PARAMS[task.kind]
        for name, value in task.params.items():
            if name in OF_DECODING:
                raise UnsupportedCapability(
                    f"{task.kind} generates nothing, so {name} would have no effect; leave it out", field=name
                )
            if name not in known:
                raise InvalidRequest(f"{task.kind} has no parameter {name!r}; known: {', '.join(known)}", field=name)
            if wrong := mismatch(name, value, known[name]):
                raise InvalidRequest(wrong, field=name)
        width = self.context.model.config.get("hidden_size") or self.context.model.config.get("dim")
        dimensions = task.params.get("dimensions")
        if dimensions is not None and width is not None and dimensions > width:
            raise InvalidRequest(f"dimensions is {dimensions}, and the model has {width}", field="dimensions")

    def _check_text(self, text: str) -> None:
        most = self.context.options.max_input_bytes
        try:
            num_bytes = len(text) if text.isascii() else len(text.encode())
        except UnicodeEncodeError:
            raise InvalidRequest(
                "the text holds a lone surrogate, which no text can contain; where its bytes were decoded, decode them "
                "with errors='replace'",
                field="input",
            ) from None
        if num_bytes > most:
            raise LimitExceeded(
                f"the text has {num_bytes} bytes, and max_input_bytes is {most}; shorten it", field="input"
            )

    def _check_ids(self, ids: Ids) -> None:
        size = int(self.context.model.config.get("vocab_size", 1 << 31))
        if not ids:
            raise InvalidRequest("a list of token ids holds at least one", field="input")
        if min(ids) < 0 or (max(ids) >= size):
            wrong = next(i for i in ids if i < 0 or i >= size)
            raise InvalidRequest(f"token id {wrong} is not in the vocabulary, which has {size}", field="input")


def value_of(task: Task) -> Value:
    """Return the value of a task as one of three types. Raises `InvalidRequest` for other values."""
    value = task.value
    if isinstance(value, Mapping):
        keys = [key for key in KEYS if value.get(key) is not None]
        if len(keys) != 1 or set(value) - set(KEYS):
            raise InvalidRequest(
                f"an input that is a mapping has one of {' and '.join(map(repr, KEYS))}, not {short_repr(value)}",
                field="input",
            )
        wanted, value = keys[0], value[keys[0]]
        if isinstance(value, str) is not (wanted == "prompt"):
            kind = "text" if wanted == "prompt" else "a list of token ids"
            raise InvalidRequest(f"{wanted!r} is {kind}, not {short_repr(value)}", field="input")
    if isinstance(value, str):
        if task.kind == "rerank":
            raise InvalidRequest("what is ranked is a pair: a query and a document", field="input")
        return value
    if isinstance(value, np.ndarray) and value.ndim == 1 and np.issubdtype(value.dtype, np.integer):
        return tuple(value.tolist())
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        if len(value) == 2 and all(isinstance(item, str) for item in value):
            if task.kind == "embed":
                raise InvalidRequest("a pair of texts has a score or a label, and no vector of its own", field="input")
            return (value[0], value[1])
        if all(isinstance(item, Integral) and not isinstance(item, bool) for item in value):
            return tuple(int(item) for item in value)
    if task.kind == "rerank":
        raise InvalidRequest(
            f"what is ranked is a pair of texts, a query and a document, not {short_repr(task.value)}", field="input"
        )
    raise InvalidRequest(
        f"an input is text, a list of token ids, {{'prompt': ...}}, {{'prompt_token_ids': ...}}"
        f"{' or a pair of texts' if task.kind != 'embed' else ''}, not {short_repr(task.value)}",
        field="input",
    )
