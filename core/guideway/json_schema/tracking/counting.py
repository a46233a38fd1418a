"""Lower bounds of the number of values that a schema allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import ceil, floor
from typing import Any, Final

from guideway.json_schema.assertions import KEYWORDS
from guideway.json_schema.kinds import kind_of, kinds_of
from guideway.json_schema.rewriting.automata import Unknown, searched
from guideway.json_schema.tracking.values import value_of

__all__ = ["MOST_VALUES", "Counter"]

MOST_VALUES: Final = 1000
"""Values to count, also where there are more."""
MOST_LEVELS: Final = 8
STEPS: Final = 5000
"""Steps between the states of an automaton of a pattern."""
MOST_CHARACTERS: Final = 64
MOST_WORK: Final = 1000
AUTOMATON: Final = 300
"""Subschemas that an automaton takes as long as."""


class Counter:
    """Counts values of subschemas of one schema. ``target(schema)`` resolves the reference of a subschema."""

    def __init__(self, target: Callable[[Mapping[str, Any]], Any]) -> None:
        self._target = target
        self.work = 0
        """Subschemas that were looked at; an automaton counts as many."""

    def num_values(self, schema: Any, levels: int = MOST_LEVELS) -> int:
        """Return a number of values that a schema allows at least, up to `MOST_VALUES`. Returns 0 where nothing is
        known."""
        if not isinstance(schema, Mapping):
            return MOST_VALUES if schema else 0
        self.work += 1
        if levels == 0 or self.work > MOST_WORK:
            return 0
        keywords = schema.keys() & set(KEYWORDS)
        if "type" not in schema and keywords in ({"$ref"}, {"anyOf"}):
            return self._most([self._target(schema)] if "$ref" in schema else schema["anyOf"], levels)
        typed = schema.get("type", ["string", "number", "boolean"])
        if keywords == {"enum"}:
            kinds = kinds_of(typed) if "type" in schema else -1
            return len({value_of(each) for each in schema["enum"] if kind_of(each) & kinds})
        types = [typed] if isinstance(typed, str) else typed
        return max((self._num_of_type(each, schema, keywords, levels) for each in types), default=0)

    def _most(self, schemas: Iterable[Any], levels: int) -> int:
        """Return the largest number of values of one of some schemas."""
        return max((self.num_values(each, levels - 1) for each in schemas), default=0)

    def _num_of_type(self, typed: str, schema: Mapping[str, Any], keywords: set[str], levels: int) -> int:
        low, high = schema.get("minimum"), schema.get("maximum")
        if typed == "string" and keywords <= {"minLength", "maxLength"}:
            return MOST_VALUES if schema.get("maxLength", 2) > 1 else schema.get("maxLength", 0) + 1
        if typed == "string" and keywords == {"pattern"}:
            self.work += AUTOMATON
            return _num_texts(schema["pattern"])
        if typed in ("integer", "number") and keywords <= {"minimum", "maximum"}:
            if low is None or high is None or (typed == "number" and low < high):
                return MOST_VALUES
            return max(0, min(MOST_VALUES, floor(high) - ceil(low) + 1)) if typed == "integer" else 0
        if typed == "boolean" and not keywords:
            return 2
        if typed == "array" and keywords <= {"items", "minItems"}:
            return MOST_VALUES if self.num_values(schema.get("items", True), levels - 1) else 0
        if typed == "array" and keywords == {"items", "uniqueItems"}:
            return self.num_values(schema["items"], levels - 1) + 1
        if typed == "object" and keywords <= {"properties", "required", "additionalProperties"}:
            if schema.get("additionalProperties", True) is True:
                return MOST_VALUES
            return self._most(schema.get("properties", {}).values(), levels)
        return 0


def _num_texts(pattern: str) -> int:
    """Return a number of texts in which a pattern is found at least."""
    try:
        automaton = searched(pattern, STEPS)
    except Unknown:
        return 0
    total, ways = 0, {0: 1}
    for _ in range(MOST_CHARACTERS):
        total += sum(number for state, number in ways.items() if automaton.accepts[state])
        after: dict[int, int] = {}
        for state, number in ways.items():
            for reached in automaton.moves[state]:
                after[reached] = min(MOST_VALUES, after.get(reached, 0) + number)
        ways = after
        if total >= MOST_VALUES:
            return MOST_VALUES
    return total
