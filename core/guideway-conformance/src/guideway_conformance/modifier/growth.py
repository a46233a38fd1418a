"""A modifier gives back what it took, and the work it does for a token has a budget."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, cast

from guideway.api import LogitModifier

from guideway_conformance.growth import Kept, Meter, Open, Work, alive, expect_same_work
from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.records import Running
from guideway_conformance.modifier.subject import MAX_NUM_SEQUENCES, ModifierSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

EARLY, LATE, WINDOW = 24, 264, 24
"""The tokens of a sequence at which the work for a token is compared, and over how many."""

MORE = Work(lines=32 * (LATE - EARLY), nbytes=1024 * (LATE - EARLY), seconds=5e-3)
"""The work that a late token may add: a modifier may look at all tokens so far, at each a few times."""


class _Metered:
    """A modifier whose `prepare` and `accept` are counted."""

    def __init__(self, modifier: Any) -> None:
        self.modifier = modifier
        self.meters = {"prepare": Meter(), "accept": Meter()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.modifier, name)

    def prepare(self, *args: Any) -> Any:
        return self.meters["prepare"].call(self.modifier.prepare, *args)

    def accept(self, *args: Any) -> Any:
        return self.meters["accept"].call(self.modifier.accept, *args)


@check("modifier", tier="stress", seconds=60)
def released_states_are_freed(subject: ModifierSubject) -> None:
    """After `release` nothing of the sequence is left: neither its state nor what was noted beside it."""
    bench = Bench(subject)
    references: list[weakref.ref[Any]] = []

    def live(number: int) -> None:
        sequence = bench.start(number)
        for _ in range(3):
            if sequence.outcome == "continue":
                bench.step([sequence])
        with contextlib.suppress(TypeError):  # plain values have no weak references
            references.append(weakref.ref(sequence.state))
        bench.release(sequence)
        del subject.evidence.sequences[:]  # the suite itself would keep them

    kept = Kept(live, warm_up=16, rounds=48)
    left = alive(references)
    shared = 1 + len(bench.examples)  # one that never changes may be the state of all sequences with these options
    expect(left <= shared, f"of {len(references)} states that were released, {left} are still there")
    expect(kept.nbytes < 1024, f"each sequence that was released left {kept.nbytes:.0f} bytes behind")


@check("modifier", tier="stress", seconds=60)
def closing_ends_threads_and_files_of_a_modifier(subject: ModifierSubject) -> None:
    """When a modifier and its transform are closed, their threads end and their files are closed, though somebody still
    holds them, be it after the work of one sequence or of as many as may run at once."""
    closed: list[Any] = []

    def live(size: int) -> None:
        bench = Bench(subject)
        sequences = [bench.start(number, slot=number) for number in range(size)]
        bench.step(sequences, bench.drafts(sequences) if size > 1 else None)
        for sequence in sequences:
            bench.release(sequence)
        bench.transform.close()
        bench.modifier.close()
        closed.append(bench)

    for size in (1, MAX_NUM_SEQUENCES):  # an array library has threads of its own, which it starts once
        live(size)
    before = Open.now()
    for size in (1, 1, 1, MAX_NUM_SEQUENCES):
        live(size)
        what = f"a modifier that was closed, after work for {size} sequence{'s' * (size > 1)},"
        Open.soon(before).expect_no_more_than(before, what)


@check("modifier", tier="stress", seconds=120)
def work_for_a_token_has_a_budget(subject: ModifierSubject) -> None:
    """`prepare` and `accept` may look at each token of a sequence a few times, and not at all of them for each of them:
    after 264 tokens they take at most 32 lines of Python and 1 KiB of memory more for each token since the 24th."""
    bench = Bench(subject)
    verbs = ("prepare",) if bench.cls.derived else ("prepare", "accept")
    for number in range(len(bench.examples)):
        sequence = bench.start(number)
        early, late = (_after(bench, sequence, start) for start in (EARLY, LATE))
        if sequence.outcome == "continue":
            for verb in verbs:
                said = f"example {number}: {verb}"
                expect_same_work(early[verb].work(), late[verb].work(), MORE, said)
        bench.release(sequence)


def _after(bench: Bench, sequence: Running, num_tokens: int) -> dict[str, Meter]:
    """The work of steps from the `num_tokens`-th token on, as far as the sequence goes on."""
    while sequence.outcome == "continue" and len(sequence.tokens) < num_tokens:
        bench.step([sequence])
    plain, metered = bench.modifier, _Metered(bench.modifier)
    bench.modifier = cast("LogitModifier[Any]", metered)
    for _ in range(WINDOW):
        if sequence.outcome == "continue":
            bench.step([sequence])
    bench.modifier = plain
    return metered.meters
