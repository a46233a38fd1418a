"""Vocabularies: invalid ids, and the fingerprint."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import pytest
from guideway.api.vocabulary import Encoder, Vocabulary
from guideway.errors import InvalidConfiguration


@dataclass(frozen=True)
class Utf8:
    """Encodes every byte as the token id of its value."""

    identity: bytes = b"bytes"

    def encode(self, text: bytes) -> list[int] | None:
        try:
            text.decode()
        except UnicodeDecodeError:
            return None
        return list(text)


BASE: dict[str, Any] = {
    "tokens": [b"a", b"bc", b"", b"\xff", b""],
    "stop_token_ids": frozenset({2}),
    "special_tokens": {2: "</s>", 4: "<pad>"},
    "logits_width": 8,
    "encoder": Utf8(),
}


def vocabulary(**changes: Any) -> Vocabulary:
    return Vocabulary(**{**BASE, **changes})


def test_the_ids_of_a_vocabulary() -> None:
    v = vocabulary()
    assert len(v) == 5
    assert v.tokens == (b"a", b"bc", b"", b"\xff", b"")
    assert v.decode([1, 2, 0, 3]) == b"bca\xff"
    assert v.decode([]) == b""
    assert v.encode("é".encode()) == [0xC3, 0xA9]
    assert v.encode(b"\xff") is None
    assert isinstance(v.encoder, Encoder)


def test_without_an_encoder_nothing_encodes() -> None:
    assert vocabulary(encoder=None).encode(b"a") is None


def test_the_width_defaults_to_the_number_of_tokens() -> None:
    assert vocabulary(logits_width=0).logits_width == 5


def test_tokens_past_the_width_are_left_out() -> None:
    narrow = vocabulary(logits_width=4, stop_token_ids=[2, 4])
    assert (len(narrow), narrow.logits_width, narrow.tokens[3]) == (4, 4, b"\xff")
    assert (narrow.stop_token_ids, narrow.special_tokens) == ({2}, {2: "</s>"})
    assert narrow == vocabulary(logits_width=4, stop_token_ids=[2])
    assert narrow.fingerprint != vocabulary(logits_width=5).fingerprint
    assert narrow.encode(b"\x03") == [3]
    assert narrow.encode(b"\x04") is None
    with pytest.raises(InvalidConfiguration, match=r"2 columns, so it can never draw a stop token \(2, 4\)") as caught:
        vocabulary(logits_width=2, stop_token_ids=[2, 4])
    assert caught.value.field == "stop_token_ids"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"tokens": [], "stop_token_ids": [], "special_tokens": {}}, "at least one token"),
        ({"stop_token_ids": [5]}, "token id 5 is declared a stop or special token, but ids run from 0 to 4"),
        ({"stop_token_ids": [-1]}, "token id -1"),
        ({"special_tokens": {7: "<x>"}}, "token id 7"),
        ({"stop_token_ids": [1]}, "stop token 1 stands for the text b'bc'"),
    ],
)
def test_ids_that_do_not_fit_together_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidConfiguration, match=problem) as caught:
        vocabulary(**changes)
    assert caught.value.field == "vocabulary"


def test_equal_vocabularies_have_one_fingerprint() -> None:
    one = vocabulary()
    other = vocabulary(tokens=tuple(BASE["tokens"]), stop_token_ids=[2], special_tokens={4: "<pad>", 2: "</s>"})
    assert one == other
    assert one.fingerprint == other.fingerprint
    assert len(one.fingerprint) == 64


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": [b"ab", b"c", b"", b"\xff", b""]},  # the same bytes, split differently
        {"tokens": [b"bc", b"a", b"", b"\xff", b""]},
        {"tokens": [*BASE["tokens"], b""]},
        {"stop_token_ids": [4]},
        {"stop_token_ids": [2, 4]},
        {"special_tokens": {2: "</s>"}},
        {"special_tokens": {2: "</S>", 4: "<pad>"}},
        {"logits_width": 9},
        {"encoder": Utf8(b"other")},
        {"encoder": Utf8(b"")},
        {"encoder": None},
    ],
    ids=str,
)
def test_whatever_affects_compilation_changes_the_fingerprint(changes: dict[str, Any]) -> None:
    assert vocabulary(**changes).fingerprint != vocabulary().fingerprint


def test_the_fingerprint_stays_what_it_was() -> None:
    """The fingerprint is a key of caches on disk, so it must not change by accident."""
    assert vocabulary().fingerprint == "27e72341351e2c2d5bb9c4ec67e611b3ece023c82e326b7c541fc41d848bc929"


def test_a_vocabulary_survives_pickle() -> None:
    v = vocabulary()
    fingerprint = v.fingerprint
    copy = pickle.loads(pickle.dumps(v))
    assert copy == v
    assert copy.fingerprint == fingerprint
    assert copy.encode(b"a") == [97]
