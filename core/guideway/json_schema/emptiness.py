"""Prove that no value satisfies a schema, or a part of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

from guideway.json_schema.assertions import KEYWORDS
from guideway.json_schema.kinds import (
    ANY,
    ARRAY,
    BOOLEAN,
    FRACTION,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    TYPES,
    kind_of,
    kinds_of,
)
from guideway.json_schema.ranges import counts, number_range
from guideway.json_schema.refusing import refuses
from guideway.json_schema.walking import Chain, Resource, Schema, ignores_beside_ref, resolve, walk

__all__ = ["Emptiness", "Reason"]

MOST_TOGETHER = 64
"""Maximum schemas of one value to compare with each other."""
MOST_WORK = 200_000
"""Maximum keywords, names and values to compare in a whole schema. Beyond it, only types are compared."""

_EMPTYING = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "not", "const", "enum", "minimum", "exclusiveMinimum", "minLength"}
    | {"minItems", "contains", "required", "minProperties"}
)
"""A schema without any of these keywords has instances."""
_ASSERTING = frozenset({*KEYWORDS, "type"})


class Reason(NamedTuple):
    """Why no value satisfies a schema."""

    place: Chain
    """The place of the cause, as a JSON pointer's chain."""
    text: str
    cause: Schema = True
    """The subschema that is the cause, or True if there is none."""
    besides: str = ""
    """A description of other causes."""


