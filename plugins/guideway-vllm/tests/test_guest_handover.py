"""Tests that a shared vocabulary is read back unchanged, and that other data never becomes anything else."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from guideway.api import Vocabulary
from guideway.vocabulary import build_vocabulary
from guideway_conformance.grammar.vocabularies import GreedyEncoder

from tests.vocabulary.tokenizers_under_test import byte_level_with_added_tokens, demo, llama2

CONFIG: Any = SimpleNamespace(instance_id="abc12")


def tiktoken_encoding() -> Any:
    from tiktoken import Encoding

    ranks = {bytes([i]): i for i in range(256)} | {b"ab": 256, b"abc": 257}
    return Encoding("small", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 258})


@pytest.mark.parametrize("num_past", [0, 3])
@pytest.mark.parametrize("tokenizer", [demo, byte_level_with_added_tokens, llama2, tiktoken_encoding])
def test_it_is_the_same_on_the_other_side(tokenizer: Callable[[], Any], num_past: int) -> None:
    """The same holds if tokens past the logits are left out."""
    from guideway_vllm.handover import _pack, _unpack

    whole = build_vocabulary(tokenizer())
    tokens = [*whole.tokens, *[b""] * num_past]
    vocabulary = Vocabulary(tokens, whole.stop_token_ids, whole.special_tokens, len(whole), whole.encoder)
    data = _pack(vocabulary)
    assert data is not None
    found = _unpack(data)
    assert found == vocabulary
    assert found.fingerprint == vocabulary.fingerprint
    for text in (b"abc", b" so, a < b", "Zoë".encode(), b"\xff"):
        assert found.encode(text) == vocabulary.encode(text)


def test_an_encoder_of_another_family_is_not_handed_over() -> None:
    from guideway_vllm.handover import VARIABLE, Handover, load_shared_vocabulary

    tokens = (b"a", b"")
    handover = Handover(Vocabulary(tokens, frozenset({1}), encoder=GreedyEncoder(tokens)), CONFIG)
    assert VARIABLE not in os.environ
    assert load_shared_vocabulary(CONFIG) is None
    handover.close()


class Executed:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_what_a_stranger_writes_becomes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither other bytes in the memory nor other values in the environment are trusted."""
    from guideway_vllm import handover

    witness = tmp_path / "executed"
    vocabulary = build_vocabulary(demo())
    held = handover.Handover(vocabulary, CONFIG)
    try:
        file = handover._find_file(CONFIG)
        assert file is not None
        assert (file.num_tokens, handover.shared_vocabulary_size(CONFIG)) == (len(vocabulary), len(vocabulary))
        assert handover.load_shared_vocabulary(CONFIG) is None, "it is here already"
        assert handover._read(file) == vocabulary
        data = Path(file.path).read_bytes()
        rng = random.Random(1)
        spoiled = [pickle.dumps(Executed(witness)), b"", data[:-1], bytes(len(data))]
        spoiled += [
            data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in (rng.randrange(len(data)) for _ in range(9))
        ]
        for stranger in spoiled:
            handover._read.cache_clear()
            Path(file.path).write_bytes(stranger)
            assert handover._read(file) is None
            try:
                found = handover._unpack(stranger)
            except Exception as error:
                assert type(error).__name__ in {
                    "JSONDecodeError",
                    "UnicodeDecodeError",
                    "UnicodeEncodeError",
                    "InvalidConfiguration",
                }
            else:
                assert isinstance(found, Vocabulary)
        for words in ("", "abc12", "abc12:9:9:x:/proc/1/fd/3", f"abc12:1:1:{'0' * 64}:/etc/passwd", "abc12:-1:1::"):
            with monkeypatch.context() as patch:
                patch.setenv(handover.VARIABLE, words)
                assert (handover.load_shared_vocabulary(CONFIG), handover.shared_vocabulary_size(CONFIG)) == (
                    None,
                    None,
                )
        assert not witness.exists()
    finally:
        held.close()
        handover._read.cache_clear()
