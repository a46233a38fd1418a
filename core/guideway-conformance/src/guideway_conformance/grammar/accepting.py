"""Checks of what accept does, and of what validate says it would do."""

from __future__ import annotations

import random

from guideway.api import Matcher, UnsupportedCapability

from guideway_conformance.grammar.session import Session, expect_same, legal, observe, walk
from guideway_conformance.grammar.subject import GrammarSubject, compiled_case
from guideway_conformance.grammar.undoing import FURTHEST, far_ways
from guideway_conformance.grammar.vocabularies import show
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect


def refused(session: Session) -> list[int]:
    """Tokens its mask does not allow: text, special tokens and ids without text among them."""
    allowed = set(legal(session))
    found = [t for t in range(len(session.vocabulary)) if t not in allowed]
    return found[:3] + random.Random(0).sample(found, min(6, len(found)))


@check("grammar")
def accept_keeps_what_precedes_a_refused_token(subject: GrammarSubject) -> None:
    """Accept stops at the first token that is not legal, keeps those before it and returns their count."""
    for case in subject.few():
        for seed in range(3):
            token_ids = walk(case.session(), seed, 5)
            for cut in range(len(token_ids) + 1):
                wanted = case.session().take(token_ids[:cut])
                if wanted.is_terminated():
                    continue
                for wrong in refused(wanted):
                    session = case.session()
                    offered = [*token_ids[:cut], wrong, *token_ids[cut:]]
                    count = session.accept(offered)
                    said = f"{case.name}: accept of {show(case.vocabulary, offered)}"
                    expect(count == cut, f"{said} returned {count}, although {cut} of them are legal")
                    expect_same(session, wanted, case.vocabulary, f"{said} did not leave the state after {cut} of them")


@check("grammar")
def accept_in_parts_is_accept_at_once(subject: GrammarSubject) -> None:
    """Accepting a and then b is accepting a + b, one token after the other too, and nothing is accepted of nothing."""
    for case in subject.few():
        for seed in range(3):
            token_ids = walk(case.session(), seed, 8)
            at_once = case.session().take(token_ids)
            one_by_one = case.session()
            for token_id in token_ids:
                expect(one_by_one.accept([]) == 0, f"{case.name}: accept of no tokens did not return 0")
                one_by_one.take([token_id])
            when = f"{case.name}: accepting {show(case.vocabulary, token_ids)} one by one is not accepting them at once"
            expect_same(one_by_one, at_once, case.vocabulary, when)
            middle = len(token_ids) // 2
            parts = case.session().take(token_ids[:middle]).take(token_ids[middle:])
            expect_same(parts, at_once, case.vocabulary, when.replace("one by one", "in two parts"))


@check("grammar", tier="extended")
def token_ids_come_in_tuples(subject: GrammarSubject) -> None:
    """Token ids come in tuples."""
    for case in subject.few(most=1):
        allowed = legal(case.session())
        expect(allowed, f"{case.name}: no token is legal at the start")
        count = case.session().matcher.accept((allowed[0],))
        expect(count == 1, f"{case.name}: accept of a tuple of a legal token returned {count}")


@check("grammar")
def termination_is_the_end(subject: GrammarSubject) -> None:
    """A matcher is terminated once a stop token was accepted, not before, and accepts nothing more."""
    for case in subject.few():
        token_ids = case.output()
        if token_ids is None:
            continue
        session = case.session()
        for token_id in token_ids:
            expect(not session.is_terminated(), f"{case.name}: is_terminated {session.place}, without a stop token")
            session.take([token_id])
        stop = max(case.vocabulary.stop_token_ids)
        for later in (stop, token_ids[0] if token_ids else stop, min(case.vocabulary.stop_token_ids)):
            over = session.twin()
            count = over.accept([stop, later])
            offered = show(case.vocabulary, [stop, later])
            expect(count == 1, f"{case.name}: {session.place}, accept of {offered} returned {count}, not 1")
            expect(over.is_terminated(), f"{case.name}: is_terminated is false {over.place}")
            count = over.accept([later, *token_ids])
            expect(count == 0, f"{case.name}: {over.place} accept of {later} returned {count}, not 0")
            expect(over.is_terminated(), f"{case.name}: {over.place}, a refused token undid the termination")


@check("grammar")
def accept_without_fills_is_accept_with_fills(subject: GrammarSubject) -> None:
    """Accepting gives the same states whether or not a bitmask was filled in between."""
    for case in subject.cases():
        for seed in range(3):
            filled = case.session()
            token_ids = walk(filled, f"{case.name}{seed}", 12)
            unfilled = case.session()
            count = unfilled.accept(token_ids)
            said = f"{case.name}: tokens {show(case.vocabulary, token_ids)}"
            expect(
                count == len(token_ids), f"{said}, {count} were accepted without filling a bitmask in between, not all"
            )
            expect_same(
                unfilled, filled, case.vocabulary, f"{said} lead elsewhere without filling a bitmask in between"
            )


@check("grammar")
def matchers_are_independent(subject: GrammarSubject) -> None:
    """The matchers of one compiled grammar are at its start, and independent of all others."""
    for case in subject.few():
        start = observe(case.session())
        for seed in range(3):
            one, other = case.session(), case.session()
            walk(one, seed, 6)
            when = f"{case.name}: a matcher moved, because another one {one.place} did"
            expect_same(other, start, case.vocabulary, when)
            when = f"{case.name}: a new matcher is not at the start, because another one is {one.place}"
            expect_same(case.session(), start, case.vocabulary, when)
            before = observe(one)
            walk(other, seed + 10, 6)
            expect_same(one, before, case.vocabulary, f"{case.name}: {one.place}, a matcher moved with another one")


