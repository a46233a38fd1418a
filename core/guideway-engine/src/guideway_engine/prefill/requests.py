"""The request processor: tokenizes texts in batches, and truncates or refuses those that are too long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from guideway.api.options import short_repr
from guideway.api.workflow import Prepared, RequestProcessor, Task, WorkflowContext
from guideway.errors import GuidewayError, InvalidConfiguration, InvalidRequest, LimitExceeded, contain, text_of

from guideway_engine.model_files import existing_folder, fast_tokenizer
from guideway_engine.prefill.cutting import cut_text, is_cuttable
from guideway_engine.prefill.inputs import Ids, value_of
from guideway_engine.prefill.sentence_transformers import leaves_prompt_out, recipe_of

__all__ = ["Tokenizing"]

LONG_CHARACTERS = 16
"""Characters per token of the context above which a text is tokenized alone, and truncated first if possible."""


class Tokenizing(RequestProcessor):
    """Tokenizes with the model's fast tokenizer."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        tokenizer = fast_tokenizer(existing_folder(context.model.path))
        self._tokenizer: Any = tokenizer.backend_tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._cuttable = is_cuttable(self._tokenizer.to_str())
        recipe = recipe_of(context.model)
        self._lower_case = recipe.lower_case
        chosen = getattr(context.options, "prompt", None)
        self._prompt: str = recipe.prompt if chosen is None else chosen
        if self._prompt and leaves_prompt_out(context.model):
            raise InvalidConfiguration(
                f"the model's pooling leaves out the tokens of the prompt {short_repr(self._prompt)} (include_prompt), "
                'which is not known here; set prompt = ""',
                field='options."workflow.embed".prompt',
            )
        num_types = int(context.model.config.get("type_vocab_size") or 0)
        self._has_types = num_types > 1 and "token_type_ids" in tokenizer.model_input_names
        self._most = context.max_model_len

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        ready: dict[Task, Prepared | GuidewayError] = {}
        together: list[Task] = []
        for task in tasks:
            value = task.value if isinstance(task.value, str) else value_of(task)
            if isinstance(value, str) and len(value) <= LONG_CHARACTERS * self._most:
                together.append(task)
            else:
                ready[task] = self._guard(self._one, task)
        ready |= self._batch(together)
        return [ready[task] for task in tasks]

    def _batch(self, tasks: list[Task]) -> dict[Task, Prepared | GuidewayError]:
        """Tokenize short texts in one call, or each alone if that fails."""
        try:
            encodings = self._tokenizer.encode_batch([self._text(self._prompt + str(value_of(task))) for task in tasks])
        except BaseException as error:
            contain(error)
            return {task: self._guard(self._one, task) for task in tasks}
        return {
            task: self._guard(partial(self._short, encoding), task)
            for task, encoding in zip(tasks, encodings, strict=True)
        }

    def _guard(self, prepare: Callable[[Task], Prepared], task: Task) -> Prepared | GuidewayError:
        try:
            return prepare(task)
        except GuidewayError as error:
            return error
        except BaseException as error:
            contain(error)
            return InvalidRequest(f"the text cannot be tokenized: {text_of(error)}", field="input")

    def _short(self, encoding: Any, task: Task) -> Prepared:
        """Return the request of a text that was tokenized in a batch."""
        return self._from_encoding(task, encoding) if len(encoding) <= self._most else self._one(task)

    def _one(self, task: Task) -> Prepared:
        value = value_of(task)
        if isinstance(value, str):
            return self._text_alone(task, value)
        if value and isinstance(value[0], str):
            return self._pair(task, value[0], str(value[1]))
        return self._ids(task, value)

    def _text_alone(self, task: Task, text: str) -> Prepared:
        room = self._room(is_pair=False)
        encoding, truncated = self._cut(task, self._prompt + text, room)
        if truncated and self._prompt and self._policy(task) == "left":
            raise InvalidRequest(
                f"truncate='left' would cut off the prompt {short_repr(self._prompt)}, which stands before each text; "
                "shorten the text, or cut its end off with truncate='right'",
                field="truncate",
            )
        return self._from_encoding(task, self._tokenizer.post_process(encoding), truncated=truncated)

    def _pair(self, task: Task, first: str, second: str) -> Prepared:
        before = self._encode(self._text(first))
        room = self._room(is_pair=True) - len(before)
        if room < 1:
            raise LimitExceeded(
                f"the first text of the pair has {len(before)} tokens, and the context has room for {self._most}, the "
                "second text and special tokens among them; shorten it",
                field="input",
            )
        encoding, truncated = self._cut(task, second, room)
        return self._from_encoding(task, self._tokenizer.post_process(before, encoding), truncated=truncated)

    def _ids(self, task: Task, ids: Ids) -> Prepared:
        truncated = len(ids) > self._most
        if truncated:
            side = self._side(task, len(ids))
            ids = ids[: self._most] if side == "right" else ids[-self._most :]
        return self._request(task, ids, [0] * len(ids), truncated=truncated)

    def _cut(self, task: Task, text: str, room: int) -> tuple[Any, bool]:
        """Return the encoding of `text` in at most `room` tokens, and whether it was truncated."""
        policy = self._policy(task)
        text = self._text(text)
        if policy != "refuse" and self._cuttable and len(text) > LONG_CHARACTERS * room:
            encoding = cut_text(text, room, policy, self._encode)
        else:
            encoding = self._encode(text)
        if len(encoding) <= room:
            return encoding, False
        encoding.truncate(room, direction=self._side(task, len(encoding) + self._most - room))
        return encoding, True

    def _policy(self, task: Task) -> Any:
        return task.params.get("truncate") or self.context.options.truncate

    def _side(self, task: Task, num_tokens: int) -> str:
        """Return the side to truncate. Raises `LimitExceeded` if truncation is not allowed."""
        policy: str = self._policy(task)
        if policy == "refuse":
            raise LimitExceeded(
                f"the input has {num_tokens} tokens, and the model takes {self._most}; shorten it, or have its end cut "
                "off with truncate='right', its beginning with truncate='left'",
                field="input",
            )
        return policy

    def _room(self, *, is_pair: bool) -> int:
        room: int = self._most - self._tokenizer.num_special_tokens_to_add(is_pair)
        if room < 1:
            raise LimitExceeded(f"a context of {self._most} tokens holds no text", field="max_model_len")
        return room

    def _text(self, text: str) -> str:
        return text.lower() if self._lower_case else text

    def _encode(self, text: str) -> Any:
        # `encode` holds the GIL and `encode_batch` does not
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=False)
        return encoding

    def _from_encoding(self, task: Task, encoding: Any, *, truncated: bool = False) -> Prepared:
        return self._request(task, encoding.ids, encoding.type_ids, truncated=truncated)

    def _request(self, task: Task, ids: Sequence[int], types: Sequence[int], *, truncated: bool) -> Prepared:
        """Return the request for these tokens. Raises `InvalidRequest` if there are none, because no model can compute
        that."""
        if not len(ids):
            raise InvalidRequest(
                "the text has no token: the model's tokenizer makes none of it and adds none; leave it out, or give a "
                "text with words",
                field="input",
            )
        return Prepared(
            task=task,
            token_ids=np.array(ids, dtype=np.int64),
            token_types=np.array(types, dtype=np.int64) if self._has_types else None,
            truncated=truncated,
        )
