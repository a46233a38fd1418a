"""Checks that the other sequences of a batch, their order, their slots and drafts change nothing."""

from __future__ import annotations

import numpy as np

from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.comparison import expect_alike
from guideway_conformance.modifier.records import Applied, Running
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.modifier.verbs import Answers, expect_same_answers, read_said
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

NUM_STEPS = 4
NUM_DRAFTS = 16
PERIODS = (1, 3)
REPEATED = 105
"""The first of the tokens that repeated drafts are made of."""


@check("modifier", acts=("rows",))
def company_changes_nothing(subject: ModifierSubject) -> None:
    """A row gets the same whatever other rows are in its batch."""
    bench = Bench(subject)
    crowd = bench.crowd()
    for turn in range(2):
        drafts = bench.drafts(crowd, turn)
        together = bench.peek(crowd, drafts)
        for i, sequence in enumerate(crowd):
            if sequence.state is None:
                continue
            alone = bench.peek([sequence], [drafts[i]])
            expect_alike(together.of(i), alone.of(0), f"among {len(crowd)} sequences one gets not what it gets alone")


@check("modifier", acts=("rows",))
def order_changes_nothing(subject: ModifierSubject) -> None:
    """Sequences that stand in another order in the batch get the same."""
    bench = Bench(subject)
    crowd = bench.crowd()
    drafts = bench.drafts(crowd)
    wanted = bench.peek(crowd, drafts)
    for order in (range(len(crowd))[::-1], [*range(1, len(crowd)), 0]):
        found = bench.peek([crowd[i] for i in order], [drafts[i] for i in order])
        for place, i in enumerate(order):
            expect_alike(found.of(place), wanted.of(i), f"a sequence moved from place {i} of the batch to {place}")


@check("modifier", acts=("rows",))
def slots_are_only_places(subject: ModifierSubject) -> None:
    """A sequence gets the same in every slot."""
    here, there = Bench(subject), Bench(subject)
    for number in range(len(here.examples)):
        pair = here.start(number, slot=0), there.start(number, slot=63)
        while pair[0].outcome == pair[1].outcome == "continue" and len(pair[0].tokens) < NUM_STEPS:
            found, wanted = here.step([pair[0]]), there.step([pair[1]])
            expect_alike(found.of(0), wanted.of(0), "in slot 0 it gets something else than in slot 63")


@check("modifier", tier="extended", acts=("hears",))
def sequences_come_and_go(subject: ModifierSubject) -> None:
    """Sequences join a batch, sit a step out and leave it, and each gets what it would get alone."""
    bench = Bench(subject)
    running = {number: bench.start(number) for number in range(3)}
    alone = {number: Bench(subject) for number in range(6)}
    copies = {number: alone[number].start(number) for number in alone}
    for turn in range(9):
        if turn in (2, 4, 5):
            number = {2: 3, 4: 4, 5: 5}[turn]
            running[number] = bench.start(number)
        if turn == 6 and 1 in running:
            bench.release(running.pop(1))
        sitting = turn % 4
        numbers = [n for n, s in running.items() if n != sitting and s.outcome == "continue"]
        if not numbers:
            continue
        applied = bench.step([running[n] for n in numbers])
        for place, number in enumerate(numbers):
            wanted = alone[number].step([copies[number]])
            expect_alike(applied.of(place), wanted.of(0), "in a changing batch a sequence gets not what it gets alone")


@check("modifier", tier="extended", acts=("rows", "drafts"))
def drafts_change_nothing(subject: ModifierSubject) -> None:
    """A row after as many drafts as `validate` lets pass gets what it would get if they were final, though nobody has
    heard their feedback, so that drafts never change the distribution."""
    for warmup in (0, 2):
        plain, drafting = Bench(subject), Bench(subject)
        for number in range(max(2, len(plain.examples))):
            slow, fast = plain.start(number), drafting.start(number)
            for _ in range(warmup):
                if slow.outcome == "continue":
                    plain.step([slow])
                    drafting.step([fast])
            steps: list[Applied] = []
            while slow.outcome == "continue" and len(steps) <= NUM_DRAFTS:
                steps.append(plain.step([slow]))
            drafts = slow.tokens[len(fast.tokens) :][: len(steps) - 1]
            if not steps:
                continue
            beside = [drafting.start(number + 1 + i) for i in range(2)]
            company = [beside[0], fast, beside[1]]
            ahead = [drafting.drafts(company, 1)[0], drafts, drafting.drafts(company, 4)[2]]
            for sequences, offered in (([fast], [drafts]), (company, ahead)):
                found = drafting.peek(sequences, offered).of(sequences.index(fast))
                for k, row in enumerate(found):
                    what = f"the row after {k} drafts gets not what it gets without drafts"
                    expect_alike(row[None], steps[k].of(0), f"{what}{' beside others' * (len(sequences) > 1)}")
    for number in range(max(2, len(Bench(subject).examples))):
        for period in PERIODS:
            _repeated_drafts_change_nothing(subject, number, period)


