"""The tokens of one model as bytes: the only facts about a tokenizer that grammar engines see."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

from guideway.errors import InvalidConfiguration

__all__ = ["Encoder", "Vocabulary"]


@runtime_checkable
class Encoder(Protocol):
    """An encoder of bytes as token ids, exactly as the model's tokenizer, without adding special tokens.

    Must pickle, because vocabularies are sent to worker processes.
    """

    @property
    def identity(self) -> bytes:
        """A serialization of everything that affects the encoding; encoders with equal identities encode alike."""
        ...

    def encode(self, text: bytes) -> list[int] | None:
        """Return the token ids of `text`, or None if the tokenizer has no ids for exactly these bytes (for most
        tokenizers: bytes that are not UTF-8)."""
        ...


@dataclass(frozen=True)
class _Narrow:
    """An encoder without the tokens at or past `width`: text that needs one has no ids."""

    encoder: Encoder
    width: int

    @property
    def identity(self) -> bytes:
        return b"narrow " + self.encoder.identity

    def encode(self, text: bytes) -> list[int] | None:
        found = self.encoder.encode(text)
        return None if found is None or max(found, default=0) >= self.width else found


@dataclass(frozen=True)
class Vocabulary:
    """Token ids 0 to ``len(vocabulary) - 1`` and the bytes of each.

    Some tokenizers have tokens past the columns of the model's logits, such as a ``[PAD]`` that a fine-tune added. The
    model cannot draw them, so they and their names are dropped, and `encode` has no ids for their text.

    Raises `InvalidConfiguration` if the ids contradict each other.
    """

    tokens: Sequence[bytes]
    """The exact bytes of each token id; ``b""`` for special tokens and for ids without text."""
    stop_token_ids: frozenset[int]
    """Ids that end a generation. All are special tokens of the vocabulary."""
    special_tokens: Mapping[int, str] = field(default_factory=dict)
    """Special token ids with their names, such as ``{2: "</s>"}``. A grammar never produces one as text."""
    logits_width: int = 0
    """Columns of the model's logits, more than ``len(tokens)`` if the model pads. 0: ``len(tokens)``."""
    encoder: Encoder | None = field(default=None, compare=False)
    """Encodes text as the model's tokenizer does; None if there is none."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tuple(self.tokens))
        object.__setattr__(self, "stop_token_ids", frozenset(self.stop_token_ids))
        if self.logits_width == 0:
            object.__setattr__(self, "logits_width", len(self.tokens))
        if not self.tokens:
            raise InvalidConfiguration("a vocabulary needs at least one token", field="vocabulary")
        outside = sorted(i for i in {*self.stop_token_ids, *self.special_tokens} if not 0 <= i < len(self.tokens))
        if outside:
            raise InvalidConfiguration(
                f"token id {outside[0]} is declared a stop or special token, but ids run from 0 to "
                f"{len(self.tokens) - 1}",
                field="vocabulary",
            )
        textual = sorted(i for i in self.stop_token_ids if self.tokens[i])
        if textual:
            raise InvalidConfiguration(
                f"stop token {textual[0]} stands for the text {self.tokens[textual[0]]!r}; a stop token must be "
                "special (without bytes)",
                field="vocabulary",
            )

        if self.logits_width < len(self.tokens):
            self._leave_out()

    def _leave_out(self) -> None:
        """Drop the tokens that have no logits."""
        kept = frozenset(i for i in self.stop_token_ids if i < self.logits_width)
        if self.stop_token_ids and not kept:
            stops = ", ".join(map(str, sorted(self.stop_token_ids)))
            raise InvalidConfiguration(
                f"the model's logits have {self.logits_width} columns, so it can never draw a stop token "
                f"({stops}) and no generation would stop; use the model's own tokenizer, or set stop_token_ids to a "
                "token of the model",
                field="stop_token_ids",
            )
        named = {i: name for i, name in self.special_tokens.items() if i < self.logits_width}
        object.__setattr__(self, "tokens", self.tokens[: self.logits_width])
        object.__setattr__(self, "stop_token_ids", kept)
        object.__setattr__(self, "special_tokens", named)
        if self.encoder is not None:
            object.__setattr__(self, "encoder", _Narrow(self.encoder, self.logits_width))

    def __len__(self) -> int:
        return len(self.tokens)

    def encode(self, text: bytes) -> list[int] | None:
        """Return the token ids of exactly `text`, or None if there is no encoder or it has no ids for these bytes."""
        return None if self.encoder is None else self.encoder.encode(text)

    def decode(self, token_ids: Sequence[int]) -> bytes:
        """Return the bytes of `token_ids`, joined; special tokens have none."""
        return b"".join(self.tokens[i] for i in token_ids)

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 (hex) of tokens, special tokens, stop ids, logits width and the encoder's identity. Part of every
        cache key: vocabularies with equal fingerprints compile every grammar alike."""
        digest = hashlib.sha256()
        digest.update(len(self.tokens).to_bytes(8, "little"))
        for token in self.tokens:
            digest.update(len(token).to_bytes(4, "little"))
            digest.update(token)
        digest.update(repr(sorted(self.special_tokens.items())).encode())
        digest.update(repr(sorted(self.stop_token_ids)).encode())
        digest.update(self.logits_width.to_bytes(8, "little"))
        digest.update(b"no encoder" if self.encoder is None else b"encoder " + self.encoder.identity)
        return digest.hexdigest()
