"""The knowledge that closing has of a vocabulary's tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import BITS_PER_WORD, Bitmask, is_allowed, num_words, pack
from guideway.api.vocabulary import Vocabulary
from guideway.runtime.bans import Bans

__all__ = ["MOST_MASKS_KEPT", "SCALAR", "AllowedTokens", "Lexicon"]

LONGEST = 32
"""Bytes of a token that a text is spelt with."""
FEW = 4096
"""Tokens that are quickly put in order, or looked at."""
LOOKED_AT = 400
"""The longest tokens of a bitmask, among which some are looked for."""
MOST_SHORT = 95
"""The shortest ones."""
MOST_MASKS_KEPT = 64
"""Bitmasks whose tokens are kept."""

QUOTES = (b'"}}', b'"]}', b'"}', b'"]', b'"')
"""The tokens that end a string, the longest first."""
CLOSERS = (b"}}", b"]}", b"}", b"]")
VALUES = (b"0", b'""', b"null", b"[]", b"{}", b"true", b"false", b"1", b'"', b"{", b"[", b"-")
"""The shortest values, and what begins the others."""
# bytes that are tried where a text is no JSON: what ends it first, and what patterns have between their parts
MARKS = b"\">)]}';.,:/"
SEPARATORS = b"/-.:@_#+=,;?&%$*!|~^()<>[]{}'" + b"0123456789" + bytes(range(65, 91)) + bytes(range(97, 123))
TEXT = re.compile(rb'[^"\\\x00-\x1f]+')
SCALAR = re.compile(rb"[0-9a-zA-Z.+-]+")
PLAIN = re.compile(rb"[A-Za-z0-9]+")
BEGUN = re.compile(rb'"[^"\\\x00-\x1f]*|[0-9a-zA-Z.+-]+')


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """The tokens that a mask allows, as a search looks at them."""

    allowed: NDArray[np.bool_]
    longest: list[int]
    """The longest of them, longest first."""
    is_one_text: bool
    """True if there are no others, and each begins the longest; or there are none."""
    letters: bool
    """True if tokens that can stand in any string are among them."""
    plain: list[int]
    """Long ones that are letters and digits."""
    long: list[int]
    shortest: list[int]
    """Not only blanks, as `long`."""

    @staticmethod
    def of(allowed: NDArray[np.bool_], lexicon: Lexicon) -> AllowedTokens:
        """Those that `allowed` is True of."""
        tokens = lexicon.tokens
        longest, shortest = lexicon.by_length(allowed, LOOKED_AT, MOST_SHORT)
        first = tokens[longest[0]] if longest else b""
        are_all = len(longest) < LOOKED_AT
        return AllowedTokens(
            allowed,
            longest,
            are_all and len(longest) <= len(first) and all(first.startswith(tokens[i]) for i in longest),
            all(allowed[i] for i in lexicon.letters),
            [i for i in longest if PLAIN.fullmatch(tokens[i])][:3],
            [i for i in longest if tokens[i].strip()][:3],
            [i for i in shortest if tokens[i].strip()][:6],
        )


class Lexicon:
    """The knowledge that closing has of a vocabulary's tokens. One thread uses it at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.words = num_words(vocabulary.logits_width)
        self.masks: dict[bytes, AllowedTokens] = {}
        """The tokens of rows that searches came upon of late; at most `MOST_MASKS_KEPT`."""
        self._unbanned: tuple[Bans, NDArray[np.bool_]] | None = None
        self._closing: dict[bytes, tuple[list[int], list[int]]] = {}

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The first token of each text."""
        found: dict[bytes, int] = {}
        for token_id, token in enumerate(self.tokens):
            if token:
                found.setdefault(token, token_id)
        return found

    def unbanned(self, bans: Bans) -> NDArray[np.bool_]:
        """`Bans.unbanned`, kept from one search to the next."""
        if self._unbanned is None or self._unbanned[0] is not bans:
            self._unbanned = bans, bans.unbanned(len(self.tokens))
        return self._unbanned[1]

    def spell(self, text: bytes) -> list[int] | None:
        """Tokens of a text, the longest that begins what is left first; None if there are none of a byte."""
        found, at = [], 0
        while at < len(text):
            lengths = range(min(self._longest, len(text) - at), 0, -1)
            token_id = next((i for n in lengths if (i := self.ids.get(text[at : at + n])) is not None), None)
            if token_id is None:
                return None
            found.append(token_id)
            at += len(self.tokens[token_id])
        return found

    def spell_with_fewest(self, text: bytes) -> list[int] | None:
        """Fewest tokens of a text; None if there are none."""
        none = len(text) + 1
        num_tokens, begins = [0, *[none] * len(text)], [0] * (len(text) + 1)
        for end in range(1, len(text) + 1):
            for begin in range(max(0, end - self._longest), end):
                if num_tokens[begin] + 1 < num_tokens[end] and text[begin:end] in self.ids:
                    num_tokens[end], begins[end] = num_tokens[begin] + 1, begin
        if num_tokens[-1] >= none:
            return None
        found, end = [], len(text)
        while end:
            found.append(self.ids[text[begins[end] : end]])
            end = begins[end]
        return found[::-1]

    @cached_property
    def _longest(self) -> int:
        return min(LONGEST, int(self.lengths.max()))

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """Bytes of each token."""
        return np.array([len(token) for token in self.tokens], dtype=np.int32)

    @cached_property
    def most_opened(self) -> int:
        """The most objects and arrays that one token may open."""
        opening = [token for token in self.tokens if b"{" in token or b"[" in token]
        return max((token.count(b"{") + token.count(b"[") for token in opening), default=0)

    @cached_property
    def letters(self) -> list[int]:
        """Tokens that can stand in any string."""
        return self.of((b"a", b"q", b"Z"))

    def has_letters(self, row: NDArray[np.int32]) -> bool:
        """Return whether a row of a bitmask allows them all."""
        return all(is_allowed(row[np.newaxis], 0, token_id) for token_id in self.letters)

    @cached_property
    def quotes(self) -> list[int]:
        return self.of(QUOTES)

    @cached_property
    def closers(self) -> list[int]:
        return self.of(CLOSERS)

    def closing(self, brackets: bytes) -> tuple[list[int], list[int]]:
        """The `closers`, and the `quotes`, after which no bracket is closed but these, the innermost first, of which
        two are enough."""
        if (found := self._closing.get(brackets)) is None:
            closers = [i for i in self.closers if brackets.startswith(self.tokens[i])]
            quotes = [i for i in self.quotes if brackets.startswith(self.tokens[i][1:])]
            found = self._closing[brackets] = closers, quotes
        return found

    @cached_property
    def values(self) -> list[int]:
        return self.of(VALUES)

    @cached_property
    def spelt_values(self) -> list[list[int]]:
        """Tokens of each, also of those that take several."""
        return [token_ids for text in VALUES if (token_ids := self.spell(text)) is not None]

    @cached_property
    def commas(self) -> list[int]:
        return self.of((b',"', b","))

    @cached_property
    def colons(self) -> list[int]:
        return self.of((b":",))

    @cached_property
    def text(self) -> NDArray[np.int32]:
        """A row of the tokens that go on with a string, and do not end it."""
        return self._row(TEXT)

    @cached_property
    def scalars(self) -> NDArray[np.int32]:
        """A row of those that go on with a number or a word."""
        return self._row(SCALAR)

    @cached_property
    def begun(self) -> NDArray[np.int32]:
        """A row of those that begin a value which is no array and no object."""
        return self._row(BEGUN)

    def of(self, texts: Sequence[bytes]) -> list[int]:
        """The tokens of those texts that have one."""
        return [self.ids[text] for text in texts if text in self.ids]

    @cached_property
    def marks(self) -> list[int]:
        """Single bytes that are neither letters nor digits, those first that end texts."""
        return self.of([bytes([byte]) for byte in MARKS])

    @cached_property
    def separators(self) -> list[int]:
        """Single bytes, those first that patterns have between their parts."""
        return self.of([bytes([byte]) for byte in SEPARATORS])

    def by_length(self, allowed: NDArray[np.bool_], num_longest: int, num_shortest: int) -> tuple[list[int], list[int]]:
        """The longest tokens of text that are allowed, longest first, and the shortest, shortest first: at most so many
        of each."""
        order = self._longest_first
        if np.count_nonzero(allowed) > FEW:
            return _first(order, allowed, num_longest), _first(order[::-1], allowed, num_shortest)
        places = np.sort(self._places[np.flatnonzero(allowed)])
        found = order[places[places < len(order)]]
        return found[:num_longest].tolist(), found[::-1][:num_shortest].tolist()

    @cached_property
    def _longest_first(self) -> NDArray[np.intp]:
        """The tokens of text by their length."""
        order = np.argsort(-self.lengths, kind="stable")
        return order[self.lengths[order] > 0]

    @cached_property
    def _places(self) -> NDArray[np.int32]:
        """The place of each token in `_longest_first`; past its end for those of no text."""
        places = np.full(len(self.tokens), len(self.tokens), dtype=np.int32)
        places[self._longest_first] = np.arange(len(self._longest_first), dtype=np.int32)
        return places

    def _row(self, pattern: re.Pattern[bytes]) -> NDArray[np.int32]:
        allowed = np.zeros((1, self.words * BITS_PER_WORD), dtype=np.bool_)
        allowed[0, [i for i, token in enumerate(self.tokens) if pattern.fullmatch(token)]] = True
        row: NDArray[np.int32] = pack(allowed)[0]
        return row

    def bits(self, row: Bitmask) -> NDArray[np.bool_]:
        """By token whether a row of a bitmask allows it."""
        return np.unpackbits(row.view(np.uint8), bitorder="little")[: len(self.tokens)].view(np.bool_)


def _first(order: NDArray[np.intp], allowed: NDArray[np.bool_], number: int) -> list[int]:
    """The first tokens of an order that are allowed, at most so many: where most are, a look at its beginning is
    enough."""
    found: list[int] = []
    for start in range(0, len(order), FEW):
        some = order[start : start + FEW]
        found += some[allowed[some]].tolist()
        if len(found) >= number:
            break
    return found[:number]