def _repeated_drafts_change_nothing(subject: ModifierSubject, number: int, period: int) -> None:
    """The same for drafts that come back every `period` tokens, after a few that do."""
    plain, drafting = Bench(subject), Bench(subject)
    slow, fast = plain.start(number), drafting.start(number)
    while slow.outcome == "continue" and len(slow.tokens) < 2:
        plain.step([slow])
        drafting.step([fast])
    if slow.outcome != "continue":
        return
    offered = [REPEATED + i % period for i in range(NUM_DRAFTS)]
    passed = drafting.passing(fast, offered)
    rows = list(drafting.views(fast, passed))
    for k in range(len(passed) + 1):
        for found, wanted in zip(rows, plain.views(slow), strict=True):
            what = f"the row after {k} drafts that repeat gets not what it gets without drafts"
            expect_alike(found[k : k + 1], wanted[:1], what)
        if k < len(passed):
            row = plain.peek([slow]).logits[0]
            if not np.isfinite(row[passed[k]]):
                return
            plain.accept(slow, [passed[k]], None)
            if slow.outcome != "continue":
                return


@check("modifier", tier="extended", trait="forecasts", acts=("hears",))
def steps_of_any_size(subject: ModifierSubject) -> None:
    """Tokens accepted in one step, as after drafts, lead where they lead one by one: to the end too, which may be amid
    them."""
    single, several = Bench(subject), Bench(subject)
    for number in range(max(2, len(single.examples))):
        slow, fast = single.start(number), several.start(number)
        rows: list[Applied] = []
        while slow.outcome == "continue" and len(slow.tokens) < 11 + number % 3:
            rows.append(single.step([slow]))
        if slow.outcome != "continue":
            _expect_the_same_end(several, slow, fast)
            _ends_amid_a_step(subject, slow)
            continue
        heard: list[int] = []
        while fast.outcome == "continue" and len(fast.tokens) < len(slow.tokens):
            ahead = slow.tokens[len(fast.tokens) :][: 2 + len(heard)]
            heard.append(1 + len(several.passing(fast, ahead[:-1])))
            several.accept(fast, ahead[: heard[-1]], None)
            if fast.outcome == "continue" and len(fast.tokens) < len(rows):
                what = f"tokens heard in steps of {heard} lead elsewhere than one by one"
                expect_alike(several.peek([fast]).of(0), rows[len(fast.tokens)].of(0), what)
        if fast.outcome == "continue":
            found, wanted = several.peek([fast]), single.peek([slow])
            what = f"tokens heard in steps of {heard} lead elsewhere than one by one"
            expect_alike(found.of(0), wanted.of(0), what)
            answers = [Answers.of(of, sequence, report=True) for of, sequence in ((several, fast), (single, slow))]
            expect_same_answers(answers[0], answers[1], what)


def _ends_amid_a_step(subject: ModifierSubject, ended: Running) -> None:
    """A sequence that ends with a token ends as well if others come after it, in the same step."""
    for after in ([97], [98, 97, 98], ended.tokens[-3:], [300] * 8):
        for before in (1, 2, len(ended.tokens)):
            bench = Bench(subject)
            other = bench.again(ended, hears=False)
            other.tokens = []
            place = max(0, len(ended.tokens) - before)
            for token_id in ended.tokens[:place]:
                bench.accept(other, [token_id], None)
            bench.accept(other, [*ended.tokens[place:], *after], None)
            said = f"of {before + len(after)} tokens in a step number {before} ends the sequence, as it does alone"
            expect(other.outcome == ended.outcome, f"{said}, but accept says {other.outcome!r}, not {ended.outcome!r}")
            read_said(bench.modifier, other.state)
            bench.release(other)


def _expect_the_same_end(bench: Bench, ended: Running, other: Running) -> None:
    """That `other`, which hears the tokens of `ended` several at a time, ends with the last of them, as it did."""
    heard: list[int] = []
    while other.outcome == "continue" and len(other.tokens) < len(ended.tokens):
        left = ended.tokens[len(other.tokens) :]
        size = 2 + len(heard)
        ahead = left if len(left) <= size + 1 else left[:size]  # the last step has more than one, if it may
        heard.append(1 + len(bench.passing(other, ahead[:-1])))
        bench.accept(other, ahead[: heard[-1]], None)
    what = f"tokens heard in steps of {heard} lead elsewhere than one by one"
    said = f"accept says {other.outcome!r} after {len(other.tokens)} tokens"
    expect(
        (other.outcome, len(other.tokens)) == (ended.outcome, len(ended.tokens)),
        f"{what}: {said}, instead of {ended.outcome!r} after {len(ended.tokens)}",
    )
