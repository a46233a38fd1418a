"""Find the places of keywords in a constraint, for messages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from guideway.api.types import Constraint, JsonSchema, Losses, StructuralTag
from guideway.errors import InvalidGrammar, UnsupportedGrammar
from guideway.json_schema.assertions import KEYWORDS, names_by_place
from guideway.json_schema.checking import check_schema
from guideway.json_schema.tags import schemas_in
from guideway.json_schema.walking import Chain, Pointer, Schema

__all__ = ["locate", "places", "prefix_errors"]

MOST_SHOWN = 3
"""Maximum places of a keyword in a message."""
NO_LOSSES = Losses()


def places(constraint: Constraint, names: Iterable[str], most: int) -> dict[str, tuple[str, ...]]:
    """Return at most `most` JSON pointers to each of `names`, as `guideway.json_schema.keywords` defines them, in
    document order; for an unknown key, to its places. A name that is not in a schema of the constraint has none."""
    return {name: tuple(map(str, found[:most])) for name, found in _find(constraint, names).items()}


def locate(constraint: Constraint | None, names: Iterable[str], losses: Losses = NO_LOSSES) -> str:
    """Return keywords for a message, quoted, so that names such as `not` are not read as words, each with its first
    places. Keywords of `losses` come first, with the places that these have."""
    lost = {loss.keyword for loss in losses}
    shown = [str(losses)] if losses else []
    for name, found in _find(constraint, (name for name in names if name not in lost)).items():
        where = [*map(str, found[:MOST_SHOWN])]
        if len(found) > MOST_SHOWN:
            where.append(f"{len(found) - MOST_SHOWN} more places")
        last = f" and {where.pop()}" if len(where) > 1 else ""
        shown.append(f"`{name}` at {', '.join(where)}{last}" if where else f"`{name}`")
    return ", ".join(shown)


@contextmanager
def prefix_errors(place: Pointer) -> Iterator[None]:
    """Within the context, begin the messages of `InvalidGrammar` and `UnsupportedGrammar` with the place of their
    cause."""
    try:
        yield
    except UnsupportedGrammar as error:
        raise UnsupportedGrammar(f"{place}: {error}", feature=error.feature, field=error.field) from error
    except InvalidGrammar as error:
        raise InvalidGrammar(f"{place}: {error}", field=error.field) from error


def _find(constraint: Constraint | None, names: Iterable[str]) -> dict[str, list[Pointer]]:
    found: dict[str, list[Pointer]] = {name: [] for name in names}
    for place, schema in _schemas(constraint):
        for chain, subschema, own in names_by_place(schema, place):
            for name in found:
                is_unknown = name not in KEYWORDS and not isinstance(subschema, bool) and name in subschema
                if name in own or is_unknown:
                    found[name].append(Pointer(_end(chain, name, subschema)))
    return found


def _schemas(constraint: Constraint | None) -> Iterator[tuple[Chain, Schema]]:
    """Yield the schemas in a constraint, except malformed ones, with their places."""
    if isinstance(constraint, JsonSchema):
        yield None, constraint.parsed
    elif isinstance(constraint, StructuralTag):
        for place, schema in schemas_in(constraint.parsed):
            try:
                constraint.cached(check_schema, schema)
            except InvalidGrammar:
                continue
            yield place, schema


def _end(chain: Chain, name: str, subschema: Schema) -> Chain:
    """Return the place of an assertion in a subschema: the keyword, if it is about one keyword that is there."""
    keywords = [part for part in name.split("+") if part not in ("types", "untyped")]
    keyword = re.split("[:>]", keywords[0])[0]
    is_there = len(keywords) == 1 and not isinstance(subschema, bool) and keyword in subschema
    return (chain, keyword) if is_there else chain
