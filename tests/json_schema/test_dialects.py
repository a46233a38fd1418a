"""`Regex` follows Python's `re.fullmatch`, and ``pattern`` ECMA-262: a strategy that would accept other texts refuses
the expression, or names the difference."""

from __future__ import annotations

import re

import pytest
from guideway.json_schema import expressions
from guideway.json_schema.expressions import python, spelled_out
from guideway.json_schema.prober import byte_vocabulary

from tests.support.dialects import misread_patterns, misread_regexes
from tests.support.json_strategies import STRATEGIES, build
from tests.support.stages import one_in


@pytest.mark.parametrize("name", one_in(5, STRATEGIES))
def test_a_regex_is_what_python_reads(name: str) -> None:
    num_served, wrong = misread_regexes(build(name, byte_vocabulary()))
    assert not wrong
    assert num_served > 25


@pytest.mark.parametrize("name", one_in(5, STRATEGIES))
def test_a_pattern_is_what_ecma_262_reads(name: str) -> None:
    num_served, wrong = misread_patterns(build(name, byte_vocabulary()))
    assert not wrong
    assert num_served > 15


def test_the_characters_of_python_are_those_that_re_matches() -> None:
    codes = [*range(0x3100), 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0x1D7CE, 0x1FBF9, 0x10FFFF]
    for letter in "dsw":
        found = {code for low, high in python()[letter] for code in range(low, high + 1)}
        assert found.intersection(codes) == {code for code in codes if re.match(rf"\{letter}", chr(code))}


def test_unicode_is_searched_only_for_escapes_in_the_pattern() -> None:
    """The search takes tens of milliseconds, in each host."""
    expressions._in_unicode.cache_clear()
    spelled_out(r"[a-z]+.(x|\n)[^]]", python())
    assert expressions._in_unicode.cache_info().currsize == 0
    spelled_out(r"\d{3}[\d-]", python())
    assert expressions._in_unicode.cache_info().currsize == 1
