"""The supported families of tokenizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from guideway.api.vocabulary import Vocabulary
from guideway.errors import InvalidConfiguration

__all__ = ["Reader", "check_fits", "is_a", "reader_of", "register_family"]

Reader: TypeAlias = Callable[[Any, int, frozenset[int]], Vocabulary]
"""Builds the vocabulary of a tokenizer for a logits width (0: the number of token ids), with additional stop token
ids. Raises `InvalidConfiguration` for a tokenizer whose tokens have no exact bytes."""

_FAMILIES: dict[str, tuple[Callable[[Any], bool], Reader]] = {}


def register_family(name: str, owns: Callable[[Any], bool], read: Reader) -> None:
    """Add a family of tokenizers in this process. `name` describes the family in messages; ``owns(tokenizer)`` returns
    whether a tokenizer belongs to it. Later families take precedence. Raises `InvalidConfiguration` if the name is
    taken."""
    if name in _FAMILIES:
        raise InvalidConfiguration(f"there is a family of tokenizers {name!r} already", field="tokenizer")
    _FAMILIES[name] = owns, read


def reader_of(tokenizer: Any) -> Reader:
    """Return the reader of the family of `tokenizer`. Raises `InvalidConfiguration` if no family owns it."""
    for owns, read in reversed(_FAMILIES.values()):
        if owns(tokenizer):
            return read
    *names, last = _FAMILIES
    raise InvalidConfiguration(
        f"no exact token bytes are known for a {type(tokenizer).__module__}.{type(tokenizer).__qualname__}; "
        f"accepted are {', '.join(names)} and {last}",
        field="tokenizer",
    )


def check_fits(num_tokens: int, logits_width: int) -> None:
    """Raise `InvalidConfiguration` if the tokens that the tokenizer was trained with exceed the columns of the model's
    logits (0: no limit). Tokens added later may exceed them: `Vocabulary` drops those."""
    if 0 < logits_width < num_tokens:
        raise InvalidConfiguration(
            f"the tokenizer has {num_tokens} tokens of its own, but the model's logits only {logits_width} columns: "
            "this tokenizer does not belong to this model",
            field="vocabulary",
        )


def is_a(value: object, library: str, name: str) -> bool:
    """Return whether `value` is an instance of `library`'s class `name`, without importing the library."""
    return any(
        cls.__name__ == name and (cls.__module__ == library or cls.__module__.startswith(f"{library}."))
        for cls in type(value).__mro__
    )
