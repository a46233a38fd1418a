"""Regular expressions. They are parsed here and written again from the tree for outlines-core, so that its own syntax
cannot change the meaning, and their size is known before they are compiled (`guideway_outlines.size`).

The dialect is what Rust, Python and ECMAScript agree on: literals, ``.`` (anything but a line feed), classes, groups,
``|``, ``* + ? {m} {m,} {m,n}`` (also lazy, which changes nothing where the whole text must match), and ``^`` and ``$``
around everything. ``\\d \\w \\s`` are ASCII, as in JSON Schema.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

from guideway.api import InvalidGrammar, UnsupportedGrammar, excerpt

Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""Code points, as sorted inclusive ranges that neither overlap nor touch."""

MAX_LENGTH = 200_000
"""Maximum characters of a pattern; the pattern of a JSON Schema is longer than the schema."""
MAX_DEPTH = 100
"""Maximum depth of groups inside groups; Rust's own limit is 250."""


@dataclass(frozen=True, slots=True)
class One:
    """One character out of `ranges`; without ranges nothing matches."""

    ranges: Ranges


@dataclass(frozen=True, slots=True)
class Sequence:
    """Parts in sequence; without parts the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Either:
    """An alternative of parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """`part` repeated `low` to `high` times; None: without end."""

    part: Node
    low: int
    high: int | None


Node: TypeAlias = One | Sequence | Either | Repeat

EMPTY = Sequence(())
NEVER = One(())
START = 0x10FFFF
"""The first character of every pattern, a noncharacter that no class contains. outlines-core needs patterns whose
beginning does not depend on the context, unlike one that may be empty and is anchored at its end; and without that
anchor ``a|ab`` would match only ``a``. Its automaton also searches for a later beginning: a repeated class with this
character would have a state for each set of places where the match could begin."""
LAST = START - 1
_SCALARS: Ranges = ((0, 0xD7FF), (0xE000, LAST))


def union(*many: Ranges) -> Ranges:
    """Return the code points in any of `many`."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(pair for ranges in many for pair in ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def intersection(first: Ranges, second: Ranges) -> Ranges:
    """Return the code points in both."""
    pairs = ((max(a, c), min(b, d)) for a, b in first for c, d in second)
    return union(tuple((low, high) for low, high in pairs if low <= high))


def complement(ranges: Ranges) -> Ranges:
    """Return all other code points, without surrogates."""
    kept, start = [], 0
    for low, high in ranges:
        if low > start:
            kept.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        kept.append((start, LAST))
    return intersection(tuple(kept), _SCALARS)


def literal(text: str) -> Node:
    """Return a node that matches exactly `text`."""
    return Sequence(tuple(One(((ord(c), ord(c)),)) for c in text))


def parse(pattern: str, *, search: bool = False) -> Node:
    """Parse `pattern` for a match of the whole text; with `search`, for a match anywhere in it, as in JSON Schema.

    Raises `InvalidGrammar` for an invalid regular expression and `UnsupportedGrammar` for syntax that the dialect
    lacks.
    """
    if len(pattern) > MAX_LENGTH:
        unsupported(f"a pattern may have {MAX_LENGTH} characters, not {len(pattern)}", "size")
    reader = _Reader(pattern)
    node = reader.read()
    if search:
        anything = Repeat(One(_SCALARS), 0, None)
        node = Sequence(
            (*(() if reader.at_begin else (anything,)), node, *(() if reader.at_end else (anything,))),
        )
    return node


def in_json(node: Node) -> Node:
    """Return `node` over characters as they are written in a JSON string: plain where JSON allows it, else escaped."""
    match node:
        case One(ranges):
            plain = intersection(ranges, _PLAIN_IN_JSON)
            escaped = [(c, _ESCAPES.get(c, f"u{c:04x}")) for low, high in ranges for c in range(low, min(high, 92) + 1)]
            special = [literal(f"\\{text}") for c, text in escaped if c < 32 or c in (34, 92)]
            return Either((One(plain), *special)) if special else One(plain)
        case Sequence(parts):
            return Sequence(tuple(map(in_json, parts)))
        case Either(parts):
            return Either(tuple(map(in_json, parts)))
        case Repeat(part, low, high):
            return Repeat(in_json(part), low, high)


def simplified(node: Node) -> Node:
    """Return `node` without parts that cannot match; `NEVER` if nothing can."""
    match node:
        case One():
            return node
        case Sequence(parts):
            kept = tuple(map(simplified, parts))
            return NEVER if NEVER in kept else Sequence(kept)
        case Either(parts):
            kept = tuple(part for part in map(simplified, parts) if part != NEVER)
            return Either(kept) if kept else NEVER
        case Repeat(part, low, high):
            part = simplified(part)
            if part == NEVER:
                return NEVER if low else EMPTY
            return Repeat(part, low, high)


def to_rust(node: Node) -> str:
    """Write a simplified `node` in the syntax of Rust's regex crate."""
    match node:
        case One(ranges):
            return _rust_class(ranges)
        case Sequence(parts):
            return "".join(map(to_rust, parts))
        case Either(parts):
            return f"(?:{'|'.join(map(to_rust, parts))})"
        case Repeat(part, low, high):
            return f"(?:{to_rust(part)}){{{low},{'' if high is None else high}}}"


