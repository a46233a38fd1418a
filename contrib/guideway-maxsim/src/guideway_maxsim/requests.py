"""Input processing: pairs are checked, then tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from guideway.api import (
    GuidewayError,
    InputProcessor,
    InvalidRequest,
    LimitExceeded,
    Prepared,
    RequestProcessor,
    Task,
    WorkflowContext,
)
from transformers import AutoTokenizer

__all__ = ["BothTexts", "Pairs"]


class Pairs(InputProcessor):
    """Takes pairs of texts."""

    def check(self, task: Task) -> None:
        value = task.value
        if not (isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(text, str) for text in value)):
            raise InvalidRequest("what is ranked is a pair of texts: a query and a document", field="input")
        for text in value:
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidRequest(
                    "a text holds a lone surrogate, which no text can contain", field="input"
                ) from error
        if unknown := set(task.params) - {"truncate"}:
            raise InvalidRequest(f"there is no parameter {min(unknown)!r}; there is truncate", field=min(unknown))
        side = task.params.get("truncate")
        if side is not None and not (isinstance(side, str) and side in ("refuse", "right")):
            raise InvalidRequest("truncate is 'refuse', or 'right' for the end of a document", field="truncate")


class BothTexts(RequestProcessor):
    """Prepares the ids of the query followed by the document, each with special tokens, distinguished by token
    types."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(
            context.model.path, local_files_only=True, trust_remote_code=False
        )
        self._tokenizer.backend_tokenizer.no_truncation()
        self._tokenizer.backend_tokenizer.no_padding()
        self._most = context.max_model_len // 2

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        texts = sorted({text for task in tasks for text in task.value})  # many documents share a query
        try:
            encodings = self._tokenizer.backend_tokenizer.encode_batch(texts)
        except Exception as error:  # a word that the tokenizer has no token for
            if len(tasks) > 1:
                return [self.prepare([task])[0] for task in tasks]
            return [InvalidRequest(f"the pair cannot be tokenized: {error}", field="input")]
        ids = {text: encoding.ids for text, encoding in zip(texts, encodings, strict=True)}
        return [self._prepare(task, *(ids[text] for text in task.value)) for task in tasks]

    def _prepare(self, task: Task, query: list[int], document: list[int]) -> Prepared | GuidewayError:
        if len(query) > self._most:
            return LimitExceeded(f"the query has {len(query)} tokens, and the model takes {self._most}", field="input")
        truncated = len(document) > self._most
        if truncated:
            if (task.params.get("truncate") or self.context.options.truncate) == "refuse":
                return LimitExceeded(
                    f"the document has {len(document)} tokens, and the model takes {self._most}; have its end cut off "
                    "with truncate='right'",
                    field="input",
                )
            document = [*document[: self._most - 1], document[-1]]  # keep the token that ends a text
        types = np.repeat(np.arange(2), [len(query), len(document)])
        return Prepared(
            task=task,
            token_ids=np.array(query + document, dtype=np.int64),
            token_types=types,
            truncated=truncated,
        )
