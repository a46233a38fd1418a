"""Draft tokens by prompt lookup."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["PromptLookup"]

LONGEST, SHORTEST = 3, 2
"""Lengths of the endings that are looked up."""


class PromptLookup:
    """Drafts for one sequence: the tokens that followed an earlier occurrence of how it ends, the latest occurrence of
    the longest such ending (Saxena, Prompt lookup decoding, 2023; in ``transformers`` as `prompt_lookup_num_tokens`).

    It indexes each token once, about 300 bytes of memory each, so that a draft costs the same however long the past is.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._prompt_length = len(prompt)
        self._after: dict[tuple[int, ...], int] = {}
        """The places where the tokens begin that followed the latest occurrence of these."""
        self._indexed = SHORTEST
        """Below it is where all that is indexed ends."""

    def draft(self, output: Sequence[int], num_tokens: int) -> list[int]:
        """At most `num_tokens` tokens that may follow prompt and `output`. `output` is the one of the call before and
        perhaps more; a sequence that takes another way needs a new object."""
        tokens = self._tokens
        tokens += output[len(tokens) - self._prompt_length :]
        for end in range(self._indexed, len(tokens)):  # what ends with the last token is no earlier occurrence
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                self._after[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens))
        for length in range(LONGEST, SHORTEST - 1, -1):
            after = self._after.get(tuple(tokens[-length:]))
            if after is not None:
                return tokens[after : after + num_tokens]
        return []
