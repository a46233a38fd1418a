"""The habits of hosts: they reuse what they hand over, drop what they need no more, and run for days."""

from __future__ import annotations

import gc
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from guideway.api import FillJob, Matcher

from guideway_conformance.clock import HOURS, clock_moved, clock_running
from guideway_conformance.grammar.batches import Part, expect_filled, filled
from guideway_conformance.grammar.masks import POISON
from guideway_conformance.grammar.session import Session, expect_same, legal, new_rows, observe, walk
from guideway_conformance.grammar.subject import Case, GrammarSubject
from guideway_conformance.grammar.undoing import rollback_is_refused
from guideway_conformance.grammar.vocabularies import show
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

MANY = 16
"""The most drafts that hosts send."""


@check("grammar", tier="extended", seconds=60)
def sixteen_drafts_work(subject: GrammarSubject) -> None:
    """A job may have 16 drafts, beside jobs with fewer and with none: each row is the mask after the drafts before it,
    and the first refused one ends them."""
    for case in subject.few():
        for seed in range(2):
            ahead = walk(case.session(), seed, MANY)
            drafts = [walk(case.session(), seed + 5, 3), ahead, [], [*ahead[:9], 0, *ahead[9 : MANY - 1]]]
            parts, row = [], 0
            for offered in drafts:
                parts.append(Part(case.session(), offered, row))
                row += parts[-1].num_rows
            expect_filled(parts, case.name, row + 1)


@check("grammar")
def what_a_fill_is_given_is_reused(subject: GrammarSubject) -> None:
    """One bitmask and one list of jobs serve step after step: a fill writes every row it owes, also where nothing has
    changed since the last one, and neither the list, its jobs nor the bitmask are looked at once it has returned."""
    for case in subject.few():
        sessions = [case.session() for _ in range(4)]
        jobs = [FillJob(session.hosted()) for session in sessions]
        listed = list(jobs)
        bitmask = new_rows(40, case.vocabulary, POISON)
        kept: list[tuple[object, list[int]]] = []
        for step in range(6):
            turn = step // 2  # the same twice
            order = np.roll(np.arange(4), turn).tolist()
            drafts = [walk(sessions[i].twin(), turn + i, (i + turn) % 4) for i in order]
            row, wanted = turn % 2, []
            for place, i in enumerate(order):
                jobs[i].draft_token_ids, jobs[i].first_row = tuple(drafts[place]), row
                part = Part(sessions[i], drafts[place], row)
                wanted.append((part, part.wanted()))
                listed[place] = jobs[i]
                row += part.num_rows
            result = filled(case.strategy, listed, bitmask, case.name)
            for place, (part, (accepted, rows)) in enumerate(wanted):
                said = f"{case.name}, step {step} with the same bitmask and list of jobs: {part.what}"
                expect(result[place] == accepted, f"{said}: fill returned {result[place]}, not {accepted}")
                for k, mask in enumerate(rows):
                    expect((bitmask[part.first_row + k] == mask).all(), f"{said}: row {k} of its rows is wrong")
            kept.append((result, result.tolist()))
            bitmask[:] = POISON
            for before, values in kept:
                same = np.array_equal(np.asarray(before), values)
                expect(same, f"{case.name}: a later fill changed the counts that an earlier one had returned")
            if step % 2:
                for i, session in enumerate(sessions):
                    session.take(legal(session)[i : i + 1] or legal(session)[:1])
                    if session.is_terminated():
                        sessions[i] = case.session()
                        jobs[i].matcher = sessions[i].hosted()
                    elif jobs[i].matcher is not session:
                        jobs[i].matcher = session.hosted()


@check("grammar")
def a_matcher_outlives_what_made_it(subject: GrammarSubject) -> None:
    """A matcher, and its forks, go on when the host has let go of their grammar and their strategy."""
    for case in subject.few():
        wanted = case.session()
        left = _orphan(subject, case)
        gc.collect()
        rows = np.zeros((1, new_rows(1, case.vocabulary, 0).shape[1]), dtype=np.int32)
        for token_id in [*walk(case.session(), 7, 8), None]:
            if wanted.is_terminated():
                break
            try:
                left.fill_bitmask(rows, 0)
            except ReferenceError as error:
                raise AssertionError(f"{case.name}: {wanted.place}, its grammar is gone: {error}") from error
            seen = new_rows(1, case.vocabulary, 0)
            wanted.matcher.fill_bitmask(seen, 0)
            expect(
                (rows == seen).all(),
                f"{case.name}: {wanted.place}, a matcher without its grammar and strategy fills another mask",
            )
            if token_id is not None:
                wanted.take([token_id])
                expect(left.accept((token_id,)) == 1, f"{case.name}: without its grammar a matcher refuses {token_id}")


def _orphan(subject: GrammarSubject, case: Case) -> Matcher:
    """A matcher, of which nothing else that it came from is left."""
    strategy = subject.build()
    compiled = strategy.compile(case.sample.constraint)
    matcher = compiled.matcher(case.vocabulary.stop_token_ids)
    return matcher.fork() if "fork" in strategy.capabilities else matcher


