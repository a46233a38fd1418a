"""A vLLM grammar under guideway's contract, using only methods that all backends have."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from guideway.api import CompiledGrammar, ConformanceError, DeadEnd, Matcher
from guideway.json_schema import MasksAhead
from numpy.typing import NDArray

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from guideway.json_schema import NamesAhead, WritingRule

__all__ = ["MaskLayout", "StockCompiled", "StockMatcher"]


@dataclass(frozen=True, slots=True)
class MaskLayout:
    """The layout of a backend's masks, and filters to apply to them."""

    possible: NDArray[np.int32]
    """``int32[words]``, as wide as the backend's masks: the tokens that can ever be legal."""
    eos_token_id: int
    """The token with which the backend marks a complete output."""
    rule: WritingRule | None = None
    """Rule for white space in JSON; None for other outputs."""
    ahead: NamesAhead | None = None
    """Looks ahead where property names may run out, for backends that can fork."""


class Backend(Protocol):
    """The methods of a strategy that its matchers call; see `StockStrategy`."""

    name: ClassVar[str]
    capabilities: ClassVar[frozenset[str]]
    max_rollback: ClassVar[int | None]

    def copy_grammar(self, native: Any) -> Any: ...

    def failure(self, native: Any) -> str | None: ...

    def is_dead_end(self, failure: str) -> bool: ...


class StockCompiled(CompiledGrammar):
    """A compiled grammar that stays in its initial state; matchers are copies."""

    def __init__(self, strategy: Backend, native: Any, rows: MaskLayout, nbytes: int) -> None:
        self.strategy = strategy
        self.rows = rows
        self._native = native
        self._nbytes = nbytes
        self._lock = threading.Lock()

    def native(self) -> Any:
        """Return vLLM's grammar in its initial state."""
        with self._lock:  # llguidance raises if two threads use one matcher
            return self.strategy.copy_grammar(self._native)

    def matcher(self, stop_token_ids: frozenset[int]) -> StockMatcher:
        return StockMatcher(self, self.native(), stop_token_ids)

    @property
    def nbytes(self) -> int:
        return self._nbytes


class StockAhead(MasksAhead):
    """The masks after more tokens by a copy of a backend's grammar; `tensor` is as wide as they are."""

    def __init__(self, strategy: Backend, native: Any, tensor: torch.Tensor) -> None:
        super().__init__()
        self._strategy, self._native = strategy, native
        self._mask = torch.zeros_like(tensor)

    def begin(self) -> None:
        self._copy = self._strategy.copy_grammar(self._native)

    def back(self, num_tokens: int) -> bool:
        limit = self._strategy.max_rollback
        if (limit is not None and num_tokens > limit) or self._strategy.failure(self._copy):
            return False
        self._copy.rollback(num_tokens)
        return True

    def read(self, token_id: int) -> Bitmask | None:
        if not self._copy.accept_tokens("", [token_id]):
            return None
        self._copy.fill_bitmask(self._mask, 0)
        row: Bitmask = self._mask[0].numpy()
        return row


