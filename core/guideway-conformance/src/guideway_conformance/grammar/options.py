"""The operator's options with other values than a strategy is tested with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, islice, takewhile, zip_longest
from typing import Any

from guideway.api import InvalidConfiguration, InvalidGrammar, UnsupportedGrammar
from guideway.api.options import short_repr

from guideway_conformance.grammar.session import Session, expect_same, legal, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject
from guideway_conformance.grammar.vocabularies import standard
from guideway_conformance.hints import hints_read, typed
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

SIZE = 8
MOST_OTHERS = 16
"""The other values of its options that a strategy is built with."""
MOST_HALVED = 20
"""The values of an option between its default and nothing, each half of the one before."""
MANY = 60
"""The strategies in all that are built for a scale of values."""
STEPS = 6


@check("grammar", tier="extended", seconds=120)
def other_values_of_its_options_are_served(subject: GrammarSubject) -> None:
    """With another value of one of its options (a number, a flag, a word of a list) a strategy refuses the value with
    InvalidConfiguration, or keeps the rules: it refuses what it compiled before with UnsupportedGrammar, as it is still
    valid, and its masks allow what accept takes; with numbers of every size too, from the default down to nothing."""
    cases = subject.few()
    for options in chain(_others(subject), _halved(subject)):
        said = f"with {', '.join(f'{name} = {short_repr(value)}' for name, value in options.items())}"
        try:
            strategy = subject.component(standard(), options)
        except InvalidConfiguration:
            continue
        except Exception as error:
            raise AssertionError(f"{said} it raised {error!r}, not InvalidConfiguration") from error
        for case in cases:
            what = f"{said}, {case.name}"
            support = strategy.supports(case.sample.constraint)
            try:
                compiled = strategy.compile(case.sample.constraint)
            except UnsupportedGrammar:
                continue
            except InvalidGrammar as error:
                raise AssertionError(f"{what} is valid, as other values show, but compile says: {error}") from error
            except Exception as error:
                raise AssertionError(f"{what}: compile raised {error!r}") from error
            if not support.refused:
                _expect_masks(Case(case.sample, strategy, compiled, standard(), support), what)
        strategy.close()


def _expect_masks(case: Case, what: str) -> None:
    """Fail if a mask allows what accept refuses, or the same tokens lead to another state."""

    def look(session: Session) -> None:
        expect(legal(session), f"{what}: {session.place}, no token is legal")

    session = case.session()
    walk(session, 0, STEPS, look)
    expect_same(session, session.twin(), case.vocabulary, f"{what}: {session.place}")


def _others(subject: GrammarSubject) -> Iterator[Mapping[str, Any]]:
    """The options with another value of one that is a number, a flag or one of some words."""
    with hints_read() as hints:
        subject.build()
    usual = dict(subject.settings.options)
    plain = {name: hint for name, hint in hints.items() if "str" not in str(hint) and "Path" not in str(hint)}
    found = [options for options in typed(usual, plain, SIZE) if options != usual]
    yield from found[:MOST_OTHERS]


def _halved(subject: GrammarSubject) -> Iterator[Mapping[str, Any]]:
    """The options with a number that becomes half of what it was, again and again: somewhere on the way it is the one
    that bounds what is compiled."""
    with hints_read() as hints:
        subject.build()
    usual = dict(subject.settings.options)
    scales = []
    for name, default in hints.defaults.items():
        value = usual.get(name, default)
        if type(value) is int:
            halves = takewhile(bool, (value >> i for i in range(1, MOST_HALVED + 1)))
            scales.append([{**usual, name: half} for half in halves])
    each = (options for some in zip_longest(*scales) for options in some if options is not None)
    yield from islice(each, MANY)
