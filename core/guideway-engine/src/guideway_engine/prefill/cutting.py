"""Truncation of long texts before they are tokenized, with exactly the ids of truncating afterwards.

This works if the pre-tokenizer makes words independent of each other and always splits at white space: then the tokens
of a text that ends (or begins) at white space are the first (or last) ones of the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal

__all__ = ["cut_text", "is_cuttable"]

CHARACTERS_PER_TOKEN = 8
"""Characters of the first piece per token."""

SAMPLE_TOKENS = 48
"""Tokens of the first piece. Its length predicts how long the piece for all tokens must be."""

MARGIN = 1.1
"""Factor by which a piece is longer than predicted."""

NEXT = re.compile(r"(?<=\S) (?=\S)")
"""One space between two words, where every supported pre-tokenizer begins a new word."""

NORMALIZERS = ("BertNormalizer", "NFC", "Lowercase")
"""Normalizers that change nothing across a space."""


def is_cuttable(tokenizer_json: str) -> bool:
    """Return whether the tokenizer splits text into independent words, as the pre-tokenizers of BERT and GPT-2 do."""
    spec = json.loads(tokenizer_json)
    normalizer, pre = spec["normalizer"] or {}, spec["pre_tokenizer"] or {}
    words = pre.get("type") == "BertPreTokenizer" or (pre.get("type") == "ByteLevel" and pre.get("use_regex", True))
    return (
        words
        and normalizer.get("type", "NFC") in NORMALIZERS
        # an added token may contain white space, or remove it before the next word
        and not any(" " in token["content"] or token["rstrip"] for token in spec["added_tokens"])
    )


def cut_text(text: str, num_tokens: int, side: Literal["right", "left"], encode: Callable[[str], Any]) -> Any:
    """Return the encoding of a part of `text` that has at least its first `num_tokens` tokens, or its last ones if its
    ``left`` end is cut off; of the whole text if it has fewer. `encode` returns the encoding of a text without special
    tokens."""
    most = max(1, num_tokens) * CHARACTERS_PER_TOKEN
    size = min(most, SAMPLE_TOKENS * CHARACTERS_PER_TOKEN)
    while 2 * size < len(text):
        if side == "right":
            found = NEXT.search(text, size)
            piece = text if found is None else text[: found.start()]
        else:
            # search from the earliest possible start: a space after it makes the piece shorter, never wrong
            found = NEXT.search(text, len(text) - size)
            piece = text if found is None else text[found.start() :]
        wanted = 4 * size
        if len(piece) <= 2 * size:  # otherwise a word is very long
            encoding = encode(piece)
            if len(encoding.ids) > num_tokens:
                return encoding
            if encoding.ids:
                wanted = round(MARGIN * len(piece) * (num_tokens + 1) / len(encoding.ids))
        # limit growth for samples of few tokens, and ensure it for samples of many
        size = min(max(wanted, round(1.5 * size)), max(4 * size, 2 * most))
    return encode(text)
