"""Regular expressions over characters as expressions over their UTF-8 bytes.

The subset: literals, ``.`` (anything but a newline), classes, the escapes below, groups ``(...)`` and ``(?:...)``,
``|``, ``* + ? {m} {m,} {m,n}``, and ``^`` at the very beginning or ``$`` at the very end. ``. \\d \\w \\s`` are those
of Python, and of ECMA-262 where the expression is searched for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NoReturn, TypeAlias

from guideway.errors import InvalidGrammar, UnsupportedGrammar
from guideway.json_schema.expressions import ECMA, Characters, python

from guideway_conformance.reference.expressions import Expression, Language

__all__ = ["Ranges", "characters", "parse_regex", "without"]

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points, as inclusive ranges."""

SCALARS: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
"""Every code point that UTF-8 can encode."""
_CONTROLS = {"n": 10, "t": 9, "r": 13, "f": 12, "v": 11, "0": 0}
_MAX_DEPTH = 50


def characters(language: Language, ranges: Ranges) -> Expression:
    """One character out of `ranges`, in UTF-8."""
    return language.either(*(_utf8(language, low, high) for low, high in intersect(ranges, SCALARS)))


def _utf8(language: Language, low: int, high: int) -> Expression:
    """Characters `low` to `high`. Split until both ends have as many bytes and differ in no byte before the last, or
    only in ranges that are full from there on."""
    for last in (0x7F, 0x7FF, 0xFFFF):
        if low <= last < high:
            return language.either(_utf8(language, low, last), _utf8(language, last + 1, high))
    first, second = chr(low).encode(), chr(high).encode()
    for i in range(1, len(first)):
        block = (1 << (6 * i)) - 1  # the last i bytes run through everything
        if low & ~block != high & ~block:
            if low & block:
                return language.either(_utf8(language, low, low | block), _utf8(language, (low | block) + 1, high))
            if high & block != block:
                return language.either(_utf8(language, low, (high & ~block) - 1), _utf8(language, high & ~block, high))
    return language.sequence(*(language.one_of(range(a, b + 1)) for a, b in zip(first, second, strict=True)))


def intersect(first: Ranges, second: Ranges) -> Ranges:
    """Code points in both."""
    pairs = ((max(a, c), min(b, d)) for a, b in first for c, d in second)
    return tuple((low, high) for low, high in pairs if low <= high)


def without(removed: Ranges) -> Ranges:
    """Every code point but `removed`."""
    kept, start = [], 0
    for low, high in sorted(removed):
        if low > start:
            kept.append((start, low - 1))
        start = max(start, high + 1)
    return (*kept, (start, 0x10FFFF)) if start <= 0x10FFFF else tuple(kept)


def parse_regex(
    language: Language, pattern: str, one: Callable[[Ranges], Expression] | None = None, *, search: bool = False
) -> Expression:
    """`pattern` as a whole; with `search`, text that has a match somewhere, as JSON Schema's ``pattern`` wants it.
    `one` builds one character out of ranges, if it is not plain UTF-8.

    Raises `InvalidGrammar` for what is no regular expression and `UnsupportedGrammar` for what the subset lacks.
    """
    build = one or (lambda ranges: characters(language, ranges))
    parser = _Parser(language, pattern, build, ECMA if search else python())
    body = parser.parse()
    if not search:
        return body
    anything = language.repeat(build(SCALARS))
    return language.sequence(
        language.EMPTY if parser.from_start else anything, body, language.EMPTY if parser.to_end else anything
    )


