"""Expressions that engines read differently, with their meanings: a `Regex` in Python, a ``pattern`` in ECMA-262."""

from __future__ import annotations

import json
import re
import warnings

from guideway.api import Constraint, GrammarStrategy, InvalidGrammar, JsonSchema, Regex, UnsupportedGrammar
from guideway.json_schema.dialects import TEXTS
from guideway.json_schema.prober import STOP

from tests.support.json_strategies import takes

__all__ = ["misread_patterns", "misread_regexes"]

REGEXES = (
    *(
        ".",
        "a.b",
        "[^a]",
        r"a\sb",
        r"\S+",
        r"\d",
        r"\D",
        r"\w+",
        r"\W",
        r"[^\w]",
        r"[\W_]",
        r"[^\d\s]",
        r"[\s\S]",
        "(?s:.)",
    ),
    *("^a", "a$", "^a$", "a$b", "a^b", r"a$\n", "(^a|b)b", "(a|^)b", r"\Aa\Z", r"a\Z\n", "^*a", "(?m:a$)\nb", "^^a$$"),
    *(
        "foo**",
        "a*+a",
        "a++b",
        "a?+a",
        "a{1,2}+a",
        "a*?*",
        "a+?b",
        "a??b",
        "a{1,2}?",
        "a{2}{3}",
        "a{,2}",
        "a{",
        "a{}",
        "{a}",
    ),
    *(
        "[]a]",
        "[^]a]",
        "[a&&b]",
        "[[a]b]",
        "[[:alpha:]]",
        "[a-]",
        "[--a]",
        "[$^.]",
        r"[\b]",
        r"[a\-b]",
        r"[a\]]",
        "[z-a]",
        r"[\w-z]",
        r"[a-\d]",
    ),
    *(
        r"\x41",
        r"\u00e9",
        r"\U0001f600",
        r"\07",
        r"\0",
        r"\101",
        r"\a",
        r"\e",
        r"\x4",
        r"\cA",
        r"\Q.\E",
        r"\/",
        r"\#",
        r"\h",
    ),
    *(
        r"\bab\b",
        r"a\Bb",
        r"a\b b",
        r"\B",
        r"(a)\1",
        r"(?P<x>a)(?P=x)",
        r"(a)?(?(1)b|a)",
        "(?=a)a",
        "(?!a).b",
        "(?<=a)b",
    ),
    *(
        "(?i)k",
        "(?i:A)b",
        "(?-i:a)",
        "(?x:a b)",
        "(?a:a)",
        "(?>a|ab)b",
        "(?#x)a",
        "(?P<x>a)b",
        "a#b",
        "(?:)",
        "a|",
        "x{0}a",
    ),
)
"""Expressions that engines read differently; Python defines their meanings, and whether they are valid."""

LINE_ENDS, SPACES = "\n\r\u2028\u2029", "\t\n\x0b\x0c\r \xa0\u1680\u2003\u2028\u2029\u3000\ufeff"
DIGITS, LETTERS = "0123456789", "0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
ONE = [text for text in TEXTS if len(text) == 1]


def _but(left_out: str) -> set[str]:
    return {text for text in ONE if text not in left_out}


