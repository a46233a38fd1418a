"""Test cases for regular expressions: `Regex` in the sense of Python's `re.fullmatch`, and ``pattern`` in the sense of
ECMA-262. Each tests one feature that engines read differently (`guideway.json_schema.patterns.pattern_details`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from guideway.json_schema.ecma import in_python
from guideway.json_schema.expressions import python, spelled_out

__all__ = ["BOTH", "ONLY_PYTHON", "TEXTS", "ExpressionCase", "pattern_cases", "regex_cases"]

ExpressionCase: TypeAlias = tuple[str, str, list[str], list[str]]
"""Name without its kind, expression, matching texts, other texts."""

_ONE = (
    *(
        "",
        "a",
        "b",
        "k",
        "K",
        "z",
        "0",
        "4",
        "_",
        "-",
        " ",
        "&",
        "[",
        "]",
        "^",
        "$",
        ":",
        ".",
        "{",
        "}",
        "\\",
        "\n",
        "\r",
    ),
    *("\t", "\x00", "\x01", "\x07", "\x0b", "\x1b", "\x1c", "\x85", "\xa0", "\u1680", "\u2003", "\u2028", "\u2029"),
    *("\u3000", "\ufeff", "\u0663", "\xe9", "\xb2", "\u017f", "\u212a", "\u0301", "\u203f", "\U0001f600"),
)
_MORE = (
    *("ab", "aB", "AB", "a b", "a.b", "aa", "aab", "aaa", "abb", "ac", "bb", "a\n", "a\nb", "a\rb", "a\u2028b", "a$b"),
    *("a^b", "a]", "fo", "foo", "fooo", "foo*", "aaaaaa", "a{", "a{}", "a{,2}", "a{1", "{a}", "a*", "pL", "cA", "Q.E"),
    *("x41", "abab", "a1", "[b]", "a#b", "\\a", "za", "az", "7", "\x007", "a\\1", "aaab", "A1", "a\u0663"),
)
TEXTS: Final[Sequence[str]] = (*_ONE, *_MORE)
"""The texts to match with each expression."""

BOTH: Final[dict[str, tuple[str, ...]]] = {
    ".": (".", "a.b", "a.", "(?:a|.)b"),
    r"\d": (r"\d", r"[\d-]", r"a\d", r"[^\D]"),
    r"\D": (r"\D", r"[^\d]", r"[\D]", r"a\Db"),
    r"\s": (r"\s", r"[\s-]", r"a\sb", r"[^\S]"),
    r"\S": (r"\S", r"[^\s]", r"[\S]", r"[\S ]", r"a\Sb"),
    r"\w": (r"\w", r"[\w-]", r"a\w+", r"[^\W]"),
    r"\W": (r"\W", r"[^\w]", r"[^\w-]", r"[\W]", r"a\Wb"),
    "double": ("foo**", "a**", "a*?*", "a{2}{3}", "a+*", "^*a"),
    "anchor": ("a$b", "a^b", r"a$\n", r"(?:a$)\nb", "(a$|b)b", "(?:^a)*b", "(a|^)b", "a(^b|c)"),
    "boundary": (r"a\b b", r"\ba\b", r"a\Bb", r"a\bb", r"\B"),
    "backreference": (r"(a)\1", r"(ab|a)\1b?"),
    "lookaround": ("a(?=b)b", "a(?!b)b", "(?!a).b", "(?<=a)b", "(?<!a)b"),
    "class": ("[[a]", "[[a]b]", "[a&&b]", "[a&&a]", "[]a]", "[^]a]", "[[:a]"),
    "range": (r"[\w-z]", r"[a-\d]", r"[\d-.]", r"a[\w-&]"),
    "brace": ("a{", "a{}", "{a}", "a{1", "a{,2}"),
}
"""Expressions of both dialects, which may read them differently; invalid ones match nothing."""

ONLY_PYTHON: Final[dict[str, tuple[str, ...]]] = {
    "possessive": ("a*+a", "a*+b", "a++ab", "a?+a", "a{1,2}+a", "(?:ab|a)*+b"),
    r"\A": (r"\Aa", r"\A(?:a|b)b"),
    r"\Z": (r"a\Z", r"(?:a|b)\Z", r"\Aa\Z"),
    "escape": (r"\07", r"\a", r"\z", r"\e", r"\K", r"\Q.\E", r"\cA", r"\x4", r"\h"),
    "flags": ("(?i)k", "(?i:A)b", "(?-i:a)", "(?s:.)", "(?s:a).b", "(?m:a$)\nb", "(?x:a b)", "(?i)[a]b", "(?a:a)"),
    "group": ("(?>a|ab)b", "(?>ab|a)b", "(?#b)a", "(?P<x>a)(?P=x)", "(a)?(?(1)b|a)"),
}
"""Expressions that only Python or neither dialect has."""

_ECMA_ESCAPES = {r"\cA": "\x01", r"\z": "", r"\e": "", r"\07": "", r"\Q.\E": "", r"\x4": ""}
"""The only text that an escape which Python lacks matches in ECMA-262; empty if ECMA-262 lacks it too."""


def regex_cases() -> Iterator[ExpressionCase]:
    """Yield cases of `Regex`, decided by Python."""
    for name, expressions in (*BOTH.items(), *ONLY_PYTHON.items()):
        # spelled out, since later versions of Python may read some classes differently
        yield from (_judge(name, each, spelled_out(each, python())) for each in expressions)
    yield "property", r"\p{L}", ["a", "\xe9"], ["0", "", "-"]


def pattern_cases() -> Iterator[ExpressionCase]:
    """Yield cases of ``pattern``, which may match anywhere in the text."""
    for name, expressions in BOTH.items():
        for expression in expressions:
            pattern = expression if name == "anchor" else f"^(?:{expression})$"
            yield _judge(name, pattern, f"(?s:.*)(?:{in_python(pattern)})(?s:.*)")
    for name, expressions in ONLY_PYTHON.items():
        if name != "escape":
            yield from ((name, f"^(?:{expression})$", [], list(TEXTS)) for expression in expressions)
    for expression, taken in _ECMA_ESCAPES.items():
        right = [text for text in TEXTS if taken and text == taken]
        yield "escape", f"^(?:{expression})$", right, [text for text in TEXTS if text not in right]


def _judge(name: str, expression: str, in_words_of_python: str) -> ExpressionCase:
    try:
        matches = re.compile(in_words_of_python).fullmatch
    except re.error:
        return name, expression, [], list(TEXTS)
    return name, expression, [t for t in TEXTS if matches(t)], [t for t in TEXTS if not matches(t)]
