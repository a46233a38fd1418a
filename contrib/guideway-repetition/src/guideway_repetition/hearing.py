"""The common part of the modifiers against repetition: states that hear prompt and output token by token."""

from __future__ import annotations

from abc import abstractmethod
from collections import ChainMap
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
from guideway import api
from numpy.typing import NDArray


class AddTransform(api.LogitTransform):
    """Adds each row's values to the logits of its token ids; padding repeats a token id and adds 0 or -inf again."""

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ids = payload.arrays["ids"]
        repeated = (payload.rows[:, None] + 0 * ids).reshape(-1)
        return step.ops.add_at(logits, repeated, ids.reshape(-1), payload.arrays["values"].reshape(-1))


@dataclass(slots=True)
class State:
    """What followed each earlier sequence of `size` tokens. Token sequences are strings with a character for each
    token id: compact, quick to search, and hashed with a secret of the process."""

    size: int
    last: str = ""
    """The last `size` tokens, or fewer after the beginning."""
    places: MutableMapping[str, Any] = field(default_factory=dict)
    """By earlier sequence what followed it; values are immutable."""
    next_ids: str = ""
    """The token ids whose logits to change before the next token."""

    def fork(self, *, drafts: bool = False) -> Self:
        """Return a copy; a short-lived one for drafts does not copy the places."""
        return replace(self, places=ChainMap({}, self.places) if drafts else dict(self.places))

    def hear(self, token_id: int) -> None:
        """Add a token and compute `next_ids`."""
        token, last, places = chr(token_id), self.last, self.places
        if len(last) == self.size:
            followers = places.get(last, "")
            if token not in followers:
                places[last] = followers + token
            self.last = last = (last + token)[1:]
        else:
            self.last = last = last + token
        self.next_ids = places.get(last, "")


class Repetition(api.LogitModifier[Any]):
    """The common part: it hears prompt and output token by token."""

    transform = AddTransform

    def compile(self, request: api.Request, grammar: api.CompiledGrammar | None) -> State:
        state = self.begin(request.params.modifiers[self.name])
        for token_id in request.prompt_token_ids:
            state.hear(token_id)
        return state

    @abstractmethod
    def begin(self, options: Mapping[str, Any]) -> State:
        """Return the state before the first token. Raises `InvalidRequest`."""

    @abstractmethod
    def values(self, states: Sequence[Any], width: int) -> NDArray[np.float32]:
        """Return ``float32[len(states), width]``: the values to add to the logits of `State.next_ids`, padded."""

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: State | None) -> State | None:
        return None if compiled is None else compiled.fork()

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        has_drafts = batch.num_rows > batch.num_sequences
        by_row = self.ahead(batch, states) if has_drafts else states
        acting = [(row, state) for row, state in enumerate(by_row) if state is not None and state.next_ids]
        if not acting:
            return None
        rows, changed = zip(*acting, strict=True)
        ids = [state.next_ids for state in changed]
        width = max(8, 1 << (max(map(len, ids)) - 1).bit_length())  # few shapes, for devices that compile for each
        joined = "".join([each.ljust(width, each[0]) for each in ids]).encode("utf-32-le", "surrogatepass")
        arrays = {"ids": np.frombuffer(bytearray(joined), np.int32).reshape(-1, width)}
        return api.Payload(np.array(rows, dtype=np.int32), arrays | {"values": self.values(changed, width)})

    def ahead(self, batch: api.StepBatch, states: Sequence[State | None]) -> list[State | None]:
        """Return for each row the state before its token, as if all drafts before it were final."""
        found: list[State | None] = []
        for i, state in enumerate(states):
            found.append(state)
            state = None if state is None else state.fork(drafts=True)
            for token_id in batch.drafts(i).tolist():
                if state is not None:
                    state.hear(token_id)
                found.append(state and replace(state))
        return found

    def accept(self, state: State, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        for token_id in token_ids:
            state.hear(token_id)
        return api.CONTINUE

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def fork(self, state: State) -> State:
        return state.fork()
