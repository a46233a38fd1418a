"""Vocabularies made up for the checks, so that no model is needed."""

from __future__ import annotations

from functools import cache

from guideway.api import Vocabulary

__all__ = ["PADDING", "synthetic"]

PADDING = 24
"""Columns of the logits past the vocabulary."""
NUM_SPECIAL = 2
LETTERS = "abcdefghijklmnopqrstuvwxyz"


class _ByteEncoder:
    """The first 256 token ids are the bytes, and text is spelled with them."""

    identity = b"bytes"

    def encode(self, text: bytes) -> list[int] | None:
        return list(text)


@cache
def synthetic(num_tokens: int = 1000, padding: int = PADDING) -> Vocabulary:
    """All bytes, pairs of letters, numbers, a special token and a stop token; at least 258 tokens."""
    tokens = [bytes([i]) for i in range(256)]
    tokens += [(a + b).encode() for a in LETTERS for b in LETTERS]
    tokens = tokens[: num_tokens - NUM_SPECIAL]
    tokens += [f" {i}".encode() for i in range(num_tokens - NUM_SPECIAL - len(tokens))]
    start, stop = num_tokens - 2, num_tokens - 1
    return Vocabulary(
        tokens=[*tokens, b"", b""],
        stop_token_ids=frozenset({stop}),
        special_tokens={start: "<s>", stop: "</s>"},
        logits_width=num_tokens + padding,
        encoder=_ByteEncoder(),
    )
