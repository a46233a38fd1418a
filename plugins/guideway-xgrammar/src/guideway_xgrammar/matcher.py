"""xgrammar's compiled grammar and matcher under guideway's contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xgrammar as xgr
from guideway.api import CompiledGrammar, DeadEnd, Matcher
from guideway.api.bitmask import num_words
from guideway.json_schema import MasksAhead, WritingRule

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask
    from guideway.json_schema import NamesAhead

    from guideway_xgrammar.characters import CharacterRule

NO_TOKEN = "the grammar allows no token of this vocabulary here"


class XgrammarCompiled(CompiledGrammar):
    """A compiled grammar; any number of xgrammar's matchers and threads may share it."""

    def __init__(
        self,
        native: xgr.CompiledGrammar,
        tokens: Sequence[bytes],
        rule: WritingRule | CharacterRule,
        *,
        looks_ahead: bool = False,
    ) -> None:
        self._native = native
        self._tokens = tokens
        self._rule = rule
        rule.prepare()
        self._ahead = rule.ahead() if isinstance(rule, WritingRule) and looks_ahead else None

    def matcher(self, stop_token_ids: frozenset[int]) -> XgrammarMatcher:
        native = xgr.GrammarMatcher(self._native, override_stop_tokens=sorted(stop_token_ids))
        width = self._native.tokenizer_info.vocab_size
        return XgrammarMatcher(native, stop_token_ids, self._tokens, self._rule, self._ahead, width)

    @property
    def nbytes(self) -> int:
        return int(self._native.memory_size_bytes)


class XgrammarAhead(MasksAhead):
    """The masks after more tokens by a copy of xgrammar's matcher."""

    def __init__(self, native: xgr.GrammarMatcher, width: int) -> None:
        super().__init__()
        self._native = native
        self._bitmask = np.empty((1, num_words(width)), dtype=np.int32)

    def begin(self) -> None:
        self._copy = self._native.fork()

    def back(self, num_tokens: int) -> bool:
        self._copy.rollback(num_tokens)
        return True

    def read(self, token_id: int) -> Bitmask | None:
        if not self._copy.accept_token(token_id):
            return None
        self._copy.fill_next_token_bitmask(self._bitmask, 0)
        row: Bitmask = self._bitmask[0]
        return row


class XgrammarMatcher(Matcher):
    """A sequence's state in a grammar; `tokens` is xgrammar's spelling of the vocabulary."""

    def __init__(
        self,
        native: xgr.GrammarMatcher,
        stop_token_ids: frozenset[int],
        tokens: Sequence[bytes],
        rule: WritingRule | CharacterRule,
        ahead: NamesAhead | None,
        width: int,
    ) -> None:
        self.native = native
        self._stop_token_ids = stop_token_ids
        self._tokens = tokens
        self.rule = rule
        self._ahead = ahead
        self.looks_ahead = ahead is not None
        """True if `keep_names` may have an effect."""
        self._width = width
        """Tokens of a row in xgrammar: the width of the logits."""
        self.places: list[Any] = [rule.start]
        """The rule's states before the output and after each token; for JSON, the places in it."""
        self._terminated = False

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            if not self.advance(token_id):
                return count
        return len(token_ids)

    def advance(self, token_id: int) -> bool:
        """Accept one token. Return whether it is allowed. xgrammar is not asked about special tokens, nor after
        termination: it prints warnings about them."""
        place = self.places[-1]
        if self._terminated:
            return False
        ends = token_id in self._stop_token_ids
        if not ends:
            before = place
            if not self._tokens[token_id] or (place := self.rule.after(before, token_id)) is None:
                return False
            if self._ahead is not None and not self._ahead.leads_on(before, token_id, self._masks_ahead()):
                return False
        if not self.native.accept_token(token_id):
            return False
        self.places.append(place)
        self._terminated = ends
        return True

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        words = bitmask[row]
        before = words.copy()
        self.native.fill_next_token_bitmask(bitmask, row)
        if (allowed := self.allowed()) is not None:
            words[: allowed.size] &= allowed
        self.keep_names(words)
        # where no token is legal xgrammar writes zeros without an error
        if not np.bitwise_or.reduce(words):
            words[:] = before
            raise DeadEnd(NO_TOKEN)

    def allowed(self) -> Bitmask | None:
        """Return the tokens that the rule allows, as a row or the first part of one; None: all."""
        return self.rule.allowed(self.places[-1])

    def keep_names(self, words: Bitmask) -> None:
        """Clear in a row the tokens that lead to names which the object already has, if names may run out."""
        if self._ahead is not None:
            self._ahead.keep(self.places[-1], words, self._masks_ahead())

    def _masks_ahead(self) -> XgrammarAhead:
        return XgrammarAhead(self.native, self._width)

    def is_terminated(self) -> bool:
        return self._terminated

    def is_accepting(self) -> bool:
        return not self._terminated and bool(self.native.is_completed())

    def rollback(self, num_tokens: int) -> None:
        # xgrammar accepts some negative and some huge counts
        num_accepted = len(self.places) - 1
        if not 0 <= num_tokens <= num_accepted:
            raise ValueError(f"cannot roll back {num_tokens} tokens, only {num_accepted} were accepted")
        if num_tokens:
            self.native.rollback(num_tokens)
            del self.places[-num_tokens:]
            self._terminated = False

    def fork(self) -> XgrammarMatcher:
        other = XgrammarMatcher(
            self.native.fork(), self._stop_token_ids, self._tokens, self.rule, self._ahead, self._width
        )
        other.places, other._terminated = self.places.copy(), self._terminated
        return other
