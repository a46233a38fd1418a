"""Everything at once, in any order: a matcher beside a model of what it has to be."""

from __future__ import annotations

from typing import Any

from guideway.api import FillJob
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from guideway_conformance.grammar.batches import filled, why
from guideway_conformance.grammar.languages import oracle
from guideway_conformance.grammar.masks import POISON
from guideway_conformance.grammar.session import Session, allowed, expect_same, new_rows, observe
from guideway_conformance.grammar.subject import Case, GrammarSubject
from guideway_conformance.grammar.vocabularies import show
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

SETTINGS = settings(
    max_examples=25,
    stateful_step_count=16,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)

picks = st.lists(st.tuples(st.booleans(), st.integers(0, 2**20)), max_size=4)
"""Tokens to offer: whether a legal one, and which."""


class _Machine(RuleBasedStateMachine):
    """`session` is under test. `model` is the reference strategy's matcher, or else replayed from the tokens."""

    cases: list[Case]
    exact: bool

    @initialize(index=st.integers(0, 2**20))
    def start(self, index: int) -> None:
        self.case = self.cases[index % len(self.cases)]
        self.session = self.case.session()
        self.others: list[Session] = []
        self.reference = oracle(self.case) if self.exact else None

    def model(self, token_ids: list[int]) -> Session:
        """A matcher in the state those tokens lead to."""
        return (self.reference or self.session).fresh().take(token_ids)

    def offered(self, chosen: list[tuple[bool, int]]) -> tuple[list[int], int]:
        """Token ids, and how many of them are accepted."""
        ahead, token_ids, count = self.model(self.session.token_ids), [], 0
        for wants_legal, number in chosen:
            found = sorted(allowed(observe(ahead), ahead.vocabulary)) if wants_legal else []
            token_ids.append(found[number % len(found)] if found else number % len(ahead.vocabulary))
            if count == len(token_ids) - 1:
                count += ahead.accept(token_ids[-1:])
        return token_ids, count

    def said(self, verb: str, token_ids: list[int]) -> str:
        return f"{self.case.name}: {self.session.place}, {verb} of {show(self.session.vocabulary, token_ids)}"

    @rule(chosen=picks)
    def accept(self, chosen: list[tuple[bool, int]]) -> None:
        token_ids, wanted = self.offered(chosen)
        said = self.said("accept", token_ids)
        count = self.session.accept(token_ids)
        expect(count == wanted, f"{said} returned {count}, not {wanted}")

    @rule(number=st.integers(0, 2**20))
    def accept_a_legal_token(self, number: int) -> None:
        self.accept([(True, number)])

    @precondition(lambda self: self.session.strategy.max_rollback is None)
    @rule(chosen=picks)
    def validate(self, chosen: list[tuple[bool, int]]) -> None:
        token_ids, wanted = self.offered(chosen)
        count = self.session.matcher.validate(token_ids)
        expect(count == wanted, f"{self.said('validate', token_ids)} returned {count}, not {wanted}")

    @rule(number=st.integers(0, 2**20))
    def roll_back(self, number: int) -> None:
        self.session.rollback(number % (len(self.session.token_ids) + 1))

    @rule(to_the_fork=st.booleans())
    def fork(self, to_the_fork: bool) -> None:
        other = self.session.fork()
        if to_the_fork:
            self.session, other = other, self.session
        self.others = [*self.others, other][-3:]

    @rule(number=st.integers(0, 2**20), to_the_fork=st.booleans())
    def roll_back_and_fork(self, number: int, to_the_fork: bool) -> None:
        # by themselves the two seldom meet
        self.roll_back(number)
        self.fork(to_the_fork)

    @precondition(lambda self: bool(self.others))
    @rule()
    def go_to_another(self) -> None:
        self.others.append(self.session)
        self.session = self.others.pop(0)

    @precondition(lambda self: not self.session.is_terminated())
    @rule(chosen=picks)
    def fill_with_drafts(self, chosen: list[tuple[bool, int]]) -> None:
        token_ids, wanted = self.offered(chosen)
        bitmask = new_rows(len(token_ids) + 2, self.session.vocabulary, POISON)
        jobs = [FillJob(self.session.hosted(), token_ids, 1)]
        result = filled(self.session.strategy, jobs, bitmask, self.case.name)
        said = f"{self.said('fill with drafts', token_ids)} returned {result[0]}{why(jobs[0])}"
        expect(result[0] == wanted, f"{said}, not {wanted}")
        for i in range(wanted + 1):
            ahead = self.model([*self.session.token_ids, *token_ids[:i]])
            _, _, row = observe(ahead)
            same = row is None or bitmask[1 + i].tobytes() == row
            expect(same, f"{self.said('fill with drafts', token_ids)} filled a wrong row {i}")

    @invariant()
    def is_the_model(self) -> None:
        for session in (self.session, *self.others):
            wanted = self.model(session.token_ids)
            expect_same(session, wanted, session.vocabulary, f"{self.case.name}: {session.place}")


def _run(cases: list[Case], *, exact: bool) -> None:
    if not cases:
        return
    machine: Any = type("Machine", (_Machine,), {"cases": cases, "exact": exact})
    run_state_machine_as_test(machine, settings=SETTINGS)


def _run_against_the_reference(subject: GrammarSubject, kind: str) -> None:
    found = [c for c in subject.few(kind, most=6) if not c.support.unenforced and not c.sample.constraint.strategy]
    _run(found, exact=True)


@check("grammar", tier="stateful", trait="kind:regex", seconds=240)
def regexes_follow_the_reference(subject: GrammarSubject) -> None:
    """Accept, validate, rollback, fork and fill in any order leave a regex where brute force says."""
    _run_against_the_reference(subject, "regex")


@check("grammar", tier="stateful", trait="kind:choice", seconds=240)
def choices_follow_the_reference(subject: GrammarSubject) -> None:
    """Accept, validate, rollback, fork and fill in any order leave a choice where brute force says."""
    _run_against_the_reference(subject, "choice")


@check("grammar", tier="stateful", seconds=240)
def any_order_of_calls_is_replay(subject: GrammarSubject) -> None:
    """Accept, validate, rollback, fork and fill in any order leave what a new matcher is after the same tokens."""
    _run(subject.few(most=3), exact=False)