class Emptiness:
    """Upper bounds of the kinds of values of each part of a checked schema. Computed as a least fixed point, so that a
    part that requires itself has none. Takes time linear in the size of the schema, plus `MOST_WORK`."""

    def __init__(self, root: Schema) -> None:
        self.nodes: dict[int, tuple[Mapping[str, Any], Chain, Resource]] = {}
        """The subschemas that are objects, by `id`, with their places; each after its parents."""
        self.has_false = root is False
        """True if `false` is a subschema."""
        self.lost_types: dict[int, list[str]] = {}
        """The types that a nonempty subschema allows although none of their values satisfies it, by `id` of the
        subschema."""
        self._root = root
        self._ref_alone = ignores_beside_ref(root)
        self._kinds: dict[int, int] = {}
        self._waiting: dict[int, set[int]] = {}
        """The subschemas that depend on one whose kinds may grow, by `id`."""
        self._targets: dict[int, Schema] = {}
        self._reader = 0
        self._work = MOST_WORK
        self._reasons: list[Reason] | None = None
        pending: list[int] = []
        for chain, node, resource in walk(root):
            if not isinstance(node, Mapping):
                self.has_false |= node is False
                continue
            self.nodes[id(node)] = node, chain, resource
            if _EMPTYING.isdisjoint(node):
                self._kinds[id(node)] = kinds_of(node["type"]) if "type" in node else ANY
            else:
                self._kinds[id(node)] = 0
                self._waiting[id(node)] = set()
                pending.append(id(node))
        self._spread(pending)

    def is_empty(self, schema: Any) -> bool:
        """Return whether a part of the schema is proved to be unsatisfiable."""
        return schema is False or (isinstance(schema, Mapping) and self._kinds.get(id(schema)) == 0)

    def kinds(self, schema: Any) -> int:
        """Return the kinds of values that may satisfy a part of the schema."""
        if isinstance(schema, bool):
            return ANY if schema else 0
        return self._kinds.get(id(schema), ANY)

    @property
    def is_found(self) -> bool:
        """True if any part of the schema is empty, or has no values of a type that it allows."""
        return self.has_false or bool(self.lost_types) or 0 in self._kinds.values()

    def reason(self) -> Reason | None:
        """Return why no value satisfies the whole schema; None if that is not proved."""
        if not self.is_empty(self._root):
            return None
        reason, met, besides = Reason(None, "", self._root), set(), ""
        while isinstance(node := reason.cause, Mapping):
            if id(node) in met:
                text = "its references require it inside itself without end"
                return Reason(self.nodes[id(node)][1], text + besides)
            met.add(id(node))
            reason = self._why(node)
            besides = besides or reason.besides
        return Reason(reason.place, (reason.text if node else "`false` allows nothing") + besides)

    def _spread(self, pending: list[int]) -> None:
        """Find the kinds of subschemas, the last first, and recompute the subschemas that depend on a change."""
        queued = set(pending)
        while pending:
            self._reader = pending.pop()
            queued.discard(self._reader)
            found = self._evaluate(self.nodes[self._reader][0])
            if found == self._kinds[self._reader]:
                continue
            self._kinds[self._reader] = found
            again = self._waiting[self._reader] - queued
            pending += again
            queued |= again

    def _of(self, schema: Any) -> int:
        """Return the kinds found until now. The reading subschema is evaluated again when they change."""
        if (waiting := self._waiting.get(id(schema))) is not None:
            waiting.add(self._reader)
        return self.kinds(schema)

    def _evaluate(self, node: Mapping[str, Any]) -> int:
        if "$ref" in node and _ASSERTING & node.keys() == {"$ref"}:  # no other assertions to combine with the target's
            return self._of(self._target(node))
        together = self._together(node)
        found, excluded = self._possible(together)
        self.lost_types.pop(id(node), None)
        if excluded and found & ~excluded:
            typed = node.get("type", [name for name in TYPES if name != "integer"])
            lost = [name for name in ([typed] if isinstance(typed, str) else typed) if _is_lost(name, found, excluded)]
            if lost:
                self.lost_types[id(node)] = lost
        found &= ~excluded
        for part in self._in_place(node):
            found &= self._of(part)
        for schema in together:
            for keyword in ("anyOf", "oneOf"):
                if found and (branches := schema.get(keyword)):
                    found &= self._any_of(branches, together)
        return found

    def _in_place(self, node: Mapping[str, Any]) -> list[Any]:
        """Return the subschemas that a value of `node` must also satisfy."""
        if "$ref" not in node:
            return list(node.get("allOf", ()))
        return [self._target(node), *(() if self._ref_alone else node.get("allOf", ()))]

    def _target(self, node: Mapping[str, Any]) -> Schema:
        """Return the target of a subschema's reference; True if it is unknown."""
        if (target := self._targets.get(id(node))) is None:
            reference, (_, resource) = str(node["$ref"]), self.nodes[id(node)][2]
            found = resolve(resource, reference) if reference == "#" or reference.startswith("#/") else True
            target = self._targets[id(node)] = found if isinstance(found, Mapping | bool) else True
        return target

    def _together(self, node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the schemas that apply to the same value as `node`, which is the first."""
        if "$ref" not in node and "allOf" not in node:
            return [node]
        found: dict[int, Mapping[str, Any]] = {}
        pending: list[Any] = [node]
        while pending and len(found) < MOST_TOGETHER:
            each = pending.pop()
            if isinstance(each, Mapping) and id(each) in self.nodes and id(each) not in found:
                found[id(each)] = {} if self._ref_alone and "$ref" in each else each
                pending += self._in_place(each)
        return list(found.values())

    def _any_of(self, branches: Sequence[Any], together: list[Mapping[str, Any]]) -> int:
        """Return the kinds that satisfy a branch and the other schemas that apply."""
        found = 0
        for branch in branches:
            kinds = self._of(branch)
            if kinds and isinstance(branch, Mapping) and not _EMPTYING.isdisjoint(branch):
                reasons, self._reasons = self._reasons, None
                possible, excluded = self._possible([*together, *self._together(branch)])
                kinds &= possible & ~excluded
                self._reasons = reasons
            found |= kinds
        return found

    def _possible(self, schemas: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """Return the kinds that the types and values of `schemas`, which apply together, allow; and the kinds among
        them that have no value within the bounds."""
        found = ANY
        lists: list[tuple[int, list[Any]]] = []
        for i, schema in enumerate(schemas):
            if "type" in schema:
                found &= kinds_of(schema["type"])
            if "not" in schema:
                found &= ~_refused_kinds(schema["not"])
            if "const" in schema:
                lists.append((i, [schema["const"]]))
            if "enum" in schema:
                lists.append((i, schema["enum"]))
            self._work -= len(schema)
        if self._work < 0:
            return found, 0
        if lists:
            found = self._find_listed(schemas, lists, found)
        excluded = 0
        if found & NUMBER:
            excluded |= found & NUMBER & ~self._numbers(schemas, found)
        for kind, has in ((STRING, self._has_strings), (ARRAY, self._has_arrays), (OBJECT, self._has_objects)):
            if found & kind and not has(schemas):
                excluded |= kind
        return found, excluded

    def _find_listed(self, schemas: Sequence[Mapping[str, Any]], lists: list[tuple[int, list[Any]]], kinds: int) -> int:
        """Return the kinds of listed values that no schema refuses."""
        at, values = min(lists, key=lambda each: len(each[1]))
        others = [
            {keyword: value for keyword, value in schema.items() if i != at or schema[keyword] is not values}
            for i, schema in enumerate(schemas)
        ]
        found = 0
        for value in values:
            if (kind := kind_of(value)) & kinds & ~found:
                self._work -= sum(map(len, schemas)) + sum(len(each) for _, each in lists)
                if self._work < 0:
                    return kinds
                if not any(refuses(schema, value) for schema in others):
                    found |= kind
        return found

    def _numbers(self, schemas: Sequence[Mapping[str, Any]], kinds: int) -> int:
        if all("minimum" not in schema and "exclusiveMinimum" not in schema for schema in schemas):
            return NUMBER
        numbers = number_range(schemas)
        found = numbers.kinds()
        if not found & kinds:
            what = "number" if kinds & FRACTION else "integer"
            self._say(schemas, f"no {what} is {numbers}")
        return found

    def _has_strings(self, schemas: Sequence[Mapping[str, Any]]) -> bool:
        low, high = counts(schemas, "minLength", "maxLength")
        return low <= high or self._say(schemas, f"no string has at least {low} and at most {high} characters")

    def _has_arrays(self, schemas: Sequence[Mapping[str, Any]]) -> bool:
        low, high = counts(schemas, "minItems", "maxItems")
        for schema in schemas:
            if "contains" in schema and (least := schema.get("minContains", 1)) > 0:
                if not self._of(schema["contains"]):
                    return self._say([schema], "`contains` asks for an item that cannot be", "contains")
                if least > schema.get("maxContains", inf):
                    return self._say([schema], "minContains is more than maxContains")
                low = max(low, least)
        if low > high:
            return self._say(schemas, f"no array has at least {low} and at most {high} items")
        if not low:
            return True
        longest = max(len(_first_items(schema)) for schema in schemas)
        for i in range(int(min(low, longest + 1))):
            self._work -= len(schemas)
            kinds = ANY
            for schema in schemas:
                keyword, item = _item(schema, i)
                kinds &= self._of(item)
                if not kinds:
                    return self._say([schema], f"at least {low} items are required, and item {i} cannot be", *keyword)
        if not longest and any(schema.get("uniqueItems") is True for schema in schemas):
            most = min(self._num_values(schema.get("items", True)) for schema in schemas)
            if low > most:
                return self._say(schemas, f"at least {low} different items are required, and there are {most}")
        return True

    def _num_values(self, schema: Any) -> float:
        """Return the maximum number of values that satisfy a schema."""
        if isinstance(schema, Mapping):
            if "const" in schema:
                return 1
            if "enum" in schema:
                return len(schema["enum"])
        kinds = self._of(schema)
        return inf if kinds & ~(NULL | BOOLEAN) else bool(kinds & NULL) + 2 * bool(kinds & BOOLEAN)

    def _has_objects(self, schemas: Sequence[Mapping[str, Any]]) -> bool:
        low, high = counts(schemas, "minProperties", "maxProperties")
        required = list(dict.fromkeys(name for schema in schemas for name in schema.get("required", ())))
        self._work -= len(required) * len(schemas)
        if max(low, len(required)) > high:
            return self._say(
                schemas, f"at least {max(low, len(required))} properties are required, and at most {high} allowed"
            )
        if self._work < 0:
            return True
        for name in required:
            if not self._may_have(schemas, name, "is required"):
                return False
        if low > len(required):
            return self._has_enough(schemas, low)
        return True

    def _has_enough(self, schemas: Sequence[Mapping[str, Any]], low: float) -> bool:
        """Return whether objects may have `low` properties."""
        for schema in schemas:
            if "propertyNames" in schema and not self._of(schema["propertyNames"]) & STRING:
                return self._say([schema], "properties are required, and no name is allowed", "propertyNames")
            if self._of(schema.get("additionalProperties", True)) or schema.get("patternProperties"):
                continue
            names = schema.get("properties", {})
            self._work -= len(names) * len(schemas)
            if self._work < 0:
                return True
            reasons, self._reasons = self._reasons, None
            possible = sum(self._may_have(schemas, name, "") for name in names)
            self._reasons = reasons
            if low > possible:
                return self._say([schema], f"at least {low} properties are required, and there can be {possible}")
        return True

    def _may_have(self, schemas: Sequence[Mapping[str, Any]], name: str, said: str) -> bool:
        """Return whether an object may have a property of this name."""
        kinds, parts = ANY, []
        for schema in schemas:
            if "propertyNames" in schema:
                names = schema["propertyNames"]
                if not self._of(names) & STRING or refuses(names, name):
                    return self._say(
                        [schema], f"the property {name!r} {said}, and its name not allowed", "propertyNames"
                    )
            keyword: tuple[str, ...] = ("additionalProperties",)
            if name in (declared := schema.get("properties", {})):
                part, keyword = declared[name], ("properties", name)
            elif schema.get("patternProperties"):
                continue  # a pattern may allow it
            else:
                part = schema.get("additionalProperties", True)
            kinds &= self._of(part)
            if not kinds:
                if part is False and len(keyword) == 1:
                    return self._say([schema], f"the property {name!r} {said}, and `additionalProperties` forbids it")
                return self._say(
                    [schema], f"the property {name!r} {said}, and nothing is allowed as its value", *keyword
                )
            if isinstance(part, Mapping) and id(part) in self.nodes:
                parts.append(part)
        if len(parts) < 2:
            return True
        possible, excluded = self._possible([each for part in parts for each in self._together(part)])
        return bool(kinds & possible & ~excluded) or self._say(
            schemas, f"the property {name!r} {said}, and what is said of it excludes each other"
        )

    def _why(self, node: Mapping[str, Any]) -> Reason:
        """Return why no value satisfies `node`, which is empty."""
        place = self.nodes[id(node)][1]
        for i, part in enumerate(reversed(self._in_place(node))):
            if self.is_empty(part):
                return Reason(((place, "allOf"), len(node.get("allOf", ())) - 1 - i), "", part)
        self._reasons, self._work = [], MOST_WORK
        together = self._together(node)
        found, excluded = self._possible(together)
        reasons, self._reasons = self._reasons, None
        if reasons and not found & ~excluded:
            return reasons[0]
        for keyword in ("anyOf", "oneOf"):
            if (branches := node.get(keyword)) and not found & ~excluded & self._any_of(branches, together):
                if not self.is_empty(branches[0]):
                    return Reason((place, keyword), f"no branch of `{keyword}` goes with the rest of the schema")
                besides = f", and no other branch of its `{keyword}` has a value"
                return Reason(((place, keyword), 0), "", branches[0], besides if len(branches) > 1 else "")
        for keyword in ("const", "enum"):
            if keyword in node:
                is_bare = keyword == "enum" and not node[keyword]
                said = "`enum` lists no value" if is_bare else f"the rest of the schema refuses `{keyword}`"
                return Reason((place, keyword), said)
        if _is_anything(node.get("not", False)):
            return Reason((place, "not"), "`not` refuses every value")
        return Reason(place, "the types of values that are allowed here exclude each other")

    def _say(self, schemas: Sequence[Mapping[str, Any]], text: str, *parts: str | int) -> bool:
        """Record a reason, at a keyword of the first schema, and return False."""
        if self._reasons is not None:
            node, place, _ = self.nodes[id(schemas[0])]
            cause: Any = node
            for part in parts:
                place, cause = (place, part), cause[part]
            self._reasons.append(Reason(place, text, cause if parts and self.is_empty(cause) else True))
        return False


def _first_items(schema: Mapping[str, Any]) -> Sequence[Any]:
    items = schema.get("items")
    found: Sequence[Any] = items if isinstance(items, list) else schema.get("prefixItems", ())
    return found


def _item(schema: Mapping[str, Any], i: int) -> tuple[tuple[str | int, ...], Any]:
    """Return the path of a schema's keyword for an item, and the item's subschema."""
    is_list = isinstance(schema.get("items"), list)
    if i < len(first := _first_items(schema)):
        return ("items" if is_list else "prefixItems", i), first[i]
    keyword = "additionalItems" if is_list else "items"
    return (keyword,), schema.get(keyword, True)


def _is_lost(name: str, kinds: int, excluded: int) -> bool:
    """Return whether all allowed kinds of a type are excluded."""
    kinds &= TYPES[name]
    return bool(kinds) and not kinds & ~excluded


def _is_anything(schema: Any) -> bool:
    return schema is True or (isinstance(schema, Mapping) and _ASSERTING.isdisjoint(schema))


def _refused_kinds(schema: Any) -> int:
    """Return the kinds of which a negated schema refuses every value."""
    if _is_anything(schema):
        return ANY
    if isinstance(schema, Mapping) and _ASSERTING & schema.keys() == {"type"}:
        return kinds_of(schema["type"])
    return 0
