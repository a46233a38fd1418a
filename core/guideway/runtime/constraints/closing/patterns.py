"""The least that a regular expression asks for: how much, and examples of it.

Read by the parser of Python's ``re``, whose syntax is close to that of JSON Schema's patterns. What it cannot read has
examples; whether an example is one is the matcher's affair, which each of them is tried on.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from re import _parser as parser  # type: ignore[attr-defined]  # what `sre_parse` was
from typing import Any

__all__ = ["Pattern"]

MOST = 1 << 20
"""Characters of anything."""
LONGEST = 256
"""Characters of an example."""
MOST_EXAMPLES = 8
NESTED = re.compile(r"(?<!\\)\[\^?\]?[^\]\\\[]*(?:\\.[^\]\\\[]*)*\[", re.DOTALL)
"""A class of characters in a class: Python reads it otherwise, and does not always warn."""
PREFERRED = "a0A-_ .:/@"
"""The characters that stand for a class of characters, the first of these that is in it."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A part of a regular expression, or all of it."""

    least: int
    """Characters of its shortest text."""
    farthest: int
    """Characters to the end of it, at most, from anywhere within."""
    examples: tuple[str, ...] = ()
    """Short texts of it, of every alternative one, the shortest first."""

    @classmethod
    def of(cls, pattern: str) -> Pattern | None:
        """The pattern of a regular expression; None if Python's parser cannot read it, or others may read it
        otherwise, as ``[[:space:]]``."""
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
    return EMPTY  # an anchor or assertion, or what was matched before


def _character(character: str) -> Pattern:
    return Pattern(1, 1, (character,))


def _repeated(least: int, most: int, part: Pattern) -> Pattern:
    examples = [text * least for text in part.examples if len(text) * least <= LONGEST]
    if least == 0 and most > 0:
        examples = ["", *part.examples]  # once: it is what an output may stand in the midst of
    farthest = part.farthest + max(0, least - 1) * part.least if most else 0
    return Pattern(min(MOST, least * part.least), min(MOST, farthest), _short(examples))


def _joined(parts: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """The first of each part, and each other one among the first of the others."""
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
    """A character of a class."""
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
