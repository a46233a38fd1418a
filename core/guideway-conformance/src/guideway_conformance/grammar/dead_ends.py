"""Matchers in a place where no token is legal, because none of the vocabulary spells what has to follow."""

from __future__ import annotations

import random
from collections.abc import Iterator

from guideway.api import Choice, Constraint, JsonSchema, Regex

from guideway_conformance.grammar.samples import SAMPLES, Sample
from guideway_conformance.grammar.session import Session, legal
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import ids_of, spelling, standard_without

__all__ = ["dead_ends"]

_MISSING = b"z"

_WAYS: tuple[tuple[Constraint, bytes], ...] = (
    (Regex("az|c"), b"a"),
    (Choice(["az", "c"]), b"a"),
    (JsonSchema({"enum": ["az", "c"]}), b'"a'),
    (JsonSchema({"type": "object", "properties": {"az": {"type": "null"}}, "additionalProperties": False}), b'{"a'),
)


_CERTAIN = ("regex", "choice")
_SOME = (-1, -2, -4, 1)
MOST_OF_AN_EXAMPLE = 3
"""The dead ends of an example that are looked at."""


def dead_ends(subject: GrammarSubject) -> Iterator[Session]:
    """Those it gets into: a strategy may refuse the vocabulary, or look ahead and refuse the token that leads there."""
    yield from _known(subject)
    yield from _of_dialects(subject)


def _of_dialects(subject: GrammarSubject) -> Iterator[Session]:
    """Places in the grammar of an example, in a vocabulary that lacks what its outputs have there."""
    for example in subject.component.examples:
        if example.constraint.kind in SAMPLES or example.constraint.kind not in subject.component.kinds:
            continue
        found = 0
        for text in example.accepted[:2]:
            lacking = (text.replace(text[i : i + 1], b"") for i in _SOME)
            for letters in (text[: len(text) // 2], text[:-1], text[:1], *lacking):
                if not letters or found == MOST_OF_AN_EXAMPLE:
                    continue
                for session in _ended(subject, example.constraint, letters):
                    found += 1
                    yield session


def _ended(subject: GrammarSubject, constraint: Constraint, letters: bytes) -> Iterator[Session]:
    """A walk into a dead end, if one gets there, in a vocabulary of `letters` alone."""
    vocabulary = spelling(letters)
    strategy = subject.build_if_it_can(vocabulary)
    case = strategy and compiled_case(strategy, vocabulary, Sample(constraint))
    for seed in range(4):
        if not case:
            return
        session, rng = case.session(), random.Random(seed)
        for _ in range(40):
            ways = [t for t in legal(session) if t not in session.stop_token_ids]
            if not ways:
                break
            session.take([rng.choice(ways)])
        if session.token_ids and not session.is_accepting() and not _goes_on(session):
            yield session
            return


def _known(subject: GrammarSubject) -> Iterator[Session]:
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
