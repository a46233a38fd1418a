"""The measures of what a constraint may cost, taken before any library reads it.

Native code that is given a hostile constraint may crash, hang or take all memory, and takes the whole process with
it. So each constraint is counted first, by Python, without recursion, in time linear in its size. A strategy that
cannot bear it is not asked: the next one may. The rules are in `guideway.api.limits`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from guideway.api.limits import RULES
from guideway.api.types import Choice, Constraint, Grammar, JsonSchema, Regex, StructuralTag
from guideway.errors import MAX_TEXT, LimitExceeded
from guideway.json_schema.walking import Chain, Pointer
from guideway.runtime.guard.grammars import measure_grammar
from guideway.runtime.guard.json_schema import measure_pattern, measure_schema
from guideway.runtime.guard.measures import CAP, Measures, TooLarge
from guideway.runtime.guard.satisfiable import forms
from guideway.runtime.metrics import LEFT_OUT

__all__ = ["Guard", "check_bytes", "forms", "measured"]

DEFAULTS = {name: rule.limit for name, rule in RULES.items()}

MAX_PLACE = 120
"""Characters of a place in a message."""


class Guard:
    """A constraint, counted once for all strategies when the first one asks."""

    def __init__(self, constraint: Constraint, limits: Mapping[str, Mapping[str, int]]) -> None:
        self._constraint = constraint
        self._bytes = len(constraint.source())
        self._limits = {name: {**DEFAULTS, **own} for name, own in limits.items()}
        self._measures: Measures | None = None

    def refusal(self, strategy: str) -> str | None:
        """Why the constraint is too much for a strategy: rule, place and limit. Raises `InvalidGrammar` for a Lark
        grammar with a schema in it that nothing satisfies."""
        limits = self._limits[strategy]
        exceeded = ("bytes", self._bytes, "its text", limits["bytes"]) if self._bytes > limits["bytes"] else None
        if exceeded is None:
            if self._measures is None:
                self._measures = measured(self._constraint, max(each["nodes"] for each in self._limits.values()))
            exceeded = self._measures.exceeded(limits)
        if exceeded is None:
            return None
        LEFT_OUT.labels(strategy, exceeded[0]).inc()
        return _told(*exceeded)


def check_bytes(constraint: Constraint, limits: Iterable[Mapping[str, int]]) -> None:
    """Raise `LimitExceeded` if the text of `constraint` is longer than strategies of any of these `limits` take.
    Reading it would cost its length already."""
    match constraint:
        case JsonSchema(schema=str() as text) | StructuralTag(tag=str() as text):
            size = len(text)
        case Regex(pattern=str() as text) | Grammar(text=str() as text):
            size = len(text)
        case _:
            return
    most = max((each.get("bytes", DEFAULTS["bytes"]) for each in limits), default=DEFAULTS["bytes"])
    if size > most:
        LEFT_OUT.labels("*", "bytes").inc()
        raise LimitExceeded(
            f"this constraint is too large: {_told('bytes', size, 'its text', most)}", field="constraint"
        )


def measured(constraint: Constraint, most_nodes: int) -> Measures:
    """All that is counted of `constraint`, which is well formed as far as `Constraint.source` goes."""
    measures = Measures(most_nodes)
    try:
        match constraint:
            case JsonSchema():
                measure_schema(constraint.parsed, measures)
            case Regex():
                measure_pattern(constraint.pattern, measures, lambda: "the pattern")
            case Choice():
                _measure_choices(constraint, measures)
            case Grammar():
                measure_grammar(constraint.text, constraint.dialect, measures)
            case StructuralTag():
                _measure_tag(constraint.parsed, measures)
        measures.at("nodes", measures.nodes, "the whole")
    except TooLarge:
        pass
    return measures


def _measure_choices(constraint: Choice, measures: Measures) -> None:
    measures.at("alternatives", len(constraint.choices), "the choices")
    for i, choice in enumerate(constraint.choices):
        measures.literal(len(choice), f"choice {i}")


def _measure_tag(tag: Any, measures: Measures) -> None:
    """The parts of a structural tag, and each schema, pattern and grammar in it."""
    stack: list[tuple[Any, Chain, int]] = [(tag, None, 1)]
    while stack:
        node, chain, depth = stack.pop()
        here = Pointer(chain).__str__
        if isinstance(node, str):
            measures.literal(len(node), here)
        elif isinstance(node, list):
            measures.count(len(node), here)
            measures.at("depth", depth, here)
            measures.at("alternatives", len(node), here)
            stack.extend((child, (chain, i), depth + 1) for i, child in enumerate(node))
        elif isinstance(node, Mapping):
            measures.count(len(node), here)
            measures.at("depth", depth, here)
            for key, value in node.items():
                link: Chain = (chain, key)
                place = Pointer(link).__str__
                if key in ("json_schema", "schema") and isinstance(value, Mapping):
                    measure_schema(value, measures, link)
                elif key == "pattern" and isinstance(value, str):
                    measure_pattern(value, measures, place)
                elif key == "grammar" and isinstance(value, str):
                    measure_grammar(value, "ebnf", measures, f"{place()}, ")
                else:
                    stack.append((value, link, depth + 1))


def _told(rule: str, value: int, place: str, limit: int) -> str:
    what = place[:MAX_TEXT].encode("unicode_escape").decode()
    what = what if len(what) <= MAX_PLACE else f"{what[: MAX_PLACE - 3]}..."
    number = value if value < CAP else "far too large"
    return f"{rule} at {what} is {number}, the limit {limit}"
