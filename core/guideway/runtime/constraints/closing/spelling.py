"""Proved lower bounds, from the vocabulary alone, of the tokens that spell a text, alone or within an output."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

__all__ = ["Spelling"]

BETWEEN = b"\x00\xfd\xfe\xff\x00"
"""Separator of joined tokens. A token that contains it may make a bound lower, but never wrong."""
LONGEST = 256
"""Most bytes of a text to spell exactly, which limits the time. Longer texts get a lower bound."""


class Spelling:
    """Lower bounds of the tokens that spell texts in one vocabulary."""

    def __init__(self, tokens: tuple[bytes, ...]) -> None:
        self._tokens = frozenset(token for token in tokens if token)

    def whole(self, text: bytes) -> int:
        """Return a lower bound of the tokens of a text that begins and ends with whole tokens."""
        if len(text) > LONGEST:
            return self.any_of(len(text), straddled=False)
        return self._spelt(text, [0] + [len(text)] * len(text))[-1]

    def part(self, text: bytes) -> int:
        """Return a lower bound of the tokens that begin within a text that is a part of an output.

        The first bytes of the text may be the end of a token, and the last bytes may be the beginning of a token.
        """
        text = text[:LONGEST]
        if self._joined.count(text) > (text in self._tokens):  # a longer token contains it
            return 0
        length = len(text)
        begun = [0 if i == 0 or _goes_on(self._reversed, text[:i][::-1]) else length for i in range(length + 1)]
        best = self._spelt(text, begun)
        over = (1 + best[i] for i in range(length) if _goes_on(self._sorted, text[i:]))
        return min([best[-1], *over])

    def any_of(self, length: int, *, straddled: bool) -> int:
        """Return the lower bound for any text of at least `length` bytes: as `part` if `straddled`, else as `whole`."""
        before = self._longest - 1 if straddled else 0
        return max(0, -(-(length - before) // self._longest))

    def _spelt(self, text: bytes, best: list[int]) -> list[int]:
        """Lower each entry of `best` to the fewest tokens that write the text up to its byte. Return `best`."""
        for end in range(1, len(text) + 1):
            starts = (i for i in range(max(0, end - self._longest), end) if text[i:end] in self._tokens)
            best[end] = min([best[end], *(1 + best[i] for i in starts)])
        return best

    @cached_property
    def _sorted(self) -> list[bytes]:
        return sorted(self._tokens)

    @cached_property
    def _reversed(self) -> list[bytes]:
        return sorted(token[::-1] for token in self._tokens)

    @cached_property
    def _joined(self) -> bytes:
        return BETWEEN.join(self._sorted)

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._tokens))


def _goes_on(tokens: list[bytes], text: bytes) -> bool:
    """Return whether any of the sorted tokens begins with `text` and is longer."""
    at = bisect_right(tokens, text)
    return at < len(tokens) and tokens[at].startswith(text)
