"""JSON values as hashable objects that are equal exactly if the values are, and the beginnings of values.

A number is equal to another with the same value, however both are written; a string to another with the same
characters; an object to another with equal members in any order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

__all__ = ["Array", "Number", "Object", "Value", "literal_or_number", "may_become"]
__all__ += ["beginning_of", "is_unfinished", "may_begin", "text_of", "usual_spelling", "value_of"]

_NUMBER = re.compile(rb"(-?)(\d+)(?:\.(\d*))?(?:([eE])([+-]?\d*))?")
_UNFINISHED = re.compile(rb"(?<!\\)(?:\\\\)*(\\(?:u[0-9a-fA-F]{0,3})?)\Z")
_ESCAPED = ('"', "\\", "\x7f", *map(chr, range(32)))
_MOST_DIGITS = 4000
"""Digits of an exponent that Python converts. A longer one is compared as text."""


class Number(NamedTuple):
    """A number: `digits`, without zeros at both ends, times ten to the power of `exponent`."""

    sign: bytes
    digits: bytes
    exponent: int | bytes


class Array(NamedTuple):
    items: tuple[Value, ...]


class Object(NamedTuple):
    members: frozenset[tuple[str, Value]]


Value: TypeAlias = str | bytes | Number | Array | Object
"""A string, a literal as bytes, a number, an array or an object."""


def value_of(parsed: Any) -> Value:
    """Return a parsed JSON value."""
    if isinstance(parsed, str):
        return parsed
    if isinstance(parsed, list):
        return Array(tuple(map(value_of, parsed)))
    if isinstance(parsed, dict):
        return Object(frozenset((name, value_of(each)) for name, each in parsed.items()))
    return literal_or_number(json.dumps(parsed).encode())


def is_unfinished(text: bytes) -> bool:
    """Return whether the beginning of a string may end within an escape or a UTF-8 character."""
    return text[-1:] >= b"\x80" or _UNFINISHED.search(text) is not None


def text_of(text: bytes) -> str:
    """Return the characters of a string, or of its beginning, without its quotes."""
    if b"\\" not in text:
        return text.decode(errors="ignore")
    if unfinished := _UNFINISHED.search(text):
        text = text[: unfinished.start(1)]
    try:
        found: str = json.loads(b'"' + text.decode(errors="ignore").encode() + b'"', strict=False)
    except ValueError:  # no JSON; a grammar refuses it
        return text.decode(errors="ignore")
    return found


def beginning_of(text: bytes) -> tuple[str, frozenset[str] | None]:
    """Return the characters of the beginning of a string, without its first quote; and, if it ends in an escape, the
    characters that may be next, of those that are usually escaped."""
    unfinished = _UNFINISHED.search(text)
    if unfinished is None:
        return text_of(text), None
    escape = unfinished[1].lower()
    return text_of(text), frozenset(each for each in _ESCAPED if any(map(escape.__eq__, _beginnings(each))))


def _beginnings(character: str) -> Iterator[bytes]:
    """Yield the beginnings of the escapes of a character."""
    for spelled in (json.dumps(character)[1:-1], f"\\u{ord(character):04x}"):
        yield from (spelled[:end].encode() for end in range(1, len(spelled)))


def may_begin(text: bytes, value: str) -> bool:
    """Return whether a string that begins with `text`, without its first quote, may be equal to `value`."""
    if b"\\" not in text:
        return value.encode(errors="surrogatepass").startswith(text)
    begun, following = beginning_of(text)
    return value.startswith(begun) and (following is None or value[len(begun) : len(begun) + 1] in following)


def literal_or_number(text: bytes) -> Value:
    """Return the value of a literal or number, which is text that is neither if it is not JSON."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return text
    sign, whole, fraction, _, exponent = found.groups(b"")
    digits = (whole + fraction).lstrip(b"0")
    if not digits:
        return Number(b"", b"", 0)
    if len(exponent) > _MOST_DIGITS or exponent in (b"+", b"-"):
        return text
    kept = digits.rstrip(b"0")
    return Number(sign, kept, int(exponent or b"0") - len(fraction) + len(digits) - len(kept))


def usual_spelling(number: Number) -> str:
    """Return a number without an exponent; empty if that is long."""
    sign, digits, exponent = number.sign.decode(), number.digits.decode() or "0", number.exponent
    if isinstance(exponent, bytes) or not -20 <= exponent <= 20:
        return ""
    if exponent >= 0:
        return sign + digits + "0" * exponent
    digits = digits.zfill(1 - exponent)
    return f"{sign}{digits[:exponent]}.{digits[exponent:]}"


def may_become(text: bytes, value: Value) -> bool:
    """Return whether a literal or number that begins with `text` may be equal to `value`, as far as its digits tell."""
    if isinstance(value, bytes):
        return value.startswith(text)
    found = _NUMBER.fullmatch(text)
    if not isinstance(value, Number):
        return False
    if found is None:
        return text == b"-" and (value.sign == b"-" or not value.digits)
    sign, whole, fraction, has_exponent, _ = found.groups(b"")
    digits = (whole + fraction).lstrip(b"0")
    if value.digits and sign != value.sign:
        return False
    if has_exponent:
        return digits.rstrip(b"0") == value.digits
    if len(digits) <= len(value.digits):
        return value.digits.startswith(digits)
    return digits.rstrip(b"0") == value.digits
