"""White space with real tokenizers, whose tokens contain many blanks: texts that masks allow, and texts that they never
allow."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from guideway.api import MAX_WHITESPACE, CompiledGrammar, GrammarStrategy, JsonSchema, Matcher, Vocabulary
from guideway.api.bitmask import allocate, unpack
from guideway.plugins import Plugins
from guideway.vocabulary import build_vocabulary

import tests.vocabulary.tokenizers_under_test as samples
from tests.support.stages import everyday

STRATEGIES = ("llguidance", "xgrammar", "outlines", "lmfe")
VOCABULARIES = {"demo": samples.demo, "tekken": samples.tekken}
EVERY_DAY = (*product(STRATEGIES, ("demo",)), ("llguidance", "tekken"), ("xgrammar", "tekken"))
PAIRS = everyday(product(STRATEGIES, VOCABULARIES), *EVERY_DAY)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"enum": ["x"]}}},
    "required": ["a"],
    "additionalProperties": False,
}
PLACES = (b"{", b'{"a"', b'{"a":', b'{"a":[', b'{"a":["x"', b'{"a":["x",', b'{"a":[]')
BLANKS = b" \t\n\r"


@cache
def vocabulary(name: str) -> Vocabulary:
    return build_vocabulary(VOCABULARIES[name]())


@cache
def strategy(name: str, tokenizer: str) -> GrammarStrategy:
    built: Any = Plugins().load("grammar", name)(vocabulary(tokenizer), {})
    return built


def legal(matcher: Matcher, tokens: Vocabulary) -> set[int]:
    bitmask = allocate(1, tokens.logits_width)
    matcher.fill_bitmask(bitmask, 0)
    return set(np.flatnonzero(unpack(bitmask, len(tokens))[0]).tolist())


def at(compiled: CompiledGrammar, tokens: Vocabulary, text: bytes) -> Matcher:
    matcher = compiled.matcher(tokens.stop_token_ids)
    ids = [tokens.tokens.index(bytes([byte])) for byte in text]
    assert matcher.accept(ids) == len(ids), text
    return matcher


@pytest.mark.parametrize(("name", "tokenizer"), PAIRS)
def test_a_walk_writes_64_blanks_and_no_more(name: str, tokenizer: str) -> None:
    tokens = vocabulary(tokenizer)
    blank = {i: len(text) for i, text in enumerate(tokens.tokens) if text and not text.strip(b" ")}
    leading = {i: len(text) - len(text.lstrip(BLANKS)) for i, text in enumerate(tokens.tokens)}
    compiled = strategy(name, tokenizer).compile(JsonSchema(SCHEMA))
    for place in PLACES:
        matcher, written = at(compiled, tokens, place), 0
        while True:
            found = legal(matcher, tokens)
            assert max(leading[i] for i in found) <= MAX_WHITESPACE - written
            assert any(leading[i] == 0 for i in found), "nothing but white space"
            longest = max(found & blank.keys(), key=lambda i: blank[i], default=None)
            if longest is None:
                break
            too_long = [i for i in blank if blank[i] > MAX_WHITESPACE - written]
            assert all(matcher.validate([i]) == 0 for i in too_long)
            assert matcher.accept([longest]) == 1
            written += blank[longest]
        assert written == MAX_WHITESPACE, place


@pytest.mark.parametrize(("name", "tokenizer"), PAIRS)
def test_compact_has_no_blank_and_spaced_but_those_of_json_dumps(name: str, tokenizer: str) -> None:
    tokens = vocabulary(tokenizer)
    compact = strategy(name, tokenizer).compile(JsonSchema(SCHEMA, whitespace="compact"))
    spaced = strategy(name, tokenizer).compile(JsonSchema(SCHEMA, whitespace="spaced"))
    for place in PLACES:
        texts = {tokens.tokens[i] for i in legal(at(compact, tokens, place), tokens)}
        assert not any(byte in text for text in texts for byte in BLANKS)
        texts = {tokens.tokens[i] for i in legal(at(spaced, tokens, place.replace(b":", b": ").rstrip(b" ")), tokens)}
        texts.discard(b"")
        assert all(text.startswith(b" ") == (place[-1:] in (b":", b",")) for text in texts)
        assert not any(blank in text for text in texts for blank in (b"  ", b"\n", b"\t", b"[ ", b" ]", b" ,", b" :"))
