"""Vocabularies of tiktoken encodings and of tekken, which is a tiktoken encoding after a block of special tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidConfiguration
from guideway.vocabulary.families import check_fits, is_a

__all__ = ["BytePairEncoder", "from_tekken", "from_tiktoken", "is_tekken"]


class BytePairEncoder:
    """The encoder of a tiktoken encoding, which treats the names of special tokens as ordinary text.

    Its table is pickled: tiktoken pickles its own encodings by name only, and would download them again.
    """

    def __init__(self, encoding: Any, first_id: int) -> None:
        # tiktoken documents these two attributes for extending an encoding; there are no public ones
        self._pattern: str = encoding._pat_str
        self._ranks: Mapping[bytes, int] = encoding._mergeable_ranks
        self._first_id = first_id
        self._encoding = encoding

    def __getstate__(self) -> dict[str, Any]:
        return {"pattern": self._pattern, "ranks": dict(self._ranks), "first_id": self._first_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        from tiktoken import Encoding

        self._pattern, self._ranks, self._first_id = state["pattern"], state["ranks"], state["first_id"]
        self._encoding = Encoding(
            "guideway", pat_str=self._pattern, mergeable_ranks=dict(self._ranks), special_tokens={}
        )

    @cached_property
    def identity(self) -> bytes:
        """The digest of the pattern that splits text and of every token with its rank."""
        digest = hashlib.sha256(f"byte_pair {self._first_id} {self._pattern!r}".encode())
        for token, rank in sorted(self._ranks.items(), key=lambda item: item[1]):
            digest.update(f"{rank} {len(token)} ".encode() + token)
        return digest.digest()

    def encode(self, text: bytes) -> list[int] | None:
        """Return the token ids of `text`; None if it is not UTF-8 or if the ids do not decode to it (tiktoken drops
        text that the encoding's pattern does not match)."""
        try:
            ids = self._encoding.encode_ordinary(text.decode())
        except UnicodeDecodeError:
            return None
        if self._encoding.decode_bytes(ids) != text:
            return None
        return [i + self._first_id for i in ids] if self._first_id else list(ids)


def from_tiktoken(encoding: Any, logits_width: int, stop_token_ids: frozenset[int]) -> Vocabulary:
    """Build the vocabulary of a ``tiktoken.Encoding``; its end-of-text token, if any, is a stop token."""
    special = {encoding.encode_single_token(name): name for name in encoding.special_tokens_set}
    end = {token_id for token_id, name in special.items() if name == "<|endoftext|>"}
    return _vocabulary(encoding, encoding.n_vocab, 0, special, logits_width, stop_token_ids | end)


def is_tekken(tokenizer: Any) -> bool:
    """Return whether `tokenizer` is a ``Tekkenizer`` of ``mistral_common``, or a wrapper of one."""
    return is_a(_unwrap(tokenizer), "mistral_common", "Tekkenizer")


def from_tekken(tokenizer: Any, logits_width: int, stop_token_ids: frozenset[int]) -> Vocabulary:
    """Build the vocabulary of a ``Tekkenizer``: special tokens first, then the ranks in order."""
    tokenizer = _unwrap(tokenizer)
    first_id = tokenizer.num_special_tokens
    special = {token_id: tokenizer.id_to_piece(token_id) for token_id in range(first_id)}
    stops = stop_token_ids | {tokenizer.eos_id}
    return _vocabulary(tokenizer._model, tokenizer.n_words, first_id, special, logits_width, stops)


def _unwrap(tokenizer: Any) -> Any:
    """Remove the wrappers of transformers and of mistral_common around a ``Tekkenizer``."""
    if is_a(tokenizer, "transformers", "MistralCommonBackend"):
        tokenizer = tokenizer.tokenizer
    if is_a(tokenizer, "mistral_common", "MistralTokenizer"):
        tokenizer = tokenizer.instruct_tokenizer.tokenizer
    return tokenizer


def _vocabulary(
    encoding: Any, size: int, first_id: int, special: dict[int, str], logits_width: int, stops: frozenset[int]
) -> Vocabulary:
    tokens = [b""] * size
    for token, rank in encoding._mergeable_ranks.items():
        tokens[rank + first_id] = token
    check_fits(max(i for i, token in enumerate(tokens) if token) + 1, logits_width)
    single = {token[0] for token in tokens if len(token) == 1}
    if len(single) < 256:
        missing = min(set(range(256)) - single)
        raise InvalidConfiguration(
            f"the encoding {encoding.name!r} has no token for the single byte 0x{missing:02X}, so it cannot encode "
            "every text",
            field="tokenizer",
        )
    return Vocabulary(
        tokens=tokens,
        stop_token_ids=stops,
        special_tokens=special,
        logits_width=logits_width,
        encoder=BytePairEncoder(encoding, first_id),
    )
