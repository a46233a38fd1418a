"""The layout of bitmasks, tested token by token."""

from __future__ import annotations

import numpy as np
import pytest
from guideway.api.bitmask import (
    FULL,
    TokenLists,
    allocate,
    allow_only,
    count_allowed,
    empty_rows,
    is_allowed,
    num_words,
    pack,
    token_lists,
    unpack,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from tests.support.stages import examples

ALLOWED = hnp.arrays(np.bool_, st.tuples(st.integers(0, 4), st.sampled_from((1, 31, 32, 33, 64, 100))))


@pytest.mark.parametrize(("width", "words"), [(0, 0), (1, 1), (32, 1), (33, 2), (64, 2), (65, 3)])
def test_num_words(width: int, words: int) -> None:
    assert num_words(width) == words


def test_allocate_allows_everything() -> None:
    bitmask = allocate(2, 33)
    assert bitmask.shape == (2, 2)
    assert bitmask.dtype == np.int32
    assert (bitmask == FULL).all()
    assert unpack(bitmask, 33).all()


@given(allowed=ALLOWED)
def test_pack_puts_token_t_into_bit_t_modulo_32_of_word_t_over_32(allowed: NDArray[np.bool_]) -> None:
    bitmask = pack(allowed)
    assert bitmask.shape == (len(allowed), num_words(allowed.shape[1]))
    assert bitmask.dtype == np.int32
    for row, flags in enumerate(allowed):
        wanted = sum(1 << token for token, flag in enumerate(flags) if flag)  # so bits past the width are zero
        assert sum(int(np.uint32(word)) << (32 * i) for i, word in enumerate(bitmask[row].view(np.uint32))) == wanted


@given(allowed=ALLOWED)
def test_unpack_reverses_pack(allowed: NDArray[np.bool_]) -> None:
    unpacked = unpack(pack(allowed), allowed.shape[1])
    assert unpacked.dtype == np.bool_
    np.testing.assert_array_equal(unpacked, allowed)


@given(allowed=ALLOWED, data=st.data())
def test_count_allowed_counts_the_first_tokens(allowed: NDArray[np.bool_], data: st.DataObject) -> None:
    num_tokens = data.draw(st.integers(1, allowed.shape[1]))
    assert count_allowed(pack(allowed), num_tokens).tolist() == allowed[:, :num_tokens].sum(axis=1).tolist()


def test_unpack_reads_rows_that_are_not_contiguous() -> None:
    bitmask = np.array([[1, 9, -1], [0, 9, 2]], dtype=np.int32)[:, ::2]
    unpacked = unpack(bitmask, 64)
    assert np.flatnonzero(unpacked[0]).tolist() == [0, *range(32, 64)]
    assert np.flatnonzero(unpacked[1]).tolist() == [33]


def test_unpack_takes_the_first_tokens_of_longer_rows_and_refuses_shorter_ones() -> None:
    assert unpack(np.array([[5, -1]], dtype=np.int32), 3).tolist() == [[True, False, True]]
    with pytest.raises(ValueError, match="1 words holds fewer than 33 tokens"):
        unpack(allocate(1, 32), 33)


@given(allowed=ALLOWED)
def test_is_allowed_reads_one_bit(allowed: NDArray[np.bool_]) -> None:
    bitmask = pack(allowed)
    for (row, token), flag in np.ndenumerate(allowed):
        assert is_allowed(bitmask, row, token) == flag


@given(token_ids=st.sets(st.integers(0, 95)))
def test_allow_only_overwrites_one_row(token_ids: set[int]) -> None:
    bitmask = np.full((3, 3), 7, dtype=np.int32)
    allow_only(bitmask, 1, token_ids)
    assert set(np.flatnonzero(unpack(bitmask, 96)[1]).tolist()) == token_ids
    assert (bitmask[[0, 2]] == 7).all()


@pytest.mark.parametrize("token_id", [-1, 64, 1000])
def test_allow_only_refuses_ids_outside_of_the_row(token_id: int) -> None:
    with pytest.raises(IndexError):
        allow_only(allocate(1, 64), 0, [token_id])


@pytest.mark.parametrize("words", [1, 2, 3, 4])
def test_empty_rows(words: int) -> None:
    """A row with any bit set, including the sign bit, is not empty."""
    bitmask = np.zeros((1 + 32 * words, words), dtype=np.int32)
    for token in range(32 * words):
        allow_only(bitmask, 1 + token, [token])
    wanted = [True] + [False] * (32 * words)
    assert empty_rows(bitmask).tolist() == wanted
    assert empty_rows(np.asfortranarray(bitmask)).tolist() == wanted
    assert empty_rows(bitmask[::2]).tolist() == wanted[::2]


def test_bits_that_cancel_out_do_not_make_a_row_empty() -> None:
    assert empty_rows(np.array([[1, 1], [-1, 1], [0, 0]], dtype=np.int32)).tolist() == [False, False, True]
    assert empty_rows(np.array([[-1, 1, 0], [0, 0, 0]], dtype=np.int32)).tolist() == [False, True]


WIDTHS = (1, 2, 31, 32, 33, 64, 65, 100, 320)


@st.composite
def masks(draw: st.DrawFn) -> tuple[NDArray[np.int32], int]:
    """Generate masks of all kinds, in rows that may be narrower or wider than the number of tokens."""
    num_tokens, rows = draw(st.sampled_from(WIDTHS)), draw(st.integers(0, 5))
    words = max(0, num_words(num_tokens) + draw(st.sampled_from((0, 0, -1, 1, 3))))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shares = rng.choice([0.0, 0.01, 0.03, 0.5, 0.97, 0.99, 1.0], (rows, 1))
    whole = rng.choice([True, False], (rows, 1)) & (rng.random((rows, words)) < 0.5)
    allowed = (rng.random((rows, words * 32)) < shares) ^ np.repeat(whole, 32, axis=1)
    return pack(allowed), num_tokens


def tokens_of(bitmask: NDArray[np.int32], num_tokens: int) -> list[list[int]]:
    """Return the allowed tokens of each row, bit by bit."""
    width = 32 * bitmask.shape[1]
    return [[t for t in range(min(num_tokens, width)) if is_allowed(bitmask, i, t)] for i in range(len(bitmask))]


@given(case=masks())
@settings(max_examples=examples(300), deadline=None)
def test_token_lists_hold_what_takes_fewer_bytes(case: tuple[NDArray[np.int32], int]) -> None:
    bitmask, num_tokens = case
    before = bitmask.copy()
    lists, chosen = token_lists(bitmask, num_tokens)
    np.testing.assert_array_equal(bitmask, before)
    assert (lists.offsets.dtype, lists.token_ids.dtype, lists.allow.dtype) == (np.int32, np.int32, np.bool_)
    assert (chosen.dtype, len(lists), lists.offsets[0], lists.offsets[-1]) == (
        np.bool_,
        chosen.sum(),
        0,
        len(lists.token_ids),
    )
    place = 0
    for allowed, is_chosen in zip(tokens_of(bitmask, num_tokens), chosen.tolist(), strict=True):
        refused = sorted(set(range(num_tokens)) - set(allowed))
        assert is_chosen == (min(len(allowed), len(refused)) < num_words(num_tokens))
        if is_chosen:
            wanted = allowed if lists.allow[place] else refused
            assert lists.token_ids[lists.offsets[place] : lists.offsets[place + 1]].tolist() == wanted
            assert len(wanted) == min(len(allowed), len(refused))
            place += 1


@given(case=masks(), width=st.sampled_from((*WIDTHS, 400)))
@settings(max_examples=examples(200), deadline=None)
def test_the_bitmask_of_token_lists_is_the_one_they_are_of(case: tuple[NDArray[np.int32], int], width: int) -> None:
    bitmask, num_tokens = case
    lists, chosen = token_lists(bitmask, num_tokens)
    back = lists.bitmask(width)
    assert back.shape == (len(lists), num_words(width))
    assert back.dtype == np.int32
    # Past `num_tokens`, a mask stored as a list of forbidden tokens allows everything.
    wanted = [tokens for tokens, is_chosen in zip(tokens_of(bitmask, num_tokens), chosen, strict=True) if is_chosen]
    for tokens, allow, row in zip(wanted, lists.allow.tolist(), tokens_of(back, 32 * num_words(width)), strict=True):
        past = [] if allow else range(num_tokens, width)
        assert row == [t for t in tokens if t < width] + list(past)


def test_token_lists_of_extremes() -> None:
    bitmask = np.array([[0, 0, 0], [-1, -1, -1], [0, 0, -(2**31)], [-1, -1, 2**31 - 1]], dtype=np.int32)
    lists, chosen = token_lists(bitmask, 96)
    assert chosen.all()
    assert lists.allow.tolist() == [True, False, True, False]
    assert lists.offsets.tolist() == [0, 0, 0, 1, 2]
    assert lists.token_ids.tolist() == [95, 95]


def test_an_empty_list_allows_nothing_or_everything() -> None:
    lists = TokenLists(np.zeros(3, dtype=np.int32), np.empty(0, dtype=np.int32), np.array([True, False]))
    assert unpack(lists.bitmask(33), 33).tolist() == [[False] * 33, [True] * 33]
