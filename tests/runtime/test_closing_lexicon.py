"""`Lexicon.by_length` finds the longest and shortest tokens of a mask."""

from __future__ import annotations

import numpy as np
import pytest
from guideway.api import Vocabulary
from guideway.runtime.constraints.closing import Lexicon
from guideway.runtime.constraints.closing.lexicon import FEW

SIZE = 3 * FEW
STOP = SIZE
LEXICON = Lexicon(
    Vocabulary([*(f"{i:x}".encode() * (1 + i % 7) for i in range(SIZE)), b""], frozenset({STOP}), {STOP: "</s>"})
)


@pytest.mark.parametrize("number", [0, 1, 5, 300, FEW - 1, FEW, FEW + 1, SIZE + 1])
def test_the_longest_and_the_shortest_are_found_among_few_and_many(number: int) -> None:
    allowed = np.zeros(SIZE + 1, dtype=np.bool_)
    allowed[np.random.default_rng(number).choice(SIZE + 1, number, replace=False)] = True
    by_length = sorted((i for i in range(SIZE) if allowed[i]), key=lambda i: -len(LEXICON.tokens[i]))
    longest, shortest = LEXICON.by_length(allowed, 40, 9)
    assert longest == by_length[:40]
    assert shortest == by_length[::-1][:9]
