"""Bytes that an output must begin with, because a modifier took them off the end of the prompt."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import Bitmask, allocate, allow_only
from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidRequest

__all__ = ["Opening", "TokenTexts"]


class TokenTexts:
    """The texts of a vocabulary's tokens, sorted on first use."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary

    @cached_property
    def _sorted(self) -> tuple[list[bytes], list[int]]:
        """The texts, and the token ids in the same order; without tokens that have no text."""
        pairs = sorted((text, token_id) for token_id, text in enumerate(self.vocabulary.tokens) if text)
        return [text for text, _ in pairs], [token_id for _, token_id in pairs]

    def beginning_with(self, text: bytes, *, only: bool = False) -> list[int]:
        """Return the tokens whose text begins with `text`; with `only` those whose text it is."""
        texts, ids = self._sorted
        place, found = bisect_left(texts, text), []
        while place < len(texts) and (texts[place] == text if only else texts[place].startswith(text)):
            found.append(ids[place])
            place += 1
        return found


class Opening:
    """The masks of the first rows of every sequence of a request: they allow the tokens that write `prefix`, the last
    of which may go on. A token is allowed only if the rest of the prefix can be written after it. Never changes.

    Raises `InvalidRequest` if no tokens of the vocabulary write `prefix`.
    """

    def __init__(self, prefix: bytes, texts: TokenTexts) -> None:
        self.prefix = prefix
        self._tokens = texts.vocabulary.tokens
        self._rows: list[NDArray[np.int32] | None] = [None] * len(prefix)
        """By number of bytes written the row of a bitmask; None where the rest cannot be written."""
        for written in reversed(range(len(prefix))):
            if allowed := self._allowed(written, texts):
                bitmask = allocate(1, texts.vocabulary.logits_width)
                allow_only(bitmask, 0, allowed)
                self._rows[written] = bitmask[0]
        if self._rows[0] is None:
            raise InvalidRequest(f"the model has no tokens that write the text {prefix!r}", field="modifiers")

    def is_over(self, token_ids: Sequence[int]) -> bool:
        """Return whether the output `token_ids` has written the prefix."""
        return len(token_ids) >= len(self.prefix) or self._written(token_ids) >= len(self.prefix)

    def restrict(self, bitmask: Bitmask, rows: Sequence[int], past: Sequence[int], drafts: Sequence[int]) -> None:
        """Clear the bits of forbidden tokens in the rows of a step: the first row follows the tokens `past`, each other
        one a draft. A row after a draft that cannot be kept is left unchanged."""
        written = self._written(past)
        for row, draft in zip(rows, [None, *drafts], strict=True):
            written += 0 if draft is None else len(self._tokens[draft])
            if written < len(self.prefix) and (allowed := self._rows[written]) is not None:
                bitmask[row] &= allowed

    def _written(self, token_ids: Sequence[int]) -> int:
        return sum(len(self._tokens[token_id]) for token_id in token_ids)

    def _allowed(self, written: int, texts: TokenTexts) -> list[int]:
        """Return the tokens that may come after `written` bytes of the prefix. Rows of more bytes are known."""
        found = texts.beginning_with(self.prefix[written:])
        for end in range(written + 1, len(self.prefix)):
            if self._rows[end] is not None:
                found += texts.beginning_with(self.prefix[written:end], only=True)
        return found
