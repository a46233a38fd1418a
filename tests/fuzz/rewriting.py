"""Compare schemas with their rewritings on many values: a rewriting must not be stronger, and weaker only with a loss.

``python tests/fuzz/rewriting.py [--comparisons 2000000] [--seed 1]``

Exit status 1: a difference was found, which is printed as a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Set
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))  # a program's path has only its own folder

from guideway.api.types import JsonSchema
from guideway.errors import InvalidGrammar
from guideway.json_schema import check_schema, resolve
from guideway.json_schema.rewriting import BUDGET, COARSE, rewrite
from guideway.json_schema.validity import validator

from tests.fuzz.instances import edit, instance
from tests.fuzz.keyword_writers import DRAFTS, WRITERS
from tests.fuzz.schemas import SchemaWriter
from tests.fuzz.values import VALUES

__all__ = ["EXACT", "Comparison", "compare", "draw_schema", "draw_values", "judge"]

EXACT = frozenset(
    {"format:*", "maxLength>1000", "maxItems>1000", "minLength>1000"}
    | {f"pattern:{name}" for name in (".", r"\d", r"\D", r"\s", r"\S", r"\w", r"\W", "anchor", "class", "range")}
)
"""Names that an engine with little else takes."""


@dataclass
class Comparison:
    """Counts of values judged by a schema and by its rewriting, and the differences, as lines of JSON."""

    schemas: int = 0
    exact: int = 0
    values: int = 0
    named: int = 0
    """Values that only the rewriting accepts, with a loss named."""
    stronger: list[str] = field(default_factory=list)
    unnamed: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.stronger and not self.unnamed


def compare(found: Comparison, schema: Any, values: Iterable[Any], takes: Set[str] = EXACT) -> None:
    """Add the differences of a checked schema and its rewritings to `found`."""
    judged = [(value, verdict) for value in values if (verdict := judge(schema, value)) is not None]
    if not judged:
        return
    for budget in (BUDGET, COARSE):
        rewriting = rewrite(schema, takes, budget)
        if _applies_itself(rewriting.schema):
            continue
        other = validator(rewriting.schema)
        found.schemas += 1
        found.exact += not rewriting.losses
        for value, before in judged:
            found.values += 1
            after = other.is_valid(value)
            if before == after:
                continue
            line = json.dumps({"schema": schema, "rewriting": rewriting.schema, "value": value})
            if before:
                found.stronger.append(line)
            elif rewriting.losses:
                found.named += 1
            else:
                found.unnamed.append(line)


def judge(schema: Any, value: Any) -> bool | None:
    """Return whether a value is an instance, or None if `jsonschema` cannot tell: the dialect is unknown, a reference
    is remote, or the schema applies itself to the same value."""
    try:
        return bool(validator(schema).is_valid(value))
    except KeyboardInterrupt:
        raise
    except BaseException:  # the library in Rust below it panics where the stack overflows
        return None


def _applies_itself(schema: Any) -> bool:
    """Return whether a written schema applies itself to the same value, which has no meaning and overflows stacks."""

    def visit(node: Any, around: tuple[str, ...]) -> bool:
        if not isinstance(node, dict):
            return False
        reference = node.get("$ref")
        if reference in around:
            return True
        parts = [*node.get("allOf", ()), *node.get("anyOf", ())]
        if reference is not None and visit(resolve(schema, reference), (*around, reference)):
            return True
        return any(visit(part, around) for part in parts)

    roots = schema.get("$defs", {}) if isinstance(schema, dict) else {}
    return any(visit({"$ref": f"#/$defs/{name}"}, ()) for name in roots)


def draw_schema(random: Random) -> Any:
    """Return a checked random schema with two chosen keywords."""
    while True:
        draft = random.choice([*DRAFTS])
        names = sorted(name for name in WRITERS if draft in WRITERS[name].drafts)
        first, second = random.choice(names), random.choice([*names, "not", "if", "oneOf", "$ref"])
        writer = SchemaWriter(random, names, draft, plain=random.random() < 0.3)
        try:
            schema: Any = JsonSchema(writer.write(first, second, inside=random.random() < 0.6)).parsed
            if random.random() < 0.3:
                dialect = {"$schema": schema.pop("$schema")} if "$schema" in schema else {}
                schema = {**dialect, "not": schema} if "definitions" not in schema and "$defs" not in schema else schema
            check_schema(schema)
        except InvalidGrammar:
            continue
        return schema


def draw_values(random: Random, schema: Any, num: int) -> list[Any]:
    """Return values near the instances of a schema and of its subschemas."""
    found: list[Any] = []
    for _ in range(num):
        value = instance(random, schema.get("not", schema)) if random.random() < 0.8 else random.choice(VALUES)
        found += [value, edit(random, value)]
    return [_whole(value) for value in found]


def _whole(value: Any) -> Any:
    """Return a value with 1 in place of 1.0, which is no integer in draft 4 alone."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(each) for each in value]
    return {name: _whole(each) for name, each in value.items()} if isinstance(value, dict) else value


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comparisons", type=int, default=2_000_000)
    parser.add_argument("--seed", default="1", help="any text")
    options = parser.parse_args()
    random, found = Random(options.seed), Comparison()
    while found.values < options.comparisons and len(found.stronger) + len(found.unnamed) < 20:
        schema = draw_schema(random)
        compare(found, schema, draw_values(random, schema, 12))
    print(
        f"{found.schemas:,} rewritings, {found.exact:,} exact; {found.values:,} values, {found.named:,} weaker, named"
    )
    for kind in ("stronger", "unnamed"):
        for line in getattr(found, kind):
            print(f"{kind}: {line}")
    return int(not found.is_sound)


if __name__ == "__main__":
    sys.exit(main())