class StockMatcher(Matcher):
    """A matcher that keeps the mask of its state. A token is legal if its bit is set, so `accept` and `fill_bitmask`
    agree, and the backend never gets a token that it would refuse, which each backend handles differently.

    Stop tokens never reach the backend: they are legal where its mask allows its own end token.
    """

    def __init__(self, compiled: StockCompiled, native: Any, stop_token_ids: frozenset[int]) -> None:
        self._compiled = compiled
        self._native = native
        self._stop_token_ids = stop_token_ids
        self._token_ids: list[int] = []
        self._terminated = False
        self._accepting = False
        rule = compiled.rows.rule
        self._places = [] if rule is None else [rule.start]
        """Positions in the JSON text after each token, if there is a rule."""
        self._mask = np.zeros((1, compiled.rows.possible.size), dtype=np.int32)
        self._tensor = torch.from_numpy(self._mask)
        # reading single bits from this is several times as fast as from the array
        self._words = self._mask[0].data.cast("B").cast("I")
        self._is_current = False

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if self._terminated or not self._is_legal(token_id):
                return count
            if token_id in self._stop_token_ids:
                self._terminated = True
            else:
                self._advance(token_id)
            self._token_ids.append(token_id)
        return len(token_ids)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        self._update()
        mask = self._mask[0]
        if not np.bitwise_or.reduce(mask):
            raise DeadEnd("the grammar allows no token of this vocabulary here")
        words = bitmask[row]
        common = min(words.size, mask.size)
        words[:common] = mask[:common]
        words[common:] = 0

    def is_terminated(self) -> bool:
        return self._terminated

    def is_accepting(self) -> bool:
        if self._terminated:
            return False
        self._update()
        return self._accepting

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= len(self._token_ids):
            raise ValueError(f"cannot roll back {num_tokens} tokens, {len(self._token_ids)} were accepted")
        if num_tokens == 0:
            return
        limit = self._compiled.strategy.max_rollback
        if limit is not None and num_tokens > limit:
            super().rollback(num_tokens)
        num_native = num_tokens - self._terminated
        self._token_ids, self._terminated = self._token_ids[: len(self._token_ids) - num_tokens], False
        if not num_native:
            return
        del self._places[len(self._token_ids) + 1 :]
        if self._compiled.strategy.failure(self._native):
            self._native = self._compiled.native()  # a failed grammar cannot be rolled back
            for token_id in self._token_ids:
                self._feed(token_id)
        else:
            self._is_current = False
            self._native.rollback(num_native)

    def fork(self) -> Matcher:
        strategy = self._compiled.strategy
        if "fork" not in strategy.capabilities:
            return super().fork()
        other = StockMatcher(self._compiled, strategy.copy_grammar(self._native), self._stop_token_ids)
        other._token_ids, other._terminated = self._token_ids.copy(), self._terminated
        other._places = self._places.copy()
        return other

    def _is_legal(self, token_id: int) -> bool:
        self._update()
        return token_id >> 5 < len(self._words) and bool(self._words[token_id >> 5] >> (token_id & 31) & 1)

    def _advance(self, token_id: int) -> None:
        self._feed(token_id)
        if (rule := self._compiled.rows.rule) is not None:
            place = rule.after(self._places[-1], token_id)
            assert place is not None, "the mask has it"
            self._places.append(place)

    def _feed(self, token_id: int) -> None:
        self._is_current = False
        if not self._native.accept_tokens("", [token_id]):
            raise ConformanceError(
                f"grammar.{self._compiled.strategy.name} refused token {token_id}, which its own mask allows"
            )

    def _update(self) -> None:
        if self._is_current:
            return
        rows, words = self._compiled.rows, self._words
        self._native.fill_bitmask(self._tensor, 0)
        error = self._compiled.strategy.failure(self._native)
        if error is not None:
            if not self._compiled.strategy.is_dead_end(error):
                raise ConformanceError(f"grammar.{self._compiled.strategy.name} failed: {error}")
            self._mask[:] = 0
        eos = rows.eos_token_id
        self._accepting = bool(words[eos >> 5] >> (eos & 31) & 1)
        self._mask[0] &= rows.possible
        if rows.rule is not None and (allowed := rows.rule.allowed(self._places[-1])) is not None:
            common = min(allowed.size, self._mask.shape[1])
            self._mask[0, :common] &= allowed[:common]
        if rows.ahead is not None:
            rows.ahead.keep(
                self._places[-1], self._mask[0], StockAhead(self._compiled.strategy, self._native, self._tensor)
            )
        words[eos >> 5] &= ~(1 << (eos & 31))
        for token_id in self._stop_token_ids:
            bit = 1 << (token_id & 31)
            if self._accepting:
                words[token_id >> 5] |= bit
            else:
                words[token_id >> 5] &= ~bit
        self._is_current = True
