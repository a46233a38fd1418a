"""Facts about the tokens of a vocabulary that closing uses, computed once and cached."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import Bitmask, is_allowed, num_words
from guideway.api.vocabulary import Vocabulary
from guideway.runtime.constraints.bans import Bans

__all__ = ["MOST", "MOST_MASKS_KEPT", "VALUES", "AllowedTokens", "Lexicon", "Shapes"]

MOST = 1 << 20
"""Number of tokens that means: no tokens write the text, or no completion was found."""

HOW: dict[str, Callable[[bytes, bytes], bool]] = {
    "begins": bytes.startswith,
    "ends": bytes.endswith,
    "holds": bytes.__contains__,
}
LONGEST = 32
"""Most bytes of a token to spell texts with, which limits the time for each byte of a text."""
LOOKED_AT = 400
"""Number of the longest tokens of a bitmask among which to choose tokens to try."""
MOST_SHORT = 95
"""Number of the shortest tokens of a bitmask among which to choose tokens to try."""
MOST_SPELLED = 8
"""Most spelled texts to keep, because consecutive texts often have the same end."""
MOST_MASKS_KEPT = 64
"""Most entries of each cache of a `Lexicon`, such as the tokens of recent bitmasks."""

VALUES = (b"0", b'""', b"null", b"[]", b"{}", b"true", b"false", b"1", b'"', b"{", b"[", b"-")
"""The shortest values, and the first bytes of other values."""

KINDS = bytes(
    0x75 if byte > 0x7F  # "u": a byte of a character that is not ASCII
    else 0x30 if 0x30 <= byte <= 0x39
    else 0x61 if chr(byte).isalpha()
    else 0x20 if byte in b" \t\r\n"
    else 0x63 if byte < 0x20  # "c": a control character
    else byte
    for byte in range(256)
)  # fmt: skip
"""The kind of each byte. Tokens with the same kinds of bytes, repetitions aside, have the same shape."""
AGAIN = re.compile(rb"([u0a ])\1+")
IN_STRING = re.compile(rb'(?:[^"\\]|\\.)*\\?', re.DOTALL)
"""Text that continues a string: characters, escapes, and the beginning of an escape."""
CONTINUATIONS = tuple(lead + b"\x80" * n for n in (0, 1, 2) for lead in (b"\x80", b"\xa0", b"\x90"))
"""Bytes that may end a character in UTF-8 that has begun."""
UNFINISHED = re.compile(rb"(?<!\\)(?:\\\\)*\\(u[0-9a-fA-F]{0,3})?\Z")
"""Matches tokens that end within an escape."""
BLANKS = b" \t\n"
"""White space after which any text may follow. A carriage return may require a line feed."""
FEW_OF_A_SHAPE = 20
"""Most tokens of a shape outside strings to group by their text without blanks. Enough for the digits with blanks."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The tokens of a mask, grouped by their effect on the output. Groups are sorted by the bytes of tokens."""

    in_text: bool
    """True if the mask allows letters: the output is in a string, or in free text."""
    alike: list[NDArray[np.int32]]
    """Groups of tokens that differ only in white space or in the text before the end of a string."""
    mixed: list[NDArray[np.int32]]
    """Groups of tokens that are text of different lengths, or share only their kinds of characters."""


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """The tokens that a mask allows, with the choices of tokens that a search tries."""

    allowed: NDArray[np.bool_]
    longest: list[int]
    """The longest allowed tokens, longest first, at most `LOOKED_AT`."""
    is_one_text: bool
    """True if `longest` has all allowed tokens and each is a prefix of the longest, or if no token is allowed."""
    letters: bool
    """True if the mask allows all `Lexicon.letters`, as inside a string or free text."""
    plain: list[int]
    """The three longest tokens that consist of letters and digits."""
    long: list[int]
    shortest: list[int]
    """The six shortest tokens that are not only blanks. `long` has the three longest."""
    signs: list[int]
    """All single bytes that are no letters and no blanks."""

    @staticmethod
    def of(allowed: NDArray[np.bool_], lexicon: Lexicon) -> AllowedTokens:
        """Return the tokens for which `allowed` (``bool[num_tokens]``) is True."""
        tokens = lexicon.tokens
        ids = np.flatnonzero(allowed & (lexicon.lengths > 0))
        ids = ids[np.argsort(-lexicon.lengths[ids], kind="stable")]
        longest, shortest = ids[:LOOKED_AT].tolist(), ids[::-1][:MOST_SHORT].tolist()
        first = tokens[longest[0]] if longest else b""
        are_all = len(longest) < LOOKED_AT
        return AllowedTokens(
            allowed,
            longest,
            are_all and len(longest) <= len(first) and all(first.startswith(tokens[i]) for i in longest),
            all(allowed[i] for i in lexicon.letters),
            [i for i in longest if tokens[i].isalnum()][:3],
            [i for i in longest if tokens[i].strip()][:3],
            [i for i in shortest if tokens[i].strip()][:6],
            [i for i in shortest if len(tokens[i]) == 1 and not tokens[i].isalpha() and tokens[i].strip()],
        )


