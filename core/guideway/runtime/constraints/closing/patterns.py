"""Shortest lengths and examples of the texts of a regular expression.

The parser of Python's ``re`` reads it, because its syntax is close to the patterns of JSON Schema. Assertions and
references to groups count as empty, so examples may be wrong: a search tries each of them on the matcher.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from re import _compiler as compiler  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

__all__ = ["Pattern"]

LONGEST = 4096
"""Most characters of an example. Longer examples are dropped."""
MOST_EXAMPLES = 8
"""Most examples of each part, because a search tries each of them at each string."""
NESTED = re.compile(r"(?<!\\)\[\^?\]?[^\]\\\[]*(?:\\.[^\]\\\[]*)*\[", re.DOTALL)
"""Matches a character class inside another one. Python reads it differently and does not always warn."""
PREFERRED = "a0A-_ .:/@"
"""Characters to use as the example of a character class. The first one in the class is used."""


class Pattern(NamedTuple):
    """Facts about the texts of a regular expression."""

    least: int
    """Characters of the shortest text."""
    examples: tuple[str, ...]
    """Short texts, at most `MOST_EXAMPLES`, one of each alternative first."""

    @property
    def farthest(self) -> int:
        """Estimate of the most bytes, so of the most tokens, to the end of a text from any position in it, on the
        shortest way."""
        return max(self.least, *(len(text.encode(errors="replace")) for text in self.examples), 0)

    @classmethod
    def of(cls, pattern: str) -> Pattern | None:
        """Return the facts about a regular expression; None if Python's parser cannot read it.

        Return None also for syntax that other parsers may read differently, such as ``[[:space:]]``.
        """
        if NESTED.search(pattern):
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                read = parser.parse(pattern)
            return cls(read.getwidth()[0], _of_sequence(read))
        except (re.error, OverflowError, RecursionError, Warning):
            return None


def _of_sequence(nodes: Any) -> tuple[str, ...]:
    return _short(_joined([_of_part(node, nodes.state) for node in nodes]))


def _of_part(node: Any, state: Any) -> tuple[str, ...]:
    kind, value = str(node[0]), node[1]
    if kind == "BRANCH":
        branches = [_of_sequence(branch) for branch in value[1]]
        first = sorted((text for texts in branches for text in texts[:1]), key=len)
        return _short([*first, *(text for texts in branches for text in texts[1:])])
    if kind == "SUBPATTERN":
        return _of_sequence(value[-1])
    if kind == "ATOMIC_GROUP":
        return _of_sequence(value)
    if kind.endswith("_REPEAT"):
        least, most, texts = int(value[0]), int(value[1]), _of_sequence(value[2])
        if least == 0 and most > 0:
            return _short(["", *texts])  # one repetition, because the output may be in the middle of one
        return _short(text * least for text in texts if len(text) * least <= LONGEST)
    if kind == "LITERAL":
        return (chr(value),)
    return ("",) if kind.startswith(("AT", "ASSERT", "GROUPREF")) else (_of_class(node, state),)


def _of_class(node: Any, state: Any) -> str:
    """Return one character of a character class, if possible one of `PREFERRED`."""
    is_in = compiler.compile(parser.SubPattern(state, [node])).fullmatch
    members = node[1] if isinstance(node[1], list) else ()
    bounds = [chr(end[0] if isinstance(end, tuple) else end) for _, end in members if end is not None]
    return next(filter(is_in, [*PREFERRED, *bounds]), "a")


def _joined(parts: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the first examples of all parts, joined. Then yield each other example, joined with the first ones."""
    if not all(parts):
        return
    first = [texts[0] for texts in parts]
    yield "".join(first)
    for i, texts in enumerate(parts):
        for text in texts[1:]:
            yield "".join([*first[:i], text, *first[i + 1 :]])


def _short(texts: Iterable[str]) -> tuple[str, ...]:
    found = dict.fromkeys(text for text in islice(texts, 4 * MOST_EXAMPLES) if len(text) <= LONGEST)
    return tuple(found)[:MOST_EXAMPLES]
