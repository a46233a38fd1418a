"""Outlines' types and regex terms as constraints."""

from __future__ import annotations

from typing import Any

from guideway.api import (
    Choice,
    Constraint,
    Grammar,
    InvalidGrammar,
    JsonSchema,
    PluginUnavailable,
    Regex,
    UnsupportedGrammar,
)

try:
    from outlines.types import dsl
except ModuleNotFoundError as error:
    raise PluginUnavailable(
        f"the types and terms of outlines need the package itself ({error}): pip install 'guideway-outlines[outlines]'",
        plugin="guideway-outlines/grammar.outlines",
    ) from error


def to_constraint(output_type: Any, strategy: str | None) -> Constraint:
    """Implement `guideway_outlines.constraint`."""
    try:
        term = dsl.python_types_to_terms(output_type)
        choices = _choices(term)
        if choices is not None:
            return Choice(choices, strategy=strategy)
        if isinstance(term, dsl.CFG):
            return Grammar(term.definition, "lark", strategy=strategy)
        if isinstance(term, dsl.JsonSchema):
            return JsonSchema(_schema(term), strategy=strategy)
        return Regex(dsl.to_regex(term), strategy=strategy)
    except UnsupportedGrammar:
        raise
    except Exception as error:  # from outlines, Pydantic, or the caller's own types
        raise InvalidGrammar(f"outlines does not take {output_type!r:.200} as an output type: {error}") from error


def _choices(term: dsl.Term) -> list[str] | None:
    """Return the strings that a term is an alternative of; None for any other term."""
    match term:
        case dsl.String(value):
            return [value]
        case dsl.Choice(items) if items and all(isinstance(item, str) for item in items):
            return list(items)
        case dsl.Alternatives(terms):
            strings = [part.value for part in terms if isinstance(part, dsl.String)]
            return strings if strings and len(strings) == len(terms) else None
    return None


def _schema(term: dsl.JsonSchema) -> str:
    if term.whitespace_pattern is not None:
        raise UnsupportedGrammar(
            "a schema's own whitespace_pattern is not supported; set `whitespace` of the constraint instead",
            feature="whitespace_pattern",
        )
    return str(term.schema)
