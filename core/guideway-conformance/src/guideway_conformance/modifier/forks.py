"""Forks of a state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from guideway.api import Stage, UnsupportedCapability

from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.comparison import expect_alike
from guideway_conformance.modifier.records import Running
from guideway_conformance.modifier.sequences import forked, under_way
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.modifier.verbs import Answers, expect_same_answers
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

NUM_STEPS = 4
TOGETHER = 24
"""The number of tokens for which a fork and its parent go on alike."""
LATE = (40, 300)
"""The numbers of tokens after which a late fork is made."""
PERIODS = (1, 5, 20)
"""The numbers of tokens after which texts come back."""


def _no_fork(subject: ModifierSubject) -> None:
    bench = Bench(subject)
    sequence = bench.start(0)
    if bench.cls.derived:
        return
    try:
        bench.modifier.fork(sequence.state)
    except UnsupportedCapability:
        return
    raise AssertionError("its class does not implement fork, but fork did not raise UnsupportedCapability")


@check("modifier", capability="fork", refusal=_no_fork, trait="stateful", acts=("forks", "hears"))
def forks_go_on_as_their_parent(subject: ModifierSubject) -> None:
    """A forked state is a copy, however late: it gives what its parent gives, `forced`, `validate` and `report` too,
    and forking does not move the parent."""
    bench = Bench(subject)
    for sequence in under_way(bench, steps=(1, 2, 5, 14)):
        before = bench.peek([sequence])
        fork = forked(bench, sequence)
        if fork is None:
            continue
        expect_alike(bench.peek([sequence]).of(0), before.of(0), "forking changed what the parent gets")
        fork.info = sequence.info
        expect_alike(bench.peek([fork]).of(0), before.of(0), "a fork gets something else than its parent")
        found, wanted = (Answers.of(bench, each, report=True) for each in (fork, sequence))
        expect_same_answers(found, wanted, f"after {len(sequence.tokens)} tokens a fork says other than its parent")
    late = Bench(ModifierSubject(subject.component, subject.settings))  # what these do is no proof of what those heard
    for sequence in under_way(late, steps=(1, 3, 6)):
        _both_go_on(late, sequence)
    for number in range(len(late.examples)):
        for period in PERIODS:
            _late_forks_go_on(late, number, period)


def _both_go_on(bench: Bench, sequence: Running) -> None:
    """A fork that hears what its parent hears gets what it gets, ends where it ends and reports the same."""
    if (fork := forked(bench, sequence)) is None:
        return
    fork.info = sequence.info
    start = len(sequence.tokens)
    while sequence.outcome == fork.outcome == "continue" and len(sequence.tokens) < start + TOGETHER:
        found, wanted = bench.peek([fork]).of(0), bench.step([sequence]).of(0)
        what = f"a fork made after {start} tokens gets after {len(fork.tokens)} something else than its parent"
        expect_alike(found, wanted, what)
        bench.accept(fork, *sequence.journal[-1])
    what = f"{len(sequence.tokens) - start} tokens after it was made a fork"
    expect(fork.outcome == sequence.outcome, f"{what} says {fork.outcome!r}; its parent says {sequence.outcome!r}")
    found_answers, wanted_answers = (Answers.of(bench, each, report=True) for each in (fork, sequence))
    expect_same_answers(found_answers, wanted_answers, f"{what} says other than its parent")


def _late_forks_go_on(bench: Bench, number: int, period: int) -> None:
    """Forks of a sequence whose text comes back every `period` tokens get what it gets, late in the text too."""
    sequence = bench.start(number)
    if sequence.example is not None:
        text = tuple(97 + i % period for i in range(max(LATE)))
        sequence.example = replace(sequence.example, generated=text)
    for late in LATE:
        while sequence.outcome == "continue" and len(sequence.tokens) < late:
            if bench.cls.stage is Stage.SAMPLE:  # what it draws does not come back, so the text is a grammar's
                bench.accept(sequence, [97 + len(sequence.tokens) % period], None)
            else:
                bench.step([sequence])
        if sequence.outcome != "continue" or (fork := forked(bench, sequence)) is None:
            return
        what = f"after {late} tokens that come back every {period} a fork"
        fork.info = sequence.info
        for drafts in ((), bench.drafts([sequence], turn=4)[0]):
            for found, wanted in zip(bench.views(fork, drafts), bench.views(sequence, drafts), strict=True):
                expect_alike(found, wanted, f"{what} gets something else than its parent")
        found_answers, wanted_answers = (Answers.of(bench, each) for each in (fork, sequence))
        expect_same_answers(found_answers, wanted_answers, f"{what} says other than its parent")
        bench.release(fork)


@check("modifier", capability="fork", refusal=_no_fork, trait="stateful", acts=("forks", "hears"))
def forks_are_independent(subject: ModifierSubject) -> None:
    """A fork is independent: what parent or fork accept is nothing to the other."""
    for mover in ("fork", "parent"):
        bench = Bench(subject)
        for sequence in under_way(bench):
            fork = forked(bench, sequence)
            if fork is None:
                continue
            moving, resting = (fork, sequence) if mover == "fork" else (sequence, fork)
            before, heard = bench.peek([resting]).of(0), len(moving.journal)
            while moving.outcome == "continue" and len(moving.tokens) < len(resting.tokens) + 2 * NUM_STEPS:
                bench.step([moving])
            what = f"tokens the {mover} accepted changed what the other gets"
            after = bench.peek([resting]).of(0)
            if bench.transform.emits:
                if not np.array_equal(after, before, equal_nan=after.dtype.kind == "f"):
                    _expect_learned(subject, moving, resting, heard, after, what)
                _expect_own_report(subject, bench, resting, f"after the {mover} accepted tokens the other")
                continue
            expect_alike(after, before, what)
            fresh = Bench(subject)
            alone = fresh.again(resting)
            while resting.outcome == "continue" and len(resting.tokens) < 2 * NUM_STEPS + 2:
                expect_alike(bench.step([resting]).of(0), fresh.step([alone]).of(0), f"{what}, later")
            found, wanted = Answers.of(bench, resting, report=True), Answers.of(fresh, alone, report=True)
            expect_same_answers(found, wanted, f"after the {mover} accepted tokens the other")
            found, wanted = (Answers.of(of, one, report=True) for of, one in _pair(subject, bench, moving))
            expect_same_answers(found, wanted, f"a {mover} that accepted tokens")


def _expect_own_report(subject: ModifierSubject, bench: Bench, resting: Running, what: str) -> None:
    """Fail unless a sequence reports of itself alone: what a modifier learned for all may change rows only."""
    found, wanted = (of.modifier.report(one.state) for of, one in _pair(subject, bench, resting))
    expect(found == wanted, f"{what} reports {found} instead of {wanted}")


def _expect_learned(
    subject: ModifierSubject, moving: Running, resting: Running, heard: int, after: Any, what: str
) -> None:
    """Feedback may teach the modifier something that holds for all: then another sequence, no fork, that hears what
    `moving` heard after `heard` steps, or all that it heard, changes as much of what `resting` gets."""
    for journal in (moving.journal[heard:], moving.journal):
        other = Bench(subject)
        apart, unrelated = other.again(resting), other.again(moving, hears=False)
        for token_ids, feedback in journal:
            other.accept(unrelated, token_ids, feedback)
        found = other.peek([apart]).of(0)
        if np.array_equal(after, found, equal_nan=found.dtype.kind == "f"):
            return
    raise AssertionError(what)


@check("modifier", capability="fork", refusal=_no_fork, trait="stateful", acts=("forks",))
def forks_end_alone(subject: ModifierSubject) -> None:
    """To let go of a fork is nothing to its parent, nor the other way round."""
    for ending in ("fork", "parent"):
        bench = Bench(subject)
        for sequence in under_way(bench):
            fork = forked(bench, sequence)
            if fork is None:
                bench.modifier.release(None)
                continue
            gone, left = (fork, sequence) if ending == "fork" else (sequence, fork)
            before = bench.peek([left])
            bench.release(gone)
            expect_alike(bench.peek([left]).of(0), before.of(0), f"letting go of the {ending} changed what is left")


def _pair(subject: ModifierSubject, bench: Bench, sequence: Running) -> list[tuple[Bench, Running]]:
    """`sequence`, and another one that was rebuilt by replay, each with where it is."""
    fresh = Bench(subject)
    return [(bench, sequence), (fresh, fresh.again(sequence))]
