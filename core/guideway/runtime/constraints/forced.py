"""Forced tokens, derived from the masks of a matcher."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import BITS_PER_WORD, Bitmask
from guideway.api.grammar import Matcher
from guideway.errors import DeadEnd

__all__ = ["ForcedTokens", "Forcing"]

ForcedTokens: TypeAlias = Literal["auto", "exact", "canonical", "off"]
"""``exact``: forced tokens are drafts; ``auto``: the same, where that pays; ``canonical``: they are final, split as by
the tokenizer; ``off``: there are none."""

MOST_CHOICES = 16
"""Most tokens of a mask to consider; they must be prefixes of one text."""


class Forcing:
    """Finds runs of forced tokens. Not thread-safe."""

    def __init__(self, tokens: Sequence[bytes], words: int) -> None:
        self._tokens = tokens
        self._scratch: Bitmask = np.zeros((1, words), dtype=np.int32)

    def run(
        self, matcher: Matcher, stop_token_ids: frozenset[int], limit: int, until: float = float("inf")
    ) -> tuple[int, ...]:
        """Return at most `limit` tokens that spell the text that must come next, including a forced stop token at its
        end. `matcher` must not be terminated; its state is restored.

        The run begins with `Matcher.forced_tokens`. Each further token is the longest one of the mask that spells only
        forced text.
        """
        run = list(matcher.forced_tokens())[:limit]
        done = matcher.accept(tuple(run)) if run else 0
        try:
            while done == len(run) < limit and time.thread_time() < until:
                if (token_id := self._only_way(matcher, stop_token_ids)) is None:
                    break
                run.append(token_id)
                if token_id in stop_token_ids:
                    break
                done += matcher.accept((token_id,))
        finally:
            matcher.rollback(done)
        return tuple(run)

    def _only_way(self, matcher: Matcher, stop_token_ids: frozenset[int]) -> int | None:
        choices = self._choices(matcher)
        if len(choices) == 1:
            return choices[0]
        if not choices or not stop_token_ids.isdisjoint(choices):
            return None
        tokens = self._tokens
        choices.sort(key=lambda token_id: len(tokens[token_id]))
        text = tokens[choices[-1]]
        if not all(text.startswith(tokens[token_id]) for token_id in choices):
            return None
        for longer, shorter in itertools.pairwise(reversed(choices)):
            if self._goes_on(matcher, shorter, tokens[longer][len(tokens[shorter]) :]):
                return longer
        return choices[0]

    def _goes_on(self, matcher: Matcher, token_id: int, rest: bytes) -> bool:
        """Return whether `rest` must follow this token."""
        if matcher.accept((token_id,)) != 1:
            return False
        try:
            texts = [self._tokens[choice] for choice in self._choices(matcher)]
        finally:
            matcher.rollback(1)
        return bool(texts) and all(text and (text.startswith(rest) or rest.startswith(text)) for text in texts)

    def _choices(self, matcher: Matcher) -> list[int]:
        try:
            matcher.fill_bitmask(self._scratch, 0)
        except DeadEnd:
            return []
        return _choices(self._scratch[0].view(np.uint32))


def _choices(words: NDArray[np.uint32]) -> list[int]:
    """Return the tokens that a mask allows; none if there are more than `MOST_CHOICES`."""
    (used,) = np.nonzero(words)
    if len(used) > MOST_CHOICES:
        return []
    found = []
    for word in used.tolist():
        bits = int(words[word])
        if bits.bit_count() > MOST_CHOICES:
            return []
        while bits:
            found.append(word * BITS_PER_WORD + (bits & -bits).bit_length() - 1)
            bits &= bits - 1
    return found if len(found) <= MOST_CHOICES else []