class Lexicon:
    """Facts about the tokens of a vocabulary, with caches. Only one thread may use it at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self._special = {i: name.encode() for i, name in vocabulary.special_tokens.items()}
        self.words = num_words(vocabulary.logits_width)
        self.masks: dict[bytes, AllowedTokens] = {}
        """By bytes of a row: its allowed tokens, from recent searches; at most `MOST_MASKS_KEPT`."""
        self._unbanned: tuple[Bans, NDArray[np.bool_]] | None = None
        self._shapes_of: dict[tuple[bytes, bool], Shapes] = {}
        self._which: dict[tuple[str, bytes], list[int]] = {}
        self._spelled: deque[tuple[bytes, list[int], list[int]]] = deque(maxlen=MOST_SPELLED)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """By text: the first token that writes it."""
        found: dict[bytes, int] = {}
        for token_id, token in enumerate(self.tokens):
            if token:
                found.setdefault(token, token_id)
        return found

    def unbanned(self, bans: Bans) -> NDArray[np.bool_]:
        """Return `Bans.unbanned` for all tokens, from a cache if `bans` is the same object as before."""
        if self._unbanned is None or self._unbanned[0] is not bans:
            self._unbanned = bans, bans.unbanned(len(self.tokens))
        return self._unbanned[1]

    def write(self, token_ids: Sequence[int]) -> bytes:
        """Return the text of tokens, including names of special tokens, which may begin structural tags."""
        return b"".join([self.tokens[i] or self._special.get(i, b"") for i in token_ids])

    def which(self, how: str, text: bytes) -> list[int]:
        """Return the tokens that begin (``"begins"``) or end (``"ends"``) with a text, or contain it (``"holds"``)."""
        if (found := self._which.get((how, text))) is None:
            if len(self._which) >= MOST_MASKS_KEPT:
                self._which.clear()
            found = self._which[how, text] = [i for i, token in enumerate(self.tokens) if HOW[how](token, text)]
        return found

    def opening(self, trigger: bytes) -> dict[int, bytes]:
        """Return tokens that contain a trigger, each with its text from the trigger on.

        Include special tokens whose name begins the trigger, each with its name.
        """
        texts = {i: self.tokens[i] for i in self.which("holds", trigger)}
        found = {i: text[text.find(trigger) :] for i, text in texts.items()}
        return found | {i: name for i, name in self._special.items() if name and trigger.startswith(name)}

    def finish(self, token: bytes) -> bytes:
        """Return bytes that complete the character or escape within which a token ends; empty if it ends in none."""
        if escape := UNFINISHED.search(token):
            return b"u001f"[len(escape[1]) :] if escape[1] else b"n"
        if _is_whole(token):
            return b""
        return next((finish for finish in CONTINUATIONS if _is_whole(token + finish)), b"")

    def spell(self, text: bytes) -> list[int] | None:
        """Return tokens of a text, each the longest that fits; None if no token writes a byte of it."""
        found, at = [], 0
        while at < len(text):
            lengths = range(min(self.longest, len(text) - at), 0, -1)
            token_id = next((i for n in lengths if (i := self.ids.get(text[at : at + n])) is not None), None)
            if token_id is None:
                return None
            found.append(token_id)
            at += len(self.tokens[token_id])
        return found

    def spell_from_each_byte(
        self, text: bytes, bans: Bans | None = None, avoid: Collection[tuple[int, int]] = ()
    ) -> tuple[list[int], list[int]]:
        """Return for each byte the fewest tokens that write the rest of the text, and the bytes of the first of them.

        Both lists have one entry more than the text has bytes. If no tokens write a rest, its number is `MOST`. The
        tokens exclude those that `bans` exclude at every position, and those that write exactly the bytes between the
        two positions of a pair in `avoid`.
        """
        size, ids, longest = len(text), self.ids, self.longest
        is_plain = bans is None and not avoid
        cost, lengths = [0], [0]
        for known, its_cost, its_lengths in self._spelled if is_plain else ():
            num_equal = _count_equal_at_end(text, known)  # consecutive texts often have the same end
            if num_equal >= len(cost):
                cost, lengths = its_cost[len(known) - num_equal :], its_lengths[len(known) - num_equal :]
        begin = size + 1 - len(cost)
        cost, lengths = [MOST] * begin + cost, [0] * begin + lengths
        allowed = None if bans is None else self.unbanned(bans)
        for at in range(begin - 1, -1, -1):
            best = MOST
            for end in range(min(size, at + longest), at, -1):
                if cost[end] + 1 >= best or (token_id := ids.get(text[at:end])) is None:
                    continue
                if (allowed is None or allowed[token_id]) and (at, end) not in avoid:
                    best, lengths[at] = cost[end] + 1, end - at
            cost[at] = best
        if is_plain:
            self._spelled.append((text, cost, lengths))
        return cost, lengths

    @cached_property
    def longest(self) -> int:
        """Most bytes of a token to spell texts with, at most `LONGEST`."""
        return min(LONGEST, int(self.lengths.max()))

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """``int32[num_tokens]``: bytes of each token."""
        return np.array([len(token) for token in self.tokens], dtype=np.int32)

    @cached_property
    def most_opened(self) -> int:
        """Most objects and arrays that one token may open."""
        opening = [token for token in self.tokens if b"{" in token or b"[" in token]
        return max((token.count(b"{") + token.count(b"[") for token in opening), default=0)

    @cached_property
    def letters(self) -> list[int]:
        """Tokens of letters, which any string or free text may contain."""
        return self.of((b"a", b"q", b"Z"))

    def has_letters(self, row: NDArray[np.int32]) -> bool:
        """Return whether a row of a bitmask allows all `letters`."""
        return all(is_allowed(row[np.newaxis], 0, token_id) for token_id in self.letters)

    @cached_property
    def spelt_values(self) -> list[list[int]]:
        """The tokens of each of `VALUES`, including values that need several tokens."""
        return [token_ids for text in VALUES if (token_ids := self.spell(text)) is not None]

    def shapes_of(self, row: NDArray[np.int32], in_name: bool) -> Shapes:
        """Return the tokens of a row of a bitmask, grouped by shape.

        A string that letters may continue may continue with any text. There, only the end of the string and the text
        after it determine the shape; in a name also the text before its end, as it may require a value.
        """
        key = row.tobytes(), in_name
        if (found := self._shapes_of.get(key)) is None:
            if len(self._shapes_of) >= MOST_MASKS_KEPT:
                self._shapes_of.clear()
            ids = np.flatnonzero(self.bits(row)).astype(np.int32)
            ids = ids[np.argsort(self.lengths[ids], kind="stable")]
            in_text = self.has_letters(row)
            shapes = self._shapes[int(in_text)][ids]
            order = np.argsort(shapes, kind="stable")
            groups = np.split(ids[order], np.flatnonzero(np.diff(shapes[order])) + 1)
            if in_text:
                num_mixed = int(shapes.min() == 0)
                alike = groups[num_mixed:]
                alike = [ids for group in alike for ids in self._split(group, _name)] if in_name else alike
                found = Shapes(True, alike, groups[:num_mixed])
            else:
                few = [ids for ids in groups if len(ids) <= FEW_OF_A_SHAPE]
                alike = [ids for group in few for ids in self._split(group, _without_blanks)]
                found = Shapes(False, alike, [ids for ids in groups if len(ids) > FEW_OF_A_SHAPE])
            self._shapes_of[key] = found
        return found

    def _split(self, ids: NDArray[np.int32], part: Callable[[bytes], bytes]) -> list[NDArray[np.int32]]:
        """Return groups of tokens that have the same part."""
        found: dict[bytes, list[int]] = {}
        for token_id in ids.tolist():
            found.setdefault(part(self.tokens[token_id]), []).append(token_id)
        return [np.array(group, dtype=np.int32) for group in found.values()]

    @cached_property
    def _shapes(self) -> NDArray[np.int32]:
        """``int32[2, num_tokens]``: numbers of shapes outside strings, and in strings. 0 in strings is plain text."""
        numbers, known, shapes = {b"": 0}, dict[bytes, list[int]](), []
        for token in self.tokens:
            kinds = token.translate(KINDS)
            begun = b"" if token.isascii() and b"\\" not in token else self.finish(token)
            if begun or (found := known.get(kinds)) is None:
                shape = AGAIN.sub(rb"\1", kinds)
                end = b"%d%d" % (len(begun), begun.isascii()) if begun else IN_STRING.sub(b"", shape, count=1)
                found = [numbers.setdefault(each.translate(None, BLANKS), len(numbers)) for each in (shape, end)]
                if not begun:
                    known[kinds] = found
            shapes.append(found)
        return np.array(shapes, dtype=np.int32).T

    def of(self, texts: Sequence[bytes]) -> list[int]:
        """Return the tokens of `texts`. Texts without a token are left out."""
        return [self.ids[text] for text in texts if text in self.ids]

    def bits(self, row: Bitmask) -> NDArray[np.bool_]:
        """Return ``bool[num_tokens]``: True for tokens that a row of a bitmask allows."""
        return np.unpackbits(row.view(np.uint8), bitorder="little")[: len(self.tokens)].view(np.bool_)


def _without_blanks(token: bytes) -> bytes:
    return token.translate(None, BLANKS)


def _name(token: bytes) -> bytes:
    """Return the text before a quote if it has a letter or digit, as the end of a name of a property does."""
    name = token.partition(b'"')[0]
    return name if set(name.translate(KINDS)) & set(b"a0") else b""


def _is_whole(token: bytes) -> bool:
    """Return whether a token consists of whole characters in UTF-8."""
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True


def _count_equal_at_end(text: bytes, other: bytes) -> int:
    """Return the length of the longest common suffix of two texts, in bytes."""
    low, high = 0, min(len(text), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if text[len(text) - middle :] == other[len(other) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low
