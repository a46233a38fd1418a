"""The fewest tokens that spell a text, alone or within an output: bounds that are proved from the vocabulary alone."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

__all__ = ["Spelling"]

BETWEEN = b"\x00\xfd\xfe\xff\x00"
"""Stands between tokens. One that holds it makes a bound smaller, never wrong."""
LONGEST = 256
"""Bytes of a text that are looked at."""


class Spelling:
    """A count of how few tokens spell a text."""

    def __init__(self, tokens: tuple[bytes, ...]) -> None:
        self._tokens = frozenset(token for token in tokens if token)

    def whole(self, text: bytes) -> int:
        """Tokens of a text that begins and ends with its tokens, at the least."""
        if len(text) > LONGEST:
            return self.any_of(len(text), straddled=False)
        return self._spelt(text, [0] + [len(text)] * len(text))[-1]

    def part(self, text: bytes) -> int:
        """Tokens that begin within a text which is a part of the output, at the least: the first bytes of it may end a
        token, and the last begin one."""
        text = text[:LONGEST]
        if self._joined.count(text) > (text in self._tokens):  # a token holds it, and more
            return 0
        length = len(text)
        begun = [0 if i == 0 or _goes_on(self._reversed, text[:i][::-1]) else length for i in range(length + 1)]
        best = self._spelt(text, begun)
        over = (1 + best[i] for i in range(length) if _goes_on(self._sorted, text[i:]))
        return min([best[-1], *over])

    def any_of(self, length: int, *, straddled: bool) -> int:
        """The same of any text of so many bytes, or more."""
        before = self._longest - 1 if straddled else 0
        return max(0, -(-(length - before) // self._longest))

    def _spelt(self, text: bytes, best: list[int]) -> list[int]:
        """Count how few tokens bring a text as far as each of its bytes, `best` being what is known so far."""
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
    """Return whether one of some sorted tokens begins with `text` and is longer."""
    at = bisect_right(tokens, text)
    return at < len(tokens) and tokens[at].startswith(text)