@check("grammar", tier="extended", seconds=90)
def the_clock_is_nothing(subject: GrammarSubject) -> None:
    """Hours may pass between two calls, and within one; the clock may stand still or be turned back: what every verb
    answers is a function of constraint and tokens alone."""
    clocks = (0.0, HOURS, -HOURS)
    for number, case in enumerate(subject.few()):
        answers = _answers(subject, case)
        for seconds in clocks if number < 2 else clocks[number % 3 :][:1]:
            with clock_running(subject.component, seconds):
                found = _answers(subject, case)
            for verb, answer in answers.items():
                how = "stood still" if not seconds else f"moved by {seconds:g} s whenever it was read"
                expect(found[verb] == answer, f"{case.name}: {verb} answers otherwise while the clock {how}")
    for case in subject.few():
        for seed in range(2):
            wanted, session = case.session(), case.session()
            for turn, token_id in enumerate([*walk(case.session(), seed, 6), None]):
                with clock_moved(subject.component, HOURS * (turn + 1)):
                    expect_same(session, wanted, case.vocabulary, f"{case.name}: {session.place}, hours later")
                    if token_id is not None:
                        session.take([token_id])
                if token_id is not None:
                    wanted.take([token_id])
        with clock_moved(subject.component, HOURS):
            again = case.session()
            again.compiled = case.strategy.compile(case.sample.constraint)
            expect_same(again.fresh(), case.session(), case.vocabulary, f"{case.name}: compiled hours later")


def _answers(subject: GrammarSubject, case: Case) -> dict[str, object]:
    """The answers of each verb along a way into a grammar that is compiled now, by a strategy made now."""
    strategy = subject.build()
    able, support = strategy.capabilities, strategy.supports(case.sample.constraint)
    compiled = strategy.compile(case.sample.constraint)
    session = Session(strategy, compiled, case.vocabulary, case.name)
    found: dict[str, list[object]] = {"supports": [support.enforced, support.unenforced, support.reason]}

    def note(verb: str, answer: object) -> None:
        found.setdefault(verb, []).append(answer)

    read = strategy.from_bytes(compiled.to_bytes()) if "serialize" in able else compiled
    note("from_bytes", observe(Session(strategy, read, case.vocabulary, case.name)))
    if "shortest_completion" in able:
        for limit in (1, 4):
            completion = session.matcher.shortest_completion(limit)
            note("shortest_completion", None if completion is None else tuple(completion))
    for token_id in [*walk(case.session(), 2, 4), None]:
        note("a mask, is_accepting or is_terminated", observe(session))
        if not session.is_terminated():
            note("forced_tokens, validate or is_accepting", _ask(session))
            bitmask = new_rows(1, case.vocabulary, POISON)
            note("fill", filled(strategy, [FillJob(session.hosted())], bitmask, case.name).tolist())
            note("fill", bitmask.tobytes())
        note("a fork", observe(session.fork()))
        if token_id is not None:
            note("accept", session.accept([token_id]))
            session.rollback(1)
            note("rollback", observe(session))
            session.take([token_id])
    compiled.recycle(session.matcher)
    note("a recycled matcher", observe(Session(strategy, compiled, case.vocabulary, case.name)))
    strategy.close()
    return dict(found)


@check("grammar", capability="rollback", refusal=rollback_is_refused)
def a_rollback_forgets_the_other_way(subject: GrammarSubject) -> None:
    """After a rollback and as many other tokens, a matcher is where those lead, however much was asked of it before the
    rollback: masks, `validate`, `is_accepting` and `forced_tokens` are those of a new matcher."""
    for case in subject.few():
        for seed in range(6):
            session = case.session()
            walk(session, seed, seed % 4)
            ways = [walk(session.twin(), 10 * seed + i, 3) for i in range(6)]
            length = len(session.token_ids)
            for turn, (one, other) in enumerate(pairwise(ways)):
                count = min(1 + turn % 3, len(one), len(other))
                if one[:count] == other[:count] or session.is_terminated():
                    continue
                session.take(one[:count])
                _ask(session)
                if count > session.undoable:
                    session = case.session().take(session.token_ids[:length])
                    continue
                session.rollback(count)
                session.take(other[:count])
                twin = session.twin()
                said = f"{case.name}: {session.place}, where {show(case.vocabulary, one[:count])} had been"
                expect_same(session, twin, case.vocabulary, said)
                expect(_ask(session) == _ask(twin), f"{said}, it answers {_ask(session)}, a new matcher {_ask(twin)}")
                session = case.session().take(session.token_ids[:length])


@check("grammar")
def answers_are_of_the_state(subject: GrammarSubject) -> None:
    """Every verb answers for the state alone: a matcher that was asked before, a fork and one rebuilt by replay give
    the same `forced_tokens` and `validate`."""
    for case in subject.few():
        for seed in range(3):
            session = case.session()
            for token_id in walk(case.session(), seed, 8):
                _ask(session)
                fork = session.fork()
                twin = session.twin()
                wanted = _ask(twin)
                for name, found in (("asked before", session), ("forked", fork)):
                    expect(
                        _ask(found) == wanted,
                        f"{case.name}: {session.place}, a matcher that was {name} answers {_ask(found)}, a new one "
                        f"{wanted}",
                    )
                session.take([token_id])
                fork.take([token_id])
                if not fork.is_terminated():
                    answers, wanted = _ask(fork), _ask(fork.twin())
                    said = f"{case.name}: a fork {fork.place} answers {answers}, a new one {wanted}"
                    expect(answers == wanted, said)


def _ask(session: Session) -> tuple[object, ...]:
    """All answers but the mask: forced tokens, and how many of some drafts pass."""
    if session.is_terminated():
        return ()
    strategy, matcher = session.strategy, session.matcher
    forced = tuple(matcher.forced_tokens()) if "forced_tokens" in strategy.capabilities else ()
    some = tuple(legal(session)[:2])
    offers = [some[:1], some, (0,)] if _validates(session) else []
    return forced, tuple(matcher.validate(offer) for offer in offers), session.is_accepting()


def _validates(session: Session) -> bool:
    limit = session.strategy.max_rollback
    is_own: Callable[..., object] = type(session.matcher).validate
    return is_own is not Matcher.validate or limit is None or limit >= 2
