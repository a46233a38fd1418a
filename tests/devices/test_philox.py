"""The random number generator: known answers, and the same bits from every array library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from guideway.devices.philox import multiply_64, philox4x32
from hypothesis import given
from hypothesis import strategies as st

from tests.support.jax_device import multiply_32

WORDS = st.integers(0, 2**32 - 1)

# kat_vectors of Random123, philox4x32 with 10 rounds: counter, key, answer
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]

Library = tuple[Callable[[list[int]], Any], Callable[[Any, int], tuple[Any, Any]], Callable[[int], Any]]
LIBRARIES: dict[str, Library] = {
    "numpy": (lambda words: np.array(words, dtype=np.uint64), multiply_64, int),
    "torch": (lambda words: torch.tensor(words, dtype=torch.int64), multiply_64, int),
    "jax": (lambda words: jnp.array(np.array(words, dtype=np.uint32)), multiply_32, jnp.uint32),
}


def parse(words: str) -> list[int]:
    return [int(word, 16) for word in words.split()]


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS, ids=["zeros", "ones", "pi"])
def test_the_answers_published_with_random123(library: str, counter: str, key: str, answer: str) -> None:
    array, multiply, scalar = LIBRARIES[library]
    c0, c1, c2, c3 = (array([word]) for word in parse(counter))
    k0, k1 = (array([word]) for word in parse(key))
    assert [int(word[0]) for word in philox4x32((c0, c1, c2, c3), (k0, k1), multiply, scalar)] == parse(answer)


@pytest.mark.parametrize("library", LIBRARIES)
@given(words=st.lists(WORDS, min_size=3, max_size=3), constant=WORDS)
def test_multiply_is_exact(library: str, words: list[int], constant: int) -> None:
    array, multiply, _ = LIBRARIES[library]
    high, low = multiply(array(words), constant)
    assert [int(h) << 32 | int(w) for h, w in zip(high, low, strict=True)] == [word * constant for word in words]
