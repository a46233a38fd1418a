"""Proved lower bounds, from the vocabulary alone, of the tokens that spell a text, alone or within an output."""

from __future__ import annotations

from itertools import combinations

__all__ = ["Spelling"]

LONGEST = 256
"""Most bytes of a text to spell exactly, which limits the time. Longer texts get a lower bound."""
QUOTE = b'"'[0]


class Spelling:
    """Lower bounds of the tokens that spell texts in one vocabulary."""

    def __init__(self, tokens: tuple[bytes, ...]) -> None:
        self._tokens = frozenset(filter(None, tokens))
        self._longest = max(map(len, self._tokens))
        quoted = [(token, [i for i, byte in enumerate(token) if byte == QUOTE]) for token in self._tokens]
        self._ends = {token[i:] for token, quotes in quoted for i in quotes if i}
        """Ends of longer tokens, from a quote on."""
        self._begins = {token[: i + 1] for token, quotes in quoted for i in quotes if i + 1 < len(token)}
        """Beginnings of longer tokens, up to a quote."""
        self._inner = {
            token[i : k + 1] for token, quotes in quoted for i, k in combinations(quotes, 2) if i and k + 1 < len(token)
        }
        """Texts from a quote to another one in tokens that begin before and end after."""

    def whole(self, text: bytes) -> int:
        """Return a lower bound of the tokens of a text that begins and ends with whole tokens."""
        if len(text) > LONGEST:
            return self.any_of(len(text))
        return self._spelt(text, [0] + [len(text)] * len(text))[-1]

    def string(self, text: bytes) -> int:
        """Return a lower bound of the tokens that begin within a string in JSON that is a part of an output.

        The first bytes of the string, from its first quote on, may be the end of a token, and its last bytes may be the
        beginning of one.
        """
        if len(text) > LONGEST:
            return max(0, self.any_of(len(text) - self._longest))
        if text in self._inner:
            return 0
        best = [0 if i == 0 or text[:i] in self._ends else len(text) for i in range(len(text) + 1)]
        best = self._spelt(text, best)
        over = (1 + best[i] for i in range(len(text)) if text[i:] in self._begins)
        return min([best[-1], *over])

    def any_of(self, length: int) -> int:
        """Return a lower bound of the tokens of any text of at least `length` bytes."""
        return -(-length // self._longest)

    def _spelt(self, text: bytes, best: list[int]) -> list[int]:
        """Lower each entry of `best` to the fewest tokens that write the text up to its byte. Return `best`."""
        for end in range(1, len(text) + 1):
            starts = (i for i in range(max(0, end - self._longest), end) if text[i:end] in self._tokens)
            best[end] = min([best[end], *(1 + best[i] for i in starts)])
        return best
