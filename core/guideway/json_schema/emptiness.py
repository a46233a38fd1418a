"""Prove that no value satisfies a schema or a part of it, or that none satisfies two parts at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from math import inf
from typing import Any, NamedTuple

from guideway.errors import InvalidGrammar
from guideway.json_schema.kinds import (
    ANY,
    ARRAY,
    BOOLEAN,
    FRACTION,
    NULL,
    NUMBER,
    OBJECT,
    STRING,
    kind_of,
    kinds_of,
)
from guideway.json_schema.ranges import counts, number_range
from guideway.json_schema.reading import Node, Source
from guideway.json_schema.refusing import refuse, refuses
from guideway.json_schema.walking import KEYWORDS, Chain, Pointer, Schema, parts_of

__all__ = ["Emptiness", "Reason", "check_satisfiable"]

MOST_TOGETHER = 64
"""Maximum schemas of one value to compare with each other."""
MOST_WORK = 200_000
"""Maximum keywords, names and values to compare in a whole schema. Beyond it, only types are compared."""
MOST_BRANCHES = 64
"""Maximum branches of a ``oneOf`` to compare with each other."""
DEEPEST = 12
"""Maximum levels of properties and alternatives to compare with each other."""

_EMPTYING = frozenset(
    {"$ref", "allOf", "anyOf", "oneOf", "not", "const", "enum", "minimum", "exclusiveMinimum", "minLength"}
    | {"minItems", "contains", "required", "minProperties"}
)
"""A schema without any of these keywords has instances."""
_TYPES = (NULL, BOOLEAN, STRING, NUMBER, ARRAY, OBJECT)
_ASSERTING = frozenset({*KEYWORDS, "type"})


def check_satisfiable(schema: Schema, prefix: Chain = None) -> bool:
    """Raise `InvalidGrammar`, with the JSON pointer of the cause, if a checked schema is proved to be unsatisfiable.
    `prefix` is the place of the schema. Return whether all its parts that are objects may be satisfied, for all types
    that they allow."""
    emptiness = Emptiness(schema)
    reason = emptiness.reason()
    if reason is None:
        return emptiness.is_full
    for part in parts_of(reason.place):
        prefix = (prefix, part)
    raise InvalidGrammar(
        f"{Pointer(prefix)}: {reason.text}, so no value satisfies the whole schema; change what is written there",
        field="constraint",
    )


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
        self.source = Source(root)
        self.lost: dict[int, int] = {}
        """The kinds, of whole types, that a nonempty subschema allows although none of their values satisfies it, by
        `id` of the subschema."""
        self._root = root
        self._kinds: dict[int, int] = {}
        self._waiting: dict[int, set[int]] = {}
        """The subschemas that depend on one whose kinds may grow, by `id`."""
        self._reader = self._depth = 0
        self._work = MOST_WORK
        self._compares_choices = False
        """True if the alternatives of alternatives, and of properties, are compared as well."""
        self._reasons: list[Reason] | None = None
        pending: list[Node] = []
        for node in self.source:
            if _EMPTYING.isdisjoint(node.keywords):
                self._kinds[id(node.schema)] = kinds_of(node.keywords["type"]) if "type" in node.keywords else ANY
            else:
                self._kinds[id(node.schema)] = 0
                self._waiting[id(node.schema)] = set()
                pending.append(node)
        self._spread(pending)
        self._work, self._compares_choices = MOST_WORK, True

    def is_empty(self, schema: Any) -> bool:
        """Return whether a part of the schema is proved to be unsatisfiable."""
        return schema is False or (isinstance(schema, Mapping) and self._kinds.get(id(schema)) == 0)

    def kinds(self, schema: Any) -> int:
        """Return the kinds of values that may satisfy a part of the schema."""
        if isinstance(schema, bool):
            return ANY if schema else 0
        return self._kinds.get(id(schema), ANY)

    def is_exclusive(self, schema: Mapping[str, Any]) -> bool:
        """Return True if it is proved that no instance satisfies two branches of the ``oneOf`` of a subschema, which is
        then equivalent to ``anyOf``. False proves nothing."""
        branches = schema["oneOf"]
        if len(branches) > MOST_BRANCHES:
            return False
        return all(self.excludes(first, second, schema) for first, second in combinations(branches, 2))

    def excludes(self, first: Any, second: Any, around: Mapping[str, Any]) -> bool:
        """Return True if it is proved, from the types and required properties of the subschema `around` two others,
        that no instance of it satisfies both. False proves nothing."""
        outer = self.source.read(around)
        kinds = outer.kinds & self.kinds(first) & self.kinds(second)
        if not kinds or not isinstance(first, Mapping) or not isinstance(second, Mapping):
            return not kinds
        both = self._together(map(self.source.read, (first, second)))
        required = outer._replace(keywords={"required": outer.keywords.get("required", ())})
        return not kinds & self._meet([*both, required], both)

    @property
    def is_full(self) -> bool:
        """True if every subschema that is an object may have values, of all types that it allows."""
        return not any(self.lost.values()) and 0 not in self._kinds.values()

    def reason(self) -> Reason | None:
        """Return why no value satisfies the whole schema; None if that is not proved."""
        if not self.is_empty(self._root):
            return None
        self._compares_choices = False
        reason, met, besides = Reason(None, "", self._root), set(), ""
        while isinstance(reason.cause, Mapping):
            node = self.source.read(reason.cause)
            if id(node.schema) in met:
                return Reason(node.chain, "its references require it inside itself without end" + besides)
            met.add(id(node.schema))
            reason = self._why(node)
            besides = besides or reason.besides
        return Reason(reason.place, (reason.text if reason.cause else "`false` allows nothing") + besides)

    def _spread(self, pending: list[Node]) -> None:
        """Find the kinds of subschemas, the last first, and recompute the subschemas that depend on a change."""
        nodes = {id(node.schema): node for node in pending}
        left = [*nodes]
        queued = set(left)
        while left:
            self._reader = left.pop()
            queued.discard(self._reader)
            found = self._evaluate(nodes[self._reader])
            if found == self._kinds[self._reader]:
                continue
            self._kinds[self._reader] = found
            again = self._waiting[self._reader] - queued
            left += again
            queued |= again

    def _of(self, schema: Any) -> int:
        """Return the kinds found until now. The reading subschema is evaluated again when they change."""
        if (waiting := self._waiting.get(id(schema))) is not None:
            waiting.add(self._reader)
        return self.kinds(schema)

    def _evaluate(self, node: Node) -> int:
        if _ASSERTING & node.keywords.keys() == {"$ref"}:  # no other assertions to combine with the target's
            return self._of(self._target(node, "$ref"))
        together = self._together([node])
        found, excluded = self._possible(together)
        left = found & ~excluded
        self.lost[id(node.schema)] = sum(found & kind for kind in _TYPES if left and not left & kind)
        found = left
        for part, _ in self._in_place(node):
            found &= self._of(part)
        return self._choose(found, together, together)

    def _in_place(self, node: Node) -> Iterator[tuple[Any, Chain]]:
        """Yield the subschemas that a value of `node` must also satisfy, with places of the keywords that say so."""
        if "$ref" in node.keywords:
            yield self._target(node, "$ref"), node.at("$ref")
        for i, part in enumerate(node.keywords.get("allOf", ())):
            yield part, node.at("allOf", i)

    def _target(self, node: Node, keyword: str) -> Schema:
        """Return the target of a subschema's reference; True if it is unknown."""
        found = self.source.target(node, keyword)
        return True if found is None else found

    def _together(self, nodes: Iterable[Node]) -> list[Node]:
        """Return the subschemas that apply to the same value as some, which are the first."""
        found: dict[int, Node] = {}
        pending = [*nodes][::-1]
        while pending and len(found) < MOST_TOGETHER:
            node = pending.pop()
            if id(node.schema) not in found:
                found[id(node.schema)] = node
                pending += (self.source.read(part) for part, _ in self._in_place(node) if isinstance(part, Mapping))
        return list(found.values())

    def _meet(self, nodes: Sequence[Node], choosing: Sequence[Node]) -> int:
        """Return the kinds that satisfy some subschemas at once. The alternatives of `choosing` may be compared."""
        if self._depth >= DEEPEST or self._work < 0:
            return ANY
        self._depth += 1
        possible, excluded = self._possible(nodes)
        found = possible & ~excluded
        if self._compares_choices:
            found = self._choose(found, choosing, nodes)
        self._depth -= 1
        return found

    def _choose(self, kinds: int, choosing: Sequence[Node], together: Sequence[Node]) -> int:
        """Return which kinds satisfy a branch of each ``anyOf`` and ``oneOf``, and the other schemas that apply."""
        for i, node in enumerate(choosing):
            for keyword in ("anyOf", "oneOf"):
                if kinds and (branches := node.keywords.get(keyword)):
                    kinds &= self._any_of(branches, together, choosing[i + 1 :])
        return kinds

    def _any_of(self, branches: Sequence[Any], together: Sequence[Node], choosing: Sequence[Node]) -> int:
        """Return which kinds satisfy a branch, the other schemas that apply, and a branch of each in `choosing`."""
        found = 0
        for branch in branches:
            kinds = self._of(branch)
            if kinds and isinstance(branch, Mapping) and self._work >= 0:
                own = self._together([self.source.read(branch)])
                self._work -= len(together) + len(own)
                if self._compares_choices or not _EMPTYING.isdisjoint(own[0].keywords):
                    kinds &= self._meet([*together, *own], [*own, *choosing])
            found |= kinds
        return found

    def _possible(self, nodes: Sequence[Node]) -> tuple[int, int]:
        """Return the kinds that the types and values of subschemas which apply together allow; and the kinds among
        them that have no value within the bounds."""
        found = ANY
        lists: list[tuple[int, list[Any]]] = []
        for i, (_, keywords, *_) in enumerate(nodes):
            if "type" in keywords:
                found &= kinds_of(keywords["type"])
            if "not" in keywords:
                found &= ~_refused_kinds(keywords["not"])
            if "const" in keywords:
                lists.append((i, [keywords["const"]]))
            if "enum" in keywords:
                lists.append((i, keywords["enum"]))
            self._work -= len(keywords)
        if self._work < 0:
            return found, 0
        if lists:
            found = self._find_listed([node.keywords for node in nodes], lists, found)
        excluded = 0
        if found & NUMBER:
            excluded |= found & NUMBER & ~self._numbers(nodes, found)
        for kind, has in ((STRING, self._has_strings), (ARRAY, self._has_arrays), (OBJECT, self._has_objects)):
            if found & kind and not has(nodes):
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
                if not any(refuse(self.source, schema, value) for schema in others):
                    found |= kind
        return found

    def _numbers(self, nodes: Sequence[Node], kinds: int) -> int:
        numbers = number_range([node.keywords for node in nodes])
        if numbers.low == -inf:
            return NUMBER
        found = numbers.kinds()
        if not found & kinds:
            what = "number" if kinds & FRACTION else "integer"
            self._say(nodes[0], f"no {what} is {numbers}")
        return found

    def _has_strings(self, nodes: Sequence[Node]) -> bool:
        low, high = _counts(nodes, "minLength", "maxLength")
        return low <= high or self._say(nodes[0], f"no string has at least {low} and at most {high} characters")

    def _has_arrays(self, nodes: Sequence[Node]) -> bool:
        low, high = _counts(nodes, "minItems", "maxItems")
        for node in nodes:
            if "contains" in node.keywords and (least := node.keywords.get("minContains", 1)) > 0:
                contained = node.keywords["contains"]
                if not self._of(contained):
                    text = "`contains` asks for an item that cannot be"
                    return self._say(node, text, node.at("contains"), contained)
                if least > node.keywords.get("maxContains", inf):
                    return self._say(node, "minContains is more than maxContains")
                low = max(low, least)
        if low > high:
            return self._say(nodes[0], f"no array has at least {low} and at most {high} items")
        if not low:
            return True
        longest = max(len(node.keywords.get("prefixItems", ())) for node in nodes)
        for i in range(int(min(low, longest + 1))):
            self._work -= len(nodes)
            kinds = ANY
            for node in nodes:
                first, place = node.keywords.get("prefixItems", ()), node.at("items")
                item = node.keywords.get("items", True)
                if i < len(first):
                    item, place = first[i], node.at("prefixItems", i)
                kinds &= self._of(item)
                if not kinds:
                    return self._say(node, f"at least {low} items are required, and item {i} cannot be", place, item)
        if not longest and any(node.keywords.get("uniqueItems") is True for node in nodes):
            most = min(self._num_values(node.keywords.get("items", True)) for node in nodes)
            if low > most:
                return self._say(nodes[0], f"at least {low} different items are required, and there are {most}")
        return True

    def _num_values(self, schema: Any) -> float:
        """Return the maximum number of values that satisfy a subschema."""
        values = self.source.read(schema).values if isinstance(schema, Mapping) else None
        if values is not None:
            return len(values)
        kinds = self._of(schema)
        return inf if kinds & ~(NULL | BOOLEAN) else bool(kinds & NULL) + 2 * bool(kinds & BOOLEAN)

    def _has_objects(self, nodes: Sequence[Node]) -> bool:
        low, high = _counts(nodes, "minProperties", "maxProperties")
        required = list(dict.fromkeys(name for node in nodes for name in node.keywords.get("required", ())))
        self._work -= len(required) * len(nodes)
        if max(low, len(required)) > high:
            return self._say(
                nodes[0], f"at least {max(low, len(required))} properties are required, and at most {high} allowed"
            )
        if self._work < 0:
            return True
        for name in required:
            if not self._may_have(nodes, name, "is required"):
                return False
        if low > len(required):
            return self._has_enough(nodes, low)
        return True

    def _has_enough(self, nodes: Sequence[Node], low: float) -> bool:
        """Return whether objects may have `low` properties."""
        for node in nodes:
            keywords = node.keywords
            if "propertyNames" in keywords and not self._of(keywords["propertyNames"]) & STRING:
                text, place = "properties are required, and no name is allowed", node.at("propertyNames")
                return self._say(node, text, place, keywords["propertyNames"])
            if self._of(keywords.get("additionalProperties", True)) or keywords.get("patternProperties"):
                continue
            names = keywords.get("properties", {})
            self._work -= len(names) * len(nodes)
            if self._work < 0:
                return True
            reasons, self._reasons = self._reasons, None
            possible = sum(self._may_have(nodes, name, "") for name in names)
            self._reasons = reasons
            if low > possible:
                return self._say(node, f"at least {low} properties are required, and there can be {possible}")
        return True

    def _may_have(self, nodes: Sequence[Node], name: str, said: str) -> bool:
        """Return whether an object may have a property of this name."""
        kinds, parts = ANY, []
        for node in nodes:
            names, declared = node.keywords.get("propertyNames", True), node.keywords.get("properties", {})
            if not self._of(names) & STRING or refuses(self.source, names, name):
                text = f"the property {name!r} {said}, and its name not allowed"
                return self._say(node, text, node.at("propertyNames"), names)
            if name in declared:
                part, place = declared[name], node.at("properties", name)
            elif node.keywords.get("patternProperties"):
                continue  # a pattern may allow it
            else:
                part, place = node.keywords.get("additionalProperties", True), node.at("additionalProperties")
            kinds &= self._of(part)
            if not kinds:
                if part is False and name not in declared:
                    return self._say(node, f"the property {name!r} {said}, and `additionalProperties` forbids it")
                text = f"the property {name!r} {said}, and nothing is allowed as its value"
                return self._say(node, text, place, part)
            if isinstance(part, Mapping):
                parts.append(self.source.read(part))
        if len(parts) < 2:
            return True
        together = self._together(parts)
        return bool(kinds & self._meet(together, together)) or self._say(
            nodes[0], f"the property {name!r} {said}, and what is said of it excludes each other"
        )

    def _why(self, node: Node) -> Reason:
        """Return why no value satisfies `node`, which is empty."""
        for part, place in reversed(list(self._in_place(node))):
            if self.is_empty(part):
                return Reason(place, "", part)
        self._reasons, self._work = [], MOST_WORK
        together = self._together([node])
        found, excluded = self._possible(together)
        reasons, self._reasons = self._reasons, None
        if reasons and not found & ~excluded:
            return reasons[0]
        for keyword in ("anyOf", "oneOf"):
            branches = node.keywords.get(keyword)
            if branches and not found & ~excluded & self._any_of(branches, together, ()):
                if not self.is_empty(branches[0]):
                    return Reason(node.at(keyword), f"no branch of `{keyword}` goes with the rest of the schema")
                besides = f", and no other branch of its `{keyword}` has a value"
                return Reason(node.at(keyword, 0), "", branches[0], besides if len(branches) > 1 else "")
        for keyword in ("const", "enum"):
            if keyword in node.keywords:
                is_bare = keyword == "enum" and not node.keywords[keyword]
                said = "`enum` lists no value" if is_bare else f"the rest of the schema refuses `{keyword}`"
                return Reason(node.at(keyword), said)
        if _is_anything(node.keywords.get("not", False)):
            return Reason(node.at("not"), "`not` refuses every value")
        return Reason(node.chain, "the types of values that are allowed here exclude each other")

    def _say(self, node: Node, text: str, place: Chain = None, cause: Any = True) -> bool:
        """Record a reason, at a place or at a subschema, and return False."""
        if self._reasons is not None:
            self._reasons.append(Reason(place or node.chain, text, cause if self.is_empty(cause) else True))
        return False


def _counts(nodes: Sequence[Node], least: str, most: str) -> tuple[float, float]:
    return counts([node.keywords for node in nodes], least, most)


def _is_anything(schema: Any) -> bool:
    return schema is True or (isinstance(schema, Mapping) and _ASSERTING.isdisjoint(schema))


def _refused_kinds(schema: Any) -> int:
    """Return the kinds of which a negated schema refuses every value."""
    if _is_anything(schema):
        return ANY
    if isinstance(schema, Mapping) and _ASSERTING & schema.keys() == {"type"}:
        return kinds_of(schema["type"])
    return 0
