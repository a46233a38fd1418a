"""Convert Python objects to constraints, and answers to objects: types (through pydantic), schemas as dicts, compiled
patterns, lists of strings."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, get_origin

from guideway.api.options import short_repr
from guideway.api.types import CONSTRAINTS, Choice, Constraint, JsonObject, JsonSchema, Regex
from guideway.errors import GuidewayError, InvalidAnswer, InvalidRequest, text_of
from guideway.json_schema import subschemas

__all__ = ["constraint_of", "is_type", "parse", "parse_partial"]

FIELD = "constraint"
FLAGS = re.compile("").flags
"""The flags of a pattern compiled without any."""
TOKENS = re.compile(r'"(?:[^"\\]|\\[^u]|\\u[0-9a-fA-F]{4})*+(?P<quote>"?)|[][{},:]|[^][{},:"\s]+')
"""The tokens of JSON. An unfinished string has no `quote` and ends at its last whole escape."""


def constraint_of(given: Any) -> Constraint:
    """Convert `given` to a constraint.

    A `Constraint` is returned unchanged. A mapping becomes a `JsonSchema`, a compiled pattern a `Regex`, a list of
    strings a `Choice`. A type (a pydantic model, a dataclass, a ``TypedDict``, an ``Enum``, ``Literal[...]``,
    ``list[...]``, ``int``, ...) becomes pydantic's JSON Schema of it, without the additional properties that the type
    would ignore. Raises `InvalidRequest` for anything else, for a pattern with flags, for a type without a JSON Schema,
    and if pydantic is not installed.
    """
    match given:
        case Constraint():
            return given
        case Mapping():
            return JsonSchema(given)
        case re.Pattern():
            if not isinstance(given.pattern, str) or given.flags != FLAGS:
                raise InvalidRequest(
                    f"a compiled pattern must match str, not bytes, and must have no flags, not {short_repr(given)}; "
                    "write flags into the pattern, such as (?i)",
                    field=FIELD,
                )
            return Regex(given.pattern)
        case list() | tuple() if all(isinstance(choice, str) for choice in given):
            return Choice(list(given))
    if is_type(given):
        return JsonSchema(_adapt(given)[0])
    raise InvalidRequest(
        f"constraint must be a {', '.join(each.__name__ for each in CONSTRAINTS)}, a type, a schema as a dict, a "
        f"compiled pattern or a list of strings, not {short_repr(given)}",
        field=FIELD,
    )


def parse(given: Any, answer: str) -> Any:
    """Convert a complete answer to an instance of the type, the value of a JSON Schema, or else text. Raises
    `InvalidAnswer` if that fails: the strategy may not have enforced everything, or the type may check more than its
    schema."""
    if not _is_json(given):
        return answer
    read: Callable[[str], Any] = _adapt(given)[1] if is_type(given) else json.loads
    try:
        return read(answer)
    except GuidewayError:
        raise
    except Exception as error:
        name = getattr(given, "__name__", None) or short_repr(given)
        raise InvalidAnswer(f"the answer is not {name if is_type(given) else 'JSON'}: {_message_of(error)}") from error


def parse_partial(given: Any, answer: str, *, whole: bool, growing_strings: bool) -> Any:
    """Return the finished part of an incomplete answer, or all of a `whole` one: values as of ``json.loads`` for JSON,
    text for other constraints.

    Objects and arrays appear when they begin, and grow. A string is finished at its closing quote, a number or a word
    at the next token, a property with its value; with `growing_strings`, strings that are values grow too. None if
    nothing is finished. Raises `InvalidAnswer` if the answer is not the beginning of JSON.
    """
    if not _is_json(given):
        return answer if whole or growing_strings else None
    try:
        finished = answer if whole else _complete(answer, growing_strings)
        return json.loads(finished) if finished else None
    except Exception as error:
        raise InvalidAnswer(f"the answer so far is not JSON: {text_of(error)}") from error


def _complete(text: str, growing_strings: bool) -> str:
    """Return `text` up to the last finished value or opened container, and then the closing characters of everything
    open there."""
    ends: list[str] = []
    end, before = 0, ""
    for token in TOKENS.finditer(text):
        first = token[0][0]
        match first:
            case "{" | "[":
                ends.append("}" if first == "{" else "]")
            case "}" | "]":
                del ends[-1:]
            case "," | ":":
                before = first
                continue
            case '"':
                is_name = ends[-1:] == ["}"] and before in ("{", ",")
                before = first
                if not token["quote"]:
                    if growing_strings and not is_name:
                        end = token.end()
                        # a surrogate whose second half may follow
                        end -= 6 if "\ud800" <= json.loads(token[0] + '"')[-1:] <= "\udbff" else 0
                        ends.append('"')
                    break
                if is_name:
                    continue
            case _ if token.end() == len(text):
                break
        end, before = token.end(), first
    return text[:end] + "".join(reversed(ends))


def _is_json(given: Any) -> bool:
    """Return whether the answers of a constraint given as `given` are JSON."""
    return is_type(given) or isinstance(given, Mapping | JsonSchema | JsonObject)


def is_type(given: Any) -> bool:
    """Return whether `given` is a type or a generic alias such as ``list[int]``."""
    return isinstance(given, type) or get_origin(given) is not None


def _adapt(given: Any) -> tuple[dict[str, Any], Callable[[str], Any]]:
    """Return the JSON Schema of a type, and a function that reads an instance from JSON. Raises `InvalidRequest`."""
    try:
        return _adapt_cached(given)
    except TypeError:  # unhashable metadata
        return _adapt_uncached(given)


def _adapt_uncached(given: Any) -> tuple[dict[str, Any], Callable[[str], Any]]:
    try:
        from pydantic import TypeAdapter
        from pydantic.json_schema import GenerateJsonSchema
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            f"a type as constraint needs {error.name!r}, which is not installed: pip install 'guideway[objects]'",
            field=FIELD,
        ) from error

    class Generator(GenerateJsonSchema):
        """JSON Schema of types, in which a ``Decimal`` is a number. Pydantic's also allows any string."""

        def decimal_schema(self, schema: Any) -> dict[str, Any]:
            bounds = {name: float(schema[name]) for name in ("multiple_of", "le", "ge", "lt", "gt") if name in schema}
            number: Any = {"type": "float", **bounds}
            return self.float_schema(number)

    try:
        adapter = TypeAdapter(given)
        return _close_objects(adapter.json_schema(schema_generator=Generator)), adapter.validate_json
    except Exception as error:  # a foreign type may raise anything
        raise InvalidRequest(f"{short_repr(given)} has no JSON Schema: {_message_of(error)}", field=FIELD) from error


def _message_of(error: Exception) -> str:
    """Return pydantic's message without its URLs."""
    return re.sub(r"\s*For further information visit \S+", "", text_of(error))


def _close_objects(schema: dict[str, Any]) -> dict[str, Any]:
    """Change `schema` to forbid properties that its types would ignore, and return it."""
    for _, subschema in subschemas(schema):
        if isinstance(subschema, dict) and subschema.get("type") == "object" and "properties" in subschema:
            subschema.setdefault("additionalProperties", False)
    return schema


_adapt_cached = lru_cache(maxsize=128)(_adapt_uncached)
