"""Accepting one token in each of many matchers at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from guideway.api import GrammarStrategy, Matcher
from numpy.typing import NDArray

from guideway_conformance.grammar.batches import ERRORS, break_matcher
from guideway_conformance.grammar.session import Session, expect_same, legal, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject
from guideway_conformance.grammar.vocabularies import show
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

NUM_MANY = 64
"""Matchers of a large batch."""


def advance(
    sessions: Sequence[Session], token_ids: Sequence[int], name: str, matchers: list[Matcher] | None = None
) -> list[int]:
    """Accept one token in each session, and return what the strategy said of each; fail unless it is an array in the
    form the contract has. As in a host, an `advance` of the strategy's own gets its own matchers. `matchers` is a list
    to pass them in."""
    strategy = sessions[0].strategy
    given = [] if matchers is None else matchers
    given[:] = [session.matcher for session in sessions]
    before, ids = list(given), np.array(token_ids, dtype=np.int32)
    result = strategy.advance(given, ids)
    expect(isinstance(result, np.ndarray), f"{name}: advance returned a {type(result).__name__}, no array")
    expect(
        result.dtype == np.int32 and result.shape == (len(before),),
        f"{name}: advance of {len(before)} matchers returned {result.dtype}{list(result.shape)}",
    )
    same = len(given) == len(before) and all(map(_is, given, before)) and ids.tolist() == list(token_ids)
    expect(same, f"{name}: advance changed its list of matchers or its token ids")
    found: list[int] = result.tolist()
    ids[:] = 0
    given.clear()  # both are the host's again
    for session, token_id, count in zip(sessions, token_ids, found, strict=True):
        session.note((token_id,)[: max(0, count)])
    return found


def _is(one: object, other: object) -> bool:
    return one is other


def _advance_of_none(strategy: GrammarStrategy) -> NDArray[np.int32]:
    return strategy.advance([], np.empty(0, dtype=np.int32))


def _offers(sessions: Sequence[Session], seed: int) -> list[int]:
    """A token for each session: mostly a legal one, often one that ends it, sometimes one that it may refuse."""
    offered = []
    for i, session in enumerate(sessions):
        choices = [] if session.is_terminated() else legal(session)
        stops = [token_id for token_id in choices if token_id in session.stop_token_ids]
        number = 7 * seed + 3 * i
        if number % 5 == 0 or not choices:
            offered.append(number % len(session.vocabulary))
        elif stops and number % 3 == 0:
            offered.append(stops[number % len(stops)])
        else:
            offered.append(choices[number % len(choices)])
    return offered


def expect_advanced(
    sessions: Sequence[Session], token_ids: Sequence[int], name: str, matchers: list[Matcher] | None = None
) -> None:
    """Advance, and fail unless counts and states are those of `accept`."""
    twins = [session.twin() for session in sessions]
    counts = advance(sessions, token_ids, name, matchers)
    for session, twin, token_id, count in zip(sessions, twins, token_ids, counts, strict=True):
        said = f"{name}: {twin.place}, advance by {show(session.vocabulary, [token_id])} among {len(sessions)}"
        accepted = twin.accept([token_id])
        expect(count == accepted, f"{said} returned {count}, accept {accepted}")
        expect_same(session, twin, session.vocabulary, said)


@check("grammar")
def advance_is_accept(subject: GrammarSubject) -> None:
    """Advancing accepts what accept does, refuses what it refuses, also once terminated, and leads to the same states,
    in any order and with one list of matchers for all steps; no matchers give no results."""
    cases = subject.few()
    expect(_advance_of_none(cases[0].strategy).shape == (0,), "advance of no matchers returned results")
    for case in cases[:2]:
        session = case.session()
        for step in range(6):
            expect_advanced([session], _offers([session], step + 1), case.name)
    for seed in range(3):
        sessions, matchers = [case.session() for case in cases], list[Matcher]()
        for step in range(6):
            expect_advanced(sessions, _offers(sessions, seed + step), "several matchers", matchers)
            sessions = [*sessions[1:], sessions[0]]


@check("grammar")
def advance_knows_undone_tokens(subject: GrammarSubject) -> None:
    """Advancing goes on from where a rollback leads, and moves a fork alone; what it accepted is rolled back too."""
    for case in subject.few():
        sessions = [_moved(case, seed) for seed in range(4)]
        forks = [session.fork() for session in sessions]
        expect_advanced(sessions, _offers(sessions, 1), f"{case.name}, after a rollback")
        expect_advanced(forks, _offers(forks, 2), f"{case.name}, forks")
        for session in [*sessions, *forks]:
            if session.token_ids:
                session.rollback(1)
                expect_same(session, session.twin(), case.vocabulary, f"{case.name}: rolled back after an advance")


def _moved(case: Case, seed: int) -> Session:
    """A matcher that accepted some tokens and rolled one of them back."""
    session = case.session()
    if walk(session, seed, 2 + seed):
        session.rollback(1)
    return session


@check("grammar")
def a_failed_matcher_is_advanced_alone(subject: GrammarSubject) -> None:
    """The result of a matcher that failed is -1, and all others are advanced."""
    for case in subject.few(most=1):
        for failing, error in product((0, NUM_MANY - 1), ERRORS):
            sessions = [case.session() for _ in range(NUM_MANY)]
            for i, session in enumerate(sessions):
                walk(session, i, i % 3)
            token_ids, twins = _offers(sessions, 1), [session.twin() for session in sessions]
            if not break_matcher(sessions[failing], error):
                break
            try:
                counts = advance(sessions, token_ids, case.name)
            except AssertionError:
                raise
            except Exception as raised:
                said = f"{case.name}: advance raised {raised!r} instead of returning -1 for the matcher that failed"
                raise AssertionError(said) from raised
            for i, (twin, count) in enumerate(zip(twins, counts, strict=True)):
                wanted = twin.accept([token_ids[i]])
                if i == failing:
                    # a call that uses no method of the matcher's class does not fail
                    expect(count in (-1, wanted), f"{case.name}: advance returned {count} for a matcher that failed")
                    continue
                said = f"{case.name}: matcher {i} of {NUM_MANY}, of which {failing} failed"
                expect(count == wanted, f"{said}: advance returned {count}, accept {wanted}")
                expect_same(sessions[i], twin, case.vocabulary, said)
