"""White space with real tokenizers, whose tokens contain many blanks: texts that masks allow, and texts that they never
allow."""

from __future__ import annotations

import re
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from guideway.api import MAX_INDENTATION, CompiledGrammar, GrammarStrategy, JsonSchema, Matcher, Vocabulary
from guideway.api.bitmask import allocate, unpack
from guideway.plugins import Plugins
from guideway.vocabulary import build_vocabulary

import tests.vocabulary.tokenizers_under_test as samples
from tests.support.stages import everyday

STRATEGIES = ("llguidance", "xgrammar", "outlines", "lmfe")
VOCABULARIES = {"demo": samples.demo, "tekken": samples.tekken}
EVERY_DAY = tuple(product(STRATEGIES, ("demo",)))
PAIRS = everyday(product(STRATEGIES, VOCABULARIES), *EVERY_DAY)
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"enum": ["x"]}}},
    "required": ["a"],
    "additionalProperties": False,
}
PLACES = (b"{", b'{"a"', b'{"a":', b'{"a":[', b'{"a":["x"', b'{"a":["x",', b'{"a":[]')
BLANKS = b" \t\n\r"
BEGUN = re.compile(rb" ?|\r|\r?\n[ \t]{0,%d}" % MAX_INDENTATION)


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
def test_a_walk_writes_a_line_feed_and_40_blanks_and_no_more(name: str, tokenizer: str) -> None:
    tokens = vocabulary(tokenizer)
    leading = [text[: len(text) - len(text.lstrip(BLANKS))] for text in tokens.tokens]
    blank = {i: text for i, text in enumerate(tokens.tokens) if text and not text.strip(BLANKS)}
    compiled = strategy(name, tokenizer).compile(JsonSchema(SCHEMA))
    for place in PLACES:
        matcher, written = at(compiled, tokens, place), b""
        while True:
            found = legal(matcher, tokens)
            assert all(BEGUN.fullmatch(written + leading[i]) for i in found)
            assert any(not leading[i] for i in found), "nothing but white space"
            goes_on = found & blank.keys()
            assert all(matcher.validate([i]) == (i in goes_on) for i in blank)
            if not goes_on:
                break
            with_line_feed = [i for i in goes_on if written or blank[i][:1] == b"\n"]
            longest = max(with_line_feed, key=lambda i: len(blank[i]))
            assert matcher.accept([longest]) == 1
            written += blank[longest]
        assert written[:1] == b"\n" and len(written) == 1 + MAX_INDENTATION, place


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
