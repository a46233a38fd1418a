"""Draft tokens by prompt lookup."""

from __future__ import annotations

__all__ = ["prompt_lookup"]

LONGEST, SHORTEST = 3, 2
"""Lengths of the endings that are looked up."""


def prompt_lookup(token_ids: list[int], num_tokens: int) -> list[int]:
    """At most `num_tokens` tokens that followed an earlier occurrence of how `token_ids` ends, the latest one of the
    longest such ending (Saxena, Prompt lookup decoding, 2023; in ``transformers`` as `prompt_lookup_num_tokens`)."""
    for length in range(LONGEST, SHORTEST - 1, -1):
        ending = token_ids[-length:]
        for start in range(len(token_ids) - length - 1, -1, -1):
            if token_ids[start : start + length] == ending:
                return token_ids[start + length : start + length + num_tokens]
    return []
