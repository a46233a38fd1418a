"""Regular expressions and choices."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

from guideway.api import InvalidGrammar, UnsupportedGrammar, excerpt
from guideway.json_schema import pattern_details
from guideway.json_schema.expressions import ECMA, pieces, python, spelled_out
from lmformatenforcer.characterlevelparser import CharacterLevelParserConfig, StringParser, UnionParser  # type: ignore[import-untyped]
from lmformatenforcer.regexparser import RegexParser  # type: ignore[import-untyped]

from guideway_lmfe.places import Language, other_than

MAX_CALLS = 500_000
"""Maximum function calls while one pattern compiles, about a second."""
MAX_REPETITIONS = 1_000
MAX_LENGTH = 100_000
LACKING = frozenset({"anchor", "backreference", "boundary", "lookaround", "property"})
ASCII = "".join(map(chr, range(128)))
_COUNT = re.compile(r"\{(\d*)(?:,(\d*))?\}")
_HIDDEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""Escapes and classes."""

Result = TypeVar("Result")


class _TooMuch(Exception):
    pass


def regex_parser(pattern: str) -> RegexParser:
    """Return lm-format-enforcer's parser of `pattern`. Raises `InvalidGrammar` and `UnsupportedGrammar`."""
    for detail in sorted(pattern_details(pattern) & LACKING):
        raise UnsupportedGrammar(f"lm-format-enforcer has no {detail} in patterns", feature=f"regex:{detail}")
    counts = [int(count[:9]) for found in _COUNT.finditer(pattern) for count in found.groups() if count]
    if len(pattern) > MAX_LENGTH or max(counts, default=0) > MAX_REPETITIONS:
        raise UnsupportedGrammar(
            f"a pattern may have {MAX_LENGTH} characters and repeat {MAX_REPETITIONS} times", feature="regex:size"
        )
    try:
        bounded(lambda: re.compile(pattern), MAX_CALLS)
        return bounded(lambda: RegexParser(pattern, CharacterLevelParserConfig(alphabet=ASCII)), MAX_CALLS)
    except (_TooMuch, RecursionError, OverflowError, MemoryError) as error:
        raise UnsupportedGrammar("this pattern is too complex", feature="regex:size") from error
    except re.error as error:
        place = "" if error.pos is None else excerpt(pattern, error.pos)
        raise InvalidGrammar(f"the pattern is no regular expression: {error.msg}{place}") from error
    except Exception as error:  # interegular has several of its own
        message = f"lm-format-enforcer does not compile this pattern: {type(error).__name__}: {str(error)[:200]}"
        raise UnsupportedGrammar(message, feature="regex") from error


def regex_language(pattern: str) -> Language:
    """Return the language of texts that match `pattern` as a whole."""
    pattern = _spell_out(pattern)
    if not _has_alternatives(pattern):
        pattern = pattern.removeprefix("^")
        pattern = pattern if pattern.endswith("\\$") else pattern.removesuffix("$")
    parser = regex_parser(pattern)
    automaton = parser.context.pattern
    named = {c for c in automaton.alphabet if isinstance(c, str) and ord(c) > 127}
    parser.config = CharacterLevelParserConfig(alphabet=ASCII + "".join(sorted(named)) + other_than(named))
    states = _States(parser)
    if automaton.initial not in states.live:
        raise InvalidGrammar("no text matches the pattern")
    return Language(parser, named, states.legal, lambda at: at.current_state in automaton.finals)


def _spell_out(pattern: str) -> str:
    """Spell out the classes of `pattern` as Python reads them, except ``\\w``: ASCII only, as all others are too
    many."""
    if any("\\W" in piece or (piece.startswith("[^") and "\\w" in piece) for piece in pieces(pattern)):
        raise UnsupportedGrammar("lm-format-enforcer has no class of so many characters", feature="regex:\\W")
    return spelled_out(pattern, {**python(), "w": ECMA["w"]})


def _has_alternatives(pattern: str) -> bool:
    """Return whether there is a ``|`` outside all groups and classes; an anchor then belongs to one side of it."""
    depth = 0
    for character in _HIDDEN.sub("", pattern):
        depth += (character == "(") - (character == ")")
        if character == "|" and depth == 0:
            return True
    return False


class _States:
    """The characters of each state that lead to an end; lm-format-enforcer would allow others too."""

    def __init__(self, parser: RegexParser) -> None:
        self._automaton = parser.context.pattern
        self._alphabet = parser.config.alphabet
        self._legal: dict[int, frozenset[str]] = {}
        before: dict[int, set[int]] = {}
        for state, transitions in self._automaton.map.items():
            for after in transitions.values():
                before.setdefault(after, set()).add(state)
        self.live = set(self._automaton.finals)
        pending = list(self.live)
        while pending:
            found = before.get(pending.pop(), set()) - self.live
            self.live |= found
            pending += found

    def legal(self, parser: RegexParser) -> frozenset[str]:
        state = parser.current_state
        found = self._legal.get(state)
        if found is None:
            transitions = self._automaton.map.get(state, {})
            symbols = self._automaton.alphabet
            keys = {c: symbols[c] for c in self._alphabet}
            keys |= {c: symbols[c] for c in symbols if isinstance(c, str)}
            found = frozenset(c for c, key in keys.items() if transitions.get(key) in self.live)
            self._legal[state] = found
        return found


def choice_language(choices: Sequence[str]) -> Language:
    """Return the language of exactly `choices`."""
    named = {character for choice in choices for character in choice if ord(character) > 127}

    def legal(parser: Any) -> frozenset[str]:
        return frozenset(parser.get_allowed_characters())

    return Language(UnionParser([StringParser(c) for c in choices]), named, legal, lambda at: bool(at.can_end()))


def bounded(work: Callable[[], Result], max_calls: int) -> Result:
    """Return the result of `work`; raise `_TooMuch` after `max_calls` function calls. `work` is pure Python without a
    bound of its own; unlike time, its calls are the same on every machine."""
    num_calls = 0

    def count(_frame: FrameType, _event: str, _arg: object) -> None:
        nonlocal num_calls
        num_calls += 1
        if num_calls > max_calls:
            raise _TooMuch

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        return work()
    finally:
        sys.setprofile(before)
