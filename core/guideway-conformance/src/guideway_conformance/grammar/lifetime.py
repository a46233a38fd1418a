"""Matchers that come back, and the end of a strategy."""

from __future__ import annotations

from guideway.api import CompiledGrammar, FillJob, Matcher

from guideway_conformance.grammar.batches import filled, why
from guideway_conformance.grammar.session import Seen, Session, expect_same, new_rows, observe, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

NUM_LIVES = 4
"""The number of sequences that use a grammar one after the other."""
MANY = 100
"""Jobs of a batch that is worth more than one thread."""


def _pairs(subject: GrammarSubject) -> list[tuple[Case, Case]]:
    """Each constraint compiled twice: one grammar gets its matchers back, the other never does."""
    return list(zip(subject.few(), subject.few(), strict=True))


def _stops(case: Case, number: int) -> frozenset[int] | None:
    """Stop tokens of the `number`-th sequence: the vocabulary's own, or another one."""
    return (
        frozenset({min(frozenset(case.vocabulary.special_tokens) - case.vocabulary.stop_token_ids)}) if number else None
    )


def _end(case: Case, session: Session) -> None:
    """The end of a sequence, after which the host has no use for its matcher."""
    case.compiled.recycle(session.matcher)


@check("grammar")
def a_recycled_matcher_is_as_new(subject: GrammarSubject) -> None:
    """A matcher made after others were given back is at the start of the grammar, with the stop tokens it was asked
    for, and goes on as one of a grammar that no matcher came back to."""
    for case, fresh in _pairs(subject):
        for number in range(NUM_LIVES):
            stops = _stops(case, number % 2)
            session, wanted = case.session(stops), fresh.session(stops)
            said = f"{case.name}: after {number} matchers were given back,"
            expect_same(session, wanted, case.vocabulary, f"{said} a new one is not at the start")
            for token_id in walk(fresh.session(stops), number, 10):
                session.take([token_id])
                wanted.take([token_id])
                expect_same(session, wanted, case.vocabulary, f"{said} a new one {session.place}")
            if number == 1:
                _end(case, session.fork())  # a fork's end is an end like any other
            _end(case, session)


@check("grammar")
def a_recycled_matcher_has_no_past(subject: GrammarSubject) -> None:
    """A matcher made after others were given back rolls back over what it accepted, as one of a grammar that no matcher
    came back to, and not into what another sequence accepted before."""
    for case, fresh in _pairs(subject):
        for number in range(NUM_LIVES):
            earlier = case.session()
            walk(earlier, number, 4)
            _end(case, earlier)
            session, wanted = case.session(), fresh.session()
            said = f"{case.name}: after {number + 1} matchers were given back,"
            ahead = walk(fresh.session(), number, 4)
            for here in (session, wanted):
                here.take(ahead)
                here.rollback(min(here.undoable, len(ahead)))
            expect_same(session, wanted, case.vocabulary, f"{said} {len(ahead)} tokens were rolled back")
            if type(case.compiled).recycle is CompiledGrammar.recycle:
                continue
            # no host asks for this: what there is to undo, if anything, must not be another sequence's
            refused = [_refuses(here.matcher, len(here.token_ids) + 1) for here in (session, wanted)]
            expect(refused[0] == refused[1], f"{said} a new one rolls back a token that it never accepted")
            if refused[0]:
                continue
            found, due = (_seen(here) for here in (session, wanted))
            when = f"{said} a new one was rolled back past its start"
            if found and due:
                expect_same(found, due, case.vocabulary, when)
            else:
                expect(found == due, f"{when} and goes on, as none does that no matcher came back to")


def _seen(session: Session) -> Seen | None:
    """All that can be seen of a state; None of a matcher that is past any use: the contract leaves open what comes of a
    rollback past the start."""
    try:
        return observe(session)
    except Exception:
        return None


def _refuses(matcher: Matcher, num_tokens: int) -> bool:
    """Return whether so many tokens cannot be rolled back."""
    try:
        matcher.rollback(num_tokens)
    except Exception:
        return True
    return False


@check("grammar")
def recycled_matchers_are_independent(subject: GrammarSubject) -> None:
    """A matcher that was given back is given out to one sequence at most, and is not the one of another that lives."""
    for case in subject.few():
        first, other = case.session(), case.session()
        walk(first, 1, 3)
        walk(other, 2, 3)
        _end(case, first)
        several = [other, case.session(), case.session(), case.session()]
        matchers = {id(session.matcher) for session in several}
        expect(len(matchers) == len(several), f"{case.name}: one matcher was given to two sequences")
        standing = [session.twin() for session in several]
        walk(several[1], 3, 4)
        for stayed, wanted in zip([other, *several[2:]], [standing[0], *standing[2:]], strict=True):
            expect_same(stayed, wanted, case.vocabulary, f"{case.name}: a matcher moved with one that came back")


def _fill_many(case: Case) -> None:
    """A batch in which each job has the mask that it has alone."""
    sessions = [case.session() for _ in range(MANY)]
    for i, session in enumerate(sessions):
        walk(session, i, i % 2)
    bitmask = new_rows(MANY, case.vocabulary, 0)
    living = [(i, session) for i, session in enumerate(sessions) if not session.is_terminated()]
    jobs = [FillJob(session.hosted(), (), i) for i, session in living]
    result = filled(case.strategy, jobs, bitmask, case.name)
    for job, count, (i, session) in zip(jobs, result, living, strict=True):
        said = f"{case.name}: in a fill of {MANY} jobs, beside another strategy that may be closed, job {i}"
        expect(count == 0, f"{said}: the result is {count}{why(job)}")
        expect(bitmask[i].tobytes() == observe(session)[2], f"{said} has not the mask it gets alone")


@check("grammar")
def closing_ends_one_strategy(subject: GrammarSubject) -> None:
    """A strategy closes without an error, used or unused, and others of its class go on."""
    subject.build().close()
    for case, other in _pairs(subject)[:1]:  # all cases are of one strategy, and it is closed once
        session = case.session()
        walk(session, 0, 4)
        _end(case, session)
        _fill_many(other)
        _fill_many(case)
        case.strategy.close()
        again = [strategy.compile(case.sample.constraint) for strategy in (other.strategy, subject.build())]
        _fill_many(other)
        for compiled in (other.compiled, *again):
            living = Session(other.strategy, compiled, other.vocabulary, other.name)
            walk(living, 0, 6)
            expect_same(living, living.twin(), other.vocabulary, f"{case.name}: another strategy was closed,")
        other.strategy.close()
