"""Tokenize regular expressions, and find the characters that a dot, an escape or a class matches.

Engines agree on most of the syntax. The meaning of ``.``, ``\\s``, ``\\d`` and ``\\w`` depends on the dialect, so
these are replaced by classes of characters (`spelled_out`) before an engine reads them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final, TypeAlias

import numpy as np

__all__ = [
    "ECMA",
    "Characters",
    "Ranges",
    "count",
    "lacks_an_escape",
    "meet",
    "members",
    "pieces",
    "python",
    "python_reads",
    "spelled_out",
    "takes",
    "without_nul",
]

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points, as inclusive ranges in order."""

Characters: TypeAlias = Mapping[str, Ranges]
"""The characters of a dialect's ``d``, ``s`` and ``w``. For ``.``, the characters it does not match. For ``]``, its
meaning at the beginning of a class: empty if it ends the class."""

ECMA: Final[Characters] = MappingProxyType(
    {
        ".": ((10, 10), (13, 13), (0x2028, 0x2029)),
        "]": (),
        "d": ((48, 57),),
        "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
        "s": (
            *((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F)),
            *((0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)),
        ),
    }
)
"""The characters of ECMA-262, the dialect of JSON Schema's ``pattern`` (sections 22.2.2.7 and 22.2.2.9)."""

_CODE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[xu]\{[0-9a-fA-F]{1,6}\}|U[0-9a-fA-F]{8})"
_ESCAPE = rf"{_CODE}|\\[pPN]\{{[^}}]*\}}|\\."
_BEFORE, _AFTER = rf"{_ESCAPE}|\[\^?", r"(?:\\.|[^\]\\])*(?:\]|\\?\Z)|\((?:\?(?:[:=!>]|<[=!]|P?<\w+>))?|\{\d*,?\d*\}|."
_PIECE = {True: re.compile(rf"{_BEFORE}\]?{_AFTER}", re.DOTALL), False: re.compile(_BEFORE + _AFTER, re.DOTALL)}
"""Patterns of a piece, by whether a ``]`` at the beginning of a class is literal."""
_MEMBER = re.compile(rf"({_ESCAPE}|.)(?:-({_ESCAPE}|.))?", re.DOTALL)
_COUNT = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_CONTROLS = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_OPENING = re.compile(r"(?<!\\)[\[\]]")
_ANCHORS = {r"\A": "^", r"\Z": "$"}
_DOT_ALL = re.compile(r"\(\?[a-zA-Z]*s")
_PLAIN = re.compile(r"[A-Za-z0-9_ ]")


class _Python(Mapping[str, Ranges]):
    """The characters of `re` in this version of Python. Each is found on first use, by a search of Unicode."""

    def __getitem__(self, name: str) -> Ranges:
        return {".": ((10, 10),), "]": ((93, 93),)}.get(name) or _in_unicode(name)

    def __iter__(self) -> Iterator[str]:
        return iter(ECMA)

    def __len__(self) -> int:
        return len(ECMA)


