"""outlines-core's index under guideway's contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from guideway.api import CompiledGrammar, DeadEnd, Matcher
from guideway.api.bitmask import num_words
from outlines_core import Index  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from guideway.json_schema import JsonCursor, WritingRule
    from numpy.typing import NDArray

MAX_MASKS = 1024
"""Maximum cached masks of a grammar; 16 MB with a vocabulary of 131072 tokens."""
BYTES_PER_SERIALIZED_BYTE = 3
"""Size of the hash tables in memory relative to their serialized entries."""


class OutlinesCompiled(CompiledGrammar):
    """An index: the legal tokens of every state, with the state that each leads to. States are numbers. The index is
    immutable except for its cache of masks, so matchers share it."""

    def __init__(self, index: Index, start: int, num_tokens: int, serialized: bytes, rule: WritingRule | None) -> None:
        self.index = index
        self.start = start
        self.finals = frozenset(index.get_final_states())
        self.num_tokens = num_tokens
        self.rule = rule
        """The rule for writing JSON, if the output is JSON."""
        if rule is not None:
            rule.prepare()
        self._serialized_nbytes = len(serialized)
        self._masks: dict[int, NDArray[np.int32] | None] = {}

    def matcher(self, stop_token_ids: frozenset[int]) -> OutlinesMatcher:
        return OutlinesMatcher(self, stop_token_ids, [self.start], [] if self.rule is None else [self.rule.start])

    @property
    def nbytes(self) -> int:
        each = 4 * num_words(self.num_tokens)
        # before masks are cached, count as many as the index may need: it has an entry per legal token and state
        masks = max(len(self._masks) * each, min(MAX_MASKS * each, self._serialized_nbytes))
        return self._serialized_nbytes * BYTES_PER_SERIALIZED_BYTE + masks

    def to_bytes(self) -> bytes:
        head = "" if self.rule is None else self.rule.whitespace
        return head.encode() + b"\n" + bytes(self.index.__reduce__()[1][0])

    def mask(self, state: int) -> NDArray[np.int32]:
        """Return the legal tokens of `state`, without stop tokens."""
        mask = self._masks.get(state)
        if mask is None:
            legal = np.array(self.index.get_allowed_tokens(state) or (), dtype=np.int64)
            bits = np.zeros(num_words(self.num_tokens) * 32, dtype=np.uint8)
            bits[legal[legal < self.num_tokens]] = 1  # larger ids are the plugin's own tokens
            mask = np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)
            if len(self._masks) >= MAX_MASKS:
                self._masks.clear()
            self._masks[state] = mask
        return mask


class OutlinesMatcher(Matcher):
    """A matcher that keeps the state before the output and after each token, -1 after a stop token, which outlines-core
    never gets. `cursors` are the same places in JSON, if there is a rule."""

    def __init__(
        self, compiled: OutlinesCompiled, stop_token_ids: frozenset[int], states: list[int], cursors: list[JsonCursor]
    ) -> None:
        self._compiled = compiled
        self._stop_token_ids = stop_token_ids
        self._states = states
        self._cursors = cursors

    def accept(self, token_ids: Sequence[int]) -> int:
        return self._walk(token_ids, self._states, self._cursors)

    def validate(self, token_ids: Sequence[int]) -> int:
        return self._walk(token_ids, self._states[-1:], self._cursors[-1:])

    def _walk(self, token_ids: Sequence[int], states: list[int], cursors: list[JsonCursor]) -> int:
        compiled, rule = self._compiled, self._compiled.rule
        for count, token_id in enumerate(token_ids):
            state: int | None = None
            if states[-1] == TERMINATED:
                return count
            if token_id in self._stop_token_ids:
                state = TERMINATED if states[-1] in compiled.finals else None
            elif 0 <= token_id < compiled.num_tokens:
                state = compiled.index.get_next_state(states[-1], token_id)
            if state is None:
                return count
            if rule is not None:
                cursor = rule.after(cursors[-1], token_id)
                if cursor is None:
                    return count
                cursors.append(cursor)
            states.append(state)
        return len(token_ids)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        mask = self._compiled.mask(self._states[-1])
        rule = self._compiled.rule
        if rule is not None and (allowed := rule.allowed(self._cursors[-1])) is not None:
            mask = mask & allowed
        accepting = self.is_accepting()
        if not accepting and not mask.any():
            raise DeadEnd("the grammar allows no token of this vocabulary here")
        words = bitmask[row]
        words[: mask.size] = mask
        words[mask.size :] = 0
        if accepting:
            for token_id in self._stop_token_ids:
                words.view(np.uint32)[token_id >> 5] |= np.uint32(1 << (token_id & 31))

    def is_terminated(self) -> bool:
        return self._states[-1] == TERMINATED

    def is_accepting(self) -> bool:
        return self._states[-1] in self._compiled.finals

    def rollback(self, num_tokens: int) -> None:
        num_accepted = len(self._states) - 1
        if not 0 <= num_tokens <= num_accepted:
            raise ValueError(f"cannot roll back {num_tokens} tokens, only {num_accepted} were accepted")
        del self._states[len(self._states) - num_tokens :]
        del self._cursors[len(self._states) :]

    def fork(self) -> OutlinesMatcher:
        return OutlinesMatcher(self._compiled, self._stop_token_ids, self._states.copy(), self._cursors.copy())


TERMINATED = -1
"""The state after a stop token."""
