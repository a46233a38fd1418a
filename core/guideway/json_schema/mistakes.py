"""Find syntax errors of regular expressions that are errors in every dialect."""

from __future__ import annotations

import re

from guideway.errors import InvalidGrammar, excerpt

__all__ = ["check_regex"]

_PIECE = re.compile(
    r"\\.|(?P<class>\[\^?(?P<inside>(?:\\.|[^\]\\])*)(?P<end>\]?))"
    r"|(?:\A|\||\((?:\?(?::|P?<\w+>))?(?!\*\w+[:=)]))(?P<repeat>[*+]|(?<!\()\?)|[()]"
    r"|\{(?P<least>\d{1,9}),(?P<most>\d{1,9})\}",
    re.DOTALL,
)
"""An escape, a class, a repetition of nothing, the beginning or end of a group, or a count."""
_ESCAPE = r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]+\}|.)"
_RANGE = re.compile(rf"(?P<first>{_ESCAPE}|[^\\])-(?P<last>{_ESCAPE}|[^\\])|{_ESCAPE}|.", re.DOTALL)
"""A range in a class, or one of its characters."""
_OWN = re.compile(r"\\Q|\(\?#|\(\?[a-zA-Z-]*x")
"""The beginning of text with other rules: quoted, a comment, or with comments in it."""
_OWN_CLASS = re.compile(r"\[|--|&&|\|\||~~")
"""Characters that begin a nested class or combine classes in some dialects."""


def check_regex(pattern: str, where: str = "the pattern", *, field: str = "constraint") -> None:
    """Raise `InvalidGrammar` if `pattern` has an error in every dialect: an unclosed group or class, an unmatched
    ``)``, a ``*``, ``+`` or ``?`` with nothing to repeat, or a reversed range or count. The message begins with `where`
    and shows the place. Errors of single dialects are left to the compiler."""
    if found := _mistake(pattern):
        what, at = found
        raise InvalidGrammar(f"{where} is no regular expression: {what}{excerpt(pattern, at)}", field=field)


def _mistake(pattern: str) -> tuple[str, int] | None:
    """Return the first mistake and the index of its character, or None."""
    if _OWN.search(pattern):
        return None
    opened: list[int] = []
    for piece in _PIECE.finditer(pattern):
        at, text = piece.start(), piece[0]
        if piece["class"]:
            inside = piece["inside"]
            if not inside or _OWN_CLASS.search(inside):
                return None
            if not piece["end"]:
                return "unclosed character class", at
            for found in _RANGE.finditer(inside):
                if _is_reversed(found["first"], found["last"]):
                    return "the range ends before it begins", piece.start("inside") + found.start()
        elif piece["repeat"]:
            return f"a `{piece['repeat']}` with nothing to repeat", piece.start("repeat")
        elif text == "(":
            opened.append(at)
        elif text == ")":
            if not opened:
                return "a `)` that closes nothing", at
            opened.pop()
        elif piece["least"] and int(piece["least"]) > int(piece["most"]):
            return "the count ends before it begins", at
    return ("unclosed group", opened[-1]) if opened else None


def _is_reversed(first: str | None, last: str | None) -> bool:
    """Return whether both are plain characters, of one UTF-16 unit, and the second is before the first."""
    return first is not None and last is not None and len(first + last) == 2 and "\uffff" >= first > last
