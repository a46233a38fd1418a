"""The arrays of a text for which a schema demands unique items, found by their path in the text.

A subschema *holds* at a value if every valid text satisfies it there: it is reached through properties, items, ``$ref``
and ``allOf``, or as the only alternative of ``anyOf`` or ``oneOf`` that takes values of its kind. ``uniqueItems`` in a
subschema that is also reached otherwise, such as below ``if``, is not tracked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, Final, TypeAlias

from guideway.json_schema.emptiness import Emptiness
from guideway.json_schema.kinds import ARRAY, NUMBER, OBJECT, OF_KIND, STRING
from guideway.json_schema.tracking.counting import Counter
from guideway.json_schema.tracking.remembering import remember
from guideway.json_schema.walking import KEYWORDS, ONE_SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS, Chain, Schema

__all__ = ["NOWHERE", "Place", "UniqueArrays"]

Place: TypeAlias = frozenset[int]
"""The subschemas that hold at a value, by number."""

NOWHERE: Final[Place] = frozenset()
MOST_WORK: Final = 100_000
"""Subschemas to look at, each as often as it is, before nothing is tracked in a schema: about 0.2 s."""

_ASSERTIONS = frozenset(KEYWORDS) - {"type", "$ref", "allOf", "anyOf", "oneOf"}
"""Without the keywords whose subschemas are looked at instead."""
_ENDLESS: Mapping[int, frozenset[str]] = {
    ARRAY: frozenset({"minItems", "uniqueItems"}),
    OBJECT: frozenset({"properties", "required", "minProperties"}),
    NUMBER: frozenset(),
    STRING: frozenset({"minLength", "maxLength"}),
}
"""The keywords with which any beginning of a value of a kind can become a value that is not among some others."""
_COMPLETED = frozenset({"items", "minItems", "maxItems", "uniqueItems"})
"""The keywords with which an array with unique items can be completed while there are enough of them."""
_PLAIN: Mapping[int, frozenset[str]] = {
    ARRAY: _COMPLETED,
    OBJECT: frozenset({"properties", "required", "additionalProperties"}),
}
"""The keywords that apply to parts of a value, or to the number of items."""
_FOUND_EVERYWHERE = frozenset({"", ".*", "^", "^.*", ".*$"})
"""Patterns that are found in every text."""


class TooLarge(Exception):
    """A schema is too large to be tracked."""


class UniqueArrays:
    """The places of a checked schema."""

    def __init__(self, schema: Schema) -> None:
        self._emptiness = Emptiness(schema)
        self._read = [*self._emptiness.source]
        self._nodes = [node.keywords for node in self._read]
        self._numbers = {id(node.schema): i for i, node in enumerate(self._read)}
        self._targets: dict[int, Schema] = {}
        self._left: float = MOST_WORK
        for i, node in enumerate(self._read):
            target = self._emptiness.source.target(node, "$ref") if "$ref" in node.keywords else None
            if target is not None:
                self._targets[i] = target
        try:
            self._tracked = self._find_tracked(self._place(schema))
        except TooLarge:
            self._tracked = frozenset()
        self._left = inf
        self.root = self.kept(self._place(schema))

    @property
    def tracked(self) -> list[Chain]:
        """The subschemas whose ``uniqueItems`` is tracked wherever it applies."""
        return [self._read[i].chain for i in sorted(self._tracked)]

    def is_unique(self, place: Place) -> bool:
        """Return whether an array at a place must have unique items."""
        return not self._tracked.isdisjoint(self._holding(place, ARRAY))

    def inside(self, place: Place, name: str | None) -> Place:
        """Return the place of the items of an array at a place or, with a name, of a property."""
        return self._item(place) if name is None else self._member(place, name)

    @remember
    def kept(self, place: Place) -> Place:
        """Return a place; `NOWHERE` if no array in its values is tracked."""
        is_leading = bool(self._tracked) and not self._tracked.isdisjoint(self._with_parts(place))
        return place if is_leading else NOWHERE

    @remember
    def is_plain(self, place: Place, kind: int) -> bool:
        """Return whether arrays or objects at a place are only restricted part by part, by what holds `inside`."""
        return all(self._own(i, kind) <= _PLAIN[kind] for i in self._holding(place, kind))

    @remember
    def endless(self, place: Place) -> int:
        """Return the kinds of values at a place of which any beginning can become a value that is not among some
        others. Exceptions are the number 0, and strings near `max_length`."""
        found = 0
        for kind, keywords in _ENDLESS.items():
            for number in self._holding(place, kind):
                own = self._own(number, kind) - keywords
                if own and not (own == {"additionalProperties"} and self._nodes[number][own.pop()] is True):
                    break
                if not self._kinds_at(number) & kind:
                    break
            else:
                found |= kind
        return found

    @remember
    def max_length(self, place: Place) -> float:
        """Return the maximum length of strings at a place."""
        return min((self._nodes[i].get("maxLength", inf) for i in self._holding(place, STRING)), default=inf)

    @remember
    def num_values(self, place: Place) -> float:
        """Return a number of values that there are at a place at least."""
        if self.endless(place) & ~STRING:
            return inf
        if self.endless(place):
            return float(90 ** min(self.max_length(place), 9))
        if len(place) != 1:
            return 0
        (number,) = place
        counter = Counter(lambda each: self._targets.get(self._numbers.get(id(each), -1)))
        found = counter.num_values(self._read[number].schema)
        self._spend(counter.work)
        return found

    def _spend(self, work: int) -> None:
        """Count work. Raises `TooLarge`."""
        self._left -= work
        if self._left < 0:
            raise TooLarge

    def _place(self, *schemas: Any) -> Place:
        return frozenset(self._numbers[id(each)] for each in schemas if isinstance(each, Mapping))

    # Subschemas that hold

    @remember
    def _holding(self, place: Place, kind: int) -> Place:
        """Return the subschemas that hold at a value of a kind."""
        found, pending = set(place), list(place)
        while pending:
            number = pending.pop()
            self._spend(1 + sum(map(len, self._choices(number))))
            schemas = [*self._nodes[number].get("allOf", ()), self._targets.get(number)]
            for alternatives in self._choices(number):
                if len(taking := [each for each in alternatives if self._kinds(each) & kind]) == 1:
                    schemas += taking
            new = self._place(*schemas) - found
            found |= new
            pending += new
        return frozenset(found)

    def _choices(self, number: int) -> Iterator[list[Any]]:
        for keyword in ("anyOf", "oneOf"):
            if keyword in self._nodes[number]:
                yield self._nodes[number][keyword]

    def _kinds(self, schema: Any) -> int:
        """Return the kinds of values that may satisfy a subschema."""
        return self._emptiness.kinds(schema)

    def _kinds_at(self, number: int) -> int:
        return self._kinds(self._read[number].schema)

    @remember
    def _item(self, place: Place) -> Place:
        held = (self._nodes[i] for i in self._holding(place, ARRAY))
        return self._place(*(each.get("items") for each in held if "prefixItems" not in each))

    @remember
    def _member(self, place: Place, name: str | None) -> Place:
        """Return the place of a property; None: one that is not declared."""
        found = []
        for number in self._holding(place, OBJECT):
            keywords = self._nodes[number]
            if name in keywords.get("properties", {}):
                found.append(keywords["properties"][name])
            elif not keywords.get("patternProperties"):
                found.append(keywords.get("additionalProperties"))
            elif _has_one_pattern(keywords):
                found += keywords["patternProperties"].values()
        return self._place(*found)

    # The analysis of a whole schema

    def _find_tracked(self, root: Place) -> frozenset[int]:
        """Return the subschemas with ``uniqueItems`` that hold wherever they apply, to arrays that can always be
        completed."""
        unique = {i for i, keywords in enumerate(self._nodes) if keywords.get("uniqueItems") is True}
        if not unique:
            return frozenset()
        held: set[int] = set()
        lost: set[int] = set()
        uncertain: set[int] = set()
        seen: set[Place] = set()
        pending = [root]
        while pending:
            place = pending.pop()
            if place in seen:
                continue
            seen.add(place)
            arrays, objects = self._holding(place, ARRAY), self._holding(place, OBJECT)
            held |= arrays
            if not arrays.isdisjoint(unique) and not self._can_be_completed(place, arrays):
                lost |= arrays
            names: set[str | None] = set()
            for number in arrays | objects:
                names.update(self._names(number))
                uncertain |= self._uncertain(number)
            self._spend(len(names) * (1 + len(objects)))
            pending += [self._item(place), *(self._member(place, name) for name in names)]
        return frozenset(unique & held - lost - self._with_parts(uncertain))

    def _uncertain(self, number: int) -> set[int]:
        """Return the parts of a subschema that holds which may apply to a value without holding there."""
        place, parts = frozenset({number}), self._parts(number)
        self._spend(len(parts))
        inside = self._item(place).union(*(self._member(place, name) for name in self._names(number)))

        def holds(part: int, kind: int) -> bool:
            return not self._kinds_at(part) & kind or part in self._holding(place, kind)

        return {each for each in parts - inside if not (holds(each, ARRAY) and holds(each, OBJECT))}

    def _names(self, number: int) -> list[str | None]:
        """Return the names of properties, and None for all others."""
        return [None, *self._nodes[number].get("properties", ())]

    @remember
    def _parts(self, number: int) -> set[int]:
        """Return all subschemas of a subschema except definitions, and the target of its reference."""
        found: list[Any] = [self._targets.get(number)]
        if not {"$dynamicRef", "$recursiveRef"}.isdisjoint(self._nodes[number]):  # its target may be any of them
            found += (node.schema for node in self._read)
        for keyword, value in self._nodes[number].items():
            if keyword in SCHEMA_MAPS - {"$defs", "definitions"}:
                found += value.values()
            elif keyword in SCHEMA_LISTS:
                found += value
            elif keyword in ONE_SCHEMA:
                found.append(value)
        return {self._numbers[id(each)] for each in found if id(each) in self._numbers}

    def _with_parts(self, numbers: Iterable[int]) -> set[int]:
        found, pending = set[int](), list(numbers)
        while pending:
            if (number := pending.pop()) not in found:
                found.add(number)
                pending += self._parts(number)
        return found

    # Arrays that can be completed

    def _can_be_completed(self, place: Place, arrays: Place) -> bool:
        """Return whether an array at a place can be completed, whichever new items it begins with."""
        if not self.is_plain(place, ARRAY):
            return False
        least: int = max(self._nodes[number].get("minItems", 0) for number in arrays)
        return least <= 1 or self.num_values(self._item(place)) >= least

    def _own(self, number: int, kind: int) -> set[str]:
        """Return the keywords of a subschema that apply to values of a kind; an alternative is looked at instead, if
        it is the only one for these."""
        keywords = self._nodes[number]
        found = set(keywords.keys() & _ASSERTIONS).difference(*(OF_KIND[each] for each in OF_KIND if each != kind))
        for keyword in ("anyOf", "oneOf"):
            if sum(self._kinds(each) & kind != 0 for each in keywords.get(keyword, ())) > 1:
                found.add(keyword)
        if "$ref" in keywords and number not in self._targets:
            found.add("$ref")
        return found


def _has_one_pattern(keywords: Mapping[str, Any]) -> bool:
    """Return whether a pattern applies to all properties of an object."""
    if len(keywords["patternProperties"]) > 1 or keywords.get("properties"):
        return False
    return keywords.get("additionalProperties") is False or not _FOUND_EVERYWHERE.isdisjoint(
        keywords["patternProperties"]
    )
