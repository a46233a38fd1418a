"""Rollback and fork."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from guideway.api import FillJob, UnsupportedCapability

from guideway_conformance.grammar.batches import filled
from guideway_conformance.grammar.samples import LOOPS, loop
from guideway_conformance.grammar.session import Seen, Session, expect_same, legal, new_rows, observe, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject, compiled_case
from guideway_conformance.grammar.vocabularies import standard
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

FAR, FURTHEST = 40, 1000
"""Tokens that lie behind a rollback, by chance and of a loop."""


def expect_refused(what: str, use: object) -> None:
    """Fail unless `use`, a function without arguments, raises `UnsupportedCapability`."""
    try:
        result = use()  # type: ignore[operator]
    except UnsupportedCapability:
        return
    expect(False, f"{what} is not declared, but using it returned {result!r} instead of raising UnsupportedCapability")


def rollback_is_refused(subject: GrammarSubject) -> None:
    for case in subject.few(most=1):
        session = case.session()
        session.take(legal(session)[:1])
        expect_refused("rollback (max_rollback)", lambda session=session: session.matcher.rollback(1))


def _seen_on_a_walk(session: Session, seed: int, steps: int) -> tuple[list[int], list[Seen]]:
    """The tokens, and what was seen before each of them and at the end."""
    seen: list[Seen] = []
    token_ids = walk(session, seed, steps, lambda here: seen.append(observe(here)))
    return token_ids, [*seen[: len(token_ids)], observe(session)]


@check("grammar", capability="rollback", refusal=rollback_is_refused)
def rollback_restores_masks(subject: GrammarSubject) -> None:
    """Accept and then rollback restores every bitmask bit for bit."""
    for case in subject.few():
        for seed in range(4):
            session = case.session()
            if seed == 3:
                token_ids = case.whole()
                seen = [observe(session), *(observe(session.take([token_id])) for token_id in token_ids)]
            else:
                token_ids, seen = _seen_on_a_walk(session, seed, 8)
            for count in range(1, session.undoable + 1):
                session = case.session().take(token_ids)
                session.rollback(count)
                when = f"{case.name}: {count} tokens rolled back, {session.place}"
                expect_same(session, seen[len(token_ids) - count], case.vocabulary, when)


@check("grammar", capability="rollback", refusal=rollback_is_refused)
def rollback_goes_over_a_termination(subject: GrammarSubject) -> None:
    """Rollback undoes a stop token too, and what it terminated goes on."""
    for case in subject.few():
        token_ids = case.output()
        if token_ids is None:
            continue
        for stop in sorted(case.vocabulary.stop_token_ids):
            for count in (1, 2):
                session = case.session().take(token_ids)
                before = case.session().take(token_ids[: len(token_ids) + 1 - count])
                session.take([stop])
                if count > session.undoable:
                    continue
                session.rollback(count)
                when = f"{case.name}: {count} tokens, the last one stop token {stop}, rolled back, {session.place}"
                expect_same(session, before, case.vocabulary, when)
                session.take([*token_ids, stop][len(session.token_ids) :])
                expect(
                    session.is_terminated(), f"{case.name}: after a rollback, {stop} did not terminate a second time"
                )


@check("grammar", capability="rollback", refusal=rollback_is_refused)
def rollback_of_nothing_does_nothing(subject: GrammarSubject) -> None:
    """Rollback of 0 tokens is a no-op, at the start, in between and once terminated."""
    for case in subject.few():
        for seed in range(2):
            token_ids = walk(case.session(), seed, 6) if seed else case.whole()
            session = case.session()
            for token_id in [*token_ids, None]:
                before = observe(session)
                session.matcher.rollback(0)
                expect_same(
                    session, before, case.vocabulary, f"{case.name}: {session.place}, rollback(0) changed the state"
                )
                if token_id is not None:
                    session.take([token_id])
            if session.undoable:
                session.rollback(1)
                twin = case.session().take(token_ids[:-1])
                expect_same(session, twin, case.vocabulary, f"{case.name}: rollback(0) changed what rollback(1) undoes")


@check("grammar", capability="rollback", refusal=rollback_is_refused)
def after_a_rollback_all_ways_are_open(subject: GrammarSubject) -> None:
    """After a rollback the matcher goes on as if what was undone had never been accepted, again and again."""
    for case in subject.few():
        session = case.session()
        for seed in range(12):
            ahead = walk(session.twin(), seed, 3)
            if session.strategy.max_rollback is not None:
                ahead = ahead[: session.strategy.max_rollback]
            session.take(ahead)
            if seed % 3 == 2:
                keep = session.token_ids[:1]
                if len(session.token_ids) - len(keep) <= session.undoable:
                    session.rollback(len(session.token_ids) - len(keep))
            elif session.is_terminated() or seed % 3 == 1:
                session.rollback(min(len(ahead), session.undoable))
            when = f"{case.name}: several rollbacks later, {session.place}"
            expect_same(session, session.twin(), case.vocabulary, when)
            if session.is_terminated():
                break


@check("grammar", capability="rollback", refusal=rollback_is_refused)
def a_refused_token_is_not_rolled_back(subject: GrammarSubject) -> None:
    """Rollback counts accepted tokens; refused ones, and those only validated, are not among them."""
    for case in subject.few():
        token_ids = walk(case.session(), 2, 4)
        for cut in range(1, len(token_ids) + 1):
            session = case.session().take(token_ids[:cut])
            if session.is_terminated() or not session.undoable:
                continue
            expect(session.accept([0, 0]) == 0, f"{case.name}: {session.place}, an unknown token was accepted")
            session.rollback(1)
            wanted = case.session().take(token_ids[: cut - 1])
            expect_same(session, wanted, case.vocabulary, f"{case.name}: a refused token and then rollback(1)")


@check("grammar", capability="rollback", refusal=rollback_is_refused)
def a_negative_rollback_is_no_silent_change(subject: GrammarSubject) -> None:
    """Rollback of a negative number of tokens raises, or else changes nothing."""
    for case in subject.few():
        session = case.session()
        token_ids = walk(session, 1, 4)
        session = case.session().take(token_ids[:2])
        before = observe(session)
        for count in (-1, -2, -(2**31)):
            try:
                session.matcher.rollback(count)
            except Exception:
                session = case.session().take(token_ids[:2])
                continue
            expect_same(
                session, before, case.vocabulary, f"{case.name}: {session.place}, rollback({count}) changed the state"
            )


@check("grammar", tier="extended", capability="rollback", refusal=rollback_is_refused)
def rollback_works_at_every_position(subject: GrammarSubject) -> None:
    """Rollback by any number of tokens, at any position of a long output, restores the state there."""
    for case in subject.few(most=3):
        for seed in range(2):
            session = case.session()
            token_ids, seen = _seen_on_a_walk(session, seed + 20, 24)
            session = case.session()
            for position, token_id in enumerate(token_ids, start=1):
                session.take([token_id])
                count = min(1 + position * 7 % 11, position, session.undoable)
                session.rollback(count)
                when = f"{case.name}: {count} tokens rolled back from the {position}th, {session.place}"
                expect_same(session, seen[position - count], case.vocabulary, when)
                session.take(token_ids[position - count : position])
                expect_same(session, seen[position], case.vocabulary, f"{case.name}: {count} tokens taken again")


@check("grammar", capability="rollback", refusal=rollback_is_refused, seconds=60)
def all_that_is_declared_can_be_rolled_back(subject: GrammarSubject) -> None:
    """A matcher rolls back as many tokens as `max_rollback` says, at once or in parts, however many it accepted before,
    less those that rollbacks since then used up, as of a fill's drafts; and so do its forks."""
    limit = subject.component.max_rollback
    for case, token_ids in far_ways(subject, FAR if limit is None else min(2 * limit + 3, FURTHEST)):
        for num_parts, drafts in ((1, ()), (2, ()), (1, token_ids[:2])):
            session = case.session().take(token_ids)
            if not session.is_terminated():
                jobs = (FillJob(session.hosted(), tuple(drafts), 0),)
                filled(case.strategy, jobs, new_rows(3, case.vocabulary, 0), case.name)
            for mover in (session.fork(), session):
                undone = mover.undoable
                for part in range(num_parts):
                    mover.rollback(undone * (part + 1) // num_parts - undone * part // num_parts)
                wanted = case.session().take(token_ids[: len(token_ids) - undone])
                when = f"{case.name}: {undone} of {len(token_ids)} tokens rolled back, {num_parts} times"
                expect_same(mover, wanted, case.vocabulary, when)


def far_ways(subject: GrammarSubject, most: int) -> Iterator[tuple[Case, Sequence[int]]]:
    """Grammars with a way of `most` tokens into each, or of as many as were found."""
    for sample, first, pieces in LOOPS:
        if sample.constraint.kind in subject.component.kinds:
            case = compiled_case(subject.build(), standard(), sample)
            if case is not None:
                yield case, loop(first, pieces, most)
    for case in subject.few():
        session, rng = case.session(), random.Random(0)
        while len(session.token_ids) < min(most, 4 * FAR):
            ways = [t for t in legal(session) if t not in session.stop_token_ids]
            if not ways:
                break
            session.take([rng.choice([t for t in ways if len(case.vocabulary.tokens[t]) == 1] or ways)])
        yield case, session.token_ids


def fork_is_refused(subject: GrammarSubject) -> None:
    for case in subject.few(most=1):
        session = case.session()
        expect_refused("fork", session.matcher.fork)


@check("grammar", capability="fork", refusal=fork_is_refused)
def a_fork_is_in_the_same_state(subject: GrammarSubject) -> None:
    """A fork is in the state of its matcher, anywhere, also once terminated, with the same stop tokens."""
    for case in subject.few():
        other = min(frozenset(case.vocabulary.special_tokens) - case.vocabulary.stop_token_ids)
        for seed, stops in enumerate((None, None, frozenset({other}), None)):
            session = case.session(stops)
            for token_id in [*(walk(session.twin(), seed, 8) if seed < 3 else case.whole()), None]:
                fork = session.fork()
                expect(fork.matcher is not session.matcher, f"{case.name}: fork returned the matcher itself")
                expect_same(fork, session, case.vocabulary, f"{case.name}: a fork {session.place} is in another state")
                if fork.is_terminated():
                    count = fork.accept([min(fork.stop_token_ids)])
                    expect(count == 0, f"{case.name}: a fork of a terminated matcher accepted {count} tokens")
                if token_id is not None:
                    session.take([token_id])


@check("grammar", capability="fork", refusal=fork_is_refused)
def a_fork_is_independent(subject: GrammarSubject) -> None:
    """A fork that accepts does not move its matcher, nor the other way round, nor one fork another one."""
    for case in subject.few():
        for seed in range(4):
            session = case.session()
            walk(session, seed, seed)
            _expect_independent(case, session, seed)


def _expect_independent(case: Case, session: Session, seed: int) -> None:
    before = observe(session)
    one, other = session.fork(), session.fork()
    for mover, still in ((one, (session, other)), (session, (other,)), (other, ())):
        standing = [observe(s) for s in still]
        walk(mover, seed + len(still), 4)
        for stayed, seen in zip(still, standing, strict=True):
            expect_same(stayed, seen, case.vocabulary, f"{case.name}: {mover.place}, a matcher moved with its fork")
            expect(seen == before, f"{case.name}: a fork is not where its matcher was")
        expect_same(mover, mover.twin(), case.vocabulary, f"{case.name}: {mover.place}, after a fork")


@check("grammar", trait="fork+rollback")
def a_fork_rolls_back_on_its_own(subject: GrammarSubject) -> None:
    """A fork rolls back like its matcher, also over tokens from before the fork, and neither moves the other."""
    for case in subject.few():
        token_ids = walk(case.session(), 3, 5)
        for count in range(1, len(token_ids) + 1):
            session = case.session().take(token_ids)
            if count > session.undoable:
                continue
            fork = session.fork()
            before = observe(session)
            fork.rollback(count)
            wanted = case.session().take(token_ids[: len(token_ids) - count])
            expect_same(
                fork, wanted, case.vocabulary, f"{case.name}: a fork {session.place} rolled back {count} tokens"
            )
            expect_same(session, before, case.vocabulary, f"{case.name}: the rollback of a fork moved its matcher")
