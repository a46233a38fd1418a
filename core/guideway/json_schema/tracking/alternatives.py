"""The alternatives of a rewritten schema: sets of subschemas that hold together for a value, with no choice left.

The keywords are those of a rewriting: ``anyOf`` is the only one that leaves a choice.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from guideway.json_schema.formats import has_format
from guideway.json_schema.kinds import (
    ANY,
    ARRAY,
    BOOLEAN,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    equal,
    kind_of,
    kinds_among,
    kinds_of,
)
from guideway.json_schema.ranges import counts, number_range
from guideway.json_schema.rewriting.automata import Automaton, Unknown, searched
from guideway.json_schema.tracking.remembering import remember
from guideway.json_schema.tracking.values import beginning_of, may_become, may_begin, value_of
from guideway.json_schema.walking import Schema, resolve, walk

__all__ = ["Alternative", "Alternatives", "NotTracked", "Place"]

Place: TypeAlias = frozenset[int]
"""The subschemas that hold at a value, by number."""
Alternative: TypeAlias = frozenset[int]
"""The subschemas without ``$ref``, ``allOf`` and ``anyOf`` that hold together."""

MOST_ALTERNATIVES: Final = 1000
"""Alternatives of one value."""
MOST_WORK: Final = 20_000
"""Choices between subschemas that are followed, and alternatives that are looked at, before the first text; and as many
after it."""
STEPS: Final = 100_000
"""Steps between the states of an automaton of a pattern."""
MOST_TOGETHER: Final = 1000
"""Properties of all alternatives of one value: at about 2,000, llguidance exceeds its parser items."""
MOST_AUTOMATA: Final = 60
MOST_NAMES: Final = 10_000
"""Names to remember that a schema does not list."""

CHOOSING = frozenset({"$ref", "allOf", "anyOf", "$defs"})
FOLLOWED = frozenset(
    {"type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    | {"minLength", "maxLength", "pattern", "format", "items", "prefixItems", "minItems", "maxItems"}
    | {"properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties"}
)
OF_STRINGS = frozenset({"enum", "const", "pattern", "format", "maxLength"})
"""Keywords that may refuse a string because of how it begins."""


class NotTracked(Exception):
    """The objects of a schema cannot be followed."""


class Members(NamedTuple):
    """The keywords of one alternative for objects."""

    required: dict[str, None]
    """A dict for its order."""
    least: int
    most: float
    listed: frozenset[str]
    """The names in ``properties``."""


class Alternatives:
    """The alternatives of a rewritten schema. Raises `NotTracked` if there are too many, or if a part of the schema
    cannot be judged, with at most `automata` for its patterns."""

    def __init__(self, schema: Schema, automata: int = MOST_AUTOMATA) -> None:
        self._most_automata = automata
        self._nodes: list[Mapping[str, Any]] = []
        self._numbers: dict[int, int] = {}
        self._asked: set[Place] = set()
        """The places of which it is not known yet whether there may be a value."""
        self._members: dict[tuple[Alternative, str], Place | None] = {}
        self._left = MOST_WORK
        for _, node, _ in walk(schema):
            if isinstance(node, Mapping):
                if not node.keys() <= CHOOSING | FOLLOWED:
                    raise NotTracked(f"{min(node.keys() - CHOOSING - FOLLOWED)} cannot be followed in objects")
                self._numbers[id(node)] = len(self._nodes)
                self._nodes.append(node)
        self._own_kinds = list(map(_kinds_of_node, self._nodes))
        self._schema = schema  # keeps the identities of its parts
        self._automata: dict[str, Automaton | None] = {}
        self.root: Place = self._place([schema]) or frozenset()
        self._check_all()
        if not self.is_possible(self.root):
            raise NotTracked("nothing satisfies it")
        self._left = MOST_WORK

    @remember
    def of_kind(self, place: Place, kind: int) -> tuple[Alternative, ...]:
        """Return the alternatives for arrays or objects at a place that can be completed."""
        found = [each for each in self._alternatives(place) if self._kinds(each) & kind]
        return tuple(each for each in found if self._can_be_completed(each, kind))

    @remember
    def are_fewer(self, place: Place, kind: int) -> bool:
        """Return whether a grammar without ``required`` and the number of properties allows arrays or objects at a
        place, or beginnings of parts of them, that nothing here begins with."""
        found = self.of_kind(place, kind)
        if len(found) < sum(bool(self._kinds(each) & kind) for each in self._alternatives(place)):
            return True
        if kind == ARRAY:
            return any(self.hides(part) for each in found for part in self._items(each))
        return any(
            self.members(each).most < inf or any(self.hides(part) for part in self._inside(each)) for each in found
        )

    def hides(self, place: Place | None) -> bool:
        """Return whether a grammar allows an array or object at a place although it cannot be completed."""
        if place is None:
            return False
        kinds = 0
        for each in self._alternatives(place):
            kinds |= self._kinds(each)
        return any(kinds & kind and not self.of_kind(place, kind) for kind in (ARRAY, OBJECT))

    @remember
    def is_possible(self, place: Place | None) -> bool:
        """Return whether there may be a value at a place."""
        if place is None or place in self._asked:
            return place is not None  # in itself
        self._asked.add(place)
        others = any(self._kinds(each) & ~(ARRAY | OBJECT) for each in self._alternatives(place))
        found = others or any(self.of_kind(place, kind) for kind in (ARRAY, OBJECT))
        self._asked.remove(place)
        return found

    @remember
    def members(self, alternative: Alternative) -> Members:
        """Return the names and their number in the objects of an alternative."""
        nodes = list(self._of(alternative))
        return Members(
            dict.fromkeys(name for node in nodes for name in node.get("required", ())),
            max((node.get("minProperties", 0) for node in nodes), default=0),
            min((node.get("maxProperties", inf) for node in nodes), default=inf),
            frozenset(name for node in nodes for name in node.get("properties", ())),
        )

    def member(self, alternative: Alternative, name: str) -> Place | None:
        """Return the place of a property; None if there cannot be one of this name."""
        key = alternative, name
        if key not in self._members:
            if len(self._members) > MOST_NAMES:
                self._members.clear()
            place = self._place(self._parts(alternative, name))
            self._members[key] = place if self.is_possible(place) else None
        return self._members[key]

    def item(self, alternative: Alternative, number: int) -> Place | None:
        """Return the place of an item of an array; None if there cannot be one at this index."""
        place = self._item(alternative, number)
        return place if self.is_possible(place) else None

    def min_items(self, alternative: Alternative) -> int:
        """Return the minimum number of items of an array."""
        return max((node.get("minItems", 0) for node in self._of(alternative)), default=0)

    def takes(self, place: Place, value: Any) -> bool:
        """Return whether a value that is no array and no object may be at a place."""
        return self._some(place, kind_of(value), lambda node: self._holds(node, value))

    def may_become(self, place: Place, text: bytes, *, is_string: bool) -> bool:
        """Return whether a string, a literal or a number at a place may begin with a text, which is without the quote
        of a string; as far as that is known."""
        kind = STRING if is_string else {b"t": BOOLEAN, b"f": BOOLEAN, b"n": NULL}.get(text[:1], NUMBER)
        return self._some(place, kind, lambda node: self._begins(node, text, is_string))

    def takes_any_string(self, place: Place) -> bool:
        """Return whether a string at a place may begin with anything."""
        return self._some(place, STRING, OF_STRINGS.isdisjoint)

    def _some(self, place: Place, kind: int, holds: Callable[[Mapping[str, Any]], bool]) -> bool:
        """Return whether all subschemas of an alternative for values of a kind hold."""
        return any(self._kinds(each) & kind and all(map(holds, self._of(each))) for each in self._alternatives(place))

    def may_have(self, alternative: Alternative, names: frozenset[str], name: str) -> bool:
        """Return whether an object with some names may have another one, and all that it requires."""
        keywords = self.members(alternative)
        missing = keywords.required.keys() - names - {name}
        return len(names) + 1 + len(missing) <= keywords.most and self.member(alternative, name) is not None

    def has_name(self, alternative: Alternative, names: frozenset[str], text: bytes) -> bool:
        """Return whether an object with some names may have another one that begins with a text."""
        keywords = self.members(alternative)
        listed = (keywords.listed | keywords.required.keys()) - names
        if any(_spelled(each).startswith(text) and self.may_have(alternative, names, each) for each in listed):
            return True
        is_full = len(names) + len(keywords.required.keys() - names) >= keywords.most
        return not is_full and self._has_other(alternative, text)

    def _has_other(self, alternative: Alternative, text: bytes) -> bool:
        """Return whether objects may have names that are not listed and begin with a text."""
        for node in self._of(alternative):
            if node.get("additionalProperties", True) is False and not any(
                self._leads(pattern, text) for pattern in node.get("patternProperties", ())
            ):
                return False
        nodes = list(self._of(alternative))
        if any("patternProperties" in node for node in nodes):
            return True
        return self.is_possible(self._place(node.get("additionalProperties", True) for node in nodes))

    # Subschemas

    def _of(self, numbers: Iterable[int]) -> Iterator[Mapping[str, Any]]:
        return (self._nodes[i] for i in numbers)

    def _place(self, schemas: Iterable[Any]) -> Place | None:
        """Return the place where all of some subschemas hold; None if nothing satisfies them."""
        found = []
        for each in schemas:
            if each is False:
                return None
            if isinstance(each, Mapping):
                found.append(self._numbers[id(each)])
        return frozenset(found)

    def _kinds(self, numbers: Iterable[int]) -> int:
        found = ANY
        for i in numbers:
            found &= self._own_kinds[i]
        return found

    @remember
    def _alternatives(self, place: Place) -> tuple[Alternative, ...]:
        found: dict[Alternative, None] = {}
        for each in self._expand(list(place), frozenset(), ANY):
            found[each] = None
            if len(found) > MOST_ALTERNATIVES:
                raise NotTracked("its values have too many alternatives")
        return tuple(found)

    def _expand(self, left: list[int], seen: frozenset[int], kinds: int) -> Iterator[Alternative]:
        self._look()
        while left:
            number = left.pop()
            if number in seen:
                continue
            seen |= {number}
            node = self._nodes[number]
            kinds &= self._own_kinds[number]
            parts = [*node.get("allOf", ())]
            if "$ref" in node:
                parts.append(resolve(self._schema, node["$ref"]))
            inner = self._place(parts)
            if inner is None or not kinds:
                return
            left = [*left, *inner]
            if "anyOf" in node:
                for branch in node["anyOf"]:
                    chosen = self._place([branch])
                    if chosen is not None:
                        yield from self._expand([*left, *chosen], seen, kinds)
                return
        held = frozenset(i for i in seen if not self._nodes[i].keys() <= CHOOSING)
        if self._has_values(held):
            yield held

    def _look(self, times: int = 1) -> None:
        """Count work. Raises `NotTracked`."""
        self._left -= times
        if self._left < 0:
            raise NotTracked("its values have too many alternatives")

    def _has_values(self, alternative: Alternative) -> bool:
        """Return whether there may be a value, as far as the keywords of scalars tell."""
        nodes = list(self._of(alternative))
        kinds = self._kinds(alternative)
        listing = [node for node in nodes if "enum" in node or "const" in node]
        if listing:
            values = [listing[0]["const"]] if "const" in listing[0] else listing[0]["enum"]
            return any(kind_of(value) & kinds and all(self._holds(node, value) for node in nodes) for value in values)
        if kinds & NUMBER and not number_range(nodes).kinds() & kinds:
            kinds &= ~NUMBER
        low, high = counts([{}, *nodes], "minLength", "maxLength")
        patterns = list(dict.fromkeys(node["pattern"] for node in nodes if "pattern" in node))
        is_string = low <= high and not (len(patterns) > 1 and kinds & STRING and self._exclude(patterns))
        return bool(kinds if is_string else kinds & ~STRING)

    def _exclude(self, patterns: Sequence[str]) -> bool:
        """Return whether no text has all of some patterns, as far as that is known."""
        with suppress(NotTracked, Unknown):
            found = self._automaton(patterns[0])
            for each in patterns[1:]:
                found = found.meet(self._automaton(each))
            return found.is_empty()
        return False

    def _can_be_completed(self, alternative: Alternative, kind: int) -> bool:
        if kind == ARRAY:
            least = self.min_items(alternative)
            return least == 0 or self.item(alternative, least - 1) is not None
        keywords = self.members(alternative)
        if max(len(keywords.required), keywords.least) > keywords.most:
            return False
        if any(self.member(alternative, name) is None for name in keywords.required):
            return False
        names = keywords.listed | keywords.required.keys()
        return self._has_other(alternative, b"") or keywords.least <= sum(
            self.member(alternative, name) is not None for name in names
        )

    def _parts(self, alternative: Alternative, name: str) -> Iterator[Any]:
        """Yield the subschemas of a property."""
        for node in self._of(alternative):
            found = [
                value
                for pattern, value in node.get("patternProperties", {}).items()
                if name in self._automaton(pattern)
            ]
            if name in node.get("properties", {}):
                found.append(node["properties"][name])
            yield from found or [node.get("additionalProperties", True)]

    # Scalars

    def _automaton(self, pattern: str) -> Automaton:
        if pattern not in self._automata:
            if len(self._automata) >= self._most_automata:
                raise NotTracked("it has too many patterns")
            try:
                self._automata[pattern] = searched(pattern, STEPS)
            except Unknown:
                self._automata[pattern] = None
        found = self._automata[pattern]
        if found is None:
            raise NotTracked(f"the pattern {pattern} cannot be followed")
        return found

    def _leads(self, pattern: str, text: bytes) -> bool:
        """Return whether a string in which an expression is found may begin with a text."""
        begun, following = beginning_of(text)
        automaton = self._automaton(pattern)
        return any(automaton.begins(begun + each) for each in ([""] if following is None else following))

    def _holds(self, node: Mapping[str, Any], value: Any) -> bool:
        if "const" in node and not equal(value, node["const"]):
            return False
        if "enum" in node and not any(equal(value, each) for each in node["enum"]):
            return False
        kind = kind_of(value)
        if kind & NUMBER:
            numbers = number_range([node])
            # a number above the largest double may be a multiple
            is_multiple = numbers.multiple is None or abs(value) == inf or Fraction(str(value)) % numbers.multiple == 0
            return is_multiple and numbers.has(value)
        if kind == STRING:
            if not node.get("minLength", 0) <= len(value) <= node.get("maxLength", inf):
                return False
            if "pattern" in node and value not in self._automaton(node["pattern"]):
                return False
            return "format" not in node or has_format(node["format"], value) is not False
        return True

    def _begins(self, node: Mapping[str, Any], text: bytes, is_string: bool) -> bool:
        for values in (node.get("enum"), [node["const"]] if "const" in node else None):
            if values is not None and not any(_begins_value(each, text, is_string) for each in values):
                return False
        if not is_string:
            return True
        begun, following = beginning_of(text)
        if len(begun) + (following is not None) > node.get("maxLength", inf):
            return False
        return "pattern" not in node or self._leads(node["pattern"], text)

    # The analysis of a whole schema

    def _check_all(self) -> None:
        """Find all alternatives. Raises `NotTracked`."""
        seen: set[tuple[frozenset[Place], bool]] = set()
        pending = [(frozenset({self.root}), not self.hides(self.root))]
        while pending:
            places, is_sure = pending.pop()
            if (places, is_sure) in seen:
                continue
            seen.add((places, is_sure))
            together = {each for place in places for each in self._alternatives(place)}
            for node in self._of(set().union(*together)):
                names = node.get("patternProperties", ())
                for pattern in names if is_sure or "pattern" not in node else (*names, node["pattern"]):
                    self._automaton(pattern)
            if sum(2 + len(self.members(each).listed) for each in together) > MOST_TOGETHER:
                raise NotTracked("a value has too many alternatives")
            for kind in (OBJECT, ARRAY):
                found = {each: None for place in places for each in self.of_kind(place, kind)}
                self._look(len(found))
                is_inner_sure = is_sure and len(found) == 1 and not any(self.are_fewer(place, kind) for place in places)
                for inner in self._parts_of(list(found), kind):
                    self._look()
                    pending.append((inner, is_inner_sure))

    def _parts_of(self, alternatives: Sequence[Alternative], kind: int) -> Iterator[frozenset[Place]]:
        """Yield the places that the same property or item may have."""
        if kind == ARRAY:
            found = [list(self._items(each)) for each in alternatives]
            longest = max(map(len, found), default=0)
            parts = [[each[min(i, len(each) - 1)] for each in found] for i in range(longest)]
        else:
            names = dict.fromkeys(name for each in alternatives for name in self.members(each).listed)
            parts = [[self.member(each, name) for each in alternatives] for name in names]
            parts.append([part for each in alternatives for part in self._others(each)])
        for each in parts:
            yield frozenset(part for part in each if part)

    def _inside(self, alternative: Alternative) -> Iterator[Place | None]:
        for name in self.members(alternative).listed:
            yield self._place(self._parts(alternative, name))
        yield from self._others(alternative)

    def _others(self, alternative: Alternative) -> Iterator[Place | None]:
        """Yield places of properties that are not listed."""
        for node in self._of(alternative):
            for each in (*node.get("patternProperties", {}).values(), node.get("additionalProperties", True)):
                yield self._place([each])

    def _items(self, alternative: Alternative) -> Iterator[Place | None]:
        first = max((len(node.get("prefixItems", ())) for node in self._of(alternative)), default=0)
        return (self._item(alternative, i) for i in range(first + 1))

    def _item(self, alternative: Alternative, number: int) -> Place | None:
        parts = []
        for node in self._of(alternative):
            if number >= node.get("maxItems", inf):
                return None
            first = node.get("prefixItems", ())
            parts.append(first[number] if number < len(first) else node.get("items", True))
        return self._place(parts)


def _kinds_of_node(node: Mapping[str, Any]) -> int:
    """Return the kinds of values that the keywords of one subschema allow, without its parts."""
    found = kinds_of(node["type"]) if "type" in node else ANY
    if "enum" in node:
        found &= kinds_among(node["enum"])
    return found & kind_of(node["const"]) if "const" in node else found


def _spelled(name: str) -> bytes:
    """Return the bytes of a property's name, of which there is one spelling."""
    return json.dumps(name, ensure_ascii=False)[1:-1].encode(errors="surrogatepass")


def _begins_value(value: Any, text: bytes, is_string: bool) -> bool:
    if isinstance(value, str) or is_string:
        return is_string and isinstance(value, str) and may_begin(text, value)
    return not isinstance(value, list | dict) and may_become(text, value_of(value))
