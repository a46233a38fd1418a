"""The state of one rewriting, which the writers of schemas and of their negations share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from functools import partial
from math import lcm
from typing import Any, TypeAlias, TypeVar

from guideway.api.types import Loss
from guideway.json_schema.emptiness import Emptiness
from guideway.json_schema.kinds import ANY
from guideway.json_schema.ranges import coefficient
from guideway.json_schema.reading import Node
from guideway.json_schema.rewriting.inlining import inline
from guideway.json_schema.rewriting.regular import partition, texts_of
from guideway.json_schema.rewriting.results import Budget, Rewriting, TooLarge, few
from guideway.json_schema.rewriting.separating import Together, replace_patterns
from guideway.json_schema.walking import SCHEMA_MAPS, Chain, Pointer, Schema

__all__ = ["WriteNode", "Writer"]

T = TypeVar("T")
WriteNode: TypeAlias = "Callable[[Writer, Node, int], Schema]"
"""A function that writes a subschema, or its negation, for values of some kinds."""


class Writer:
    """Writes a checked schema, and the negations of its parts, in keywords that an engine `takes`."""

    def __init__(
        self, root: Schema, takes: Set[str], budget: Budget, write: WriteNode, write_negation: WriteNode
    ) -> None:
        self._write_node, self._write_negation = write, write_negation
        self.takes = takes
        self.budget = budget
        self.emptiness = Emptiness(root)
        self.source = self.emptiness.source
        self._root = root
        self._losses: dict[Loss, None] = {}
        self._built: dict[Hashable, Any] = {}
        self._negations: dict[tuple[Chain, int, int, int], tuple[Any, Schema, int]] = {}
        """By place, subschema, kinds and depth: the subschema, which keeps its id, its negation, and its nodes."""
        self._names: dict[tuple[int, int | None], str] = {}
        self._definitions: dict[str, Schema | None] = {}
        self._pending: list[tuple[str, Schema, int | None]] = []
        self._nodes = self._depth = 0
        self._multiple = 1

    def run(self) -> Rewriting:
        """Return the whole schema, written. Raises `TooLarge`."""
        found = self.yes(self._root, None)
        while self._pending:
            self._define(*self._pending.pop())
        if isinstance(found, Mapping) and self._definitions:
            definitions = {name: body for name, body in self._definitions.items() if body is not None}
            found = inline(found, definitions, self.budget.inlined)
        return Rewriting(self._separate(found), few(self._losses))

    def yes(self, schema: Any, chain: Chain, kinds: int = ANY) -> Schema:
        """Return a subschema, written; for values of these `kinds`, as the schema around it allows."""
        return self._write(self._write_node, schema, chain, kinds)

    def no(self, schema: Any, chain: Chain, kinds: int = ANY) -> Schema:
        """Return the negation of a subschema, written; for values of these `kinds`."""
        if isinstance(schema, bool):
            return not schema
        key = chain, id(schema), kinds, self._depth
        if key in self._negations:
            _, found, nodes = self._negations[key]
            self._count(nodes)
            return found
        before = self._nodes
        found = self._write(self._write_negation, schema, chain, kinds)
        if self._nodes - before > self.budget.negation:
            found = self.lose(*_negator(chain), "its negation is too large", True)
        self._negations[key] = schema, found, self._nodes - before
        return found

    def lose(self, chain: Chain, keyword: str, reason: str, weaker: Schema) -> Schema:
        """Record that a keyword of the subschema at `chain` is not enforced exactly, and return `weaker`."""
        self._losses[Loss(str(Pointer(chain)), keyword, reason)] = None
        return weaker

    def counts(self, divisor: float) -> bool:
        """Return whether engines count the multiples of a number beside those of the ones before."""
        multiple = lcm(self._multiple, max(1, coefficient(divisor)))
        if multiple > self.budget.multiple:
            return False
        self._multiple = multiple
        return True

    def build(self, what: Hashable, built: Callable[[int], T]) -> T:
        """Return the result of a function that builds automata within some steps, once for equal `what`: a function
        that found them too large would work as long again. Within no steps, if the budget has no more automata."""
        if what not in self._built:
            self._built[what] = built(self.budget.steps if len(self._built) < self.budget.automata else 0)
        found: T = self._built[what]
        return found

    def refer(self, node: Node, keyword: str, kinds: int | None = None) -> Schema:
        """Return a reference to the target of another one or, with `kinds`, to its negation for values of these."""
        target = self.source.target(node, keyword)
        if target is None:
            name = "$ref:missing" if keyword == "$ref" and self.source.is_missing(node) else keyword
            return self.lose(node.chain, name, "its target is unknown", True)
        if isinstance(target, bool):
            return target is (kinds is None)
        key = id(target), kinds
        if key not in self._names:
            name = self._names[key] = f"{'d' if kinds is None else 'not'}{len(self._names)}"
            self._definitions[name] = None
            if self._depth > self.budget.depth // 2:
                self._pending.append((name, target, kinds))
            else:
                self._define(name, target, kinds)
        name = self._names[key]
        found = self._definitions.get(name)
        if isinstance(found, bool):
            return found
        return {"$ref": f"#/$defs/{name}"}

    def _separate(self, found: Schema) -> Schema:
        """Separate patterns of names that engines would have to combine."""
        if isinstance(found, bool):
            return found
        parts: dict[str, Sequence[str]] = {}
        for names in Together(found, self.budget.nodes, self._overlap, self._finds).overlapping():
            apart = self.build(("apart", *names), partial(partition, names, most=self.budget.overlaps))
            if apart is not None:
                parts |= {name: [part for part, together in apart if name in together] for name in names}
            elif not self.budget.overlaps:
                self.lose(None, "patternProperties", f"the patterns {' and '.join(names)} apply together", True)
                parts |= dict.fromkeys(names, ())
        return replace_patterns(found, parts) if parts else found

    def _overlap(self, first: str, second: str) -> bool:
        """Return whether patterns may be found in one name."""
        pair = min(first, second), max(first, second)
        return self.build(("overlap", *pair), partial(partition, pair, most=0)) is None

    def _finds(self, pattern: str, name: str) -> bool:
        """Return whether a pattern may be found in a name."""
        found = self.build(("texts", pattern), partial(texts_of, pattern))
        return found is None or name in found

    def _define(self, name: str, target: Schema, kinds: int | None) -> None:
        chain = self.source.place(target)
        self._definitions[name] = self.yes(target, chain) if kinds is None else self.no(target, chain, kinds)

    def _write(self, write: WriteNode, schema: Any, chain: Chain, kinds: int) -> Schema:
        if not isinstance(schema, Mapping):
            return bool(schema)
        self._count(1)
        if self.emptiness.is_empty(schema):
            return write is not self._write_node
        if self._depth > self.budget.depth:
            return self.lose(chain, "depth", "it is nested too deeply", True)
        self._depth += 1
        try:
            return write(self, self.source.read(schema, chain), kinds)
        finally:
            self._depth -= 1

    def _count(self, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > self.budget.nodes:
            raise TooLarge


def _negator(chain: Chain) -> tuple[Chain, str]:
    """Return the place and the keyword that needs the negation of the subschema at `chain`."""
    around, part = chain or (None, "")
    if part in ("if", "not") and (around is None or around[1] not in SCHEMA_MAPS):
        return around, str(part)
    if isinstance(part, int) and around is not None and around[1] == "oneOf":
        return around[0], "oneOf"
    return chain, "not"