@cache
def _in_unicode(letter: str) -> Ranges:
    """Return the code points that match an escape, given by its letter."""
    every = np.arange(sys.maxunicode + 1, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")
    return tuple((ord(run[0][0]), ord(run[0][-1])) for run in re.finditer(rf"\{letter}+", every))


@cache
def python() -> Characters:
    """Return the characters of `re` in this version of Python."""
    return _Python()


def pieces(pattern: str, *, brackets: bool = False) -> Iterator[str]:
    """Split an expression into escapes, classes, beginnings of groups, counts in braces, and other characters. With
    `brackets`, a ``]`` at the beginning of a class is literal."""
    return (found[0] for found in _PIECE[brackets].finditer(pattern))


def python_reads(pattern: str) -> bool:
    """Return whether an expression is valid in Python."""
    try:
        re.compile(spelled_out(pattern, python()))  # never gives a warning
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def count(piece: str) -> int:
    """Return the larger number of a count in braces; 0 for any other piece."""
    found = _COUNT.fullmatch(piece)
    return max((int(number[:9]) for number in found.groups() if number), default=0) if found else 0


def takes(piece: str, characters: Characters = ECMA) -> Ranges:
    """Return the code points that a piece may match: all if that is unknown, as for ``\\p{L}``, and none for a piece
    that matches no character."""
    if piece == ".":
        return _without(characters["."])
    if _is_class(piece):
        found = tuple(pair for _, ranges in members(piece, characters) for pair in ranges)
        return _without(found) if piece.startswith("[^") else found
    if piece.startswith("\\"):
        return _of_escape(piece, characters)
    return ((ord(piece), ord(piece)),) if len(piece) == 1 and piece not in "^$|()*+?" else ()


def members(piece: str, characters: Characters) -> Iterator[tuple[str, Ranges]]:
    """Yield each member of a class, and its code points."""
    for found in _MEMBER.finditer(piece, 2 if piece.startswith("[^") else 1, len(piece) - 1):
        first, last = (_of_member(text, characters) if text else () for text in found.groups())
        if len(first) == len(last) == 1 and first[0][0] == first[0][1] and last[0][0] == last[0][1]:
            yield found[0], ((first[0][0], last[0][0]),)  # the engine refuses reversed ranges
        elif last and characters["]"]:  # Python refuses this
            yield found[0], (*first, (45, 45), *last)
        else:
            yield found[1], first
            if last:  # not a range: the hyphen is literal
                yield "\\-", ((45, 45),)
                yield found[2], last


def spelled_out(pattern: str, characters: Characters, write: Callable[[int], str] = chr) -> str:
    """Return an expression that every engine reads as the dialect does. ``.``, ``\\d``, ``\\s``, ``\\w`` and their
    opposites become classes of the dialect's characters, except dots with the flag ``s``; literal braces get a
    backslash; Python's ``\\A`` and ``\\Z`` become ``^`` and ``$``. `write` converts the code of a non-ASCII character
    in a class to text."""

    takes_line_ends = _DOT_ALL.search(pattern)

    def text(found: Ranges) -> str:
        return "".join(one(low) if low == high else f"{one(low)}-{one(high)}" for low, high in found)

    def one(code: int) -> str:
        if code > 127:
            return write(code)
        return chr(code) if _PLAIN.match(chr(code)) else f"\\x{code:02x}"

    def spell_out(piece: str) -> str:
        if piece == ".":
            return piece if takes_line_ends else f"[^{text(characters['.'])}]"
        if _is_class(piece):
            return of_class(piece, piece.startswith("[^"))
        if piece in ("{", "}", "{}"):
            return "".join(f"\\{brace}" for brace in piece)
        if piece.startswith("{,"):
            return f"{{0{piece[1:]}" if characters["]"] else "\\" + piece[:-1] + "\\}"
        if characters["]"] and piece in _ANCHORS:
            return _ANCHORS[piece]
        if _is_shorthand(piece):
            return f"[{'^' if piece[1].isupper() else ''}{text(characters[piece[1].lower()])}]"
        return piece

    def of_class(piece: str, negated: bool) -> str:
        parts = list(members(piece, characters))
        if any(_is_shorthand(member) and member[1].isupper() for member, _ in parts):
            rest = _without(tuple(pair for _, ranges in parts for pair in ranges))
            return f"[{'' if negated else '^'}{text(rest)}]" if rest else piece
        if not parts and characters["]"]:
            return piece
        if not parts:
            return r"[\s\S]" if negated else r"[^\s\S]"
        # without duplicates, since "&&" and the like combine classes in some dialects
        inside = dict.fromkeys(
            text(ranges) if _is_shorthand(member) else _OPENING.sub(r"\\\g<0>", "".join(map(literal, member)))
            for member, ranges in parts
        )
        return f"[{'^' if negated else ''}{''.join(inside)}]"

    def literal(character: str) -> str:
        return character if character.isascii() else write(ord(character))

    return "".join(map(spell_out, pieces(pattern, brackets=bool(characters["]"]))))


def lacks_an_escape(piece: str) -> bool:
    """Return whether a piece matches all control characters below the space, but not both the quote and the backslash:
    some engines then let it match these two, since JSON writes all of them with an escape."""
    if not _is_class(piece):
        return False
    others = _without(takes(piece))
    return not meet(others, ((0, 31),)) and meet(others, ((34, 34), (92, 92)))


def without_nul(piece: str) -> str:
    """Return the same class of characters, except NUL."""
    left = _without((*_without(takes(piece)), (0, 0)))
    return f"[{''.join(f'{_spell(low)}-{_spell(high)}' for low, high in left)}]"


def meet(first: Ranges, second: Ranges) -> bool:
    """Return whether any code point is in both."""
    return any(a <= d and c <= b for a, b in first for c, d in second)


def _spell(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else chr(code)


def _is_class(piece: str) -> bool:
    return piece.startswith("[") and piece.endswith("]") and len(piece) > 1


def _is_shorthand(text: str) -> bool:
    return len(text) == 2 and text[0] == "\\" and text[1] in "dDsSwW"


def _without(removed: Ranges) -> Ranges:
    """Return all other code points."""
    kept, start = [], 0
    for low, high in sorted(removed):
        if low > start:
            kept.append((start, low - 1))
        start = max(start, high + 1)
    return (*kept, (start, sys.maxunicode)) if start <= sys.maxunicode else tuple(kept)


def _of_member(text: str, characters: Characters) -> Ranges:
    return _of_escape(text, characters) if text.startswith("\\") else ((ord(text), ord(text)),)


def _of_escape(escape: str, characters: Characters) -> Ranges:
    letter = escape[1:2]
    if _is_shorthand(escape):
        found = characters[letter.lower()]
        return found if letter.islower() else _without(found)
    if letter in "xuU" and len(escape) > 2:
        code = int(escape[2:].strip("{}"), 16)
    elif letter in "pPcN":
        return _without(())
    else:
        code = _CONTROLS.get(letter, ord(letter or "\\"))
    return ((code, code),)
