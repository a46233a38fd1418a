"""Checks of what supports says, and whether it is true."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

from guideway.api import Constraint, InvalidConfiguration, InvalidGrammar, JsonSchema, StructuralTag, Support
from guideway.api.limits import check_limits
from guideway.json_schema import KEYWORDS, keywords, subschemas
from guideway.json_schema.cases import cases as keyword_cases

from guideway_conformance.grammar.compiling import hostile
from guideway_conformance.grammar.languages import is_output
from guideway_conformance.grammar.samples import Sample, spellings
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

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


@check("grammar", tier="extended")
def constraints_are_not_changed(subject: GrammarSubject) -> None:
    """Neither supports nor compile changes the constraint it is given, nor what is in it, nor what its text is parsed
    to."""
    strategy = subject.build()
    annotated = (JsonSchema(_annotated(constraint.parsed)) for constraint in _schemas(subject))
    as_text = (JsonSchema(json.dumps(constraint.parsed)) for constraint in _schemas(subject))
    annotated_text = (JsonSchema(json.dumps(_annotated(constraint.parsed))) for constraint in _schemas(subject))
    others = (Sample(constraint) for constraint in (*annotated, *as_text, *annotated_text))
    for sample in (*subject.samples(), *others):
        constraint = sample.constraint
        before, parsed = copy.deepcopy(constraint), copy.deepcopy(_parsed(constraint))
        compiled_case(strategy, standard(), sample)
        expect(constraint == before, f"{sample.name} was changed by supports or compile")
        is_same = json.dumps(_parsed(constraint)) == json.dumps(parsed)
        expect(is_same, f"{sample.name}: what it is parsed to was changed by supports or compile")


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
