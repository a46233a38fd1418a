"""The details of regular expressions that engines lack or get wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from guideway.json_schema.expressions import Ranges, count, meet, pieces, takes

__all__ = ["MIXED", "REPEAT", "pattern_details", "repeats_a_repetition", "string_details"]

_ESCAPED_IN_JSON: Ranges = ((0, 31), (34, 34), (92, 92))
MANY: Final = 128
"""A count above which an engine may no longer keep a class to the characters that JSON writes as they are."""
REPEAT: Final = f"repeat>{MANY}"
MIXED: Final = "class>127"


def pattern_details(pattern: str) -> frozenset[str]:
    """Name what a regular expression uses that engines may lack: ``lookaround``, ``backreference``, ``boundary``,
    ``property``, and ``anchor`` for ``^`` after, or ``$`` before, what may be something. Errs on the side of naming
    too much."""
    return frozenset(detail for detail, search in _PATTERN_DETAILS.items() if search(pattern))


def repeats_a_repetition(pattern: str) -> bool:
    """Return whether ``?`` or ``{...}`` stands after a group in which something is repeated without end."""
    groups = [False]  # of the groups that are open, whether they have such a repetition
    for piece in _PIECE.finditer(pattern):
        text = piece[0]
        if text == "(":
            groups.append(False)
        elif text.startswith(")"):
            inside = groups.pop() if len(groups) > 1 else groups[0]
            if inside and len(text) > 1:
                return True
            groups[-1] |= inside
        elif piece["endless"]:
            groups[-1] = True
    return False


def string_details(pattern: str) -> Iterator[str]:
    """Tell how a regular expression treats characters that JSON's strings escape: that there is one, ``escaped``, or
    all but one, ``unescaped``; ``repeat>128`` where one that it takes may be among what stands so many times; and
    ``class>127`` where a class that takes one names a character beyond ASCII."""
    if _ESCAPED.search(_ALL_BUT.sub("", pattern)):
        yield "escaped"
    if any(map(_ESCAPED.search, _ALL_BUT.findall(pattern))):
        yield "unescaped"
    if pattern.isascii() and "{" not in pattern:
        return
    taking = [piece for piece in pieces(pattern) if meet(takes(piece), _ESCAPED_IN_JSON)]
    if taking and any(count(piece) > MANY for piece in pieces(pattern)):
        yield REPEAT
    if not all(map(str.isascii, taking)):
        yield MIXED


def _has_anchor_amid(pattern: str) -> bool:
    """Return whether a ``^`` may stand after something, or a ``$`` before something."""
    pieces = [piece[0] if piece[0] == "(" else piece for piece in _ANY_PIECE.findall(pattern)]
    return _may_follow("^", pieces, "(", ")") or _may_follow("$", pieces[::-1], ")", "(")


def _may_follow(anchor: str, pieces: Sequence[str], opening: str, closing: str) -> bool:
    """Return whether something may stand before an `anchor`, an earlier repetition of its own group included."""
    first, num_anchors, inside = True, 0, False
    groups: list[tuple[bool, int]] = []
    for piece in pieces:
        if inside and anchor == "^" and piece in "*+{":  # read backwards, a repetition stands before its group
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


_ALL_BUT = re.compile(r"\[\^(?:\\.|[^\]\\])*\]", re.DOTALL)
"""A class of all characters but some."""
_ESCAPED = re.compile(r'["\x00-\x1f]|\\(?:\\|[nrtfv]|c|x(?:22|5[cC]|[01])|u00(?:22|5[cC]|[01]))')

_PATTERN_DETAILS: dict[str, Callable[[str], object]] = {
    "lookaround": re.compile(r"\(\?<?[=!]").search,
    "backreference": re.compile(r"\\[1-9]|\\k<").search,
    "boundary": re.compile(r"\\[bB]").search,
    "property": re.compile(r"\\[pP]").search,
    "anchor": _has_anchor_amid,
}

_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(|\)[?{]?|(?P<endless>[*+]|\{\d+,\})", re.DOTALL)
"""An escape, a class, what begins or ends a group, or a repetition without end."""

_ANY_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?(?:[:=!]|<[=!]|<\w+>))?|.", re.DOTALL)
"""An escape, a class, what begins a group, or another character."""
