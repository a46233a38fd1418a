"""Shortest lengths and examples of the texts of a regular expression.

The parser of Python's ``re`` reads it, because its syntax is close to the patterns of JSON Schema. Assertions and
references to groups count as empty, so examples may be wrong: a search tries each of them on the matcher.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from re import _parser as parser  # type: ignore[attr-defined]  # `sre_parse` in older versions of Python
from typing import Any

__all__ = ["Pattern"]

MOST = 1 << 20
"""Upper bound of any length, in characters."""
LONGEST = 256
"""Most characters of an example. Longer examples are dropped."""
MOST_EXAMPLES = 8
NESTED = re.compile(r"(?<!\\)\[\^?\]?[^\]\\\[]*(?:\\.[^\]\\\[]*)*\[", re.DOTALL)
"""Matches a character class inside another one. Python reads it differently and does not always warn."""
PREFERRED = "a0A-_ .:/@"
"""Characters to use as the example of a character class. The first one in the class is used."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Lengths and examples of the texts of a regular expression or of a part of one."""

    least: int
    """Characters of the shortest text."""
    farthest: int
    """Most characters to the end of a text from any position in it, if the shortest rest is chosen."""
    examples: tuple[str, ...] = ()
    """Short texts, at most 8, one of each alternative first, the shortest first."""

    @classmethod
    def of(cls, pattern: str) -> Pattern | None:
        """Return the pattern of a regular expression; None if Python's parser cannot read it.

        Return None also for syntax that other parsers may read differently, such as ``[[:space:]]``.
        """
        if NESTED.search(pattern):
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                return _sequence(parser.parse(pattern))
        except (re.error, OverflowError, RecursionError, Warning):
            return None


EMPTY = Pattern(0, 0, ("",))


def _sequence(nodes: Iterable[Any]) -> Pattern:
    parts = [_part(str(kind), value) for kind, value in nodes]
    least = farthest = 0
    for part in reversed(parts):
        farthest = max(farthest, part.farthest + least)
        least = min(MOST, least + part.least)
    return Pattern(least, min(MOST, farthest), _short(_joined([part.examples for part in parts])))


def _part(kind: str, value: Any) -> Pattern:
    match kind:
        case "LITERAL":
            return _character(chr(value))
        case "NOT_LITERAL":
            return _character(next(each for each in PREFERRED if ord(each) != value))
        case "ANY":
            return _character("a")
        case "IN":
            return _character(_of_class(value))
        case "BRANCH":
            branches = [_sequence(branch) for branch in value[1]]
            examples = sorted((text for branch in branches for text in branch.examples[:1]), key=len)
            more = [text for branch in branches for text in branch.examples[1:]]
            farthest = max(branch.farthest for branch in branches)
            return Pattern(min(branch.least for branch in branches), farthest, _short([*examples, *more]))
        case "SUBPATTERN":
            return _sequence(value[-1])
        case "ATOMIC_GROUP":
            return _sequence(value)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            return _repeated(int(value[0]), int(value[1]), _sequence(value[2]))
    return EMPTY  # an anchor, an assertion or a reference to a group


def _character(character: str) -> Pattern:
    return Pattern(1, 1, (character,))


def _repeated(least: int, most: int, part: Pattern) -> Pattern:
    examples = [text * least for text in part.examples if len(text) * least <= LONGEST]
    if least == 0 and most > 0:
        examples = ["", *part.examples]  # one repetition, because the output may be in the middle of one
    farthest = part.farthest + max(0, least - 1) * part.least if most else 0
    return Pattern(min(MOST, least * part.least), min(MOST, farthest), _short(examples))


def _joined(parts: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """Yield the first examples of all parts, joined. Then yield each other example, joined with the first ones."""
    first = [texts[0] if texts else None for texts in parts]
    if None in first:
        return
    known = [text for text in first if text is not None]
    yield "".join(known)
    for i, texts in enumerate(parts):
        for text in texts[1:]:
            yield "".join([*known[:i], text, *known[i + 1 :]])


def _short(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(text for text in islice(texts, 4 * MOST_EXAMPLES) if len(text) <= LONGEST))[
        :MOST_EXAMPLES
    ]


def _of_class(members: Sequence[Any]) -> str:
    """Return one character of a character class, if possible one of `PREFERRED`."""
    negated = bool(members) and str(members[0][0]) == "NEGATE"
    allowed = {each for each in PREFERRED if any(_is_in(each, str(kind), value) for kind, value in members) != negated}
    if found := next((each for each in PREFERRED if each in allowed), None):
        return found
    for kind, value in members:
        if str(kind) == "LITERAL":
            return chr(value)
        if str(kind) == "RANGE":
            return chr(value[0])
    return "a"


def _is_in(character: str, kind: str, value: Any) -> bool:
    match kind:
        case "LITERAL":
            return ord(character) == int(value)
        case "RANGE":
            return bool(value[0] <= ord(character) <= value[1])
        case "CATEGORY":
            return _is_of(character, str(value))
    return False


def _is_of(character: str, category: str) -> bool:
    plain = {
        "DIGIT": character.isdigit(),
        "SPACE": character.isspace(),
        "WORD": character.isalnum() or character == "_",
    }
    name = category.removeprefix("CATEGORY_")
    return not plain.get(name[4:], True) if name.startswith("NOT_") else plain.get(name, False)
