"""Fields of dataclasses as text: parsed from flags and environment variables, and described in help."""

from __future__ import annotations

import dataclasses
import json
import types
from argparse import SUPPRESS, ArgumentTypeError, BooleanOptionalAction, _ArgumentGroup
from dataclasses import MISSING, dataclass, replace
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from guideway.api.options import docstrings_of, expected

__all__ = ["Field", "add_flag", "fields_of"]

MAX_HELP = 100
"""Maximum number of characters of a flag's help: two lines in a terminal of 80 columns, as argparse wraps them."""

WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a dataclass."""

    name: str
    hint: Any
    """Type of the field: bool, int, float, str, a Literal of strings, a tuple of one of these, or one of these or None.
    """
    default: Any
    """Default value; ``MISSING`` if there is none."""
    help: str
    """Docstring of the field, in one line."""
    expected: str
    """Description of the accepted values."""

    def parse(self, text: str) -> Any:
        """Return the value that `text` stands for. Items of a list are separated by commas; ``none`` is None where None
        is allowed. Raises `ArgumentTypeError` with the expected values."""
        if get_origin(_without_none(self.hint)) is tuple and (items := _json_list(text)) is not None:
            write = ",".join(map(str, items)) or ","
            raise ArgumentTypeError(f"is a list, whose items are separated by commas: write {write!r}, not {text!r}")
        try:
            return _parsed(self.hint, text)
        except (KeyError, ValueError) as error:
            raise ArgumentTypeError(f"must be {self.expected}, not {text!r}") from error


@cache
def fields_of(cls: type) -> dict[str, Field]:
    """Return the fields of the dataclass `cls` by name, in order."""
    hints, annotated, helps = get_type_hints(cls), get_type_hints(cls, include_extras=True), docstrings_of(cls)
    return {
        f.name: Field(
            f.name,
            hints[f.name],
            f.default_factory() if f.default_factory is not MISSING else f.default,
            helps.get(f.name, ""),
            expected(annotated[f.name]),
        )
        for f in dataclasses.fields(cls)
    }


def add_flag(group: _ArgumentGroup, field: Field, *names: str, dest: str, split: bool = True) -> None:
    """Add `field` to a command as a flag; it is in the arguments under `dest` only if it is given.

    A list's flag is repeatable; with `split` each may hold several items separated by commas.
    """
    options: dict[str, Any] = {"dest": dest, "default": SUPPRESS, "help": _help(field)}
    if field.hint in (bool, bool | None):
        action: Any = "store_true" if field.default is False else BooleanOptionalAction
        group.add_argument(*names, action=action, **options)
        return
    options["metavar"] = _metavar(field.hint)
    items = replace(field, hint=_without_none(field.hint))
    if get_origin(items.hint) is not tuple:
        group.add_argument(*names, type=field.parse, **options)
    elif split:
        group.add_argument(*names, type=items.parse, action="extend", **options)
    else:
        group.add_argument(*names, action="append", **(options | {"metavar": "TEXT"}))


def _json_list(text: str) -> list[Any] | None:
    """Return the items of a list written in JSON; None for other text (a glob may begin with a bracket too)."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _parsed(hint: Any, text: str) -> Any:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return None if text.strip().lower() == "none" else _parsed(_without_none(hint), text)
    if origin is tuple:
        return tuple(_parsed(get_args(hint)[0], item.strip()) for item in text.split(",") if item.strip())
    if origin is Literal:
        return {word: word for word in get_args(hint)}[text]
    if hint is bool:
        return WORDS[text.strip().lower()]
    return hint(text)


def _without_none(hint: Any) -> Any:
    """Return the type in ``X | None``; any other hint unchanged."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    return next(member for member in get_args(hint) if member is not types.NoneType)


def _metavar(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return _metavar(_without_none(hint))
    if origin is tuple:
        return "NAME,..." if get_args(hint)[0] is str else "N,..."
    if origin is Literal:
        return "|".join(get_args(hint))
    return {int: "N", float: "X", str: "TEXT"}[hint]


def _help(field: Field) -> str:
    """Return the first sentence of the docstring, shortened to the clauses that fit into two lines."""
    default = field.default
    shown = ""
    if default is not MISSING and default is not None and default is not False and default != ():
        text = "true" if default is True else ",".join(default) if isinstance(default, tuple) else str(default)
        shown = f" (default: {text})"
    first, *clauses = field.help.replace("`", "").partition(". ")[0].rstrip(".").split("; ")
    for clause in clauses:
        if len(first) + len("; ") + len(clause) + len(shown) > MAX_HELP:
            break
        first += f"; {clause}"
    return f"{first}{shown}".replace("%", "%%")
