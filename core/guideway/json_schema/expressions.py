"""Regular expressions, cut into pieces, and the characters that a dot, an escape or a class takes.

Engines agree on most of the syntax. What ``.``, ``\\s``, ``\\d`` and ``\\w`` take depends on the dialect, so these are
written as classes of characters (`spelled_out`) before an engine reads them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import chain
from types import MappingProxyType
from typing import Final, TypeAlias

__all__ = [
    "ECMA",
    "Characters",
    "Ranges",
    "count",
    "meet",
    "members",
    "pieces",
    "python",
    "python_reads",
    "spelled_out",
    "takes",
]

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points, as inclusive ranges in order."""

Characters: TypeAlias = Mapping[str, Ranges]
"""A dialect's characters of ``d``, ``s`` and ``w``; of ``.`` those that it leaves out; of ``]`` what it stands for
where a class begins with it: nothing, if it ends the class."""

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
"""Those of ECMA-262, which JSON Schema's ``pattern`` is written in (sections 22.2.2.7 and 22.2.2.9)."""

_CODE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|[xu]\{[0-9a-fA-F]{1,6}\}|U[0-9a-fA-F]{8})"
_ESCAPE = rf"{_CODE}|\\[pPN]\{{[^}}]*\}}|\\."
_BEFORE, _AFTER = rf"{_ESCAPE}|\[\^?", r"(?:\\.|[^\]\\])*(?:\]|\\?\Z)|\((?:\?(?:[:=!>]|<[=!]|P?<\w+>))?|\{\d*,?\d*\}|."
_PIECE = {True: re.compile(rf"{_BEFORE}\]?{_AFTER}", re.DOTALL), False: re.compile(_BEFORE + _AFTER, re.DOTALL)}
"""By whether a ``]`` stands for itself where a class begins with it."""
_MEMBER = re.compile(rf"({_ESCAPE}|.)(?:-({_ESCAPE}|.))?", re.DOTALL)
_COUNT = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_CONTROLS = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_OPENING = re.compile(r"(?<!\\)[\[\]]")
_ANCHORS = {r"\A": "^", r"\Z": "$"}
_DOT_ALL = re.compile(r"\(\?[a-zA-Z]*s")
_PLAIN = re.compile(r"[A-Za-z0-9_ ]")


@cache
def python() -> Characters:
    """Return those of Python's `re`, as this version of Python has them."""
    every = "".join(map(chr, chain(range(0xD800), range(0xE000, sys.maxunicode + 1))))

    def found(escape: str) -> Ranges:
        return tuple((ord(run[0][0]), ord(run[0][-1])) for run in re.finditer(f"{escape}+", every))

    return MappingProxyType({".": ((10, 10),), "]": ((93, 93),), **{letter: found(f"\\{letter}") for letter in "dsw"}})


def pieces(pattern: str, *, brackets: bool = False) -> Iterator[str]:
    """Cut an expression into escapes, classes, what begins a group, counts in braces, and other characters. With
    `brackets`, a ``]`` stands for itself where a class begins with it."""
    return (found[0] for found in _PIECE[brackets].finditer(pattern))


def python_reads(pattern: str) -> bool:
    """Return whether an expression is one in Python."""
    try:
        re.compile(spelled_out(pattern, python()))  # which warns of nothing
    except (re.error, OverflowError, RecursionError):
        return False
    return True


def count(piece: str) -> int:
    """Return the larger number of a count in braces; 0 for any other piece."""
    found = _COUNT.fullmatch(piece)
    return max((int(number[:9]) for number in found.groups() if number), default=0) if found else 0


def takes(piece: str, characters: Characters = ECMA) -> Ranges:
    """Return the code points that one piece may take: all where that is not known, as of ``\\p{L}``, and none for a
    piece that takes no character."""
    if piece == ".":
        return _without(characters["."])
    if _is_class(piece):
        found = tuple(pair for _, ranges in members(piece, characters) for pair in ranges)
        return _without(found) if piece.startswith("[^") else found
    if piece.startswith("\\"):
        return _of_escape(piece, characters)
    return ((ord(piece), ord(piece)),) if len(piece) == 1 and piece not in "^$|()*+?" else ()


def members(piece: str, characters: Characters) -> Iterator[tuple[str, Ranges]]:
    """Give each member of a class, and the code points that it stands for."""
    for found in _MEMBER.finditer(piece, 2 if piece.startswith("[^") else 1, len(piece) - 1):
        first, last = (_of_member(text, characters) if text else () for text in found.groups())
        if len(first) == len(last) == 1 and first[0][0] == first[0][1] and last[0][0] == last[0][1]:
            yield found[0], ((first[0][0], last[0][0]),)  # one that ends before it begins is the engine's to refuse
        elif last and characters["]"]:  # which Python refuses
            yield found[0], (*first, (45, 45), *last)
        else:
            yield found[1], first
            if last:  # no range: the hyphen stands for itself
                yield "\\-", ((45, 45),)
                yield found[2], last


def spelled_out(pattern: str, characters: Characters, write: Callable[[int], str] = chr) -> str:
    """Return an expression that every engine reads as a dialect does. ``.``, ``\\d``, ``\\s``, ``\\w`` and their
    opposites are classes of the characters that it has for them, but for dots where the flag ``s`` is set; braces that
    count nothing have a backslash; Python's ``\\A`` and ``\\Z`` are ``^`` and ``$``. `write` writes a character beyond
    ASCII in a class."""

    takes_line_ends = _DOT_ALL.search(pattern)

    def text(found: Ranges) -> str:
        return "".join(one(low) if low == high else f"{one(low)}-{one(high)}" for low, high in found)

    def one(code: int) -> str:
        if code > 127:
            return write(code)
        return chr(code) if _PLAIN.match(chr(code)) else f"\\x{code:02x}"

    def spelled(piece: str) -> str:
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
        # once each, so that no two of them join classes, as "&&" does for some
        inside = dict.fromkeys(
            text(ranges) if _is_shorthand(member) else _OPENING.sub(r"\\\g<0>", "".join(map(literal, member)))
            for member, ranges in parts
        )
        return f"[{'^' if negated else ''}{''.join(inside)}]"

    def literal(character: str) -> str:
        return character if character.isascii() else write(ord(character))

    return "".join(map(spelled, pieces(pattern, brackets=bool(characters["]"]))))


def meet(first: Ranges, second: Ranges) -> bool:
    """Return whether any code point is in both."""
    return any(a <= d and c <= b for a, b in first for c, d in second)


def _is_class(piece: str) -> bool:
    return piece.startswith("[") and piece.endswith("]") and len(piece) > 1


def _is_shorthand(text: str) -> bool:
    return len(text) == 2 and text[0] == "\\" and text[1] in "dDsSwW"


def _without(removed: Ranges) -> Ranges:
    """Return all code points but these."""
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
