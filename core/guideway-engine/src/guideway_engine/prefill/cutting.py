"""Long texts are cut before they are tokenized in full, with exactly the ids that cutting afterwards gives.

That is possible where the pre-tokenizer makes words independent of each other, and white space always parts two words:
then the tokens of a text that ends (or begins) at white space are the first (or last) ones of the whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Literal

__all__ = ["cut_text", "is_cuttable"]

CHARACTERS_PER_TOKEN = 8
"""So many characters are tokenized at first for each token of the sample."""

SAMPLE_TOKENS = 48
"""A piece for so many tokens tells how long the piece for all of them has to be."""

MARGIN = 1.1
"""A piece is so much longer than the sample says."""

NEXT = re.compile(r"(?<=\S) (?=\S)")
"""One space between two words, where every pre-tokenizer here begins a new one."""

NORMALIZERS = ("BertNormalizer", "NFC", "Lowercase")
"""Those that change nothing across a space."""


def is_cuttable(tokenizer_json: str) -> bool:
    """Return whether the tokenizer's words are independent: as BERT's or GPT-2's pre-tokenizer makes them."""
    spec = json.loads(tokenizer_json)
    normalizer, pre = spec["normalizer"] or {}, spec["pre_tokenizer"] or {}
    words = pre.get("type") == "BertPreTokenizer" or (pre.get("type") == "ByteLevel" and pre.get("use_regex", True))
    return (
        words
        and normalizer.get("type", "NFC") in NORMALIZERS
        # an added token may hold white space, or swallow that of the word behind it
        and not any(" " in token["content"] or token["rstrip"] for token in spec["added_tokens"])
    )


def cut_text(text: str, num_tokens: int, side: Literal["right", "left"], encode: Callable[[str], Any]) -> Any:
    """The encoding of as much of `text` as holds its first `num_tokens` tokens, or its last ones if its ``left`` is cut
    off; of all of it if it has no more. `encode` gives the encoding of a text without special tokens."""
    most = max(1, num_tokens) * CHARACTERS_PER_TOKEN
    size = min(most, SAMPLE_TOKENS * CHARACTERS_PER_TOKEN)
    while 2 * size < len(text):
        if side == "right":
            found = NEXT.search(text, size)
            piece = text if found is None else text[: found.start()]
        else:
            # looked for from where the piece may begin: the first space at or after it makes it shorter, never wrong
            found = NEXT.search(text, len(text) - size)
            piece = text if found is None else text[found.start() :]
        wanted = 4 * size
        if len(piece) <= 2 * size:  # else a word goes on and on
            encoding = encode(piece)
            if len(encoding.ids) > num_tokens:
                return encoding
            if encoding.ids:
                wanted = round(MARGIN * len(piece) * (num_tokens + 1) / len(encoding.ids))
        # a sample of few tokens must not make it read far, nor one of many make it creep
        size = min(max(wanted, round(1.5 * size)), max(4 * size, 2 * most))
    return encode(text)
