"""Minimizing findings: the part of a schema and a text that is necessary for the finding."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jsonschema  # type: ignore[import-untyped]
from guideway.errors import InvalidGrammar
from guideway.json_schema import check_schema

from tests.fuzz.examining import Case

__all__ = ["shrink"]

MOST_TRIES = 3000


def shrink(case: Case, is_finding: Callable[[Case], bool]) -> Case:
    """Return a case that is still a finding without any part that can be removed, unless that takes too many tries."""
    tries = 0
    shrunk = True
    while shrunk:
        shrunk = False
        for smaller in _smaller(case):
            tries += 1
            if tries > MOST_TRIES:
                return case
            if _is_schema(smaller.schema) and is_finding(smaller) and _is_of_its_draft(smaller.schema):
                case, shrunk = smaller, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    for schema in _smaller_values(case.schema):
        yield replace(case, schema=schema)
    try:
        value = json.loads(case.text)
    except ValueError:
        value = None
    else:
        separators = (", ", ": ") if case.whitespace == "spaced" else (",", ":")
        for other in (value, *_smaller_values(value)):
            text = json.dumps(other, ensure_ascii=False, separators=separators)
            if len(text) < len(case.text):
                yield replace(case, text=text)
    for length in (16, 4, 1):
        for i in range(len(case.text) - length + 1):
            yield replace(case, text=case.text[:i] + case.text[i + length :])
    if case.whitespace != "compact":
        yield replace(case, whitespace="compact")


def _smaller_values(value: Any) -> Iterator[Any]:
    """Yield copies of `value` without a part, the largest parts first."""
    match value:
        case dict():
            yield from (child for child in value.values() if isinstance(child, dict))
            for name in value:
                if name == "$schema":
                    continue
                yield {key: child for key, child in value.items() if key != name}
            for name, child in value.items():
                if name == "$schema":
                    continue
                for other in _smaller_values(child):
                    yield {**value, name: other}
        case list():
            for i in range(len(value)):
                yield value[:i] + value[i + 1 :]
            for i, child in enumerate(value):
                for other in _smaller_values(child):
                    yield [*value[:i], other, *value[i + 1 :]]
        case str() if value:
            yield value[:-1]
            yield value[1:]
        case int() | float() if not isinstance(value, bool) and abs(value) > 1:
            yield from (0, 1, int(value / 2))


def _is_schema(schema: Any) -> bool:
    try:
        check_schema(schema)
    except InvalidGrammar:
        return False
    return True


def _is_of_its_draft(schema: Any) -> bool:
    try:
        jsonschema.validators.validator_for(schema, jsonschema.Draft202012Validator).check_schema(schema)
    except jsonschema.SchemaError:
        return False
    return True
