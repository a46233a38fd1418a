"""Bans of a request: in the masks for a host that draws by itself, and in completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from guideway.api import Payload, Regex, Request, SamplingParams, StepBatch
from guideway.api.bitmask import allow_only, is_allowed
from guideway.devices.numpy.device import NumpyDevice
from guideway.json_schema.prober import byte_vocabulary
from guideway.runtime.constraints.bans import Bans, MaskBans, with_restrictions
from guideway.runtime.constraints.closing import Budget, Closer, Lexicon, Reserve
from guideway.runtime.sequences.replay import new_matcher
from guideway_llguidance.strategy import Strategy

from tests.support.closing import completion
from tests.support.fake_host import FakeHost

VOCABULARY = byte_vocabulary()
STOPS = VOCABULARY.stop_token_ids
(STOP,) = STOPS
LEXICON = Lexicon(VOCABULARY)


def ids(text: str) -> tuple[int, ...]:
    """Return the tokens of a text."""
    return tuple(text.encode())


def matcher_of(constraint: Regex) -> Any:
    strategy = Strategy(VOCABULARY, {})
    return new_matcher(strategy, strategy.compile(constraint), STOPS)


def masks(*rows: Iterable[int]) -> Any:
    """Return rows that allow these tokens."""
    bitmask = np.zeros((len(rows), LEXICON.words), dtype=np.int32)
    for row, token_ids in enumerate(rows):
        allow_only(bitmask, row, token_ids)
    return bitmask


def allowed_tokens(row: Any) -> set[int]:
    return {i for i in range(len(VOCABULARY)) if is_allowed(row[np.newaxis], 0, i)}


LETTERS = {*ids("abcd"), STOP}


@pytest.mark.parametrize(
    ("bans", "past", "left", "names"),
    [
        (Bans(), "", LETTERS, ()),
        (Bans(logit_bias=frozenset(ids("ab"))), "", {*ids("cd"), STOP}, ()),
        (Bans(logit_bias=frozenset({*ids("abcd"), STOP})), "", LETTERS, ("logit_bias",)),
        (Bans(allowed_token_ids=frozenset(ids("dx"))), "", set(ids("d")), ()),
        (Bans(allowed_token_ids=frozenset(ids("x"))), "", LETTERS, ("allowed_token_ids",)),
        (Bans(bad_words=(ids("a"), ids("bc"))), "", {*ids("bcd"), STOP}, ()),
        (Bans(bad_words=(ids("a"), ids("bc"))), "xb", {*ids("bd"), STOP}, ()),
        (Bans(bad_words=(ids("bbb"),)), "bb", {*ids("acd"), STOP}, ()),
        (Bans(bad_words=(ids("bbb"),)), "b", LETTERS, ()),
        (Bans(min_tokens=3), "ab", set(ids("abcd")), ()),
        (Bans(min_tokens=3), "abc", LETTERS, ()),
        (
            Bans(min_tokens=3, logit_bias=frozenset(ids("abcd")), bad_words=(ids("z"),)),
            "",
            LETTERS,
            ("logit_bias", "min_tokens"),
        ),
    ],
    ids=str,
)
def test_a_mask_is_without_what_is_banned_and_never_empty(
    bans: Bans, past: str, left: set[int], names: tuple[str, ...]
) -> None:
    restricting, bitmask = MaskBans(bans, STOPS, LEXICON.words), masks(LETTERS)
    restricting.restrict(bitmask, [0], ids(past), ())
    assert allowed_tokens(bitmask[0]) == left
    assert restricting.overruled(1) == names


def test_each_row_of_drafts_has_the_bans_of_its_own_past() -> None:
    """The second of three sequences bans something; the third has no mask yet."""
    batch = StepBatch.build([0, 1, 2], [5, 5, 5], [[], list(ids("ab")), list(ids("a"))])
    rows = np.array([3, 0, 1, 2], dtype=np.int32)
    bitmask = masks(LETTERS, LETTERS, LETTERS, LETTERS)
    banned = {
        1: (MaskBans(Bans(bad_words=(ids("ab"), ids("abc")), min_tokens=2), STOPS, LEXICON.words), ids("")),
        2: (MaskBans(Bans(allowed_token_ids=frozenset(ids("c"))), STOPS, LEXICON.words), ids("x")),
    }
    found = with_restrictions(Payload(rows, {"bitmask": bitmask}), batch, banned, LEXICON.words)
    by_row = {row: allowed_tokens(mask) for row, mask in zip(found.rows.tolist(), found.arrays["bitmask"], strict=True)}
    assert by_row == {
        0: LETTERS,
        1: set(ids("abcd")),  # `min_tokens` is 2
        2: set(ids("acd")),
        3: {*ids("abd"), STOP},
        4: set(ids("c")),
        5: set(ids("c")),
    }


@pytest.mark.parametrize(
    ("bans", "ends"),
    [
        (Bans(logit_bias=frozenset(ids("x"))), (b"y",)),
        (Bans(logit_bias=frozenset(ids("y"))), (b"x",)),
        (Bans(allowed_token_ids=frozenset(ids("aby"))), (b"y",)),
        (Bans(allowed_token_ids=frozenset(ids("abx"))), (b"x",)),
        (Bans(bad_words=(ids("ax"),)), (b"y",)),
        (Bans(bad_words=(ids("ay"),)), (b"x",)),
        (Bans(bad_words=(ids("ax"), ids("ay"))), (b"bx", b"by")),
        (Bans(bad_words=(ids("ax"), ids("ay"), ids("bx"))), (b"by",)),
        (Bans(stop=(b"x",)), (b"y",)),
        (Bans(stop=(b"y",)), (b"x",)),
        (Bans(logit_bias=frozenset({*ids("x"), STOP})), (b"y",)),
        (Bans(logit_bias=frozenset({*ids("y"), STOP})), (b"x",)),
    ],
    ids=str,
)
def test_a_completion_does_without_what_is_banned(bans: Bans, ends: tuple[bytes, ...]) -> None:
    matcher = matcher_of(Regex("[ab]{1,9}(x|y)"))
    matcher.accept(ids("a"))
    found = completion(matcher, 9, None, past=ids("a"), bans=bans)
    assert found is not None
    assert VOCABULARY.decode(found) in ends
    assert found[-1] == STOP


def test_what_is_drawn_near_the_end_leaves_room_for_a_completion_without_bans() -> None:
    """The completion without bans is longer than the shortest one."""
    constraint, bans = Regex("[ab]{1,9}(x|y{4})"), Bans(logit_bias=frozenset(ids("x")))
    matcher = matcher_of(constraint)
    closer = Closer(LEXICON, STOPS, Budget(8, Reserve.of(constraint, VOCABULARY), bans))
    text = b""
    while not matcher.is_terminated():
        bitmask = masks(())
        matcher.fill_bitmask(bitmask, 0)
        closer.restrict(matcher, (), bitmask)
        token_id = min(allowed_tokens(bitmask[0]) - set(ids("x")))  # a, as long as possible
        assert matcher.accept((token_id,)) == 1
        closer.accept((token_id,))
        text += VOCABULARY.tokens[token_id]
    assert text == b"aaayyyy"
    assert not closer.record.lifts_bans


def test_what_did_not_hold_is_told_of_final_tokens_only() -> None:
    host = FakeHost(VOCABULARY, NumpyDevice(), strategies={"llguidance": Strategy(VOCABULARY, {})})
    runtime = host.runtime
    request = Request(request_id="a", prompt_token_ids=(1,), params=SamplingParams(constraint=Regex("ab(c|d)e*")))
    admission = runtime.admit(request, Bans(logit_bias=frozenset(ids("be"))))
    runtime.start(admission, 0)
    payload = runtime.bitmask(runtime.prepare(StepBatch.build([0], [1], [list(ids("abc"))])))
    assert payload is not None
    assert [allowed_tokens(row) for row in payload.arrays["bitmask"]] == [
        {*ids("a")},
        {*ids("b")},
        {*ids("cd")},
        {STOP},
    ]
    runtime.accept_one(0, 0, ids("a"))
    assert runtime.unenforced(0) == ()
    runtime.prepare(StepBatch.build([0], [2]))
    runtime.accept_one(0, 0, ids("b"))
    assert runtime.unenforced(0) == ("logit_bias",)
    journal = runtime.journal(0)
    runtime.release(0, ended=False)
    runtime.start(admission, 0, journal=journal)
    payload = runtime.bitmask(runtime.prepare(StepBatch.build([0], [3], [list(ids("c"))])))
    assert payload is not None
    assert [allowed_tokens(row) for row in payload.arrays["bitmask"]] == [{*ids("cd")}, {STOP}]
    assert runtime.unenforced(0) == ("logit_bias",)
    runtime.release(0)
