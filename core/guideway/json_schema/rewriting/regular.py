"""Expressions of ``pattern`` and ``patternProperties`` as automata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import combinations

from guideway.json_schema.expressions import pieces
from guideway.json_schema.rewriting.automata import Automaton, Unknown, literal, searched
from guideway.json_schema.walking import Schema

__all__ = [
    "complement",
    "finds_all",
    "intersection",
    "only_texts",
    "partition",
    "split",
    "texts_of",
    "union",
    "without_lookaround",
    "without_texts",
]

LOOKING = ("(?=", "(?!", "(?<=", "(?<!")


def complement(pattern: str, steps: int) -> Schema | None:
    """Return a schema, for strings, of the texts in which an expression is not found; None if that is unknown."""
    return _written(lambda: searched(pattern, steps).complement())


def intersection(parts: Sequence[tuple[bool, str]], steps: int) -> Schema | None:
    """Return a schema, for strings, of the texts in which the expressions with True are found and those with False are
    not; None if it would be too large."""

    found = (searched(part, steps) if is_found else searched(part, steps).complement() for is_found, part in parts)
    return _written(lambda: reduce(Automaton.meet, found))


def without_texts(texts: Sequence[str], steps: int) -> Schema | None:
    """Return a schema, for strings, of all texts but some; None if it would be too large."""
    if sum(map(len, texts)) > steps:
        return None
    return _written(lambda: literal(tuple(dict.fromkeys(texts)), steps).complement())


def only_texts(texts: Sequence[str], steps: int) -> str | None:
    """Return an expression of some texts; None if it would be too large."""
    if sum(map(len, texts)) > steps:
        return None
    try:
        return literal(tuple(texts), steps).pattern()
    except Unknown:
        return None


def union(patterns: Sequence[str]) -> str:
    """Return an expression that is found where one of several is."""
    return "|".join(f"(?:{each})" for each in patterns) if len(patterns) > 1 else patterns[0]


def finds_all(pattern: str, steps: int) -> bool:
    """Return whether it is known that an expression is found in every text."""
    found = texts_of(pattern, steps)
    return found is not None and found.is_universal()


def texts_of(pattern: str, steps: int) -> Automaton | None:
    """Return the automaton of the texts in which an expression is found; None if it is unknown."""
    try:
        return searched(pattern, steps)
    except Unknown:
        return None


def partition(patterns: Sequence[str], steps: int, *, most: int) -> list[tuple[str, list[str]]] | None:
    """Return expressions that exclude each other, each with the `patterns` that are found where it is; None if that is
    unknown, or if more than `most` patterns overlap. Patterns that exclude each other already are returned as they
    are."""
    try:
        found = [searched(pattern, steps) for pattern in patterns]
        if all(first.meet(second).is_empty() for first, second in combinations(found, 2)):
            return [(pattern, [pattern]) for pattern in patterns]
        if len(patterns) > most:
            return None
        parts: list[tuple[Automaton | None, list[str]]] = [(None, [])]
        for pattern, automaton in zip(patterns, found, strict=True):
            split_parts: list[tuple[Automaton | None, list[str]]] = []
            for part, names in parts:
                for side, more in ((automaton, [pattern]), (automaton.complement(), [])):
                    both = side if part is None else part.meet(side)
                    if not both.is_empty():
                        split_parts.append((both, names + more))
            parts = split_parts
        return [(part.pattern(), names) for part, names in parts if names and part is not None]
    except Unknown:
        return None


def split(pattern: str) -> list[tuple[bool, str]] | None:
    """Return an expression as a conjunction of expressions without lookaround: ``^(?=A)(?!B)C`` is ``^(?:A)`` and not
    ``^(?:B)`` and ``^C``. Each is a pair, False first if it must not be found. None if the expression has another
    lookaround."""
    cut = list(pieces(pattern))
    if not any(piece in LOOKING for piece in cut):
        return [(True, pattern)]
    if cut[0] != "^" or _alternates(cut):
        return None
    cut = _unwrapped(cut[1:])
    found: list[tuple[bool, str]] = []
    while cut and cut[0] in LOOKING[:2]:
        end = _end_of_group(cut)
        if end is None:
            return None
        found.append((cut[0] == "(?=", f"^(?:{''.join(cut[1:end])})"))
        inside, cut = cut[1:end], cut[end + 1 :]
        if any(piece in LOOKING for piece in inside) or (cut and cut[0][0] in "*+?{"):
            return None
    if not found or any(piece in LOOKING for piece in cut):
        return None
    if cut and cut != ["$"]:
        found.append((True, f"^{''.join(cut)}"))
    elif cut:
        found.append((True, "^$"))
    return found


def without_lookaround(pattern: str) -> str:
    """Return an expression without its lookaround, which is found in more texts."""
    cut = list(pieces(pattern))
    kept: list[str] = []
    while cut:
        end = _end_of_group(cut) if cut[0] in LOOKING else None
        if end is None:
            kept.append(cut.pop(0))
            continue
        del cut[: end + 1]
        while cut and cut[0][0] in "*+?{":
            del cut[0]
    return "".join(kept)


def _written(build: Callable[[], Automaton]) -> Schema | None:
    try:
        automaton = build()
        if automaton.is_empty() or automaton.is_universal():
            return automaton.is_universal()
        return {"pattern": automaton.pattern()}
    except Unknown:
        return None


def _unwrapped(cut: list[str]) -> list[str]:
    """Remove a group around everything but a final ``$``, if it has no alternatives."""
    if cut and cut[0] in ("(", "(?:") and (end := _end_of_group(cut)) is not None:
        inside, after = cut[1:end], cut[end + 1 :]
        if after in ([], ["$"]) and inside and inside[0] in LOOKING and not _alternates(inside):
            return inside + after
    return cut


def _end_of_group(cut: Sequence[str]) -> int | None:
    """Return the index of the end of the group that begins with the first piece."""
    depth = 0
    for i, piece in enumerate(cut):
        depth += piece[0] == "("
        depth -= piece == ")"
        if depth == 0:
            return i
    return None


def _alternates(cut: Sequence[str]) -> bool:
    """Return whether there are alternatives outside of groups."""
    depth = 0
    for piece in cut:
        depth += piece[0] == "("
        depth -= piece == ")"
        if piece == "|" and depth == 0:
            return True
    return False
