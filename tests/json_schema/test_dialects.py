"""`Regex` follows Python's `re.fullmatch`, and ``pattern`` ECMA-262: a strategy that would accept other texts refuses
the expression, or names the difference."""

from __future__ import annotations

import pytest
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
