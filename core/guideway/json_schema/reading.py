"""Read the schemas of all drafts as if they were written in the keywords of draft 2020-12."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urldefrag, urljoin

from guideway.json_schema.kinds import ANY, equal, kinds_among, kinds_of
from guideway.json_schema.walking import Chain, Resource, Schema, resolve, walk

__all__ = ["OLD", "Node", "Source", "draft_of"]

OLD: Final = 7
"""The last draft that ignores other keywords next to ``$ref``."""
_DRAFT = re.compile(r"/draft-0(\d)|/draft/(20\d\d)")
_SINCE: Final[Mapping[int, frozenset[str]]] = {
    6: frozenset({"const", "contains", "propertyNames"}),
    7: frozenset({"if", "then", "else"}),
    2019: frozenset(
        {"dependentRequired", "dependentSchemas", "minContains", "maxContains"}
        | {"unevaluatedItems", "unevaluatedProperties", "$anchor", "$recursiveRef"}
    ),
    2020: frozenset({"prefixItems", "$dynamicRef"}),
}
"""Keywords by the first draft that has them; earlier drafts ignore them."""
_EXCLUSIVE = (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum"))


IN_PLACE: Final = frozenset(
    {"$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas"}
)
"""Keywords that apply other schemas to the same value."""


class Node(NamedTuple):
    """A subschema that is an object."""

    schema: Mapping[str, Any]
    """The object itself."""
    keywords: Mapping[str, Any]
    """The keywords that have an effect, with the names and meanings of draft 2020-12, in their order."""
    chain: Chain
    resource: Resource
    old_names: Mapping[str, str]
    """For keywords that have another name in the schema, that name."""

    @property
    def kinds(self) -> int:
        """The kinds of values that ``type``, ``enum`` and ``const`` allow."""
        found = kinds_of(self.keywords["type"]) if "type" in self.keywords else ANY
        values = self.values
        return found if values is None else found & kinds_among(values)

    @property
    def values(self) -> list[Any] | None:
        """The values that ``const`` and ``enum`` list; None without both."""
        found: list[Any] | None = self.keywords.get("enum")
        if "const" not in self.keywords:
            return found
        value = self.keywords["const"]
        return [value] if found is None or any(equal(value, each) for each in found) else []

    @property
    def applies_others(self) -> bool:
        """True if other schemas apply to the same value, so that its unevaluated parts are unknown."""
        return not IN_PLACE.isdisjoint(self.keywords)

    def at(self, keyword: str, *parts: str | int) -> Chain:
        """Return the place of a keyword, or of a part of its value, in the schema."""
        chain: Chain = (self.chain, self.old_names.get(keyword, keyword))
        for part in parts:
            chain = (chain, part)
        return chain


class Source:
    """A checked schema with its draft and the targets of its references."""

    def __init__(self, root: Schema) -> None:
        self._nodes: dict[int, Node] = {}
        self._anchors: dict[tuple[int, str], Schema] = {}
        self._resources: dict[str, Schema] = {}
        self._bases: dict[int, str] = {}
        self._dynamic: dict[str, int] = {}
        places = list(walk(root))
        self.draft = draft_of(root, [node for _, node, _ in places])
        self._unknown = {each for draft, keywords in _SINCE.items() if self.draft < draft for each in keywords}
        for chain, node, resource in places:
            if isinstance(node, Mapping):
                self._nodes[id(node)] = self._read(node, chain, resource)
                self._index(node, resource)

    def __iter__(self) -> Iterator[Node]:
        """Yield the subschemas, each after its parents."""
        return iter(self._nodes.values())

    def read(self, schema: Mapping[str, Any], chain: Chain = None) -> Node:
        """Return a subschema as draft 2020-12 would write it, at its first place or at another one."""
        found = self._nodes.get(id(schema)) or self._read(schema, chain, (None, schema))
        return found if chain is None else found._replace(chain=chain)

    def _read(self, schema: Mapping[str, Any], chain: Chain, resource: Resource) -> Node:
        found, old_names = dict(schema), {}
        if self.draft <= OLD and "$ref" in found:
            found = {"$ref": found["$ref"]}
        for keyword in self._unknown & found.keys():
            del found[keyword]
        if isinstance(found.get("items"), list):
            rest = found.pop("additionalItems", None)
            first = found.pop("items")
            old_names["prefixItems"] = "items"
            if first:
                found["prefixItems"] = first
            if rest is not None:
                found["items"], old_names["items"] = rest, "additionalItems"
        found.pop("additionalItems", None)
        dependencies = found.pop("dependencies", {})
        for keyword, is_names in (("dependentRequired", True), ("dependentSchemas", False)):
            more = {
                name: [value] if isinstance(value, str) else value
                for name, value in dependencies.items()
                if isinstance(value, str | list) is is_names
            }
            if more and keyword not in found:
                found[keyword], old_names[keyword] = more, "dependencies"
        for excluding, bound in _EXCLUSIVE:
            if isinstance(found.get(excluding), bool):
                excludes = found.pop(excluding)
                if excludes and bound in found:
                    found[excluding] = found.pop(bound)
        return Node(schema, found, chain, resource, old_names)

    def place(self, schema: Schema) -> Chain:
        """Return the place of a subschema in the whole schema."""
        return self._nodes[id(schema)].chain if id(schema) in self._nodes else None

    def target(self, node: Node, keyword: str) -> Schema | None:
        """Return the target of a reference of a subschema; None if it is not in the schema, or depends on how the
        subschema was reached."""
        reference = node.keywords[keyword]
        if not isinstance(reference, str):
            return None
        if keyword != "$ref" and not self._is_static(keyword, reference):
            return None
        home = node.resource[1]
        if not reference.startswith("#"):
            address, fragment = urldefrag(urljoin(self._bases.get(id(home), ""), reference))
            home = self._resources.get(address, True)
            if home is True:
                return None
            reference = f"#{fragment}"
        if reference in ("#", "") or reference.startswith("#/"):
            found = resolve(home, reference)
        else:
            found = self._anchors.get((id(home), reference[1:]))
        if isinstance(found, bool):
            return found
        return found if isinstance(found, Mapping) and id(found) in self._nodes else None

    def is_missing(self, node: Node) -> bool:
        """Return whether the ``$ref`` of a subschema has no target in the document that it refers to: this one."""
        return node.keywords["$ref"].startswith("#") and self.target(node, "$ref") is None

    def _is_static(self, keyword: str, reference: str) -> bool:
        """Return whether a dynamic reference has only one possible target."""
        if keyword == "$recursiveRef":
            return "$recursiveAnchor" not in self._dynamic and len(self._resources) <= 1
        return self._dynamic.get(reference.rpartition("#")[2], 0) <= 1

    def _index(self, node: Mapping[str, Any], resource: Resource) -> None:
        home = resource[1]
        if self.draft <= OLD and "$ref" in node and node is not home:
            return
        name = node.get("id" if self.draft <= 4 else "$id")
        if node is home:
            own = name if isinstance(name, str) else ""
            parent = next(iter(self._bases.values()), "")
            self._bases[id(node)] = address = urldefrag(urljoin(parent, own))[0]
            self._resources.setdefault(address, node)
        elif isinstance(name, str) and name.startswith("#"):
            self._anchors.setdefault((id(home), name[1:]), node)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := node.get(keyword), str):
                self._anchors.setdefault((id(home), anchor), node)
                if keyword == "$dynamicAnchor":
                    self._dynamic[anchor] = self._dynamic.get(anchor, 0) + 1
        if node.get("$recursiveAnchor"):
            self._dynamic["$recursiveAnchor"] = 1


def draft_of(schema: Schema, subschemas: Iterable[Schema] | None = None) -> int:
    """Return the draft that a schema declares; otherwise 4, 7 or 2020, by the keywords of its `subschemas`."""
    if not isinstance(schema, Mapping):
        return 2020
    if "$schema" in schema:
        named = _DRAFT.search(str(schema["$schema"]))
        return int(named[1] or named[2]) if named else 2020
    if subschemas is None:
        subschemas = (node for _, node, _ in walk(schema))
    nodes = [node for node in subschemas if isinstance(node, Mapping)]
    if any(isinstance(node.get(excluding), bool) for node in nodes for excluding, _ in _EXCLUSIVE):
        return 4
    if any("dependencies" in node or isinstance(node.get("items"), list) for node in nodes):
        return 7
    return 2020
