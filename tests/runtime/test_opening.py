"""The first tokens of an output write the bytes that a modifier took off the prompt, and no token that cannot."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from guideway.api import InvalidRequest, Vocabulary
from guideway.api.bitmask import allocate, is_allowed
from guideway.runtime.modifiers.opening import Opening, TokenTexts
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.stages import examples

ALPHABET = b"abc"
TEXTS = st.binary(max_size=3).map(lambda text: bytes(ALPHABET[byte % 3] for byte in text))


def writable(tokens: list[bytes], prefix: bytes) -> bool:
    """Return whether some tokens write the prefix, by trying all."""
    return not prefix or any(
        token and (token.startswith(prefix) or (prefix.startswith(token) and writable(tokens, prefix[len(token) :])))
        for token in tokens
    )


@settings(max_examples=examples(200), deadline=None)
@given(tokens=st.lists(TEXTS, min_size=1, max_size=8), prefix=TEXTS.filter(bool), more=TEXTS)
def test_exactly_the_tokens_are_allowed_after_which_the_prefix_can_be_written(
    tokens: list[bytes], prefix: bytes, more: bytes
) -> None:
    prefix += more
    vocabulary = Vocabulary([*tokens, b""], stop_token_ids=frozenset({len(tokens)}), logits_width=len(tokens) + 5)
    if not writable(tokens, prefix):
        with pytest.raises(InvalidRequest, match="no tokens that write"):
            Opening(prefix, TokenTexts(vocabulary))
        return
    opening = Opening(prefix, TokenTexts(vocabulary))
    for past in [ids for length in range(3) for ids in product(range(len(tokens)), repeat=length)]:
        written = b"".join(tokens[i] for i in past)
        fits = [prefix.startswith(b"".join(tokens[i] for i in past[:n])) for n in range(1, len(past) + 1)]
        if not all(tokens[i] for i in past) or not all(fits) or not writable(tokens, prefix[len(written) :]):
            continue
        rest = prefix[len(written) :]
        assert opening.is_over(past) == (not rest)
        # the same row, after final tokens and after drafts
        for split in range(len(past) + 1):
            bitmask = allocate(len(past) - split + 1, vocabulary.logits_width)
            opening.restrict(bitmask, list(range(len(bitmask))), past[:split], past[split:])
            for i, token in enumerate([*tokens, b""]):
                goes_on = token.startswith(rest) if len(token) >= len(rest) else rest.startswith(token)
                expected = not rest or (bool(token) and goes_on and writable(tokens, rest[len(token) :]))
                assert is_allowed(bitmask, len(bitmask) - 1, i) == expected


def test_a_row_after_a_wrong_draft_allows_a_token() -> None:
    tokens = [b"a", b"ab", b"c", b"b"]
    opening = Opening(b"abc", TokenTexts(Vocabulary([*tokens, b""], stop_token_ids=frozenset({4}))))
    bitmask = allocate(4, 5)
    opening.restrict(bitmask, [0, 1, 2, 3], (), (3, 3, 2))
    assert np.all(bitmask != 0)
    assert not is_allowed(bitmask, 0, 3)
