"""Vocabularies made up for the checks, so that no model is needed."""

from __future__ import annotations

from functools import cache

from guideway.api import Vocabulary

__all__ = ["PADDING", "bordered", "permuted", "synthetic"]

PADDING = 72
"""Columns of the logits past the vocabulary: more than two words of a bitmask."""
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


class _PermutedEncoder:
    """Spells text with the bytes of `permuted`."""

    identity = b"permuted bytes"

    def encode(self, text: bytes) -> list[int] | None:
        return [_moved(byte) for byte in text]


@cache
def permuted() -> Vocabulary:
    """The same tokens as in the synthetic one, of which most stand elsewhere."""
    same = synthetic()
    tokens = list(same.tokens)
    for byte in range(256):
        tokens[_moved(byte)] = bytes([byte])
    tokens[256:-NUM_SPECIAL] = tokens[-NUM_SPECIAL - 1 : 255 : -1]
    return Vocabulary(
        tokens=tokens,
        stop_token_ids=same.stop_token_ids,
        special_tokens=same.special_tokens,
        logits_width=same.logits_width,
        encoder=_PermutedEncoder(),
    )


class _BorderedEncoder:
    """Spells text with the bytes of `bordered`."""

    identity = b"bytes at the borders of words"

    def encode(self, text: bytes) -> list[int] | None:
        return [_at_border(byte) for byte in text]


@cache
def bordered() -> Vocabulary:
    """The tokens of the synthetic one, with each letter and some signs where a word of a bitmask begins or ends."""
    same = synthetic()
    tokens = list(same.tokens)
    for byte in BORDERS:
        tokens[BORDERS[byte]] = bytes([byte])
        tokens[byte] = same.tokens[BORDERS[byte]]
    return Vocabulary(
        tokens=tokens,
        stop_token_ids=same.stop_token_ids,
        special_tokens=same.special_tokens,
        logits_width=same.logits_width,
        encoder=_BorderedEncoder(),
    )


BORDERS = {byte: 287 + 32 * (i // 2) + i % 2 for i, byte in enumerate(b"abcdefghijklmnopqrstuvwxyz \n.,?_0123")}
"""By byte the token id that it has in the bordered vocabulary: the last of a word, or the first of the next one."""


def _at_border(byte: int) -> int:
    """The token id of a byte in the bordered vocabulary."""
    return BORDERS.get(byte, byte)


def _moved(byte: int) -> int:
    """The token id of a byte in the permuted vocabulary."""
    return 127 - byte if byte < 128 else byte
