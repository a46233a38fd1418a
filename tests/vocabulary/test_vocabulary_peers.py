"""Compare token bytes with those that xgrammar and llguidance derive from the same tokenizers. If a library does not
support a tokenizer's class, it gets the tokenizer's own description (its ranks or its JSON), never guideway's bytes.
Every known difference is listed here with its reason; any other fails.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import llguidance
import llguidance.hf
import llguidance.tiktoken
import pytest
import tiktoken
import xgrammar
from guideway.api import Vocabulary
from guideway.vocabulary import build_vocabulary
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

import tests.vocabulary.tokenizers_under_test as samples

HUGGING_FACE: dict[str, Callable[[], Any]] = {
    "demo": samples.demo,
    "llama2": samples.llama2,
    "metaspace": samples.metaspace,
    "added tokens": samples.byte_level_with_added_tokens,
}


def differences(vocabulary: Vocabulary, theirs: list[bytes]) -> dict[int, tuple[bytes, bytes]]:
    """Return every id whose bytes differ, as (ours, theirs). Special tokens are names in theirs and empty in ours."""
    assert len(theirs) == len(vocabulary)
    return {
        token_id: (ours, other)
        for token_id, (ours, other) in enumerate(zip(vocabulary.tokens, theirs, strict=True))
        if ours != other
    }


def specials(vocabulary: Vocabulary) -> dict[int, tuple[bytes, bytes]]:
    """Return the differences in special tokens, which both libraries have by design: their bytes are the name, with a
    separate mark that they are not text."""
    return {token_id: (b"", name.encode()) for token_id, name in vocabulary.special_tokens.items()}


@pytest.mark.parametrize("family", HUGGING_FACE)
def test_xgrammar_reads_a_hugging_face_tokenizer_alike(family: str) -> None:
    tokenizer: PreTrainedTokenizerBase = HUGGING_FACE[family]()
    vocabulary = build_vocabulary(tokenizer)
    theirs = xgrammar.TokenizerInfo.from_huggingface(tokenizer)
    assert differences(vocabulary, theirs.decoded_vocab) == specials(vocabulary)
    assert set(theirs.stop_token_ids) == vocabulary.stop_token_ids


@pytest.mark.parametrize("family", HUGGING_FACE)
def test_llguidance_reads_a_hugging_face_tokenizer_alike(family: str) -> None:
    tokenizer: PreTrainedTokenizerFast = HUGGING_FACE[family]()
    vocabulary = build_vocabulary(tokenizer)
    theirs = llguidance.hf.from_tokenizer(tokenizer)
    assert differences(vocabulary, decoded_by(theirs)) == specials(vocabulary) | byte_ff(vocabulary)
    assert {theirs.eos_token} == vocabulary.stop_token_ids


def byte_ff(vocabulary: Vocabulary) -> dict[int, tuple[bytes, bytes]]:
    """Return the difference in the token 0xFF. llguidance marks special tokens with this byte, which no UTF-8 text
    contains, and drops it in decoding."""
    return {vocabulary.tokens.index(b"\xff"): (b"\xff", b"")}


def decoded_by(tokenizer: llguidance.LLTokenizer) -> list[bytes]:
    return [tokenizer.decode_bytes([token_id]) for token_id in range(tokenizer.vocab_size)]


def test_llguidance_reads_a_tiktoken_encoding_alike() -> None:
    encoding = samples.small_tiktoken()
    vocabulary = build_vocabulary(encoding)
    theirs = decoded_by(llguidance.tiktoken.lltokenizer_from_encoding(encoding))
    # ids without a token have no bytes; llguidance invents a name
    gaps = {i: (b"", b"<[%d]>" % i) for i in range(len(vocabulary)) if i not in known(encoding)}
    assert len(gaps) == 2
    assert differences(vocabulary, theirs) == specials(vocabulary) | byte_ff(vocabulary) | gaps


def known(encoding: tiktoken.Encoding) -> set[int]:
    return {*encoding._mergeable_ranks.values(), *encoding._special_tokens.values()}


def test_tiktoken_itself_decodes_alike() -> None:
    encoding = samples.small_tiktoken()
    vocabulary = build_vocabulary(encoding)
    for token_id in known(encoding) - vocabulary.special_tokens.keys():
        assert encoding.decode_single_token_bytes(token_id) == vocabulary.tokens[token_id]


@pytest.mark.slow
def test_llguidance_reads_tekken_alike() -> None:
    tokenizer = samples.tekken()
    vocabulary = build_vocabulary(tokenizer)
    first = tokenizer.num_special_tokens
    theirs = llguidance.LLTokenizer.from_tiktoken(  # type: ignore[attr-defined]
        encoder={token: rank + first for token, rank in tokenizer._model._mergeable_ranks.items()},
        special_tokens={tokenizer.id_to_piece(token_id): token_id for token_id in range(first)},
        pattern=tokenizer._model._pat_str,
        eos_token=tokenizer.eos_id,
        n_vocab=tokenizer.n_words,
    )
    assert len(vocabulary) == 131072
    assert differences(vocabulary, decoded_by(theirs)) == specials(vocabulary) | byte_ff(vocabulary)


def test_mistral_common_decodes_tekken_alike() -> None:
    tokenizer = samples.tekken()
    vocabulary = build_vocabulary(tokenizer)
    assert vocabulary.tokens == tuple(tokenizer.id_to_byte_piece(token_id) for token_id in range(tokenizer.n_words))
    assert vocabulary.stop_token_ids == {2}
    assert vocabulary.special_tokens[2] == "</s>"


def test_tekken_encodes_as_mistral_common_does() -> None:
    tokenizer = samples.tekken()
    vocabulary = build_vocabulary(tokenizer)
    for text in ('{"name":"Zoë 東京 🎉","n":[1,2.5,true,null]}', "  </s> [INST]", "a\u0301\r\n\t"):
        assert vocabulary.encode(text.encode()) == tokenizer.encode(text, bos=False, eos=False)


@pytest.mark.parametrize("family", HUGGING_FACE)
def test_tokenizers_itself_decodes_alike(family: str) -> None:
    """Compare the bytes of each token with the text that the tokenizer's decoder appends after a plain letter."""
    tokenizer: PreTrainedTokenizerBase = HUGGING_FACE[family]()
    vocabulary = build_vocabulary(tokenizer)
    backend = tokenizer.backend_tokenizer
    anchor = vocabulary.tokens.index(b"x")
    compared = 0
    for token_id, ours in enumerate(vocabulary.tokens):
        text = backend.decode([anchor, token_id], skip_special_tokens=True)
        if "\ufffd" not in text:  # partial characters cannot be decoded alone
            assert text.encode() == b"x" + ours
            compared += 1
    assert compared > 200


@pytest.mark.parametrize("family", HUGGING_FACE)
def test_llguidance_encodes_running_text_alike(family: str) -> None:
    """llguidance avoids the dummy prefix in another way: it encodes text after a byte that it then cuts off."""
    tokenizer: PreTrainedTokenizerFast = HUGGING_FACE[family]()
    vocabulary = build_vocabulary(tokenizer)
    theirs = llguidance.hf.from_tokenizer(tokenizer)
    for text in ("hello world", " hello world", "  a", '{"name": "Zoë", "city": "東京"}', "\n\n", "<think>x"):
        assert vocabulary.encode(text.encode()) == theirs.tokenize_str(text)
    # the only difference: it encodes the name of a special token as that token, but a grammar's text is never special
    name = vocabulary.special_tokens[tokenizer.eos_token_id]
    assert tokenizer.eos_token_id not in (vocabulary.encode(name.encode()) or [tokenizer.eos_token_id])
