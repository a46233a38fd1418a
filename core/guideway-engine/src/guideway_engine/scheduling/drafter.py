"""Draft tokens by prompt lookup."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["PromptLookup"]

LONGEST, SHORTEST = 3, 2
"""Lengths of the n-grams that are looked up."""


class PromptLookup:
    """Drafts tokens for one sequence by prompt lookup.

    A draft is the continuation of the latest earlier occurrence of the sequence's last three or two tokens (Saxena,
    Prompt lookup decoding, 2023; in ``transformers`` as `prompt_lookup_num_tokens`). Each token is indexed once and
    takes about 300 bytes, so the time for a draft does not depend on the length of the sequence.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self._tokens = list(prompt)
        self._prompt_length = len(prompt)
        self._after: dict[tuple[int, ...], int] = {}
        """For each n-gram, the position after its latest occurrence."""
        self._indexed = SHORTEST
        """First position that is not indexed yet."""

    def draft(self, output: Sequence[int], num_tokens: int) -> list[int]:
        """Return at most `num_tokens` tokens that may follow the prompt and `output`.

        `output` must begin with the `output` of the previous call. Create a new object for a sequence that diverges.
        """
        tokens = self._tokens
        tokens += output[len(tokens) - self._prompt_length :]
        # an n-gram that includes the last token is not an earlier occurrence
        for end in range(self._indexed, len(tokens)):
            for length in range(SHORTEST, min(LONGEST, end) + 1):
                self._after[tuple(tokens[end - length : end])] = end
        self._indexed = max(self._indexed, len(tokens))
        for length in range(LONGEST, SHORTEST - 1, -1):
            after = self._after.get(tuple(tokens[-length:]))
            if after is not None:
                return tokens[after : after + num_tokens]
        return []
