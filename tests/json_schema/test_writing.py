"""Masks of `WritingRule` against single tokens, for real and artificial vocabularies."""

from __future__ import annotations

import random
import re
import tracemalloc
from itertools import product

import numpy as np
import pytest
from guideway.api.bitmask import unpack
from guideway.api.types import WHITESPACE, Whitespace
from guideway.json_schema import JsonCursor, WritingRule, restrict
from guideway.json_schema.cursor import START
from guideway.vocabulary import build_vocabulary

import tests.vocabulary.tokenizers_under_test as samples
from tests.support.stages import everyday, one_in

BYTES = [bytes([byte]) for byte in range(128)]
PARTS = [*rb"""" \ u0 a , : { } [ ] "a" "a": "," \u00""".split(), b" ", b"\n", b"\r\n"]
ODD = [*BYTES, b"", *sorted({b"".join(parts) for parts in product(PARTS, repeat=3)})]
"""All ASCII bytes, a special token, and all combinations of three pieces."""


def allowed(rule: WritingRule, state: JsonCursor, num_tokens: int) -> set[int]:
    row = rule.allowed(state)
    return set(range(num_tokens)) if row is None else set(np.flatnonzero(unpack(row[None], num_tokens)[0]).tolist())


BEGUN = (b"", b'{"a":1,', b'{"a":{"b":[{"a":1}', b'{"a":1,"', b'{"a":"', b'[{"a":1,"\\', b'{"a":"\\u', b'{"a":1,"\\u00')


@pytest.mark.parametrize("whitespace", everyday(WHITESPACE, "bounded"))
def test_masks_are_what_each_token_is_by_itself(whitespace: Whitespace) -> None:
    rule, draw = WritingRule(ODD, whitespace), random.Random(whitespace)
    for text in BEGUN:
        state = rule.start.after(text)
        for _ in range(6):
            after = {i: found for i in range(len(ODD)) if (found := rule.after(state, i)) is not None}
            assert allowed(rule, state, len(ODD)) == after.keys(), state
            wanted = [i for i in after if ODD[i] and after[i].open and len(after[i].open) < 4]
            state = after[draw.choice(wanted or list(after))]


@pytest.mark.parametrize("most", one_in(3, [1, 50, 1 << 14]))
def test_what_a_rule_remembers_changes_nothing(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("guideway.json_schema.writing.MOST_STEPS", most)
    rule, draw = WritingRule(ODD, "bounded"), random.Random(most)
    for _ in range(40):
        state, wanted = rule.start, rule.start
        for _ in range(30):
            some = draw.sample(range(len(ODD)), 40)
            token_id = draw.choice([i for i in some if wanted.within(ODD[i], "bounded")] or [0])
            found = rule.after(state, token_id)
            after = wanted.within(ODD[token_id], "bounded")
            assert found == after
            if found is None or after is None:
                break
            state, wanted = found, after
            fresh = rule.allowed(JsonCursor(*state))
            remembered = rule.allowed(state)
            assert (fresh is None) == (remembered is None)
            assert fresh is None or remembered is None or (fresh == remembered).all()
        assert len(rule._steps) <= most
        assert len(rule._rows) <= most


BOUNDED = re.compile(rb"(?: |\r?\n[ \t]{0,40})?")
PREFIX = re.compile(rb" ?|\r|\r?\n[ \t]{0,40}")


@pytest.mark.parametrize("words", [2, 9])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3, 4, 5], [7, 0, 5, 1, 3, 2]])
def test_many_rows_are_restricted_as_each_by_itself(rows: list[int], words: int) -> None:
    """Rows of states that are equal, that share a mask or allow every token, under several rules, wider than a mask."""
    tokens = [b"", b'"', b" ", b"\n", b"a", b'a"', *BYTES[48:90]]
    rules = [WritingRule(tokens, whitespace) for whitespace in WHITESPACE[:2]]

    def at(rule: WritingRule, text: bytes) -> JsonCursor:
        state = rule.start.within(text, rule.whitespace)
        assert state is not None
        return state

    texts = [b"", b'{"a', b'{"a":"', b'{"b":"', b'{"a":1,"', b'{"a":1,"']
    for chosen, ruling in ((texts, rules * 3), (texts[:1] * 6, rules[1:] * 6), (texts[2:3] * 6, rules[1:] * 6)):
        states = [(rule, at(rule, text)) for text, rule in zip(chosen, ruling, strict=True)]
        found = np.full((8, words), -1, dtype=np.int32)
        expected = found.copy()
        restrict(found, rows, states)
        for row, (rule, state) in zip(rows, states, strict=True):
            if (allowed := rule.allowed(state)) is not None:
                expected[row, : allowed.size] &= allowed
        np.testing.assert_array_equal(found, expected)


