"""JSON as text: whether a text is valid under a schema, and other texts of the same value.

A grammar reads bytes, while a schema describes values: names by characters, numbers by value, objects with each name
once. So this judges texts, not Python objects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from guideway.json_schema.ecma import with_python_patterns

__all__ = ["TextJudge", "writings"]

_DRAFTS = {"draft2020-12": jsonschema.Draft202012Validator, "draft7": jsonschema.Draft7Validator}

MAX_EXPONENT = 5_000
"""Maximum exponent of a number that the judge reads, because it computes exact values."""


class TextJudge:
    """A judge of whether a text is valid under one schema, in the draft that its ``$schema`` names, else `draft`.
    Formats are annotations, as in the specification."""

    def __init__(self, schema: Any, draft: str = "draft2020-12") -> None:
        exact, _ = with_python_patterns(read(json.dumps(schema)))
        default = _DRAFTS[draft]
        self._validator = jsonschema.validators.validator_for(exact, default=default)(exact)

    def __call__(self, text: str) -> bool:
        """Return whether `text` is valid. Raises the error of `jsonschema` if a reference leads out of the schema."""
        try:
            value = read(text)
        except ValueError:
            return False
        return bool(self._validator.is_valid(value))


def read(text: str) -> Any:
    """Return the value of a JSON text. Raises `ValueError` if it is not JSON, or repeats a name in an object."""
    return json.loads(text, parse_float=_number, parse_constant=_no_constant, object_pairs_hook=_unique)


def _number(text: str) -> int | Fraction:
    if abs(int(text.lower().partition("e")[2] or 0)) > MAX_EXPONENT:
        raise OverflowError(f"the judge reads no number as large or small as {text}")
    value = Fraction(text)
    return int(value) if value.denominator == 1 else value


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is Python's, not JSON's")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in an object")
    return found


def writings(value: Any) -> Iterator[tuple[str, str]]:
    """Yield different texts of a value, each with the kind of its spelling, the plain one first. A text of the kind
    `repeated` is valid under no schema; all others mean the same."""
    seen: set[str] = set()
    for kind, writer in _WRITERS:
        for text in writer.texts(value):
            if text not in seen:
                seen.add(text)
                yield kind, text


def _plain(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _in_ascii(text: str) -> str:
    return json.dumps(text)


def _escape(text: str) -> str:
    units = text.encode("utf-16-be", "surrogatepass").hex()
    return '"' + "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4)) + '"'


def _escape_first(text: str) -> str:
    return _escape(text[:1])[:-1] + _plain(text[1:])[1:]


def _escape_last(text: str) -> str:
    return _plain(text[:-1])[:-1] + _escape(text[-1:]).upper().replace("\\U", "\\u")[1:]


def _solidus(text: str) -> str:
    return _plain(text).replace("/", "\\/")


class _Writer:
    """Writes values as text, some parts in an unusual way."""

    def __init__(
        self,
        *,
        name: Callable[[str], str] = _plain,
        string: Callable[[str], str] = _plain,
        number: Callable[[str], str] = str,
        comma: str = ",",
        colon: str = ":",
        inside: str = "",
    ) -> None:
        self._name, self._string, self._number = name, string, number
        self._comma, self._colon, self._inside = comma, colon, inside

    def texts(self, value: Any) -> Iterator[str]:
        """Yield the texts of a value."""
        yield self.text(value)

    def text(self, value: Any) -> str:
        """Return the writer's plain text of a value."""
        match value:
            case str():
                return self._string(value)
            case dict():
                return self._object([self._member(name, self.text(item)) for name, item in value.items()])
            case list():
                return f"[{self._inside}{self._comma.join(map(self.text, value))}{self._inside}]"
            case int() | float() if not isinstance(value, bool):
                return self._number(json.dumps(value))
        return json.dumps(value)

    def _member(self, name: str, item: str) -> str:
        return f"{self._name(name)}{self._colon}{item}"

    def _object(self, members: list[str]) -> str:
        return f"{{{self._inside}{self._comma.join(members)}{self._inside}}}"


class _Repeating(_Writer):
    """Writes one name of one object twice: the first or the last name, with the same value or another, before or after
    the others, the second time by `name`."""

    def texts(self, value: Any) -> Iterator[str]:
        plain = _Writer()
        match value:
            case dict():
                members = [plain._member(name, plain.text(item)) for name, item in value.items()]
                for i in sorted({0, len(members) - 1}) if members else ():
                    name = list(value)[i]
                    for item in dict.fromkeys((plain.text(value[name]), "null", "1", '"x"', "[]")):
                        again = self._member(name, item)
                        yield plain._object([*members, again])
                        yield plain._object([*members[:i], again, *members[i:]])
                for i, (name, item) in enumerate(value.items()):
                    for text in self.texts(item):
                        yield plain._object([*members[:i], plain._member(name, text), *members[i + 1 :]])
            case list():
                items = list(map(plain.text, value))
                for i, item in enumerate(value):
                    for text in self.texts(item):
                        yield f"[{','.join([*items[:i], text, *items[i + 1 :]])}]"


def _with_fraction(number: str) -> str:
    head, e, exponent = number.partition("e")
    return f"{head}{'0' if '.' in head else '.0'}{e}{exponent}"


def _with_exponent(number: str) -> str:
    return number if "e" in number else f"{number}e0"


def _times_ten(number: str) -> str:
    if "e" in number or "." in number:
        return number
    return f"{number}0E-1" if number.strip("-") != "0" else f"{number}E+1"


def _many_digits(number: str) -> str:
    """Return the same number with more digits than 64 bits can represent."""
    if "e" in number or "." in number or number.strip("-") == "0":
        return number
    return f"{number}{'0' * 25}e-25"


def _tenth(number: str) -> str:
    if "e" in number or "." in number:
        return number
    sign, digits = ("-", number[1:]) if number.startswith("-") else ("", number)
    return f"{sign}{digits[:-1] or '0'}.{digits[-1]}e1"


def _negative_zero(number: str) -> str:
    return "-0" if number == "0" else number


_WRITERS: tuple[tuple[str, _Writer], ...] = (
    ("plain", _Writer()),
    ("white space", _Writer(comma=", ", colon=": ")),
    ("white space", _Writer(comma=" \n,\t", colon="\r: ", inside="\n")),
    ("names", _Writer(name=_in_ascii)),
    ("names", _Writer(name=_escape)),
    ("names", _Writer(name=_escape_first)),
    ("names", _Writer(name=_escape_last)),
    ("names", _Writer(name=_solidus)),
    ("strings", _Writer(string=_in_ascii)),
    ("strings", _Writer(string=_escape)),
    ("strings", _Writer(string=_escape_first)),
    ("strings", _Writer(string=_solidus)),
    ("numbers", _Writer(number=_with_fraction)),
    ("numbers", _Writer(number=_with_exponent)),
    ("numbers", _Writer(number=_times_ten)),
    ("numbers", _Writer(number=_many_digits)),
    ("numbers", _Writer(number=_tenth)),
    ("numbers", _Writer(number=_negative_zero)),
    ("repeated", _Repeating()),
    ("repeated", _Repeating(name=_escape)),
)
