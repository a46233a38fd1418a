"""Checks of what supports says, and whether it is true."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Set
from typing import Any

from guideway.api import (
    Constraint,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonSchema,
    StructuralTag,
    Support,
)
from guideway.api.limits import check_limits
from guideway.json_schema import KEYWORDS, TYPES, keywords, subschemas
from guideway.json_schema.prober import cases as keyword_cases

from guideway_conformance.grammar.compiling import hostile
from guideway_conformance.grammar.languages import is_output
from guideway_conformance.grammar.samples import Sample, spellings
from guideway_conformance.grammar.session import walk
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

ANY_FORMAT = "format:*"
WRONG = 4
"""Invalid instances of each schema."""


@check("grammar")
def supports_never_raises(subject: GrammarSubject) -> None:
    """Supports returns a Support for every well-formed constraint of a declared kind, and never raises."""
    strategy = subject.build()
    for constraint in (*(sample.constraint for sample in subject.samples()), *hostile(subject)):
        if not _is_well_formed(constraint):
            continue
        what = f"supports of {constraint.kind} {str(constraint)[:80]}"
        try:
            found = strategy.supports(constraint)
        except BaseException as error:
            raise AssertionError(f"{what} raised {type(error).__qualname__}: {str(error)[:200]}") from error
        expect(isinstance(found, Support), f"{what} returned a {type(found).__name__}, no Support")
        names = [*found.enforced, *found.unenforced]
        expect(all(isinstance(name, str) for name in names), f"{what} has keywords that are no strings: {names[:5]}")
        expect(found.reason is None or found.reason, f"{what} refuses without a reason")


def _is_well_formed(constraint: Constraint) -> bool:
    try:
        _ = constraint.source(), constraint.spacing
    except InvalidGrammar:
        return False
    return True


@check("grammar")
def limits_are_rules_of_the_guard(subject: GrammarSubject) -> None:
    """Its limits are of rules that the admission guard has, each a whole number of at least 0."""
    strategy = subject.build()
    try:
        check_limits(strategy.limits, where=f"the limits of {strategy.name}")
    except InvalidConfiguration as error:
        raise AssertionError(str(error)) from error


@check("grammar")
def supports_names_every_keyword(subject: GrammarSubject) -> None:
    """Each keyword of a constraint it will compile is named, enforced or unenforced; a kind without keywords itself."""
    strategy = subject.build()
    for sample in subject.samples():
        support, constraint = strategy.supports(sample.constraint), sample.constraint
        if support.refused:
            continue
        wanted = {constraint.kind}
        if constraint.kind == "json_schema":
            names = {name.partition(":")[0] for name in keywords(json.loads(constraint.source())) if "+" not in name}
            wanted = names & set(KEYWORDS)
        elif constraint.kind == "structural_tag":
            continue
        named = {part.partition(":")[0] for name in support.enforced | support.unenforced for part in name.split("+")}
        named |= support.enforced | support.unenforced
        expect(
            wanted <= named, f"{sample.name}: supports says nothing of {sorted(wanted - named)}, neither this nor that"
        )


@check("grammar", trait="kind:json_schema", seconds=300)
def enforced_keywords_are_enforced(subject: GrammarSubject) -> None:
    """No instance that breaks a keyword of the schema is accepted where supports leaves nothing unenforced."""
    strategy, stop = subject.build(), max(standard().stop_token_ids)
    seen: set[str] = set()
    for name, schema, _, wrong in keyword_cases():
        if "+" in name and name in seen:
            continue
        seen.add(name)
        case = compiled_case(strategy, standard(), Sample(JsonSchema(schema)))
        if case is None or case.support.unenforced:
            continue
        for instance in wrong[:: max(1, len(wrong) // WRONG)]:
            for text in spellings(instance)[:2]:
                accepted = is_output(case.session().matcher, ids_of(standard(), text), stop)
                expect(
                    not accepted,
                    f"{name} is not among what supports calls unenforced, but with the schema {json.dumps(schema)} "
                    f"the instance {text.decode()} is accepted",
                )


@check("grammar", trait="kind:json_schema", seconds=300)
def what_it_takes_is_enforced(subject: GrammarSubject) -> None:
    """Takes is a set of names of keywords, always the same. Of a schema with these keywords alone, supports refuses
    nothing and leaves nothing but formats and combinations unenforced; without these, no wrong instance is accepted.
    For each name, such schemas compile."""
    strategy, stop = subject.build(), max(standard().stop_token_ids)
    takes = strategy.takes
    expect(
        isinstance(takes, Set) and all(isinstance(name, str) for name in takes),
        f"takes is no set of strings: {str(takes)[:200]}",
    )
    expect(strategy.takes == takes, "takes is not the same when it is read again")
    known = {ANY_FORMAT}.union(*(keywords(schema) for _, schema, _, _ in keyword_cases()))
    unknown = sorted(takes - known)
    expect(not unknown, f"takes has {', '.join(map(repr, unknown))}, which no schema has")
    compiled: set[str] = set()
    asked: set[str] = set()
    for _, schema, _, wrong in keyword_cases():
        names = {name for name in keywords(schema) if "+" not in name}
        formats = {name for name in names if name.startswith("format:")} if ANY_FORMAT in takes else set()
        if not names or not names - formats <= takes:
            continue
        listed, text = ", ".join(sorted(names)), json.dumps(schema)
        support = strategy.supports(JsonSchema(schema))
        expect(not support.refused, f"takes has {listed}, but the schema {text} is refused: {support.reason}")
        lost = ", ".join(sorted(name for name in support.unenforced - formats if "+" not in name))
        expect(not lost, f"takes has {listed}, but supports leaves {lost} unenforced in the schema {text}")
        asked |= names
        case = compiled_case(strategy, standard(), Sample(JsonSchema(schema)))
        if case is None:
            continue
        compiled |= names
        for instance in wrong[:: max(1, len(wrong) // WRONG)] if not support.unenforced else ():
            accepted = is_output(case.session().matcher, ids_of(standard(), spellings(instance)[0]), stop)
            expect(not accepted, f"takes has {listed}, but the schema {text} accepts {json.dumps(instance)}")
    never = ", ".join(sorted(asked - compiled))
    expect(not never, f"takes has {never}, but no schema with it compiles")


@check("grammar", tier="extended", seconds=120)
def constraints_are_not_changed(subject: GrammarSubject) -> None:
    """No verb changes the constraint, nor what is in it, nor what its text is parsed to: neither supports and compile
    nor those of the grammar and its matchers."""
    strategy = subject.build()
    given: list[Sample] = list(subject.samples())
    if "json_schema" in subject.component.kinds:
        schemas = [constraint.parsed for constraint in _schemas(subject)]
        given += [Sample(JsonSchema(_annotated(schema))) for schema in schemas]
        others = [form for schema in (*_bare(), *_one_of_each_keyword()) for form in (schema, *_below(schema))]
        # what a text is parsed to is shared; of a mapping every reader gets a value of its own
        given += [Sample(JsonSchema(json.dumps(s))) for s in (*schemas, *map(_annotated, schemas), *others)]
    for sample in given:
        constraint = sample.constraint
        before, parsed = copy.deepcopy(constraint), json.dumps(_parsed(constraint))
        _use(strategy, sample)
        expect(constraint == before, f"{sample.name} was changed by supports, compile or a matcher")
        is_same = json.dumps(_parsed(constraint)) == parsed
        expect(is_same, f"{sample.name}: what it is parsed to was changed by supports, compile or a matcher")


def _use(strategy: GrammarStrategy, sample: Sample) -> None:
    """Ask for all that there is."""
    case = compiled_case(strategy, standard(), sample)
    if case is None:
        return
    session = case.session()
    walk(session, 0, 2)
    for name, ask in (
        ("forced_tokens", session.matcher.forced_tokens),
        ("shortest_completion", lambda: session.matcher.shortest_completion(2)),
        ("serialize", lambda: strategy.from_bytes(case.compiled.to_bytes())),
    ):
        if name in strategy.capabilities and not session.is_terminated():
            ask()


def _bare() -> Iterator[dict[str, Any]]:
    """Types without anything that is usual beside them."""
    for name in TYPES:
        yield {"type": name}
        yield {"type": [name, "null"]}


def _one_of_each_keyword() -> Iterator[dict[str, Any]]:
    """A schema about each keyword alone."""
    seen: set[str] = set()
    for name, schema, _, _ in keyword_cases():
        if "+" not in name and name not in seen and isinstance(schema, dict):
            seen.add(name)
            yield schema


def _below(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Schemas that `schema` is a part of."""
    yield {"type": "array", "items": schema}
    yield {"type": "object", "properties": {"a": schema}, "required": ["a"], "additionalProperties": False}
    yield {"anyOf": [schema, {"type": "null"}]}


def _schemas(subject: GrammarSubject) -> Iterator[JsonSchema]:
    for sample in subject.samples("json_schema"):
        if isinstance(sample.constraint, JsonSchema):
            yield sample.constraint


def _parsed(constraint: Constraint) -> object:
    return constraint.parsed if isinstance(constraint, JsonSchema | StructuralTag) else None


def _annotated(schema: Any) -> Any:
    """The same schema, with what says nothing of instances at its root and in all of its subschemas."""
    found = copy.deepcopy(schema)
    for _, subschema in list(subschemas(found)) if isinstance(found, dict) else ():
        if isinstance(subschema, dict):
            subschema.update({"title": "t", "description": "d", "$comment": "c"})
    return found
