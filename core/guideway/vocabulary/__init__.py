"""From a model's tokenizer to a `Vocabulary`: the exact bytes of each token id.

Nothing here imports a tokenizer library: the class of the object that was handed in says which one it belongs to,
and that library is then loaded already. A tokenizer whose tokens cannot be given exact bytes is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidConfiguration
from guideway.vocabulary import byte_pair, huggingface
from guideway.vocabulary.families import is_a, reader_of, register_family

__all__ = ["build_vocabulary", "register_family"]


def build_vocabulary(
    tokenizer: Any, *, logits_width: int | None = None, stop_token_ids: Iterable[int] | None = None
) -> Vocabulary:
    """The vocabulary of a tokenizer: a fast one of ``transformers``, a ``tokenizers.Tokenizer``, a
    ``tiktoken.Encoding``, a ``mistral_common`` tokenizer with a tekken vocabulary, or one of a family that
    `register_family` added.

    Token bytes are what a token appends to running text. What a tokenizer does to the start of a whole text only,
    such as the space SentencePiece puts there, belongs to prompts and is no part of any token.

    `logits_width` is the number of columns of the model's logits, by default the number of token ids.
    `stop_token_ids` end a generation besides the tokenizer's own end-of-text token. An added token that is a stop
    token counts as special, whether or not the tokenizer says so: it never appears as text.

    Raises `InvalidConfiguration` for a tokenizer of another kind, one whose tokens have no exact bytes, one without
    any stop token, and where the ids do not fit each other or `logits_width`.
    """
    stops = frozenset(stop_token_ids or ())
    width = 0 if logits_width is None else logits_width
    if logits_width is not None and logits_width < 1:
        raise InvalidConfiguration(f"logits_width must be at least 1, not {logits_width}", field="logits_width")
    vocabulary = reader_of(tokenizer)(tokenizer, width, stops)
    if not vocabulary.stop_token_ids:
        raise InvalidConfiguration(
            "the tokenizer names no end-of-text token, so no generation could ever stop; pass stop_token_ids",
            field="stop_token_ids",
        )
    return vocabulary


register_family("fast tokenizers of transformers", huggingface.is_fast, huggingface.from_transformers)
register_family("tokenizers.Tokenizer", lambda t: is_a(t, "tokenizers", "Tokenizer"), huggingface.from_tokenizers)
register_family("tiktoken.Encoding", lambda t: is_a(t, "tiktoken", "Encoding"), byte_pair.from_tiktoken)
register_family("tekken tokenizers of mistral_common", byte_pair.is_tekken, byte_pair.from_tekken)
