"""Build a `Vocabulary`, the exact bytes of each token id, from a model's tokenizer.

No tokenizer library is imported: the class of the tokenizer shows its library, which is then already loaded.
Tokenizers whose tokens have no exact bytes are refused.
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
    """Build the vocabulary of a tokenizer: a fast one of ``transformers``, a ``tokenizers.Tokenizer``, a
    ``tiktoken.Encoding``, a ``mistral_common`` tokenizer with a tekken vocabulary, or one of a family that
    `register_family` added.

    The bytes of a token are those it appends in the middle of a text. Changes at the start of a whole text, such as
    the space that SentencePiece adds, belong to prompts and not to a token.

    `logits_width` is the number of columns of the model's logits, by default the number of token ids. `stop_token_ids`
    end a generation, in addition to the tokenizer's end-of-text token. An added token that is a stop token is always
    treated as special: it never appears as text.

    Raises `InvalidConfiguration` for a tokenizer of another kind, without exact token bytes or without any stop token,
    and if the ids contradict each other or `logits_width`.
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
