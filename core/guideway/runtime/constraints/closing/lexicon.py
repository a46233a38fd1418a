"""Facts about the tokens of a vocabulary that closing uses, computed once and cached."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from guideway.api.bitmask import BITS_PER_WORD, num_words
from guideway.api.vocabulary import Vocabulary
from guideway.json_schema.cursor import JsonCursor

__all__ = ["MAYBE", "MOST", "VALUES", "Lexicon"]

MOST = 1 << 20
"""Number of tokens that means: no tokens write the text, or no completion was found."""
MAYBE = b"\xff"
"""In a text to spell: a blank, or nothing. No text in UTF-8 has this byte."""

LONGEST = 32
"""Most bytes of a token to spell texts with, which limits the time for each byte of a text."""
LOOKED_AT = 400
"""Number of the longest, or shortest, tokens of a bitmask among which to choose tokens to try."""
MOST_KEPT = 64
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
"""The kind of each byte. Tokens with the same kinds of bytes have the same shape."""
IN_STRING = re.compile(rb'(?:[^"\\]|\\.)*\\?', re.DOTALL)
"""Text that continues a string: characters, escapes, and the beginning of an escape."""
OPENED = re.compile(rb'"(?:[^"\\]|\\.)+\\?', re.DOTALL)
"""A quote and text that is in a string if the quote begins one."""
CONTINUATIONS = (b"", *(lead + b"\x80" * n for n in (0, 1, 2) for lead in (b"\x80", b"\xa0", b"\x90")))
"""Bytes that may end a character in UTF-8 that has begun, or none."""
UNFINISHED = re.compile(rb"(?<!\\)(?:\\\\)*\\(u[0-9a-fA-F]{0,3})?\Z")
"""Matches tokens that end within an escape."""
BLANKS = b" \t\n"
"""White space after which any text may follow. A carriage return may require a line feed."""
FEW_OF_A_KIND = 6
"""Letters to try at one place of a text outside JSON, where a word may begin; and digits."""
FEW_OF_A_SHAPE = 20
"""Most tokens of a shape outside strings to group by their text without blanks. Enough for the digits with blanks."""


class Lexicon:
    """Facts about the tokens of a vocabulary, with caches. Only one thread may use it at a time."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self._special = {i: name.encode() for i, name in vocabulary.special_tokens.items()}
        self.words = num_words(vocabulary.logits_width)
        self.num_bits = self.words * BITS_PER_WORD
        """Bits of a row of a bitmask, at least one for each token."""
        kept = lru_cache(MOST_KEPT)
        self.spell = lru_cache(16 * MOST_KEPT)(self._spell)
        self.which, self.groups_of = kept(self._which), kept(self._groups_of)
        self.signs, self._longest_first = kept(self._signs), kept(self._ordered)
        self.spelt = kept(self.spell_from_each_byte)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """By text: the first token that writes it."""
        return {token: i for i, token in reversed([*enumerate(self.tokens)]) if token}

    @cached_property
    def lengths(self) -> NDArray[np.int32]:
        """``int32[num_tokens]``: bytes of each token."""
        return np.array([len(token) for token in self.tokens], dtype=np.int32)

    @cached_property
    def characters(self) -> NDArray[np.int32]:
        """``int32[num_tokens]``: whole characters of each token."""
        return np.array([len(token.decode(errors="ignore")) for token in self.tokens], dtype=np.int32)

    @cached_property
    def longest(self) -> int:
        """Most bytes of a token to spell texts with, at most `LONGEST`."""
        return min(LONGEST, int(self.lengths.max()))

    @cached_property
    def most_opened(self) -> int:
        """Most objects and arrays that one token may open."""
        return max(token.count(b"{") + token.count(b"[") for token in self.tokens)

    @cached_property
    def letters(self) -> list[int]:
        """Tokens of letters, which any string or free text may contain."""
        return self.of((b"a", b"q", b"Z"))

    @cached_property
    def _sorted(self) -> tuple[list[bytes], list[int]]:
        """The texts of all tokens in alphabetical order, and the tokens in the same order."""
        ids = sorted(range(len(self.tokens)), key=self.tokens.__getitem__)
        return [self.tokens[i] for i in ids], ids

    def of(self, texts: Sequence[bytes]) -> list[int]:
        """Return the tokens of `texts`. Texts without a token are left out."""
        return [self.ids[text] for text in texts if text in self.ids]

    def write(self, token_ids: Sequence[int]) -> bytes:
        """Return the text of tokens, including names of special tokens, which may begin structural tags."""
        return b"".join([self.tokens[i] or self._special.get(i, b"") for i in token_ids])

    def _which(self, how: str, text: bytes) -> list[int]:
        """Return the tokens that ``"begin"`` or ``"end"`` with a text, or ``"hold"`` it."""
        if how == "begin":
            texts, ids = self._sorted
            at = bisect_left(texts, text)
            return list(takewhile(lambda i: self.tokens[i].startswith(text), (ids[k] for k in range(at, len(ids)))))
        return [i for i, token in enumerate(self.tokens) if (token.endswith(text) if how == "end" else text in token)]

    def opening(self, trigger: bytes) -> dict[int, bytes]:
        """Return tokens that contain a trigger, each with its text from the trigger on.

        Include special tokens whose name begins the trigger, each with its name.
        """
        texts = {i: self.tokens[i] for i in self.which("hold", trigger)}
        found = {i: text[text.find(trigger) :] for i, text in texts.items()}
        return found | {i: name for i, name in self._special.items() if name and trigger.startswith(name)}

    def finish(self, token: bytes, *, in_json: bool = True) -> bytes:
        """Return bytes that complete the character, or in JSON the escape, within which a token ends; empty if it ends
        in none."""
        if in_json and (escape := UNFINISHED.search(token)):
            return b"u001f"[len(escape[1]) :] if escape[1] else b"n"
        return next((finish for finish in CONTINUATIONS if _is_whole(token + finish)), b"")

    def _spell(self, text: bytes) -> list[int] | None:
        """Return the fewest tokens that write a text; None if no tokens write it. `MAYBE` is a blank where that takes
        fewer tokens."""
        cost, lengths = self.spell_from_each_byte(text)
        return self.cut(text, lengths) if cost[0] < MOST else None

    def cut(self, text: bytes, lengths: Sequence[int], at: int = 0) -> list[int]:
        """Return the tokens of a text from byte `at` on, cut as `spell_from_each_byte` says; empty if none write it."""
        found: list[int] = []
        while at < len(text) and (lengths[at] or text[at] == MAYBE[0]):
            if lengths[at]:
                found.append(self.ids[self._least(text[at : at + lengths[at]])])
            at += lengths[at] or 1
        return found

    def _least(self, text: bytes) -> bytes:
        """Return a text without its `MAYBE` if that is a token, else with blanks."""
        return least if (least := text.replace(MAYBE, b"")) in self.ids else text.replace(MAYBE, b" ")

    def spell_from_each_byte(
        self, text: bytes, allowed: NDArray[np.bool_] | None = None, avoid: Collection[tuple[int, int]] = ()
    ) -> tuple[list[int], list[int]]:
        """Return for each byte the fewest tokens that write the rest of the text, and the bytes of the first of them; 0
        for a `MAYBE` that is left out.

        Both lists have one entry more than the text has bytes. If no tokens write a rest, its number is `MOST`. The
        tokens are `allowed` (``bool[num_tokens]``; None: all), and none writes exactly the bytes between the two
        positions of a pair in `avoid`.
        """
        size, ids, longest, may_vary = len(text), self.ids, self.longest, MAYBE in text
        cost, lengths = [MOST] * size + [0], [0] * (size + 1)
        for at in range(size - 1, -1, -1):
            if text[at] == MAYBE[0]:
                cost[at] = cost[at + 1]
            for end in range(min(size, at + longest), at, -1):
                if cost[end] + 1 >= cost[at]:
                    continue
                if (token_id := ids.get(self._least(text[at:end]) if may_vary else text[at:end])) is None:
                    continue
                if (allowed is None or allowed[token_id]) and (at, end) not in avoid:
                    cost[at], lengths[at] = cost[end] + 1, end - at
        return cost, lengths

    def bits(self, row: bytes) -> NDArray[np.bool_]:
        """Return ``bool[num_tokens]``: True for tokens that a row of a bitmask, given as bytes, allows."""
        bits = np.unpackbits(np.frombuffer(row, dtype=np.uint8), bitorder="little")
        return bits[: len(self.tokens)].view(np.bool_)

    def has_letters(self, row: bytes) -> bool:
        """Return whether a row of a bitmask allows all `letters`, as inside a string or free text."""
        return all(row[i // 8] >> i % 8 & 1 for i in self.letters)

    def _ordered(self, row: bytes) -> NDArray[np.intp]:
        """Return the tokens that a row allows, the longest first."""
        ids = np.flatnonzero(self.bits(row) & (self.lengths > 0))
        return ids[np.argsort(-self.lengths[ids], kind="stable")]

    def choose(self, row: bytes, cursor: JsonCursor | None, *, long_first: bool = False) -> list[int]:
        """Return the tokens of a row that a search tries at a position in JSON, or outside JSON, where `long_first`
        matters."""
        ids, in_string = self._longest_first(row), cursor is None or cursor.in_string
        if in_string and self.has_letters(row):
            # the string may not end yet: long tokens reach its minimum length sooner
            long = [i for i in ids[:LOOKED_AT].tolist() if self.tokens[i].isalnum()][:3]
            return [*long, *self.letters]
        if cursor is not None and in_string:
            return list(ids[:LOOKED_AT].tolist())
        long = [i for i in ids[:LOOKED_AT].tolist() if self.tokens[i].strip()][:3]
        short = [i for i in ids[:-LOOKED_AT:-1].tolist() if self.tokens[i].strip()]
        if cursor is None:  # a punctuation mark ends more than a letter or a digit
            short.sort(key=lambda i: (self.lengths[i], self.tokens[i].isalnum()))
        short = short[:6]
        is_text = cursor is None and long_first
        found = list(dict.fromkeys([*long, *short] if is_text else [*short, *long]))
        # only white space: a line feed first, since the end of a tag often has a line of its own
        allowed = self.bits(row)
        return found or [i for i in self.of((b"\n", b" ", b"\t", b"\r")) if allowed[i]] or list(ids[:1].tolist())

    @cached_property
    def _characters_alone(self) -> list[tuple[int, bytes]]:
        """The tokens of one blank or printable character, the shortest first, each with its kind: digits, letters, or
        the token itself."""
        found = []
        for i in np.argsort(-self.lengths, kind="stable")[::-1][: len(self.tokens)].tolist():
            token = self.tokens[i]
            if self.characters[i] == 1 and _is_whole(token) and (token.isspace() or token.decode().isprintable()):
                found.append(
                    (i, b"0" if token.isdigit() else b"a" if token.isalpha() or not token.isascii() else token)
                )
        return found

    def kinds(self, row: bytes) -> list[int]:
        """Return tokens of a row that stand for all of them outside JSON: each sign and blank, a few digits, letters
        and other characters, and the longest tokens."""
        found, ids, allowed = dict[bytes, list[int]](), self._longest_first(row), self.bits(row)
        for i, kind in self._characters_alone:
            if allowed[i]:
                found.setdefault(kind, []).append(i)
        short = [i for kind in found.values() for i in kind[:FEW_OF_A_KIND]]
        return list(dict.fromkeys([*short, *ids[-1:-4:-1].tolist(), *ids[:3].tolist()]))

    def _signs(self, row: bytes) -> list[int]:
        """Return the tokens of a row that are single bytes, but no letters and no blanks."""
        singles = (self.lengths == 1) & self.bits(row)
        return [i for i in np.flatnonzero(singles).tolist() if self.tokens[i].strip() and not self.tokens[i].isalpha()]

    def _groups_of(
        self, row: bytes, *, in_json: bool, by_name: bool
    ) -> tuple[list[NDArray[np.int32]], NDArray[np.int32]]:
        """Return the tokens of a row of a bitmask in groups that do the same to an output, and those that are plain
        text of different lengths. Groups are sorted by the bytes of tokens, plain text by its characters.

        A string that letters may continue may continue with any text. There, only the end of the string and the text
        after it distinguish tokens; if they are distinguished `by_name`, also the text before the end. White space
        counts outside JSON.
        """
        ids = np.flatnonzero(self.bits(row)).astype(np.int32)
        ids = ids[np.argsort(self.lengths[ids], kind="stable")]
        in_text = self.has_letters(row)
        shapes = self._shapes[1 if in_text else 0 if in_json else 2][ids]
        order = np.argsort(shapes, kind="stable")
        groups = np.split(ids[order], np.flatnonzero(np.diff(shapes[order])) + 1)
        plain = groups.pop(0) if in_text and shapes.min() == 0 else ids[:0]
        plain = plain[np.argsort(self.characters[plain], kind="stable")]
        found, part = list[NDArray[np.int32]](), _name if in_text else _without_blanks if in_json else bytes
        for group in groups:
            if not by_name if in_text else len(group) > FEW_OF_A_SHAPE:
                found.append(group)
                continue
            parts: dict[bytes, list[int]] = {}
            for token_id in group.tolist():
                parts.setdefault(part(self.tokens[token_id]), []).append(token_id)
            found += [np.array(each, dtype=np.int32) for each in parts.values()]
        return found, plain

    @cached_property
    def _shapes(self) -> NDArray[np.int32]:
        """``int32[3, num_tokens]``: numbers of shapes outside strings, in strings, and outside JSON. 0 in strings is
        plain text."""
        numbers, known, shapes = {b"": 0}, dict[bytes, list[int]](), []
        for token in self.tokens:
            kinds = token.translate(KINDS)
            begun = b"" if token.isascii() and b"\\" not in token else self.finish(token)
            if begun or (found := known.get(kinds)) is None:
                end = b"%d%d" % (len(begun), begun.isascii()) if begun else IN_STRING.sub(b"", kinds, count=1)
                whole = OPENED.sub(b'"s', kinds, count=1)
                texts = (whole.translate(None, BLANKS), end.translate(None, BLANKS), end if begun else kinds)
                found = [numbers.setdefault(text, len(numbers)) for text in texts]
                if not begun:
                    known[kinds] = found
            shapes.append(found)
        return np.array(shapes, dtype=np.int32).T


def _without_blanks(token: bytes) -> bytes:
    return token.translate(None, BLANKS)


def _name(token: bytes) -> bytes:
    """Return the text before a quote, as at the end of a name of a property; empty without a quote."""
    name, quote, _ = token.partition(b'"')
    return name if quote else b""


def _is_whole(token: bytes) -> bool:
    """Return whether a token consists of whole characters in UTF-8."""
    try:
        token.decode()
    except UnicodeDecodeError:
        return False
    return True
