"""The rules of the admission guard: limits on the cost of a constraint, checked before any library reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from guideway.api.options import alternatives, is_int, short_repr
from guideway.errors import InvalidConfiguration

__all__ = ["RULES", "Rule", "check_limits"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A limit on one count of a constraint."""

    limit: int
    """The default maximum; strategies and operators may set another."""
    counts: str


RULES: Mapping[str, Rule] = {
    # any constraint
    "bytes": Rule(1 << 20, "bytes of the constraint's text"),
    "nul": Rule(0, "NUL characters in a pattern or grammar"),
    "literals": Rule(200_000, "characters in enum, const, property names, choices and strings of a grammar"),
    "depth": Rule(64, "nesting levels of arrays, objects, groups and brackets"),
    "alternatives": Rule(5000, "alternatives of one choice, `anyOf` or group"),
    "repetition": Rule(100_000, "the largest bound, such as `maxItems`, `minLength` or `{n,m}`"),
    "repetitions": Rule(10_000_000, "product of nested bounds"),
    # JSON schemas, also within structural tags and grammars
    "nodes": Rule(10_000, "keywords and items of a schema or tag, terms of patterns and grammars"),
    "chain": Rule(300, "length of a chain of references, including the schema levels in between"),
    "expanded": Rule(1 << 60, "size of a schema or pattern with references and repetitions expanded"),
    "combinations": Rule(10_000, "product of the branches of `anyOf` and `oneOf` that apply together"),
    "strings": Rule(
        100_000,
        "sum of the different string lengths and pattern sizes, each counted as at most 256; `format` as 8",
    ),
    "properties": Rule(2000, "properties of one object"),
    "enum": Rule(5000, "values of one `enum`"),
    "digits": Rule(40, "digits of a numeric bound"),
    "multiple_of": Rule(10_000, "least common multiple of all `multipleOf`"),
    # patterns and regular expressions
    "pattern": Rule(20_000, "characters and classes of a pattern with its repetitions expanded"),
    "stars": Rule(2000, "optional or unbounded parts of a pattern or rule"),
    "nested_stars": Rule(8, "nesting depth of unbounded parts"),
    # grammars
    "rules": Rule(1000, "rules of a grammar"),
}
"""Rules by name. A strategy changes a limit in `GrammarStrategy.limits`, an operator in the strategy's options."""


def check_limits(limits: object, *, where: str) -> None:
    """Raise `InvalidConfiguration` unless `limits` maps names of `RULES` to whole numbers. `where` is their place in
    the configuration, such as ``options.grammar.mine.limits``."""
    if not isinstance(limits, Mapping):
        raise InvalidConfiguration(
            f"{where} must map rules of the admission guard to whole numbers, not {short_repr(limits)}", field=where
        )
    for name, limit in limits.items():
        if name not in RULES:
            raise InvalidConfiguration(
                f"{where}: unknown rule {short_repr(name)}; {alternatives(name, RULES)}", field=f"{where}.{name}"
            )
        if not is_int(limit) or limit < 0:
            raise InvalidConfiguration(
                f"{where}: {name} must be a whole number of at least 0, not {short_repr(limit)}",
                field=f"{where}.{name}",
            )
