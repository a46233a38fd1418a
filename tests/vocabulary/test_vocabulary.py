"""Vocabularies against the tokenizers they are built from: bytes, special tokens, stop ids, encoder."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import tiktoken
from guideway.api import Encoder, InvalidConfiguration, Vocabulary
from guideway.vocabulary import build_vocabulary, families, register_family
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import tests.vocabulary.tokenizers_under_test as samples
from tests.support.stages import examples, one_in

FAMILIES: dict[str, Callable[[], Any]] = {
    "demo": samples.demo,
    "llama2": samples.llama2,
    "metaspace": samples.metaspace,
    "tiktoken": samples.small_tiktoken,
    "tekken": samples.tekken,
}


@pytest.fixture(params=FAMILIES, scope="module")
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    return build_vocabulary(FAMILIES[request.param]())


TEXTS = [
    "",
    " ",
    "  leading and trailing  ",
    "mid-text",
    " mid-text",
    '{"name":"Zoë 東京 🎉","n":[1,2.5,true,null]}',
    "tabs\tand\r\nnew\n\nlines",
    "\x00\x01\x7f",
    "combining e\u0301 and \ufffd",
    "</s> <|end|> <s>",
]


@pytest.mark.parametrize("text", one_in(2, TEXTS))
def test_encode_then_decode_gives_the_text(vocabulary: Vocabulary, text: str) -> None:
    token_ids = vocabulary.encode(text.encode())
    assert token_ids is not None
    assert vocabulary.decode(token_ids) == text.encode()
    assert not vocabulary.special_tokens.keys() & set(token_ids)


@settings(max_examples=examples(150))
@given(parts=st.lists(st.text(max_size=12), max_size=4))
def test_pieces_encoded_one_by_one_join_to_the_text(vocabulary: Vocabulary, parts: list[str]) -> None:
    token_ids: list[int] = []
    for part in parts:
        piece = vocabulary.encode(part.encode())
        if piece is None:  # only a literal U+2581 is lost: the tokenizer itself reads it back as a space
            assert "\u2581" in part
            return
        token_ids += piece
    assert vocabulary.decode(token_ids) == "".join(parts).encode()


@settings(max_examples=examples(100))
@given(data=st.binary(max_size=12))
def test_encode_gives_exactly_the_bytes_or_none(vocabulary: Vocabulary, data: bytes) -> None:
    token_ids = vocabulary.encode(data)
    if token_ids is not None:
        assert vocabulary.decode(token_ids) == data
        data.decode()


def test_bytes_that_are_not_utf8_have_no_ids(vocabulary: Vocabulary) -> None:
    assert vocabulary.encode(b"\xff") is None
    assert vocabulary.encode("é".encode()[:1]) is None


def test_every_byte_is_a_token(vocabulary: Vocabulary) -> None:
    assert {bytes([byte]) for byte in range(256)} <= set(vocabulary.tokens)


def test_specials_have_names_and_no_bytes(vocabulary: Vocabulary) -> None:
    assert vocabulary.stop_token_ids
    assert vocabulary.stop_token_ids <= vocabulary.special_tokens.keys()
    assert all(vocabulary.tokens[i] == b"" and name for i, name in vocabulary.special_tokens.items())


def test_a_vocabulary_survives_pickle(vocabulary: Vocabulary) -> None:
    assert isinstance(vocabulary.encoder, Encoder)
    fingerprint, ids = vocabulary.fingerprint, vocabulary.encode(b'{"a b":1}')
    copy: Vocabulary = pickle.loads(pickle.dumps(replace(vocabulary)))
    assert copy == vocabulary
    assert copy.fingerprint == fingerprint
    assert copy.encode(b'{"a b":1}') == ids


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_narrower_than_the_tokenizers_own_tokens_are_refused(family: str) -> None:
    tokenizer = FAMILIES[family]()
    whole = build_vocabulary(tokenizer)
    assert build_vocabulary(tokenizer, logits_width=len(whole) + 7).logits_width == len(whole) + 7
    own = max(i for i, token in enumerate(whole.tokens) if token) + 1
    if any(token_id < own for token_id in whole.stop_token_ids):
        assert len(build_vocabulary(tokenizer, logits_width=own)) == own
    else:
        with pytest.raises(InvalidConfiguration, match="can never draw a stop token"):
            build_vocabulary(tokenizer, logits_width=own)
    with pytest.raises(InvalidConfiguration, match=f"has {own} tokens of its own, .* does not belong") as caught:
        build_vocabulary(tokenizer, logits_width=own - 1)
    assert caught.value.field == "vocabulary"


@pytest.mark.parametrize("family", ["demo", "llama2", "metaspace"])
def test_tokens_added_past_the_logits_are_left_out(family: str) -> None:
    tokenizer = FAMILIES[family]()
    width = len(build_vocabulary(tokenizer))
    tokenizer.add_special_tokens({"pad_token": "[PAD]"})
    tokenizer.add_tokens(["said"])
    assert len(build_vocabulary(tokenizer)) == width + 2
    found = build_vocabulary(tokenizer, logits_width=width)
    assert (len(found), found.logits_width) == (width, width)
    assert "[PAD]" not in found.special_tokens.values()
    assert found.encode(b"he said") is None  # with a token that the model cannot draw
    assert found.decode(found.encode(b"he says") or ()) == b"he says"
    # one column for the first added token, and padding past the second
    assert len(build_vocabulary(tokenizer, logits_width=width + 1)) == width + 1
    assert build_vocabulary(tokenizer, logits_width=width + 1).special_tokens[width] == "[PAD]"


def test_a_logits_width_of_zero_is_no_default() -> None:
    with pytest.raises(InvalidConfiguration, match="logits_width must be at least 1"):
        build_vocabulary(samples.demo(), logits_width=0)


def test_ids_of_the_demo_tokenizer_equal_its_own() -> None:
    tokenizer = samples.demo()
    vocabulary = build_vocabulary(tokenizer)
    for text in ('{"name":"Zoë","age":31}', " a b", "日本"):
        assert vocabulary.encode(text.encode()) == tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("family", ["llama2", "metaspace"])
def test_a_dummy_prefix_is_not_put_before_running_text(family: str) -> None:
    tokenizer = FAMILIES[family]()
    vocabulary = build_vocabulary(tokenizer)
    whole = tokenizer.encode("hello world", add_special_tokens=False)
    assert vocabulary.decode(whole) == b" hello world"  # the tokenizer's changes to a whole text
    assert vocabulary.encode(b" hello world") == whole
    middle = vocabulary.encode(b"hello world")
    assert middle is not None
    assert vocabulary.decode(middle) == b"hello world"


@pytest.mark.slow
def test_fingerprints_are_the_same_in_another_process_and_differ_where_it_matters() -> None:
    program = (
        "import tests.vocabulary.tokenizers_under_test as samples\n"
        "from guideway.vocabulary import build_vocabulary as build\n"
        "print(build(samples.llama2()).fingerprint, build(samples.small_tiktoken()).fingerprint)"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    here = [build_vocabulary(samples.llama2()), build_vocabulary(samples.small_tiktoken())]
    assert output.stdout.split() == [vocabulary.fingerprint for vocabulary in here]

    tokens = list(here[0].tokens)
    tokens[-1] += b"x"
    without_prefix = samples.llama2_backend()
    without_prefix.normalizer = normalizers.NFC()
    variants = [
        here[0],
        replace(here[0], tokens=tokens),
        replace(here[0], logits_width=len(here[0]) + 1),
        build_vocabulary(samples.llama2(), stop_token_ids=[0]),
        replace(here[0], encoder=None),
        replace(here[0], encoder=build_vocabulary(without_prefix, stop_token_ids=[2]).encoder),
    ]
    assert len({variant.fingerprint for variant in variants}) == len(variants)


# --- added tokens ------------------------------------------------------------------------------------------------


def with_added(*added: str | AddedToken) -> PreTrainedTokenizerFast:
    backend = samples.byte_level_backend()
    backend.add_tokens(list(added))
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")


def test_added_tokens_that_are_not_special_have_text() -> None:
    tokenizer = with_added("<tool é>", AddedToken("  ", normalized=False), "東")
    vocabulary = build_vocabulary(tokenizer)
    first = len(vocabulary) - 3
    assert vocabulary.tokens[first:] == ("<tool é>".encode(), b"  ", "東".encode())
    assert vocabulary.encode("a<tool é>b".encode()) == tokenizer.encode("a<tool é>b", add_special_tokens=False)
    for token_id in range(first, len(vocabulary)):
        assert tokenizer.decode([token_id]).encode() == vocabulary.tokens[token_id]


def test_an_added_token_that_swallows_spaces_makes_no_wrong_ids() -> None:
    vocabulary = build_vocabulary(with_added(AddedToken("<x>", lstrip=True, rstrip=True)))
    assert vocabulary.encode(b"a <x> b") is None
    assert vocabulary.encode(b"a<x>b") is not None


def test_an_added_token_named_as_stop_is_special() -> None:
    tokenizer = with_added("<turn>")
    turn = tokenizer.convert_tokens_to_ids("<turn>")
    assert build_vocabulary(tokenizer).tokens[turn] == b"<turn>"
    vocabulary = build_vocabulary(tokenizer, stop_token_ids=[turn])
    assert vocabulary.tokens[turn] == b""
    assert vocabulary.special_tokens[turn] == "<turn>"
    assert vocabulary.stop_token_ids == {turn, tokenizer.eos_token_id}


def test_an_ordinary_token_named_as_stop_is_refused() -> None:
    tokenizer = with_added()
    word = tokenizer.convert_tokens_to_ids("!")
    with pytest.raises(InvalidConfiguration, match="stands for the text b'!'"):
        build_vocabulary(tokenizer, stop_token_ids=[word])


@pytest.mark.parametrize("token_id", [-1, 10**6])
def test_a_stop_token_outside_the_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(InvalidConfiguration, match=f"token id {token_id} "):
        build_vocabulary(samples.small_tiktoken(), stop_token_ids=[token_id])


def test_ids_without_a_token_are_empty() -> None:
    encoding = tiktoken.Encoding(
        "gaps",
        pat_str=r"(?s).",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={"<|endoftext|>": 300},
    )
    vocabulary = build_vocabulary(encoding)
    assert len(vocabulary) == 301
    assert set(vocabulary.tokens[256:]) == {b""}
    assert vocabulary.special_tokens == {300: "<|endoftext|>"}


def test_a_tokenizer_without_an_end_needs_stop_tokens() -> None:
    backend = samples.byte_level_backend()
    with pytest.raises(InvalidConfiguration, match="pass stop_token_ids"):
        build_vocabulary(backend)
    assert build_vocabulary(backend, stop_token_ids=[1]).special_tokens == {0: "<s>", 1: "</s>"}


# --- encoders that lose text -------------------------------------------------------------------------------------


def test_text_the_pattern_drops_has_no_ids() -> None:
    encoding = tiktoken.Encoding(
        "words only",
        pat_str="[a-z]+",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={"<|endoftext|>": 256},
    )
    vocabulary = build_vocabulary(encoding)
    assert encoding.encode_ordinary("a b") == [97, 98]  # the space is gone
    assert vocabulary.encode(b"a b") is None
    assert vocabulary.encode(b"ab") == [97, 98]


def test_text_a_normalizer_changes_has_no_ids() -> None:
    backend = samples.byte_level_backend()
    backend.normalizer = normalizers.Lowercase()
    vocabulary = build_vocabulary(backend, stop_token_ids=[1])
    assert vocabulary.encode(b"HELLO") is None
    assert vocabulary.encode(b"hello") is not None


def test_a_character_the_model_does_not_know_has_no_ids() -> None:
    backend = Tokenizer(models.Unigram([("</s>", 0.0), ("\u2581", -1.0), ("a", -1.0)]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.add_special_tokens(["</s>"])
    vocabulary = build_vocabulary(backend, stop_token_ids=[0])
    assert vocabulary.tokens == (b"", b" ", b"a")
    assert vocabulary.encode(b"a a") == [2, 1, 2]
    assert vocabulary.encode(b"b") is None


def test_truncation_padding_dropout_and_templates_are_left_out() -> None:
    backend = samples.byte_level_backend()
    plain = build_vocabulary(backend, stop_token_ids=[1]).encode(b"hello hello hello")
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=40)
    backend.model.dropout = 1.0
    assert build_vocabulary(backend, stop_token_ids=[1]).encode(b"hello hello hello") == plain


# --- refusals ----------------------------------------------------------------------------------------------------


def wordpiece() -> Tokenizer:
    backend = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    return backend


def without_decoder() -> Tokenizer:
    backend = samples.byte_level_backend()
    backend.decoder = None
    return backend


def with_suffix() -> Tokenizer:
    backend = samples.byte_level_backend()
    backend.model.end_of_word_suffix = "</w>"
    return backend


def bytes_written_but_not_read() -> Tokenizer:
    backend = samples.byte_level_backend()
    backend.decoder = decoders.Metaspace()
    return backend


def fallback_written_but_not_read() -> Tokenizer:
    backend = samples.llama2_backend()
    backend.decoder = decoders.Replace("\u2581", " ")
    return backend


def decoder_of(*steps: Any) -> Callable[[], Tokenizer]:
    def build() -> Tokenizer:
        backend = samples.llama2_backend()
        backend.decoder = decoders.Sequence(list(steps))
        return backend

    return build


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (wordpiece, "WordPiece"),
        (without_decoder, "decoder: none"),
        (with_suffix, "end_of_word_suffix='</w>'"),
        (bytes_written_but_not_read, "ByteLevel before the model: True"),
        (fallback_written_but_not_read, "byte_fallback: True"),
        (decoder_of(decoders.BPEDecoder()), "BPEDecoder"),
        (decoder_of(decoders.ByteFallback(), decoders.Replace("\u2581", " ")), "ByteFallback \\+ Replace"),
        (decoder_of(decoders.Fuse(), decoders.Replace("ab", "c")), "Fuse \\+ Replace"),
        (decoder_of(decoders.Strip(" ", 1, 0), decoders.Fuse()), "Strip"),
        (decoder_of(decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 0, 1)), '"stop": 1'),
    ],
)
def test_tokenizers_without_exact_bytes_are_refused(build: Callable[[], Tokenizer], named: str) -> None:
    with pytest.raises(InvalidConfiguration, match=named) as caught:
        build_vocabulary(build(), stop_token_ids=[0])
    assert caught.value.field == "tokenizer"


def test_an_encoding_that_lacks_a_byte_is_refused() -> None:
    encoding = tiktoken.Encoding(
        "half", pat_str="(?s).", mergeable_ranks={bytes([i]): i for i in range(128)}, special_tokens={}
    )
    with pytest.raises(InvalidConfiguration, match="single byte 0x80"):
        build_vocabulary(encoding, stop_token_ids=[0])


@pytest.mark.parametrize("tokenizer", [None, "gpt2", object()])
def test_other_objects_are_refused_by_class(tokenizer: object) -> None:
    with pytest.raises(InvalidConfiguration, match=rf"\.{type(tokenizer).__qualname__}; accepted are"):
        build_vocabulary(tokenizer)


def test_a_tokenizer_written_in_python_is_refused() -> None:
    from transformers import CanineTokenizer

    with pytest.raises(InvalidConfiguration, match="CanineTokenizer; accepted are fast tokenizers"):
        build_vocabulary(CanineTokenizer())


@pytest.mark.slow
def test_the_wrapper_of_mistral_common_is_the_same_vocabulary() -> None:
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    wrapped = MistralTokenizer.from_file(samples.tekken_path())
    assert build_vocabulary(wrapped).fingerprint == build_vocabulary(samples.tekken()).fingerprint


class Letters:
    """A tokenizer of an unknown library."""


def read_letters(_: Any, logits_width: int, stop_token_ids: frozenset[int]) -> Vocabulary:
    return Vocabulary([b"", b"a", b"b"], stop_token_ids | {0}, {0: "</s>"}, logits_width)


def test_a_stranger_registers_a_family_as_ours_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    register_family("letters", lambda tokenizer: isinstance(tokenizer, Letters), read_letters)
    assert build_vocabulary(Letters(), logits_width=8).tokens == (b"", b"a", b"b")
    with pytest.raises(InvalidConfiguration, match="a family of tokenizers 'letters' already"):
        register_family("letters", lambda _: True, read_letters)
    with pytest.raises(InvalidConfiguration, match=r"tekken tokenizers of mistral_common and letters$"):
        build_vocabulary(object())


def test_the_family_that_came_last_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    register_family("all", lambda _: True, read_letters)
    assert len(build_vocabulary(samples.demo())) == 3


def test_no_tokenizer_library_is_imported() -> None:
    program = (
        "import sys, guideway.vocabulary as v\n"
        "try: v.build_vocabulary(object())\n"
        "except v.InvalidConfiguration: pass\n"
        "print(sorted({'tokenizers', 'transformers', 'tiktoken', 'mistral_common', 'torch'} & set(sys.modules)))"
    )
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert output.stdout.strip() == "[]"
