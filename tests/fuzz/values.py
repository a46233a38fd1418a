"""The names and values in random schemas and instances: few, so that they coincide."""

from __future__ import annotations

from typing import Any

__all__ = ["NAMES", "NUMBERS", "STRINGS", "VALUES"]

NAMES = ("a", "b", "c", "ab", "k", "", "é", "a b", " a", 'q"', "a/b", "\n", "\\", "a.b", "a|")
"""Names; the first five are simple."""
STRINGS: tuple[str, ...] = (
    *("", "a", "b", "ab", "ba", "abc", "aaaa", "é", "😀", '"', "\\", "a\n", "1", "null", "/", "A", "bcd", "12"),
    *(" ", "  a", "a  "),
)
NUMBERS: tuple[Any, ...] = (
    *(0, 1, 2, 3, 4, 5, 7, 10, 12, 99, 100, -1, -2, -10, 0.5, 1.5, -0.5, 2.5, 2.0, 0.1, 1000, 2**53 + 1),
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, *STRINGS, *NUMBERS, [], {}, [1], ["a"], [1, 1], [1, "a", None], [[]], {"a": 1}, {"b": "x"}),
    *({"a.b": 1}, {'q"': {"a|": 2}}, [{"a": 1, "b": 2}, {"b": 2, "a": 1}], [{"k": 1}, {"k": 1}], [[1], [1.0]]),
    *({"a": 1, "b": 2}, {"b": 1, "a": 2}, {"a": {"b": [1]}}, {"c": None}, {"k": [], "c": {}}, 1e20, 10**25),
)
