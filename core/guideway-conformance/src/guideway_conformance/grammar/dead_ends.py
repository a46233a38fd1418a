"""Matchers in a place where no token is legal, because none of the vocabulary spells what has to follow."""

from __future__ import annotations

from collections.abc import Iterator

from guideway.api import Choice, Constraint, JsonSchema, Regex

from guideway_conformance.grammar.samples import Sample
from guideway_conformance.grammar.session import Session
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, standard_without

__all__ = ["dead_ends"]

_MISSING = b"z"

_WAYS: tuple[tuple[Constraint, bytes], ...] = (
    (Regex("az|c"), b"a"),
    (Choice(["az", "c"]), b"a"),
    (JsonSchema({"enum": ["az", "c"]}), b'"a'),
    (JsonSchema({"type": "object", "properties": {"az": {"type": "null"}}, "additionalProperties": False}), b'{"a'),
)


_CERTAIN = ("regex", "choice")


def dead_ends(subject: GrammarSubject) -> Iterator[Session]:
    """Those it gets into: a strategy may refuse the vocabulary, or look ahead and refuse the token that leads there."""
    vocabulary = standard_without(_MISSING)
    strategy = subject.build_if_it_can(vocabulary)
    for constraint, text in _WAYS if strategy else ():
        if strategy is None or constraint.kind not in strategy.kinds:
            continue
        case = compiled_case(strategy, vocabulary, Sample(constraint))
        if case is None:
            continue
        session = case.session()
        token_ids = ids_of(vocabulary, text)
        if session.accept(token_ids) == len(token_ids) and (constraint.kind in _CERTAIN or not _goes_on(session)):
            yield session


def _goes_on(session: Session) -> bool:
    """Return whether it accepts anything: JSON has more than one way to write a character."""
    other = session.twin()
    return any(other.accept([token_id]) for token_id in range(len(session.vocabulary)))