class _Parser:
    def __init__(
        self, language: Language, pattern: str, one: Callable[[Ranges], Expression], characters: Characters
    ) -> None:
        self.language, self.one, self.pattern, self.characters = language, one, pattern, characters
        self.from_start = pattern.startswith("^")
        self.to_end = pattern.endswith("$") and (len(pattern) - len(pattern[:-1].rstrip("\\"))) % 2 == 1
        self.at, self.end = int(self.from_start), len(pattern) - self.to_end
        self.depth = 0
        self.has_top_level_bar = False

    def parse(self) -> Expression:
        body = self.alternatives()
        if self.at < self.end:
            self.invalid("an unopened )")
        if self.has_top_level_bar and (self.from_start or self.to_end):
            self.unsupported("an anchor beside |")
        return body

    def peek(self) -> str:
        return self.pattern[self.at] if self.at < self.end else ""

    def take(self) -> str:
        if self.at >= self.end:
            self.invalid("an end that comes too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def alternatives(self) -> Expression:
        choices = [self.branch()]
        while self.peek() == "|":
            self.has_top_level_bar |= self.depth == 0
            self.take()
            choices.append(self.branch())
        return self.language.either(*choices)

    def branch(self) -> Expression:
        parts = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.repeated(self.atom()))
        return self.language.sequence(*parts)

    def atom(self) -> Expression:
        match char := self.take():
            case "(":
                if self.peek() == "?":
                    self.take()
                    if self.take() != ":":
                        self.unsupported("(?")
                self.depth += 1
                if self.depth > _MAX_DEPTH:
                    self.unsupported(f"more than {_MAX_DEPTH} groups inside each other")
                body = self.alternatives()
                if self.peek() != ")":
                    self.invalid("an unclosed (")
                self.take()
                self.depth -= 1
                return body
            case "[":
                return self.one(self.character_class())
            case ".":
                return self.one(without(self.characters["."]))
            case "\\":
                return self.one(self.escape())
            case "^" | "$":
                self.unsupported("an anchor inside the pattern")
            case "*" | "+" | "?" | "{":
                self.invalid(f"a {char} with nothing to repeat")
        return self.one(((ord(char), ord(char)),))

    def repeated(self, part: Expression) -> Expression:
        quantifiers = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self.peek() in quantifiers and self.peek():
            low, high = quantifiers[self.take()]
        elif self.peek() == "{":
            self.take()
            low, high = self.bounds()
        else:
            return part
        if self.peek() and self.peek() in "*+?{":
            self.unsupported("a second quantifier, lazy or possessive")
        return self.language.repeat(part, low, high)

    def bounds(self) -> tuple[int, int | None]:
        text = ""
        while (char := self.take()) != "}":
            text += char
        low, comma, high = text.partition(",")
        if not low.isdecimal() or (high and not high.isdecimal()):
            self.invalid("a { that is no repetition")
        if high and int(high) < int(low):
            self.invalid("a repetition whose upper bound is below the lower")
        return int(low), int(high) if high else None if comma else int(low)

    def escape(self) -> Ranges:
        char = self.take()
        if char.lower() in "dsw":
            found = self.characters[char.lower()]
            return found if char.islower() else without(found)
        if char in "xu":
            digits = "".join(self.take() for _ in range(2 if char == "x" else 4))
            try:
                code = int(digits, 16)
            except ValueError:
                self.invalid(f"\\{char} without hexadecimal digits")
            return ((code, code),)
        if char == "0" and self.peek().isdigit():
            self.unsupported("an octal number")
        if char in _CONTROLS:
            return ((_CONTROLS[char], _CONTROLS[char]),)
        if char.isalnum():
            self.unsupported(f"\\{char}")
        return ((ord(char), ord(char)),)

    def character_class(self) -> Ranges:
        negated = self.peek() == "^"
        if negated:
            self.take()
        ranges: list[tuple[int, int]] = []
        for low, high in self.class_members():
            if low > high:
                self.invalid("a range whose end is below its start")
            ranges.append((low, high))
        return without(tuple(ranges)) if negated else tuple(ranges)

    def class_members(self) -> Iterator[tuple[int, int]]:
        if self.peek() == "]":
            self.unsupported("an empty class or a ] at the start of one")
        while (char := self.take()) != "]":
            if char == "[" or (char in "&-~|" and self.peek() == char):
                self.unsupported(f"{char} inside a class")
            first = self.escape() if char == "\\" else ((ord(char), ord(char)),)
            if self.peek() != "-" or self.pattern[self.at + 1 : self.at + 2] in ("]", ""):
                yield from first
                continue
            self.take()
            char = self.take()
            last = self.escape() if char == "\\" else ((ord(char), ord(char)),)
            if len(first) > 1 or len(last) > 1 or first[0][0] != first[0][1] or last[0][0] != last[0][1]:
                self.invalid("a range between classes")
            yield first[0][0], last[0][0]

    def invalid(self, what: str) -> NoReturn:
        raise InvalidGrammar(f"the pattern {self.pattern[:60]!r} has {what}, at character {self.at}")

    def unsupported(self, what: str) -> NoReturn:
        raise UnsupportedGrammar(
            f"the pattern {self.pattern[:60]!r} uses {what}, at character {self.at}", feature=f"regex:{what}"
        )
