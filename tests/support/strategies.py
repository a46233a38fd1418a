"""Fixtures for tests of a grammar strategy: a tiny awkward vocabulary, the strategy of `plugin`, its masks as sets.

A conftest imports them and defines the fixture `plugin`, the name of the plugin's package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest
from guideway.api import (
    CompiledGrammar,
    Constraint,
    GrammarStrategy,
    JsonObject,
    JsonSchema,
    Matcher,
    StructuralTag,
    Support,
    Vocabulary,
    Whitespace,
)
from guideway.api.bitmask import allocate, unpack

__all__ = ["ids", "legal", "make", "strategy", "vocabulary"]

TEXTS = [
    *(bytes([byte]) for byte in b' "+,-./0123456789:ETabcdefhilnorstuxyz[]{}'),
    # characters split over tokens in several ways, equal tokens, tokens over several JSON values
    *(b"\xc3", b"\xa9", b"\xa9x", b"\xe4\xb8", b"\xad", b"\xad\xc3", "é".encode(), b"\xff\xfe"),
    *(
        b"a",
        b"ab",
        b"true",
        b'{"',
        b'":',
        b'","',
        b'{"a":',
        b"[[",
        b"]]",
        b'"}',
        b"1}",
        b"12",
        b"1.",
        b"null,",
        b"false",
    ),
]


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    """Stop tokens 0 and 1, special tokens 0 to 2, an empty token that is neither, then the texts; padded to 128."""
    tokens = [b"", b"", b"", b"", *TEXTS]
    return Vocabulary(tokens, frozenset({0, 1}), {0: "</s>", 1: "<eot>", 2: "<s>"}, 128)


def told(constraint: Constraint, whitespace: Whitespace | None) -> Constraint:
    if isinstance(constraint, JsonSchema | JsonObject | StructuralTag) and constraint.whitespace is None:
        return replace(constraint, whitespace=whitespace)
    return constraint


@pytest.fixture(scope="session")
def make(plugin: str) -> Callable[..., GrammarStrategy]:
    """The strategy for a vocabulary and options, and the white space of constraints that do not say."""

    def make(vocabulary: Vocabulary, whitespace: Whitespace | None = None, **options: Any) -> GrammarStrategy:
        class Told(import_module(plugin).guideway_grammar_strategy()):  # type: ignore[misc]
            def supports(self, constraint: Constraint) -> Support:
                return super().supports(told(constraint, whitespace))  # type: ignore[no-any-return]

            def compile(self, constraint: Constraint) -> CompiledGrammar:
                return super().compile(told(constraint, whitespace))  # type: ignore[no-any-return]

        return Told(vocabulary, options)

    return make


@pytest.fixture(scope="session")
def strategy(make: Callable[..., GrammarStrategy], vocabulary: Vocabulary) -> GrammarStrategy:
    return make(vocabulary, whitespace="compact")


@pytest.fixture(scope="session")
def legal() -> Callable[[Matcher, Vocabulary], set[int]]:
    """The legal token ids, from the middle row of three; the others, and bits past the vocabulary, are checked."""

    def legal(matcher: Matcher, vocabulary: Vocabulary) -> set[int]:
        bitmask = allocate(3, vocabulary.logits_width)
        matcher.fill_bitmask(bitmask, 1)
        assert (bitmask[[0, 2]] == -1).all()
        bits = unpack(bitmask, bitmask.shape[1] * 32)[1]
        assert not bits[len(vocabulary) :].any()
        return {int(token_id) for token_id in bits.nonzero()[0]}

    return legal


@pytest.fixture(scope="session")
def ids(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    """The ids of a text, a byte each."""

    def ids(text: str) -> list[int]:
        return [vocabulary.tokens.index(bytes([byte])) for byte in text.encode()]

    return ids
