"""Grammar strategies by name, and whether they accept whole JSON texts."""

from __future__ import annotations

from guideway.api import CompiledGrammar, GrammarStrategy, Vocabulary
from guideway.plugins import Plugins
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

__all__ = ["STRATEGIES", "build", "takes"]

STRATEGIES = ("llguidance", "xgrammar", "outlines", "lmfe", "reference")
"""The strategies for JSON Schema."""


def build(name: str, vocabulary: Vocabulary) -> GrammarStrategy:
    """Return the strategy of this name, including ``reference``, with its default options."""
    if name == "reference":
        return ReferenceStrategy(vocabulary, {})
    strategy: GrammarStrategy = Plugins().load("grammar", name)(vocabulary, {})
    return strategy


def takes(compiled: CompiledGrammar, text: bytes, stop_token_ids: frozenset[int]) -> bool:
    """Return whether `text` is a whole output, byte by byte, under a grammar for a vocabulary whose first 256 tokens
    are the bytes."""
    matcher = compiled.matcher(stop_token_ids)
    return matcher.accept([*text]) == len(text) and matcher.is_accepting()
