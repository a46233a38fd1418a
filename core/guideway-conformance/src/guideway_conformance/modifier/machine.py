"""Any history: sequences that start, step, fork, are rebuilt and end in whatever order."""

from __future__ import annotations

from collections.abc import Callable

from guideway.api import UnsupportedCapability
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.comparison import expect_alike
from guideway_conformance.modifier.records import Running
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.modifier.verbs import Answers, expect_same_answers
from guideway_conformance.registry import check

MOST = 5


@check("modifier", tier="stateful", seconds=120, acts=("hears",))
def any_history(subject: ModifierSubject) -> None:
    """Whatever happened, a sequence gets what a new state that heard the same tokens gets alone."""
    can_fork = subject.cls.derived or (
        "fork" in subject.declared(subject.component) and not subject.transform_class().emits
    )

    class Histories(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.bench = Bench(subject)
            self.running: list[Running] = []
            self.count = 0

        def slot(self) -> int:
            return min(set(range(MOST + 1)) - {sequence.slot for sequence in self.running})

        @precondition(lambda self: len(self.running) < MOST)
        @rule()
        def start(self) -> None:
            self.running.append(self.bench.start(self.count, slot=self.slot(), index=self.count % 2))
            self.count += 1

        @precondition(lambda self: self.running)
        @rule(data=st.data(), turn=st.integers(0, 6))
        def step(self, data: st.DataObject, turn: int) -> None:
            chosen = data.draw(st.lists(st.sampled_from(self.running), min_size=1, unique_by=id))
            self.bench.step(chosen, self.bench.drafts(chosen, turn))
            for sequence in [s for s in chosen if s.outcome != "continue"]:
                self.end(sequence)

        @precondition(lambda self: self.running)
        @rule(data=st.data())
        def release(self, data: st.DataObject) -> None:
            self.end(data.draw(st.sampled_from(self.running)))

        @precondition(lambda self: can_fork and 0 < len(self.running) < MOST)
        @rule(data=st.data())
        def fork(self, data: st.DataObject) -> None:
            parent = data.draw(st.sampled_from(self.running))
            try:
                self.running.append(self.bench.fork(parent, slot=self.slot(), index=2))
            except UnsupportedCapability:
                self.bench.modifier.release(None)

        @precondition(lambda self: self.running)
        @rule(data=st.data())
        def rebuild(self, data: st.DataObject) -> None:
            place = data.draw(st.integers(0, len(self.running) - 1))
            old = self.running[place]
            self.running[place] = self.bench.again(old)
            self.bench.release(old)

        @rule()
        def leave_one_alone(self) -> None:
            self.bench.leave_one_alone(1000 + self.count)
            self.count += 1

        def end(self, sequence: Running) -> None:
            fresh = Bench(subject)
            wanted = Answers.of(fresh, fresh.again(sequence), report=True)
            what = f"after {len(sequence.tokens)} tokens a sequence says something else than a new state would"
            expect_same_answers(Answers.of(self.bench, sequence, report=True), wanted, what)
            self.running.remove(sequence)
            self.bench.release(sequence)

        @invariant()
        def as_alone(self) -> None:
            if not self.running:
                return
            applied = self.bench.peek(self.running)
            for place, sequence in enumerate(self.running):
                fresh = Bench(subject)
                wanted = fresh.peek([fresh.again(sequence)]).of(0)
                expect_alike(applied.of(place), wanted, "a sequence gets something else than a new state would, alone")

    run: Callable[..., None] = run_state_machine_as_test
    run(
        Histories,
        settings=settings(
            max_examples=15,
            stateful_step_count=20,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