PATTERNS: dict[str, set[str]] = {
    "^.$": _but(LINE_ENDS),
    "^[^.]$": _but("."),
    r"^\s$": set(ONE) & set(SPACES),
    r"^\S$": _but(SPACES),
    r"^[^\s]$": _but(SPACES),
    r"^[\S ]$": _but(SPACES.replace(" ", "")),
    r"^\d$": set(ONE) & set(DIGITS),
    r"^\D$": _but(DIGITS),
    r"^\w$": set(ONE) & set(LETTERS),
    r"^\W$": _but(LETTERS),
    r"^[^\w-]$": _but(f"{LETTERS}-"),
    r"^[\w-.]$": set(ONE) & set(f"{LETTERS}-."),
    r"^[a-\d]$": set(ONE) & set(f"{DIGITS}-a"),
    r"^[\s\S]$": set(ONE),
    "^[^]$": set(ONE),
    "^[]$": set(),
    "^[]a]$": set(),
    "^[[&&]$": set(ONE) & set("[&"),
    "b$": {text for text in TEXTS if text.endswith("b")},
    "^a$": {"a"},
    "^ab?$": {"a", "ab"},
    "^a": {text for text in TEXTS if text.startswith("a")},
    "a": {text for text in TEXTS if "a" in text},
    "": set(TEXTS),
    "a.b": {text for text in TEXTS if re.search("a[^\n\r\u2028\u2029]b", text)},
    r"a\b": {text for text in TEXTS if re.search(r"(?a:a\b)", text)},
    r"^\x41$|^\u00e9$": {"A", "\xe9"},
    r"^(?:\u{e9}|\x41)$": {"A", "\xe9"},
    r"^\cA$": {"\x01"},
    r"^\/$": set(),
    "^a{$": {"a{"},
    "^a{,2}$": {"a{,2}"},
    "^{a}$": {"{a}"},
    r"^\p{Ll}$": {"a", "b", "k", "z", "\xe9", "\u017f"},
    "^(?:a(?=b)b|(?<!a)bb)$": {"ab", "bb"},
    r"^(a|b)\1$": {"aa", "bb"},
    # syntax that ECMA-262 does not have
    **{
        expression: set()
        for expression in (
            *(r"^\Aa$", r"^a\Z$", r"^a\z$", "^foo**$", "^a*+a$", "^a++b$", "^a{2}{3}$", "^(?i)k$", "^(?>a|ab)b$"),
            *(r"^\Q.\E$", r"^\07$", "^(?#x)a$", "^(?P<x>a)(?P=x)$", "^(?x:a b)$", "^*a$", r"^\e$", r"^\a$"),
        )
    },
}
"""Expressions, with the members of `TEXTS` that match by ECMA-262."""


def misread_regexes(strategy: GrammarStrategy) -> tuple[int, dict[str, list[str]]]:
    """Return the number of `REGEXES` that a strategy serves without naming anything, and the wrong texts it accepts."""
    plain = {text: text for text in TEXTS}
    found = {each: _find_wrongly_taken(strategy, Regex(each), plain, _find_meant(each)) for each in REGEXES}
    return _sum_up(found)


def misread_patterns(strategy: GrammarStrategy) -> tuple[int, dict[str, list[str]]]:
    """Return the same for `PATTERNS`, as ``pattern`` and as names of properties."""
    strings = {text: json.dumps(text, ensure_ascii=False) for text in TEXTS}
    names = {text: f"{{{words}:null}}" for text, words in strings.items()}
    found: dict[str, list[str] | None] = {}
    for each, wanted in PATTERNS.items():
        found[each] = _find_wrongly_taken(strategy, JsonSchema({"type": "string", "pattern": each}), strings, wanted)
        schema = {"type": "object", "patternProperties": {each: {}}, "additionalProperties": False}
        found[f"names: {each}"] = _find_wrongly_taken(strategy, JsonSchema(schema), names, wanted)
    return _sum_up(found)


def _sum_up(found: dict[str, list[str] | None]) -> tuple[int, dict[str, list[str]]]:
    served = {each: wrong for each, wrong in found.items() if wrong is not None}
    return len(served), {each: wrong for each, wrong in served.items() if wrong}


def _find_wrongly_taken(
    strategy: GrammarStrategy, constraint: Constraint, written: dict[str, str], wanted: set[str]
) -> list[str] | None:
    """Return the texts that a strategy accepts as written but that are not wanted; None if it refuses the constraint,
    or names something."""
    support = strategy.supports(constraint)
    if support.refused or support.unenforced:
        return None
    try:
        compiled = strategy.compile(constraint)
    except (InvalidGrammar, UnsupportedGrammar):
        return None
    return [
        text
        for text, words in written.items()
        if text not in wanted and takes(compiled, words.encode(), frozenset({STOP}))
    ]


def _find_meant(expression: str) -> set[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about classes that a later Python may read differently
        try:
            matches = re.compile(expression).fullmatch
        except re.error:
            return set()
    return {text for text in TEXTS if matches(text)}
