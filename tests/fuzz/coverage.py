"""The keywords that a strategy supports, and how often each pair of them occurred in judged schemas."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import combinations, product
from random import Random
from typing import NamedTuple

from guideway.json_schema import Schema, resolve, root_keywords, subschemas

from tests.fuzz.keyword_writers import HOLDERS, WRITERS

__all__ = ["Coverage", "Pair", "pairs_of", "supported"]

REFERENCE = (
    *("$ref", "anyOf", "enum", "const", "type", "minLength", "maxLength", "pattern", "minimum", "maximum", "false"),
    *("properties", "required", "additionalProperties", "items", "items:false", "prefixItems", "minItems", "maxItems"),
)
"""The keywords of the reference, which has no table."""

MOST_TRIES = 40
RARE = 1 / 10
"""A pair of keywords is out of reach if fewer than this share of at least `MOST_TRIES` schemas for it were judged: the
strategy refuses nearly all of them, or names one of the two as not enforced."""

ENOUGH = 200
"""Schemas wanted per pair."""

SAMPLE = 50
"""Pairs that are compared for the next schema."""


class Pair(NamedTuple):
    """Two keywords: adjacent, in alphabetical order, or the second inside a subschema of the first."""

    first: str
    second: str
    inside: bool


def supported(strategy: str) -> list[str]:
    """Return the keywords that a strategy enforces, of those that the schemas here have."""
    if strategy == "reference":
        return sorted(REFERENCE)
    table: Mapping[str, str] = importlib.import_module(f"guideway_{strategy}.strategy").SUPPORT.installed()
    return sorted(name for name in (*WRITERS, "false") if table.get(name) in ("enforced", "narrow"))


def pairs_of(schema: Schema) -> set[Pair]:
    """Return the pairs in a schema."""
    found = set()
    for _, node in subschemas(schema):
        own = root_keywords(node)
        found |= {Pair(*two, inside=False) for two in combinations(sorted(own), 2)}
        below = [child for _, child in subschemas(node) if child is not node]
        if isinstance(node, Mapping) and "$ref" in node:
            below.append(resolve(schema, node["$ref"]))
        inner = frozenset[str]().union(*map(root_keywords, below))
        found |= {Pair(one, other, inside=True) for one, other in product(own, inner)}
    return found


class Coverage:
    """Counts how often pairs of keywords were judged, and chooses the pair to write next."""

    def __init__(self, names: Iterable[str]) -> None:
        names = sorted(name for name in names if name in WRITERS)
        self.judged: Counter[Pair] = Counter()
        self._tried: Counter[Pair] = Counter()
        beside = [Pair(*two, inside=False) for two in combinations(names, 2)]
        holding = [name for name in names if name in HOLDERS]
        inside = [Pair(*two, inside=True) for two in product(holding, names)]
        drafts = {name: WRITERS[name].drafts for name in names}
        self._pairs = [pair for pair in beside + inside if drafts[pair.first] & drafts[pair.second]]

    def next(self, random: Random) -> Pair:
        """Return the pair, of a sample within reach, that was judged least often, and among these tried least often."""
        within_reach = [pair for pair in self._pairs if self._is_within_reach(pair)] or self._pairs
        some = random.sample(within_reach, min(len(within_reach), SAMPLE))
        return min(some, key=lambda pair: (self.judged[pair], self._tried[pair]))

    def add(self, asked: Pair, schema: Schema, *, judged: bool) -> None:
        """Count a schema that was written for a pair."""
        self._tried[asked] += 1
        if judged:
            self.judged.update(pairs_of(schema))

    def _is_within_reach(self, pair: Pair) -> bool:
        return self._tried[pair] < MOST_TRIES or self.judged[pair] >= self._tried[pair] * RARE

    def summary(self) -> dict[str, int]:
        """Return the number of pairs, of those within reach, of those judged `ENOUGH` times, and the least count within
        reach."""
        counts = [self.judged[pair] for pair in self._pairs if self._is_within_reach(pair)]
        often = sum(self.judged[pair] >= ENOUGH for pair in self._pairs)
        return {"pairs": len(self._pairs), "in reach": len(counts), "often": often, "least": min(counts, default=0)}

    def rare(self) -> list[str]:
        """Return the pairs that were judged too rarely, with how often they were judged and tried."""
        seldom = [pair for pair in self._pairs if self.judged[pair] < ENOUGH]
        return [
            f"{pair.first} {'>' if pair.inside else '+'} {pair.second} {self.judged[pair]}/{self._tried[pair]}"
            for pair in sorted(seldom, key=lambda pair: self.judged[pair])
        ]
