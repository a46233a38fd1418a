"""The answers of supports on JSON Schema keywords, held against every case there is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from guideway.api import JsonSchema
from guideway.json_schema.prober import cases

from guideway_conformance.grammar.languages import is_output
from guideway_conformance.grammar.samples import Sample, spellings
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

MOST_NEAR, MOST_FAR = 20, 4
"""The wrong instances of a schema that are tried: those of a type that right ones have, and others."""


@check("grammar", tier="extended", trait="kind:json_schema", seconds=300)
def every_case_of_a_keyword_is_enforced(subject: GrammarSubject) -> None:
    """No wrong instance of any schema, with one keyword or with two side by side, is accepted where supports leaves
    nothing unenforced."""
    strategy, vocabulary = subject.build(), standard()
    stop = max(vocabulary.stop_token_ids)
    for name, schema, right, wrong in cases():
        constraint = JsonSchema(schema)
        if strategy.supports(constraint).unenforced:
            continue  # most have one, and some libraries compile slowly
        case = compiled_case(strategy, vocabulary, Sample(constraint))
        if case is None or case.support.unenforced:
            continue
        for instance in _telling(right, wrong):
            text = spellings(instance)[0]
            matcher = case.session().matcher
            expect(
                not is_output(matcher, ids_of(vocabulary, text), stop),
                f"{name} is not among what supports calls unenforced, but with the schema {json.dumps(schema)} the "
                f"instance {text.decode()} is accepted",
            )


def _telling(right: Sequence[Any], wrong: Sequence[Any]) -> Iterator[Any]:
    """The wrong instances that are tried."""
    types = {type(instance) for instance in right}
    near = [instance for instance in wrong if type(instance) in types]
    far = [instance for instance in wrong if type(instance) not in types]
    for some, most in ((near, MOST_NEAR), (far, MOST_FAR)):
        yield from some[:: -(-len(some) // most) or 1]