@check("grammar")
def strategies_are_independent(subject: GrammarSubject) -> None:
    """Two strategies, and two compiled grammars, do not share what their matchers accept, and give equal masks."""
    strategy = subject.build()
    for case in subject.few():
        other = compiled_case(strategy, case.vocabulary, case.sample)
        expect(other is not None, f"{case.name}: one strategy compiles it, the next one refuses it")
        again = compiled_case(case.strategy, case.vocabulary, case.sample)
        expect(again is not None, f"{case.name}: compiled once, it is refused the next time")
        for name, found in (("another strategy", other), ("compiling again", again)):
            assert found is not None
            first, second = case.session(), found.session()
            expect_same(second, first, case.vocabulary, f"{case.name}: {name} gives another grammar")
            start = observe(second)
            token_ids = walk(first, 0, 6)
            expect_same(second, start, case.vocabulary, f"{case.name}: a matcher of {name} moved with the first one")
            expect_same(second.take(token_ids), first, case.vocabulary, f"{case.name}: {name} gives another state")
            for seed in (1, 2):
                second, first = found.session(), case.session()
                first.take(walk(second, seed, 6))
                expect_same(first, second, case.vocabulary, f"{case.name}: {name} gives another state")


def _can_validate(session: Session) -> int | None:
    """Return how many tokens validate has to be able to judge; None: any number. A validate that is not overridden
    rolls back."""
    limit = session.strategy.max_rollback
    return None if limit is None or type(session.matcher).validate is not Matcher.validate else limit


@check("grammar")
def validate_counts_as_accept_does(subject: GrammarSubject) -> None:
    """Validate returns how many tokens accept would take, over a stop token too; without rollback it may be refused."""
    for case in subject.few():
        limit = _can_validate(case.session())
        if limit == 0:
            _refuses_to_validate(case.session())
            continue
        for seed in range(4):
            ahead = case.session()
            token_ids = walk(ahead, seed, 8)
            offers = [token_ids, [*token_ids, *token_ids], token_ids[1:], [*token_ids[:2], 0, *token_ids[2:]]]
            for start in range(0, len(token_ids), 2):
                session = case.session().take(token_ids[:start])
                for offered in (*offers, token_ids[start:], [*token_ids[start:], *session.stop_token_ids]):
                    wanted = session.twin().accept(offered)
                    if limit is not None and wanted > limit:
                        continue
                    found = session.matcher.validate(tuple(offered))
                    said = f"{case.name}: {session.place}, validate of {show(case.vocabulary, offered)}"
                    expect(found == wanted, f"{said} returned {found}, accept takes {wanted}")


@check("grammar")
def validate_moves_nothing(subject: GrammarSubject) -> None:
    """Validate leaves the state as it was."""
    for case in subject.few():
        limit = _can_validate(case.session())
        if limit == 0:
            _refuses_to_validate(case.session())
            continue
        for seed, way in enumerate(([], [], [], case.whole())):
            session = case.session()
            for _ in range(max(8, len(way))):
                if session.is_terminated():
                    break
                ahead = walk(session.twin(), seed, 6 if limit is None else min(6, limit))
                ahead = way[len(session.token_ids) :][: 6 if limit is None else min(6, limit)] if way else ahead
                wrong = refused(session)[:1]
                before = observe(session)
                for offered in (ahead, wrong, [*ahead[:1], *wrong], []):
                    if limit is None or len(offered) <= limit:
                        session.matcher.validate(tuple(offered))
                        said = f"{case.name}: {session.place}, validate of {show(case.vocabulary, offered)}"
                        expect_same(session, before, case.vocabulary, f"{said} moved the matcher")
                if ahead:
                    session.take(ahead[:1])
            if session.is_terminated():
                stop = max(session.stop_token_ids)
                count = session.matcher.validate((stop,))
                expect(count == 0, f"{case.name}: {session.place}, validate of {stop} returned {count}, not 0")


def _refuses_to_validate(session: Session) -> None:
    first = legal(session)[:1]
    try:
        count = session.matcher.validate(tuple(first))
    except UnsupportedCapability:
        return
    expect(False, f"validate of {first} returned {count}, although it neither can roll back nor overrides validate")


@check("grammar", seconds=60)
def validate_takes_any_number_of_tokens(subject: GrammarSubject) -> None:
    """A validate that a matcher overrides judges more tokens than can be rolled back, and takes nothing of what can be:
    rollback afterwards goes as far as before."""
    limit = subject.component.max_rollback
    if limit is None:
        return
    for case, token_ids in far_ways(subject, min(2 * limit + 3, FURTHEST)):
        for start in {0, len(token_ids) // 2, max(0, len(token_ids) - limit - 1)}:
            session, ahead = case.session().take(token_ids[:start]), token_ids[start:]
            if _can_validate(session) is not None:
                return
            before = observe(session)
            said = (
                f"{case.name}: after {start} tokens, validate of {len(ahead)} more, where {limit} can be rolled back,"
            )
            try:
                count = session.matcher.validate(tuple(ahead))
            except Exception as error:
                raise AssertionError(f"{said} raised {error!r}") from error
            expect(count == len(ahead), f"{said} returned {count}, and accept takes all")
            expect_same(session, before, case.vocabulary, f"{said} moved the matcher")
            undone = session.undoable
            if undone:
                session.rollback(undone)
                wanted = case.session().take(token_ids[: start - undone])
                expect_same(session, wanted, case.vocabulary, f"{said} and {undone} tokens rolled back")
