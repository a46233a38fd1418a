"""Translate JSON Schema's regular expressions, which follow ECMA-262, for engines with other dialects: their ``.``,
``\\s``, ``\\d`` and ``\\w`` may match other characters, and Python's ``$`` also matches before a final line feed.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from guideway.json_schema.expressions import ECMA, spelled_out
from guideway.json_schema.walking import Schema, changed

__all__ = ["in_python", "with_python_patterns", "with_spelled_patterns"]


def with_python_patterns(schema: Schema) -> tuple[Schema, dict[str, str]]:
    """Return a copy of a checked schema with all patterns translated by `in_python`, for validators that use `re`, and
    the original of each translated pattern."""
    return _with_patterns(schema, in_python)


def with_spelled_patterns(
    schema: Schema, write: Callable[[int], str] = chr, change: Callable[[str], str] = str
) -> Schema:
    """Return a copy of a checked schema with `spelled_out` applied to all patterns, and then `change`."""
    return _with_patterns(schema, lambda pattern: change(spelled_out(pattern, ECMA, write)))[0]


def in_python(pattern: str) -> str:
    """Translate a regular expression of ECMA-262 to Python's `re`. Syntax that neither has is not changed."""
    # `jsonschema` would ignore an empty pattern
    return _UNLIKE_IN_PYTHON.sub(_translate, spelled_out(pattern, ECMA)) or "(?:)"


def _with_patterns(schema: Schema, change: Callable[[str], str]) -> tuple[Schema, dict[str, str]]:
    before: dict[str, str] = {}

    def change_in(node: dict[str, Any]) -> dict[str, Any]:
        if isinstance(pattern := node.get("pattern"), str):
            node["pattern"] = change(pattern)
            before[node["pattern"]] = pattern
        if isinstance(patterns := node.get("patternProperties"), Mapping):
            new: dict[str, Any] = {}
            for pattern, child in patterns.items():
                written = change(pattern)
                while written in new:  # keep both of two patterns with equal translations
                    written = f"(?:){written}"
                new[written] = child
                before[written] = pattern
            node["patternProperties"] = new
        return node

    return changed(schema, change_in), before


_UNLIKE_IN_PYTHON = re.compile(
    r"""\\[pP]\{(\w+)\} | \\. | \$ | \[(?:\\[pP]\{\w+\}|\\.|[^\\\]])*\]""", re.VERBOSE | re.DOTALL
)


def _translate(found: re.Match[str]) -> str:
    text = found[0]
    if text in (r"\b", r"\B"):
        return f"(?a:{text})"
    if text.startswith("["):
        return _IN_CLASSES.sub(lambda part: _translate_in_class(part[0]), text)
    if text == "$":
        return r"\Z"
    return text if _translate_in_class(text) == text else f"[{_translate_in_class(text)}]"


_IN_CLASSES = re.compile(r"\\[pP]\{\w+\}|\\.", re.DOTALL)


def _translate_in_class(escape: str) -> str:
    return _characters_of(escape[3:-1]) if escape.startswith(r"\p{") else escape


@cache
def _characters_of(category: str) -> str:
    """Return the characters of a Unicode category, in Python's version of Unicode, as ranges for a class."""
    found = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c).startswith(category))
    runs, start = [], 0
    codes = [ord(c) for c in found]
    for i in range(1, len(codes) + 1):
        if i == len(codes) or codes[i] != codes[i - 1] + 1:
            runs.append(f"\\U{codes[start]:08x}-\\U{codes[i - 1]:08x}")
            start = i
    return "".join(runs)
