"""BM25, the usual ranking by shared words, as a baseline for the demo ranker."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["BM25"]

SATURATION = 1.5
"""k1 in the formula."""
LENGTH = 0.75
"""b in the formula."""


class BM25:
    """Scores documents by the words they share with a query; words that are rare in `collection` count more."""

    def __init__(self, collection: Iterable[str]) -> None:
        self._having: Counter[str] = Counter()
        self._size = 0
        num_words = 0
        for document in collection:
            words = _words(document)
            self._having.update({*words})
            self._size += 1
            num_words += len(words)
        self._mean_length = num_words / max(self._size, 1)

    def scores(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return the score of each document; the higher, the better."""
        wanted = {*_words(query)}
        return [self._score(wanted, Counter(_words(document))) for document in documents]

    def _score(self, wanted: set[str], document: Counter[str]) -> float:
        relative_length = document.total() / max(self._mean_length, 1e-9)
        scale = SATURATION * (1 - LENGTH + LENGTH * relative_length)
        return sum(
            self._weight(word) * document[word] * (SATURATION + 1) / (document[word] + scale)
            for word in sorted(wanted & document.keys())
        )

    def _weight(self, word: str) -> float:
        having = self._having[word]
        return math.log(1 + (self._size - having + 0.5) / (having + 0.5))


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
