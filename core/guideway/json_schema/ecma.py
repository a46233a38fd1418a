"""The regular expressions of JSON Schema, which are those of ECMA-262, for Python: there ``$`` also matches before a
line feed at the end, and ``\\d`` and ``\\w`` know digits and letters of all scripts.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from copy import deepcopy
from functools import cache

from guideway.json_schema.walking import Schema, subschemas

__all__ = ["in_python", "with_python_patterns"]


def with_python_patterns(schema: Schema) -> tuple[Schema, dict[str, str]]:
    """Return a copy of a checked schema with `in_python` of all its patterns, and by each that was changed what it was
    before: for a validator that asks `re`."""
    copy, before = deepcopy(schema), {}
    for _, node in list(subschemas(copy)):
        if not isinstance(node, dict):
            continue
        if isinstance(pattern := node.get("pattern"), str):
            node["pattern"] = in_python(pattern)
            before[node["pattern"]] = pattern
        if isinstance(patterns := node.get("patternProperties"), dict):
            node["patternProperties"] = {in_python(pattern): child for pattern, child in patterns.items()}
            before |= {in_python(pattern): pattern for pattern in patterns}
    return copy, before


def in_python(pattern: str) -> str:
    """Return a regular expression of ECMA-262 as one of Python's `re`. Where the two differ in ``.`` and ``\\s``, about
    line ends and spaces beyond ASCII, it is Python's that counts. What neither has is left as it is."""
    # an empty one `jsonschema` would not look at
    return _UNLIKE_IN_PYTHON.sub(_meant, pattern) or "(?:)"


_UNLIKE_IN_PYTHON = re.compile(
    r"""\\[pP]\{(\w+)\} | \\. | \$ | \[(?:\\[pP]\{\w+\}|\\.|[^\\\]])*\]""", re.VERBOSE | re.DOTALL
)


def _meant(found: re.Match[str]) -> str:
    text = found[0]
    if text.startswith("["):
        return _IN_CLASSES.sub(lambda part: _meant_in_class(part[0]), text)
    if text == "$":
        return r"\Z"
    return text if _meant_in_class(text) == text else f"[{_meant_in_class(text)}]"


_IN_CLASSES = re.compile(r"\\[pP]\{\w+\}|\\.", re.DOTALL)


def _meant_in_class(escape: str) -> str:
    match escape:
        case r"\d":
            return "0-9"
        case r"\w":
            return "A-Za-z0-9_"
    return _characters_of(escape[3:-1]) if escape.startswith(r"\p{") else escape


@cache
def _characters_of(category: str) -> str:
    """The characters of a Unicode category, as Python knows it, for a class."""
    found = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(c).startswith(category))
    runs, start = [], 0
    codes = [ord(c) for c in found]
    for i in range(1, len(codes) + 1):
        if i == len(codes) or codes[i] != codes[i - 1] + 1:
            runs.append(f"\\U{codes[start]:08x}-\\U{codes[i - 1]:08x}")
            start = i
    return "".join(runs)
