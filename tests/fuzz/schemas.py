"""Random JSON Schemas with two chosen keywords, adjacent or one inside the other."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from guideway.json_schema import TYPES

from tests.fuzz.keyword_writers import DRAFTS, WRITERS, Node, is_of
from tests.fuzz.values import NAMES, VALUES

__all__ = ["SchemaWriter"]

MAX_DEPTH = 4


class SchemaWriter:
    """Writes one schema of a draft with keywords of these `names`, as `guideway.json_schema.keywords` calls them. The
    result may lack a requested keyword; `keywords` shows which it has. A plain schema has little else."""

    def __init__(self, random: Random, names: Iterable[str], draft: str, *, plain: bool = False) -> None:
        self.random = random
        self._plain = plain
        self.draft = draft
        self.has_false = "false" in names
        self._names = sorted(name for name in names if name in WRITERS and draft in WRITERS[name].drafts)
        self.container = "$defs" if draft == "2020-12" else "definitions"
        self.definitions: dict[str, Any] = {}
        self.kind: str | None = None
        """The type of the schema that is being written."""
        self.inside: list[str] = []
        """The keyword that the next subschema must have."""

    def write(self, first: str, second: str, *, inside: bool) -> Node:
        """Return a schema with `first` and `second` adjacent or, with `inside`, `second` in a subschema of `first`."""
        self.inside = [second] if inside else []
        node = self._node([first] if inside else [first, second], self.pick(0, 0, 1, 2))
        if self.chance(0.4):
            node = self._wrap(node)
        if self.definitions:
            node[self.container] = self.definitions
        if self.draft != "2020-12" or self.chance(0.2):
            node = {"$schema": DRAFTS[self.draft], **node}
        return node

    def _wrap(self, node: Node) -> Node:
        if self.chance(0.3):
            return {"type": "array", "items": node, "minItems": 1}
        name = self.pick(*NAMES[:5])
        around: Node = {"type": "object", "properties": {name: node}}
        if self.chance(0.7):
            around["required"] = [name]
        if self.chance(0.6):
            around["additionalProperties"] = False
        return around

    def _node(self, names: list[str], depth: int) -> Node:
        kind = self._kind_for(names)
        node: Node = {}
        if "type" in names or self.chance(0.8):
            node["type"] = kind if self.chance(0.9) else [kind, self.pick(*(t for t in TYPES if t != kind))]
        more = [name for name in self._fitting(kind) if name not in names]
        num_more = 0 if self._plain else self.pick(0, 0, 0, 1, 1, 2)
        wanted = [*names, *self.random.sample(more, min(len(more), num_more))]
        self.random.shuffle(wanted)
        outer, self.kind = self.kind, kind
        for name in wanted:
            WRITERS[name].write(self, node, depth)
        self.kind = outer
        if "$ref" in node and self.draft != "2020-12":
            return {"$ref": node["$ref"]}  # other keywords would be ignored in these drafts
        if self.chance(0.2):
            node = dict(self.random.sample(list(node.items()), len(node)))
        return node

    def _kind_for(self, names: list[str]) -> str:
        """Return a type that all these keywords are for; if there is none, a type of any keyword."""
        kinds = [WRITERS[name].kinds for name in names if WRITERS[name].kinds]
        if kinds:
            return self.pick(*(sorted(set.intersection(*map(set, kinds))) or self.pick(*kinds)))
        return self.kind if self.kind and self.chance(0.7) else self.pick(*TYPES)

    def _fitting(self, kind: str) -> list[str]:
        return [name for name in self._names if kind in (WRITERS[name].kinds or TYPES)]

    def child(self, depth: int, *, like: bool = False) -> Any:
        """Return a subschema; with `like`, mostly of the type of its parent schema, whose values it describes too."""
        outer = self.kind
        self.kind = outer if like and self.chance(0.8) else None
        try:
            if self.inside:
                return self._node([self.inside.pop()], depth + 1)
            if self.chance(0.05) and self.draft != "4":
                return not self.has_false or self.chance(0.5)
            if depth >= MAX_DEPTH or self.chance(0.8 if self._plain else 0.4):
                return {"type": self.kind or self.pick(*TYPES)}
            names = self._fitting(self.kind) if self.kind else self._names
            return self._node(self.random.sample(names, min(len(names), self.pick(1, 1, 1, 2))), depth + 1)
        finally:
            self.kind = outer

    def children(self, depth: int, least: int, most: int, *, like: bool = True) -> list[Any]:
        """Return subschemas as `child` does."""
        found = [self.child(depth, like=like) for _ in range(self.random.randint(least, most))]
        self.random.shuffle(found)
        return found

    def value(self) -> Any:
        """Return a value, mostly of the type of the schema that is being written."""
        fitting = [value for value in VALUES if self.kind and is_of(value, self.kind)]
        return self.pick(*fitting) if fitting and self.chance(0.7) else self.pick(*VALUES)

    def names(self, least: int = 1, most: int = 3) -> list[str]:
        """Return names of properties, mostly simple ones."""
        return self.random.sample(NAMES[:5] if self.chance(0.8) else NAMES, self.random.randint(least, most))

    def pick(self, *options: Any) -> Any:
        """Return one of some options."""
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < probability
