"""A vocabulary as a tokenizer of llguidance."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from guideway.api import InvalidConfiguration
from llguidance import LLTokenizer, TokenizerWrapper

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guideway.api import Vocabulary


MOST_KEPT = 1024
"""Texts whose tokens are cached: every output of a schema has the same forced texts."""
LONGEST_KEPT = 256
"""Maximum bytes of a cached text."""


class _Source:
    """The tokenizer that `TokenizerWrapper` reads. Special tokens have their names, which a Lark grammar may use; no
    text matches them."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, eos_token_id: int) -> None:
        self._vocabulary = vocabulary
        self.eos_token_id = eos_token_id
        self.special_token_ids = sorted({eos_token_id, *vocabulary.stop_token_ids, *vocabulary.special_tokens})
        self.tokens = list(vocabulary.tokens)
        for token_id in self.special_token_ids:
            name = vocabulary.special_tokens.get(token_id) or f"<[{token_id}]>"
            self.tokens[token_id] = name.encode()
        self._kept = lru_cache(MOST_KEPT)(self._encode)

    def __call__(self, text: bytes) -> list[int]:
        return list((self._kept if len(text) <= LONGEST_KEPT else self._encode)(text))

    def _encode(self, text: bytes) -> list[int]:
        encoded = self._vocabulary.encode(text)
        return self._greedy(text) if encoded is None else encoded

    def _greedy(self, text: bytes) -> list[int]:
        """Return the longest token at each place; bytes that begin no token are skipped. Used if the vocabulary has no
        encoder, and only to judge which forced text is safe to tokenize; masks do not depend on it."""
        token_ids, start = [], 0
        while start < len(text):
            for end in range(min(len(text), start + self._longest), start, -1):
                token_id = self._ids.get(text[start:end])
                if token_id is not None:
                    token_ids.append(token_id)
                    break
            else:
                end = start + 1
            start = end
        return token_ids

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        return {token: i for i, token in enumerate(self._vocabulary.tokens) if token}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)


class Borders:
    """Finds the tokens that are certain at the end of a forced text, which a longer token may overlap. llguidance looks
    back over few tokens there; a long one may begin before those."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tokens

    def certain(self, text: bytes, token_ids: Sequence[int]) -> int:
        """Return how many of the first tokens of `text` stay the same whatever text follows."""
        start = 0
        for count, token_id in enumerate(token_ids):
            if self._run_over(text[start:]):
                return count
            start += len(self._tokens[token_id])
        return len(token_ids)

    def _run_over(self, rest: bytes) -> bool:
        """Return whether a longer token begins with `rest`."""
        place = bisect_right(self._sorted, rest)
        return place < len(self._sorted) and self._sorted[place].startswith(rest)

    @cached_property
    def _sorted(self) -> list[bytes]:
        return sorted(self._tokens)


def build_tokenizer(vocabulary: Vocabulary) -> tuple[LLTokenizer, int]:
    """Return llguidance's tokenizer and the stop token it was given; matchers handle the real stop tokens themselves.

    Raises `InvalidConfiguration` if the vocabulary has no token that could be a stop token.
    """
    candidates = [*sorted(vocabulary.stop_token_ids), *(i for i, token in enumerate(vocabulary.tokens) if not token)]
    if not candidates:
        raise InvalidConfiguration(
            "llguidance needs a vocabulary with at least one special token (without bytes) to end outputs",
            field="vocabulary",
        )
    source = _Source(vocabulary, candidates[0])
    return LLTokenizer(TokenizerWrapper(source)), candidates[0]
