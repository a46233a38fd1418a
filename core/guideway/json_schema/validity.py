"""Validate texts against JSON Schemas with the library ``jsonschema``.

Only for hosts: it runs the clients' patterns, which may not terminate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

import jsonschema  # type: ignore[import-untyped]
from jsonschema.exceptions import FormatError  # type: ignore[import-untyped]
from jsonschema.validators import validator_for  # type: ignore[import-untyped]
from referencing import Registry
from referencing.exceptions import Unresolvable

from guideway.api.types import strict_json
from guideway.json_schema.ecma import with_python_patterns
from guideway.json_schema.formats import has_format
from guideway.json_schema.reading import draft_of
from guideway.json_schema.walking import Chain, Pointer, Schema

__all__ = ["Fault", "faults", "is_valid", "validator"]


class Fault(NamedTuple):
    """A reason why a text is not an instance of a schema."""

    message: str
    place: str
    """JSON pointer into the text's value, ``#/age``; empty if the text is not JSON."""
    keyword: str
    """JSON pointer into the schema, ``#/properties/age/maximum``; empty if the text is not JSON."""


def is_valid(schema: Schema, text: str, enforces_formats: bool) -> bool | None:
    """Return whether `text` is JSON without duplicate keys and an instance of a checked schema.

    Return None if this is unknown: it depends on a remote reference, which is not fetched, an unknown dialect in
    ``$schema``, an unsupported regular expression, or a format that is unknown (`has_format`) and was not enforced.
    """
    try:
        instance = strict_json(text)
    except ValueError:
        return False
    dialect = _dialect(schema)
    if dialect is None:
        return None

    readable, _ = with_python_patterns(schema)

    def judge(formats: _Formats) -> bool:
        return bool(_judge(dialect, readable, formats).is_valid(instance))

    formats = _Formats(unknown=True)
    try:
        found = judge(formats)
        if not formats.met_unknown or judge(_Formats(unknown=False)) == found:
            return found
    except (Unresolvable, re.error):
        return None
    return found if enforces_formats else None


def faults(schema: Schema, text: str, limit: int = 10) -> list[Fault]:
    """Return at most `limit` reasons why `is_valid` is False for `text`. Empty if it is True or None."""
    try:
        instance = strict_json(text)
    except ValueError as error:
        return [Fault(f"not JSON: {error}", "", "")]
    dialect = _dialect(schema)
    if dialect is None:
        return []
    readable, before = with_python_patterns(schema)
    try:
        errors = list(islice(_judge(dialect, readable, _Formats(unknown=True)).iter_errors(instance), limit))
    except (Unresolvable, re.error):
        return []

    def restore(message: str) -> str:
        for pattern, written in before.items():
            message = message.replace(repr(pattern), repr(written))
        return message

    def place(path: Iterable[str | int]) -> str:
        return _pointer(before.get(part, part) if isinstance(part, str) else part for part in path)

    return [Fault(restore(e.message), _pointer(e.absolute_path), place(e.absolute_schema_path)) for e in errors]


def validator(schema: Schema) -> Any:
    """Return `jsonschema`'s validator of a checked schema of a known dialect; it judges parsed instances.

    An unknown format holds. Nothing is fetched.
    """
    return _judge(_dialect(schema), with_python_patterns(schema)[0], _Formats(unknown=True))


class _Formats:
    """The format checker for `jsonschema`. `unknown` is the result for unknown formats."""

    def __init__(self, unknown: bool) -> None:
        self.met_unknown = False
        self._unknown = unknown

    def check(self, instance: object, format: str) -> None:  # noqa: A002 - the name is `jsonschema`'s
        if not isinstance(instance, str):
            return
        holds = has_format(format, instance)
        self.met_unknown |= holds is None
        if not (self._unknown if holds is None else holds):
            raise FormatError(f"not of the format {format}")


def _dialect(schema: Schema) -> Any:
    """Return the validator for a schema's draft, from ``$schema`` or its keywords. None if ``$schema`` names an
    unknown one."""
    if isinstance(schema, dict) and "$schema" in schema:
        return validator_for(schema, default=None)
    return {4: jsonschema.Draft4Validator, 7: jsonschema.Draft7Validator}.get(
        draft_of(schema), jsonschema.Draft202012Validator
    )


def _judge(dialect: Any, schema: Schema, formats: _Formats) -> Any:
    return dialect(schema, registry=Registry(), format_checker=formats)


def _pointer(path: Iterable[str | int]) -> str:
    chain: Chain = None
    for part in path:
        chain = (chain, part)
    return str(Pointer(chain))