def test_bounded_white_space_is_a_space_or_a_line_end_with_indentation() -> None:
    rule = WritingRule(BYTES, "bounded")
    for text in map(bytes, product(b" \t\n\r", repeat=4)):
        for blanks in (text, b"\n" + text * 10, b"\r\n" + text[:1] * 40, b"\n" + text[:1] * 41):
            state: JsonCursor | None = rule.start.after(b"[")
            for i, byte in enumerate(blanks, 1):
                state = None if state is None else rule.after(state, byte)
                assert (state is not None) == (PREFIX.fullmatch(blanks[:i]) is not None), blanks[:i]
                ended = None if state is None else rule.after(state, ord("1"))
                assert (ended is not None) == (BOUNDED.fullmatch(blanks[:i]) is not None), blanks[:i]


@pytest.mark.slow
def test_masks_are_what_each_token_of_a_tokenizer_is() -> None:
    tokens = build_vocabulary(samples.tekken()).tokens
    rule = WritingRule(tokens, "bounded")
    state = rule.start.after(b'{"a":1,"b\\n":[{"a":"x","')
    for text in (b"", b"a", b"b", b"\\", b"u0", b"0", b'1f":', b" "):
        state = state.after(text)
        assert allowed(rule, state, len(tokens)) == {i for i in range(len(tokens)) if rule.after(state, i) is not None}


@pytest.mark.parametrize(
    ("text", "is_legal"),
    [
        (rb'{"id":1,"i":{"id":2},"a":[{"id":3},{"id":4}]}', True),
        (rb'{"id":1,"id":2}', False),
        (rb'{"a":{"id":1},"id":2,"a":3}', False),
        (rb'{"\u0069d":1}', False),
        (rb'{"a\"b\\\b\f\n\r\t\u0000\u001f":1}', True),
        (rb'{"\u001F":1}', False),
        (rb'{"\u000a":1}', False),
        (rb'{"a\/b":1}', False),
        ('{"\u00e9":"\u00e9"}'.encode(), True),
        (rb'{"\u00e9":1}', False),
        (rb'{"a":"\u0069\u00e9\/\ud7ff\ue000"}', True),
        (rb'{"a":"\ud83d\ude00"}', False),
        (rb'{"a":"\uDC00"}', False),
        (rb'["id","id"]', True),
    ],
)
def test_what_may_be_written(text: bytes, is_legal: bool) -> None:
    rule = WritingRule(BYTES + [bytes([byte]) for byte in range(128, 256)], "compact")
    state: JsonCursor | None = rule.start
    for byte in text:
        assert state is not None
        state = rule.after(state, byte)
        if state is None:
            break
    assert (state is not None) == is_legal


def test_a_refused_writing_is_refused_where_it_can_still_be_another() -> None:
    rule = WritingRule(BYTES, "any")
    for text, wrong, right in ((b'{"\\u', b"e", b"0"), (b'{"\\u00', b"2", b"1"), (b'{"a":"\\ud', b"8", b"7")):
        state = rule.start.after(text)
        assert rule.after(state, wrong[0]) is None
        assert rule.after(state, right[0]) is not None
    state = rule.start.after(b'{"a":1,"a')
    assert rule.after(state, ord('"')) is None
    assert rule.after(state, ord("a")) is not None


def test_cursors_of_a_long_object_share_its_names() -> None:
    """A matcher stores a cursor for each token, so the memory of a long object must be linear, not quadratic."""

    def taken(num_names: int) -> int:
        tracemalloc.start()
        cursors = [START.after(b"{")]
        for i in range(num_names):
            cursors.append(cursors[-1].after(b'"name %d":0,' % i))
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert list(cursors[-1].open[-1] or ())[:2] == [b'name %d"' % (num_names - 1), b'name %d"' % (num_names - 2)]
        return taken

    assert taken(2000) < 3 * taken(1000)