@lru_cache(maxsize=4096)
def _rust_class(ranges: Ranges) -> str:
    parts = (f"\\x{{{low:X}}}" + (f"-\\x{{{high:X}}}" if low < high else "") for low, high in ranges)
    return f"[{''.join(parts)}]"


def unsupported(message: str, feature: str) -> NoReturn:
    raise UnsupportedGrammar(message, feature=f"regex:{feature}")


def _code(character: str) -> Ranges:
    return ((ord(character), ord(character)),)


_CLASSES: dict[str, Ranges] = {
    "d": ((48, 57),),
    "w": ((48, 57), (65, 90), (95, 95), (97, 122)),
    "s": ((9, 13), (32, 32)),
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}
_ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_PLAIN_IN_JSON = complement(((0, 31), (34, 34), (92, 92)))
_QUANTIFIER = re.compile(r"[*+?]|\{(\d{1,10})(,(\d{0,10}))?\}")
_HEX = re.compile(r"x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|[xu]\{([0-9a-fA-F]{1,6})\}")
_GROUP = re.compile(r"\((?!\?)|\(\?:|\(\?P?<[A-Za-z_][A-Za-z0-9_]*>")
_LACKS = {"b": "boundary", "B": "boundary", "p": "property", "P": "property", "k": "backreference", "Q": "quoting"}
_LACKS |= {**dict.fromkeys("123456789", "backreference"), **dict.fromkeys("UN", "escape")}


