"""The registry of constraint kinds: how each is checked, measured, and written in JSON.

Other modules have a default for a kind that they do not name, such as the estimates in `runtime.closing`. A strategy
that compiles a kind lists it in `GrammarStrategy.kinds`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from guideway.api.types import Choice, Constraint, Grammar, JsonObject, JsonSchema, Regex, StructuralTag
from guideway.json_schema import check_regex, check_schema
from guideway.json_schema.walking import Chain, Pointer
from guideway.runtime.constraints.guard.grammars import measure_grammar
from guideway.runtime.constraints.guard.json_schema import measure_pattern, measure_schema
from guideway.runtime.constraints.guard.measures import Measures

__all__ = ["KINDS", "JsonForm", "Kind", "kind_of"]


def _nothing(*_: object) -> None: ...


class JsonForm(NamedTuple):
    """A constraint as input lines and records of ``guideway generate`` have it."""

    key: str
    write: Callable[[Any], Any]
    """Returns the value under `key`."""
    read: Callable[[Any], Constraint]
    """Reads a constraint from that value; admission checks its content. Raises `TypeError`, which names the expected
    shape, for a value of another shape."""


class Kind(NamedTuple):
    """One kind of constraint, for admission, the guard and the command line."""

    measure: Callable[[Any, Measures], object]
    """Counts a constraint for the guard's rules. `Constraint.source` has accepted it."""
    check: Callable[[Any], object] = _nothing
    """Raises `InvalidGrammar` for a constraint that is malformed for every strategy."""
    text: str | None = None
    """The field with its text, whose length is checked before anything reads it; None: it has no long text."""
    form: JsonForm | None = None
    """None: lines cannot ask for it."""


def _read_schema(value: Any) -> JsonSchema:
    if isinstance(value, str):
        raise TypeError("the schema itself, not text or a path")
    return JsonSchema(value)


def _read_grammar(value: Any) -> Grammar:
    if not isinstance(value, dict) or value.keys() != {"dialect", "text"}:
        raise TypeError("the grammar as an object with 'dialect', such as 'lark', and 'text'")
    return Grammar(**value)


def _measure_choices(constraint: Choice, measures: Measures) -> None:
    measures.at("alternatives", len(constraint.choices), "the choices")
    for i, choice in enumerate(constraint.choices):
        measures.literal(len(choice), f"choice {i}")


def _measure_tag(constraint: StructuralTag, measures: Measures) -> None:
    """Measure a structural tag, and each schema, pattern and grammar in it."""
    stack: list[tuple[Any, Chain, int]] = [(constraint.parsed, None, 1)]
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


KINDS: Mapping[type[Constraint], Kind] = {
    JsonSchema: Kind(
        measure=lambda schema, measures: measure_schema(schema.parsed, measures),
        check=lambda schema: schema.cached(check_schema),
        text="schema",
        form=JsonForm("schema", lambda schema: json.loads(schema.source()), _read_schema),
    ),
    JsonObject: Kind(_nothing),
    Regex: Kind(
        measure=lambda regex, measures: measure_pattern(regex.pattern, measures, lambda: "the pattern"),
        check=lambda regex: check_regex(regex.pattern),
        text="pattern",
        form=JsonForm("regex", lambda regex: regex.pattern, Regex),
    ),
    Choice: Kind(measure=_measure_choices, form=JsonForm("choice", lambda choice: list(choice.choices), Choice)),
    Grammar: Kind(
        measure=lambda grammar, measures: measure_grammar(grammar.text, grammar.dialect, measures),
        text="text",
        form=JsonForm("grammar", lambda grammar: {"dialect": grammar.dialect, "text": grammar.text}, _read_grammar),
    ),
    StructuralTag: Kind(measure=_measure_tag, text="tag"),
}
"""By class. A plugin may define further classes: only the strategies that serve them check these."""


def kind_of(constraint: Constraint | None) -> Kind:
    """Return the kind of a constraint; for None and for classes without an entry, one without any rule."""
    return next((KINDS[each] for each in type(constraint).__mro__ if each in KINDS), Kind(_nothing))
