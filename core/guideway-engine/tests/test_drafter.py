"""Prompt lookup compared with a plain search, and its cost."""

from __future__ import annotations

from guideway_engine.scheduling.drafter import PromptLookup
from hypothesis import given
from hypothesis import strategies as st

tokens = st.lists(st.integers(0, 2), max_size=25)


def searched(token_ids: list[int], num_tokens: int) -> list[int]:
    """Return the tokens after the latest earlier occurrence of the last three tokens, or else of the last two."""
    for length in (3, 2):
        for start in range(len(token_ids) - length - 1, -1, -1):
            if token_ids[start : start + length] == token_ids[-length:]:
                return token_ids[start + length : start + length + num_tokens]
    return []


@given(tokens, tokens, st.lists(st.integers(0, 4)), st.integers(0, 5))
def test_it_finds_what_a_search_of_the_whole_past_finds(
    prompt: list[int], continuation: list[int], steps: list[int], num_tokens: int
) -> None:
    """Steps of 0 repeat a call with the same output."""
    lookup = PromptLookup(tuple(prompt))
    output: list[int] = []
    for step in [0, *steps, len(continuation)]:
        output += continuation[len(output) : len(output) + step]
        assert lookup.draft(output, num_tokens) == searched([*prompt, *output], num_tokens)


def test_the_latest_occurrence_of_the_longest_ending_decides() -> None:
    assert PromptLookup((1, 2, 3, 4, 1, 2, 3, 5, 9, 2, 3, 6, 1, 2)).draft([3], 2) == [5, 9]
    assert PromptLookup((7, 2, 3, 4, 8, 2, 3, 5)).draft([2, 3], 3) == [5, 2, 3]
    assert PromptLookup((1, 1)).draft([1], 4) == [1]
    assert PromptLookup((1, 2, 3)).draft([3], 4) == []


def test_a_draft_is_the_callers_own() -> None:
    lookup = PromptLookup((1, 2, 3))
    output = [1, 2]
    lookup.draft(output, 2).clear()
    assert lookup.draft(output, 2) == [3, 1]
    output += [3]
    assert lookup.draft(output, 2) == [1, 2]


class Counted(int):
    """A token id that counts all comparisons and hashes."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        Counted.looks += 1
        return int(self) == other

    def __hash__(self) -> int:
        Counted.looks += 1
        return int(self)


def test_a_long_past_costs_a_step_no_more_than_a_short_one() -> None:
    costs = []
    for length in (30, 3000):
        lookup = PromptLookup([Counted(i) for i in range(length)])
        output: list[int] = []
        lookup.draft(output, 4)
        before = Counted.looks
        for token in (1, 2, 3, 4):
            output.append(Counted(token))
            lookup.draft(output, 4)
        costs.append(Counted.looks - before)
    assert costs[1] < 2 * costs[0]
