"""Features of regular expressions that engines lack or get wrong."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from guideway.json_schema.expressions import Ranges, count, lacks_an_escape, meet, pieces, takes

__all__ = ["MIXED", "REPEAT", "pattern_details", "place_of_detail", "repeats_a_repetition", "string_details"]

_ESCAPED_IN_JSON: Ranges = ((0, 31), (34, 34), (92, 92))
MANY: Final = 128
"""A count above which an engine may let a class match characters that JSON must escape."""
REPEAT: Final = f"repeat>{MANY}"
MIXED: Final = "class>127"


def pattern_details(pattern: str) -> frozenset[str]:
    """Return the names of features in a regular expression that engines may lack or read differently. May return too
    many.

    - ``lookaround``, ``backreference``, ``boundary``, ``property``; ``group`` for other extensions such as ``(?>a)``,
      and ``flags`` for ``(?i)`` and the like;
    - ``anchor`` for ``^`` after, or ``$`` before, parts that may match something;
    - ``possessive`` for ``a*+``, and ``double`` for ``a**``, a repetition of a repetition or an anchor;
    - ``escape`` for escapes that not all dialects have, such as ``\\a``; ``brace`` for a ``{`` that begins no count;
      ``class`` for a class with ``[``, a doubled ``&``, ``-``, ``|`` or ``~``, or a ``]`` at its beginning, and
      ``range`` for one with ``\\w-z``;
    - ``\\A``, ``\\Z``, ``.``, ``\\d``, ``\\D``, ``\\s``, ``\\S``, ``\\w`` and ``\\W`` in any spelling: ``\\S`` for
      ``[^\\s]``.
    """
    cut = list(pieces(pattern, brackets=True))
    plain = "".join("_" if len(piece) > 1 and piece[0] in "[\\" else piece for piece in cut)
    found = {detail for detail, search in _PATTERN_DETAILS.items() if search(pattern)}
    found |= {detail for detail, search in _IN_PLAIN.items() if search(plain)}
    found |= {*_find_doubled(cut)}
    found |= {"escape" for escape in _ANY_ESCAPE.findall(pattern) if _OWN_ESCAPE.fullmatch(escape)}
    for piece in cut:
        if piece in (".", r"\A", r"\Z"):
            found.add(piece)
        elif len(piece) > 1 and piece[0] in "[\\":
            flips = piece.startswith("[^")
            found |= {_OPPOSITE[text] if flips else text for text in _ANY_ESCAPE.findall(piece) if text in _OPPOSITE}
            if piece[0] == "[" and _OWN_CLASS.match(piece):
                found.add("class")
            if piece[0] == "[" and _RANGE_OF_CLASS.search(piece):
                found.add("range")
    return frozenset(found)


def place_of_detail(pattern: str, name: str) -> int:
    """Return the index at which the first feature of a regular expression that `pattern_details` calls `name` becomes
    known."""
    cut = list(pieces(pattern, brackets=True))

    def is_known(num_pieces: int) -> bool:
        return name in pattern_details("".join(cut[:num_pieces]))

    found = bisect_left(range(len(cut)), True, key=is_known)
    return sum(map(len, cut[: found - 1]))


def repeats_a_repetition(pattern: str) -> bool:
    """Return whether ``?`` or ``{...}`` follows a group that contains an unbounded repetition."""
    groups = [False]  # for each open group, whether it contains an unbounded repetition
    has_ended = False  # whether such a group has just ended
    for piece in pieces(pattern, brackets=True):
        if has_ended and piece[0] in "?{":
            return True
        has_ended = False
        if piece[0] == "(":
            groups.append(False)
        elif piece == ")":
            has_ended = groups.pop() if len(groups) > 1 else groups[0]
            groups[-1] |= has_ended
        elif piece in "*+" or (piece[0] == "{" and piece.endswith(",}")):
            groups[-1] = True
    return False


def string_details(pattern: str) -> Iterator[str]:
    """Yield the names of features that concern characters that JSON strings escape: ``escaped`` if the expression
    names one, ``unescaped`` if a negated class does or any class `lacks_an_escape`, ``repeat>128`` if it can match one
    and has a count above 128, and ``class>127`` if it can match one and contains a non-ASCII character."""
    cut = list(pieces(pattern, brackets=True))
    if any(_ESCAPED.search(piece) for piece in cut if not piece.startswith("[^")):
        yield "escaped"
    if any(lacks_an_escape(piece) or (piece.startswith("[^") and _ESCAPED.search(piece)) for piece in cut):
        yield "unescaped"
    if pattern.isascii() and "{" not in pattern:
        return
    is_taken = any(meet(takes(piece), _ESCAPED_IN_JSON) for piece in cut)
    if is_taken and any(count(piece) > MANY for piece in cut):
        yield REPEAT
    if is_taken and not pattern.isascii():
        yield MIXED


def _find_doubled(cut: Sequence[str]) -> Iterator[str]:
    """Yield the names of repetitions that follow another one, or an anchor."""
    before = ""
    for piece in cut:
        is_repetition = piece in "*+?" or (piece[0] == "{" and len(piece) > 1)
        if not is_repetition:
            before = {"(": "", "|": "", "^": "anchor", "$": "anchor"}.get(piece, "atom")
        elif before == "atom":
            before = "repetition"
        elif before == "repetition" and piece in "?+":
            before = "marked"
            if piece == "+":
                yield "possessive"
        elif before:
            yield "double"


def _has_anchor_amid(pattern: str) -> bool:
    """Return whether a ``^`` may be after other parts, or a ``$`` before other parts."""
    anchors = {r"\A": "^", r"\Z": "$"}
    cut = [piece[0] if piece[0] in "({" else anchors.get(piece, piece) for piece in pieces(pattern, brackets=True)]
    return _may_follow("^", cut, "(", ")") or _may_follow("$", cut[::-1], ")", "(")


def _may_follow(anchor: str, cut: Sequence[str], opening: str, closing: str) -> bool:
    """Return whether something may be before an `anchor`, including an earlier repetition of its own group."""
    first, num_anchors, inside = True, 0, False
    groups: list[tuple[bool, int]] = []
    for piece in cut:
        if inside and anchor == "^" and piece in "*+{":  # read backwards, a repetition is before its group
            return True
        inside = False
        if piece == anchor:
            if not first:
                return True
            num_anchors += 1
        elif piece == opening:
            groups.append((first, num_anchors))
        elif piece == "|":
            first = groups[-1][0] if groups else True
        else:
            if piece == closing and groups:
                inside = groups.pop()[1] < num_anchors
            first = False
    return False


_ESCAPED = re.compile(r'["\x00-\x1f]|\\(?:\\|[nrtfv]|c|x(?:22|5[cC]|[01])|u00(?:22|5[cC]|[01]))')

_PATTERN_DETAILS: dict[str, Callable[[str], object]] = {
    "lookaround": re.compile(r"\(\?<?[=!]").search,
    "backreference": re.compile(r"\\[1-9]|\\k<").search,
    "boundary": re.compile(r"\\[bB]").search,
    "property": re.compile(r"\\[pP]").search,
    "anchor": _has_anchor_amid,
}

_IN_PLAIN: dict[str, Callable[[str], object]] = {
    "group": re.compile(r"\(\?(?:>|#|\(|P[=>]|[&R|+\d])").search,
    "flags": re.compile(r"\(\?[a-zA-Z^]*-?[a-zA-Z]*[:)](?<!\(\?:)").search,
    "brace": re.compile(r"\{(?!\d+(?:,\d*)?\})").search,
}
"""Searches in an expression with escapes and classes replaced by underscores."""

_ANY_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]+\}|0\d|.)", re.DOTALL)
_OWN_ESCAPE = re.compile(r"\\(?:0\d|[CEGHIJKLMNOQRTUVXYaceghijlmoqyxuz])")
"""An escape of a letter or digit that ECMA-262 or Python lacks, including malformed ``\\x`` and ``\\u``."""
_OWN_CLASS = re.compile(r"\[\^?\]|\[.*(?<!\\)(?:\[|&&|--|\|\||~~)", re.DOTALL)
_RANGE_OF_CLASS = re.compile(r"\\[dDsSwW]-[^\]]|-\\[dDsSwW]")
_OPPOSITE = {f"\\{a}": f"\\{b}" for a, b in ("dD", "Dd", "sS", "Ss", "wW", "Ww")}
