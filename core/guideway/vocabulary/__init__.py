"""From a model's tokenizer to a `Vocabulary`: the exact bytes of each token id.

Nothing here imports a tokenizer library: the class of the object that was handed in says which one it belongs to,
and that library is then loaded already. A tokenizer whose tokens cannot be given exact bytes is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidConfiguration
from guideway.vocabulary.byte_pair import from_tekken, from_tiktoken
from guideway.vocabulary.huggingface import from_tokenizers

__all__ = ["build_vocabulary"]


def build_vocabulary(
    tokenizer: Any, *, logits_width: int | None = None, stop_token_ids: Iterable[int] | None = None
) -> Vocabulary:
    """The vocabulary of a tokenizer: a fast one of ``transformers``, a ``tokenizers.Tokenizer``, a
    ``tiktoken.Encoding``, or a ``mistral_common`` tokenizer with a tekken vocabulary.

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
    # transformers' own wrapper around mistral_common, then mistral_common's wrapper around the vocabulary
    if _is_a(tokenizer, "transformers", "MistralCommonBackend"):
        tokenizer = tokenizer.tokenizer
    if _is_a(tokenizer, "mistral_common", "MistralTokenizer"):
        tokenizer = tokenizer.instruct_tokenizer.tokenizer

    if _is_a(tokenizer, "mistral_common", "Tekkenizer"):
        vocabulary = from_tekken(tokenizer, width, stops)
    elif _is_a(tokenizer, "tiktoken", "Encoding"):
        vocabulary = from_tiktoken(tokenizer, width, stops)
    elif _is_a(tokenizer, "tokenizers", "Tokenizer"):
        vocabulary = from_tokenizers(tokenizer, width, stops)
    elif _is_a(tokenizer, "transformers", "PreTrainedTokenizerBase") and hasattr(tokenizer, "backend_tokenizer"):
        eos = tokenizer.eos_token_id
        vocabulary = from_tokenizers(
            tokenizer.backend_tokenizer,
            width,
            stops if eos is None else stops | {eos},
            also_special=frozenset(tokenizer.all_special_ids),
        )
    else:
        raise InvalidConfiguration(
            f"no exact token bytes are known for a {type(tokenizer).__module__}.{type(tokenizer).__qualname__}; "
            "accepted are fast tokenizers of transformers, tokenizers.Tokenizer, tiktoken.Encoding and tekken "
            "tokenizers of mistral_common",
            field="tokenizer",
        )
    if not vocabulary.stop_token_ids:
        raise InvalidConfiguration(
            "the tokenizer names no end-of-text token, so no generation could ever stop; pass stop_token_ids",
            field="stop_token_ids",
        )
    return vocabulary


def _is_a(value: object, library: str, name: str) -> bool:
    """Whether `value` is an instance of `library`'s class `name`, told without importing the library."""
    return any(
        cls.__name__ == name and (cls.__module__ == library or cls.__module__.startswith(f"{library}."))
        for cls in type(value).__mro__
    )