class _Reader:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.depth = 0
        self.at_begin = self.at_end = False

    def read(self) -> Node:
        end = len(self.text)
        alternatives = _has_alternatives(self.text)
        if self.text.startswith("^"):
            self.at, self.at_begin = 1, True
        if self.text.endswith("$") and (end - len(self.text[:-1].rstrip("\\"))) % 2:
            self.text, self.at_end = self.text[:-1], True
        if alternatives and (self.at_begin or self.at_end):
            unsupported("`^` and `$` bind to one side of `|`; put a group around all alternatives", "anchor")
        node = self.either()
        if self.at < len(self.text):
            self.invalid("a `)` closes nothing")
        return node

    def invalid(self, what: str) -> NoReturn:
        raise InvalidGrammar(f"{what}, at character {self.at} of the pattern{excerpt(self.text, self.at)}")

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def either(self) -> Node:
        parts = [self.sequence()]
        while self.peek() == "|":
            self.at += 1
            parts.append(self.sequence())
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def sequence(self) -> Node:
        parts = []
        while self.peek() not in ("", "|", ")"):
            parts.append(self.repeated())
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def repeated(self) -> Node:
        node = self.atom()
        found = _QUANTIFIER.match(self.text, self.at)
        if found is None:
            return node
        self.at = found.end()
        low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(found[0], (0, 0))
        if found[1] is not None:
            low = int(found[1])
            high = low if found[2] is None else int(found[3]) if found[3] else None
            if high is not None and high < low:
                self.invalid(f"{found[0]} repeats at least {low} and at most {high} times")
        if self.peek() == "?":
            self.at += 1
        elif self.peek() == "+":
            unsupported("possessive quantifiers are not supported", "possessive")
        if _QUANTIFIER.match(self.text, self.at):
            self.invalid("a quantifier follows another")
        return Repeat(node, low, high)

    def atom(self) -> Node:
        character = self.peek()
        match character:
            case "(":
                return self.group()
            case "[":
                return One(self.klass())
            case ".":
                self.at += 1
                return One(complement(_code("\n")))
            case "\\":
                return One(self.escape(in_class=False))
            case "^" | "$":
                unsupported("`^` and `$` are supported at the ends of the whole pattern only", "anchor")
            case "*" | "+" | "?":
                self.invalid("a quantifier has nothing to repeat")
            case "{" if _QUANTIFIER.match(self.text, self.at) or self.text.startswith("{,", self.at):
                self.invalid("a quantifier has nothing to repeat")
        self.at += 1
        return One(_code(character))

    def group(self) -> Node:
        found = _GROUP.match(self.text, self.at)
        if found is None:
            if self.text.startswith(("(?=", "(?!", "(?<=", "(?<!"), self.at):
                unsupported("look-around is not supported", "lookaround")
            if re.compile(r"\(\?[a-zA-Z>(#^-]").match(self.text, self.at):
                unsupported("flags and other extensions of groups are not supported", "flags")
            self.invalid("a group begins in no known way")
        self.at = found.end()
        self.depth += 1
        if self.depth > MAX_DEPTH:
            unsupported(f"groups may be nested {MAX_DEPTH} deep", "depth")
        node = self.either()
        self.depth -= 1
        if self.peek() != ")":
            self.invalid("a `(` is not closed")
        self.at += 1
        return node

    def klass(self) -> Ranges:
        start = self.at
        self.at += 1
        negated = self.peek() == "^"
        self.at += negated
        found: list[tuple[int, int]] = []
        first = True
        while first or self.peek() != "]":
            if not self.peek():
                self.at = start
                self.invalid("a `[` is not closed")
            if self.text.startswith(("[:", "[.", "[=", "&&", "--", "~~"), self.at):
                unsupported("named classes and operations between classes are not supported", "class")
            first = False
            low = self.member()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.member()
                if not _is_one(low) or not _is_one(high) or high[0][0] < low[0][0]:
                    self.invalid("a range in `[...]` runs between two characters, the lower one first")
                low = ((low[0][0], high[0][0]),)
            found += low
        self.at += 1
        ranges = union(tuple(found))
        return complement(ranges) if negated else intersection(ranges, _SCALARS)

    def member(self) -> Ranges:
        character = self.peek()
        if character == "\\":
            return self.escape(in_class=True)
        if not character:
            self.invalid("a `[` is not closed")
        self.at += 1
        return _code(character)

    def escape(self, *, in_class: bool) -> Ranges:
        character = self.text[self.at + 1 : self.at + 2]
        if character.lower() in _CLASSES:
            self.at += 2
            ranges = _CLASSES[character.lower()]
            return ranges if character.islower() else complement(ranges)
        if character == "0" and self.text[self.at + 2 : self.at + 3].isdigit():
            unsupported("octal numbers are not supported", "escape")
        if character in _CONTROLS:
            self.at += 2
            return _code(_CONTROLS[character])
        found = _HEX.match(self.text, self.at + 1)
        if found is not None:
            code = int(found[1] or found[2] or found[3], 16)
            if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                self.invalid(f"\\{found[0]} is no character")
            self.at = found.end()
            return ((code, code),)
        if in_class and character == "b":
            self.at += 2
            return _code("\b")
        if character in _LACKS:
            unsupported(f"\\{character} is not supported", _LACKS[character])
        if character in "AzZG" and character:
            unsupported(f"\\{character} is not supported; patterns are anchored at both ends", "anchor")
        if not character or character.isalnum():
            self.invalid(f"\\{character} is no known escape")
        self.at += 2
        return _code(character)


def _is_one(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _has_alternatives(pattern: str) -> bool:
    """Return whether there is a ``|`` outside all groups and classes."""
    depth = 0
    in_class = escaped = False
    for i, character in enumerate(pattern):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif in_class:
            in_class = character != "]" or pattern[i - 1] == "[" or pattern[max(i - 2, 0) : i] == "[^"
        elif character == "[":
            in_class = True
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|" and depth == 0:
            return True
    return False
