"""The life of a state: start, tokens, fork, release."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from guideway.api import Example, LogitModifier
from guideway.runtime.modifiers.answers import read_names

from guideway_conformance.hints import BORDERS
from guideway_conformance.modifier.bench import REFUSALS, Bench, read_only
from guideway_conformance.modifier.comparison import expect_alike
from guideway_conformance.modifier.records import Running
from guideway_conformance.modifier.sequences import forked, lives, under_way
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.modifier.verbs import LIMIT, Answers, expect_same_answers, read_said
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

NUM_STEPS = 4
PROMPT = (97, 98, 99, 97, 98)
"""The prompt of sequences that change places."""


@check("modifier")
def start_leaves_the_request_alone(subject: ModifierSubject) -> None:
    """`start` does not change the request."""
    bench = Bench(subject)
    for number, example in enumerate(bench.examples):
        request = bench.request(example, number)
        before = copy.deepcopy(request)
        bench.begin(request)
        expect(request == before, f"after start the request is {request}; it was {before}")


@check("modifier")
def start_takes_every_request(subject: ModifierSubject) -> None:
    """`start` gives a state or None for a request that does not select the modifier, or refuses it."""
    bench = Bench(subject)
    plain = bench.request(None, 0)
    another = replace(plain.params, modifiers={f"not_{bench.cls.name}": {"strength": 1}})
    for request in (plain, replace(plain, params=another)):
        try:
            bench.begin(request)
        except REFUSALS:
            continue
        except Exception as error:
            raise AssertionError("start failed for a request that does not select the modifier") from error


@check("modifier")
def sequences_have_a_state_each(subject: ModifierSubject) -> None:
    """`start` gives each sequence a state of its own: what happens to one is nothing to another."""
    for example in Bench(subject).examples:
        _one_state_each(subject, example)


def _one_state_each(subject: ModifierSubject, example: Example) -> None:
    bench, other = Bench(subject), Bench(subject)
    learns = bench.transform.emits  # what it learns from the worker it may keep for all
    request = bench.request(example, 0)
    second = bench.request(example, 1) if learns else request
    active, quiet = bench.begin(request, slot=1), bench.begin(second, slot=2, index=1)
    alone = other.begin(second, slot=2, index=1)
    if quiet.state is None or active.state is None:
        return
    active.example = quiet.example = alone.example = example
    for _ in range(NUM_STEPS):
        if active.outcome != "continue" or quiet.outcome != "continue":
            break
        bench.step([active])
        expect_alike(
            bench.peek([quiet]).of(0), other.peek([alone]).of(0), "a step of one sequence changed what another gets"
        )
    while quiet.outcome == "continue" and len(quiet.tokens) < NUM_STEPS:
        found, wanted = bench.step([quiet]), other.step([alone])
        expect_alike(found.of(0), wanted.of(0), "of two sequences the second gets what it would not get alone")


@check("modifier", trait="derived", acts=("rows",))
def derived_states_do_not_move(subject: ModifierSubject) -> None:
    """A derived state is a function of request and token ids: it hears nothing, and one serves every fork."""
    bench = Bench(subject)
    first = bench.start(0)
    forks = [first, bench.fork(first, slot=50, index=1), bench.fork(first, slot=51, index=2)]
    for fork, tokens in zip(forks, ([], [300, 301, 302], [400, 97]), strict=True):
        fork.tokens = list(tokens)
    for _ in range(NUM_STEPS):
        applied = bench.step(forks)
        for i, fork in enumerate(forks):
            fresh = Bench(subject)
            copied = fresh.again(fork)
            copied.tokens = fork.tokens[: -len(fork.journal[-1][0])]
            expect_alike(applied.of(i), fresh.peek([copied]).of(0), "a state shared by forks is not what a new one is")


@check("modifier", trait="derived")
def derived_states_hear_nothing(subject: ModifierSubject) -> None:
    """A derived state needs to hear no tokens: it gives the same with them and without."""
    if subject.cls.accept is LogitModifier.accept:
        return
    hearing, deaf = Bench(subject), Bench(subject)
    for number in range(len(hearing.examples)):
        pair = hearing.start(number), deaf.start(number)
        for _ in range(NUM_STEPS):
            found, wanted = hearing.step([pair[0]]), deaf.step([pair[1]])
            expect_alike(found.of(0), wanted.of(0), "it says that its state is derived, but accept changes it")
            token_ids, feedback = pair[0].journal[-1]
            try:
                hearing.modifier.accept(pair[0].state, tuple(token_ids), read_only(feedback))
            except Exception:  # which is never called, so it may say so
                return


@check("modifier")
def hearing_changes_nothing_else(subject: ModifierSubject) -> None:
    """Token ids come in tuples and feedback is read-only: what a modifier hears or is asked about stays as it is."""
    bench = Bench(subject)
    for sequence in under_way(bench):
        applied = bench.peek([sequence])
        given = tuple(bench.final(applied, 0))
        feedback = bench.feedback(applied, 0, len(given))
        bench.modifier.validate(sequence.state, given)
        if not bench.cls.derived:
            handed = read_only(feedback)
            bench.modifier.accept(sequence.state, given, handed)
            for name, array in (handed or {}).items():
                assert feedback is not None
                expect(np.array_equal(feedback[name], array, equal_nan=True), f"accept changed the feedback {name!r}")


@check("modifier", trait="stateful", acts=("hears",))
def replay_rebuilds_the_state(subject: ModifierSubject) -> None:
    """The same final tokens and feedback, heard step by step by a new state, lead to the same state: it gives the same
    payloads, the same `forced` and `validate`, and in the end the same `report`."""
    bench = Bench(subject)
    for sequence in under_way(bench, steps=(1, 2, 5, 14)):
        fresh = Bench(subject)
        again = fresh.again(sequence, slot=5)
        what = f"after {len(sequence.tokens)} tokens a state rebuilt by replay"
        expect_alike(fresh.peek([again]).of(0), bench.peek([sequence]).of(0), what)
        expect_same_answers(
            Answers.of(fresh, again, report=True), Answers.of(bench, sequence, report=True), f"{what} is another one"
        )


@check("modifier", trait="stateful")
def accept_gives_an_outcome(subject: ModifierSubject) -> None:
    """`accept` answers the final tokens of a step with an Outcome."""
    bench = Bench(subject)
    for number in range(len(bench.examples)):
        sequence = bench.start(number)
        while sequence.outcome == "continue" and len(sequence.tokens) < 12:
            bench.step([sequence], [bench.final(bench.peek([sequence]), 0)])


@check("modifier")
def forced_keeps_its_limit(subject: ModifierSubject) -> None:
    """`forced` gives at most `limit` tokens, all of the vocabulary, and the same ones whatever the limit is."""
    bench = Bench(subject)
    for sequence in lives(bench):
        most = list(bench.modifier.forced(sequence.state, LIMIT))
        for limit in sorted({0, 1, 2, 3, LIMIT, *(max(0, len(most) + beside) for beside in (-2, -1, 0, 1))}):
            ids = list(bench.modifier.forced(sequence.state, limit))
            said = f"{len(sequence.tokens)} tokens into a sequence forced"
            expect(len(ids) <= limit, f"{said} gave {len(ids)} tokens; the limit was {limit}")
            wrong = [i for i in ids if not _is_token(bench, i)]
            expect(not wrong, f"{said} gave {wrong[:1]}, which is no token id of 0..{len(bench.vocabulary) - 1}")
            both = min(len(ids), len(most))
            expect(ids[:both] == most[:both], f"{said} gave {ids} of at most {limit}, and {most} of at most {LIMIT}")


@check("modifier")
def forced_moves_nothing(subject: ModifierSubject) -> None:
    """`forced` does not move the state."""

    def ask(bench: Bench, sequence: Running) -> None:
        for limit in (8, 1, 0):
            bench.modifier.forced(sequence.state, limit)

    _moves_nothing(subject, ask, "forced")


@check("modifier")
def validate_counts(subject: ModifierSubject) -> None:
    """`validate` gives how many of the drafts may pass, from 0 to all of them."""
    bench = Bench(subject)
    for sequence in lives(bench):
        likely = bench.model.ahead([*sequence.info.prompt_token_ids, *sequence.tokens], LIMIT)
        forced = list(bench.modifier.forced(sequence.state, LIMIT))
        edges = [*BORDERS, len(bench.vocabulary) - 1]
        offers = [[], [97], [98, 99, 300], [300] * 12, likely, forced, [*forced, 97], edges]
        for drafts in (*offers, *([edge] for edge in edges), bench.final(bench.peek([sequence]), 0)):
            count = bench.modifier.validate(sequence.state, tuple(drafts))
            expect(
                isinstance(count, int | np.integer) and 0 <= count <= len(drafts),
                f"of {len(drafts)} drafts validate lets {count!r} pass",
            )


@check("modifier")
def validate_moves_nothing(subject: ModifierSubject) -> None:
    """`validate` does not move the state."""

    def ask(bench: Bench, sequence: Running) -> None:
        bench.modifier.validate(sequence.state, tuple(bench.final(bench.peek([sequence]), 0)))
        bench.modifier.validate(sequence.state, (98, 99, 300))

    _moves_nothing(subject, ask, "validate")


@check("modifier", acts=("rows", "hears"))
def keeps_copies(subject: ModifierSubject) -> None:
    """The host owns what it gives, and may overwrite feedback after `accept` and a batch after its step: the next
    batch may be in the same memory."""
    benches = Bench(subject, reuses=True), Bench(subject)
    alone = [(0,), (0,), (0,)]
    together = [tuple(range(4)), tuple(range(4)), (3, 1, 0, 2), (2, 0), tuple(range(4)), (1, 3)]
    pairs = [[bench.start(number) for bench in benches] for number in range(max(4, len(benches[0].examples)))]
    for turn, places in enumerate([*alone, *together, *([(i,) * 1 for i in range(4, len(pairs))] * 3)]):
        there = [pairs[place] for place in places if pairs[place][0].outcome == pairs[place][1].outcome == "continue"]
        if not there:
            continue
        drafts = benches[1].drafts([pair[1] for pair in there], turn)
        found, wanted = (bench.step([pair[i] for pair in there], drafts) for i, bench in enumerate(benches))
        for i in range(len(there)):
            what = "after the host had overwritten what it had given, the sequence gets something else"
            expect_alike(found.of(i), wanted.of(i), what)
    for pair in pairs:
        found_answers, wanted_answers = (Answers.of(benches[i], pair[i], report=True) for i in range(2))
        what = "after the host had overwritten what it had given"
        expect_same_answers(found_answers, wanted_answers, what)


@check("modifier")
def reports_are_small_json(subject: ModifierSubject) -> None:
    """`report` gives None or a mapping of JSON, of at most 4 KiB, wherever its sequence has ended."""
    bench = Bench(subject)
    for sequence in under_way(bench, steps=(*range(4), 12)):
        read_said(bench.modifier, sequence.state)
        bench.release(sequence)


@check("modifier")
def unenforced_gives_names(subject: ModifierSubject) -> None:
    """`unenforced` gives a sequence of names, which is not one str: the same for the same request and tokens, after
    replay and of a fork too. It does not move the state."""
    bench, other = Bench(subject), Bench(subject)
    for number in range(max(3, len(bench.examples))):
        sequence, same = bench.start(number), other.start(number)
        names = _names(bench, sequence)
        again = _names(other, same)
        expect(again == names, f"of the same request unenforced gives {names} and, of another instance, {again}")
        while sequence.outcome == "continue" and len(sequence.tokens) < NUM_STEPS:
            bench.step([sequence])
        if sequence.outcome != "continue":
            continue
        later, fresh = _names(bench, sequence), Bench(subject)
        rebuilt = _names(fresh, fresh.again(sequence))
        expect(rebuilt == later, f"of a state rebuilt by replay unenforced gives {rebuilt} instead of {later}")
        if "fork" in subject.declared(subject.component) and (fork := forked(bench, sequence)) is not None:
            its = _names(bench, fork)
            expect(its == later, f"of a fork unenforced gives {its} instead of {later}")
    _moves_nothing(subject, _names, "unenforced")


def _names(bench: Bench, sequence: Running) -> list[str]:
    found = bench.modifier.unenforced(sequence.state) if sequence.state is not None else ()
    try:
        return read_names(found)
    except Exception as error:
        raise AssertionError(f"unenforced gives {found!r}, which is no sequence of names") from error


@check("modifier")
def release_takes_every_end(subject: ModifierSubject) -> None:
    """A sequence is released with its state, or with None if it has none."""
    bench = Bench(subject)
    for number in range(max(2, len(bench.examples))):
        sequence = bench.start(number)
        if number % 2:
            bench.step([sequence])
        bench.release(sequence)
    bench.leave_one_alone(50)


@check("modifier")
def release_ends_one_sequence(subject: ModifierSubject) -> None:
    """To let go of one sequence is nothing to the others, nor to who has its slot next."""
    bench = Bench(subject)
    # Feedback may teach the modifier something that holds for all, so of such a one only the first turn is the same.
    for last in range(3, 4 if bench.transform.emits else 3 + max(2, len(bench.examples))):
        other = Bench(subject)
        kept, same = bench.start(0, slot=5), other.start(0, slot=5)
        for number in (last - 2, last - 1):
            sequence = bench.start(number, slot=9)
            bench.step([sequence], bench.drafts([sequence], 1))
            bench.release(sequence)
        bench.leave_one_alone(50)
        heir, alone = bench.start(last, slot=9), other.start(last, slot=9)
        for _ in range(3):
            if {sequence.outcome for sequence in (kept, same, heir, alone)} != {"continue"}:
                break
            left, right = bench.step([kept, heir]), other.step([same, alone])
            expect_alike(left.of(0), right.of(0), "after others were released a sequence gets something else")
            expect_alike(
                left.of(1), right.of(1), "a sequence in a slot that was released gets something of its predecessor"
            )
        for of, sequence in ((bench, kept), (bench, heir), (other, same), (other, alone)):
            of.release(sequence)
    _heirs_at_the_same_place(subject)


def _heirs_at_the_same_place(subject: ModifierSubject) -> None:
    """Sequences whose slots are those that others had, at the positions where these were, with no step between."""
    for number in range(max(2, len(Bench(subject).examples))):
        for num_steps in (0, 1, 3):
            bench, other = Bench(subject), Bench(subject)  # what one learns for all, the other learns too
            gone, elsewhere = bench.start(number, slot=9), other.start(number, slot=20)
            while gone.outcome == elsewhere.outcome == "continue" and len(gone.tokens) < num_steps:
                bench.step([gone])
                other.step([elsewhere])
            for of, sequence in ((bench, gone), (other, elsewhere)):
                of.peek([sequence])
                of.release(sequence)
            place = len(gone.info.prompt_token_ids) + len(gone.tokens)
            for heir, alone in zip(
                _heirs(bench, number, place, apart=False), _heirs(other, number, place, apart=True), strict=True
            ):
                what = "a sequence in the slot of one that was released, at the position where that was,"
                expect_alike(bench.peek([heir]).of(0), other.peek([alone]).of(0), f"{what} gets something of it")
                bench.release(heir)
                other.release(alone)
    _places_exchanged(subject)


def _heirs(bench: Bench, number: int, place: int, *, apart: bool) -> Iterator[Running]:
    """A sequence of each example that is at the position `place` when it starts: all in one slot, or `apart`."""
    examples = bench.examples
    for turn, example in enumerate([*examples[number + 1 :], *examples[: number + 1]]):
        request = bench.request(example, 70 + turn)
        prompt = (bench.model.prompt(number + turn) * place)[:place]
        try:
            heir = bench.begin(replace(request, prompt_token_ids=prompt), slot=30 + turn if apart else 9)
        except REFUSALS:
            continue
        heir.example = example
        if heir.state is not None:
            yield heir


def _places_exchanged(subject: ModifierSubject) -> None:
    """Compare batches of the same slots and positions, one after the other, in which each sequence stands in turn where
    another one stood, one that the modifier leaves alone among them."""
    bench = Bench(subject)
    requests = [replace(bench.request(example, i), prompt_token_ids=PROMPT) for i, example in enumerate(bench.examples)]
    examples: list[Example | None] = [*bench.examples, None]
    requests.append(replace(bench.request(None, len(requests)), prompt_token_ids=PROMPT))
    for turn in range(len(requests)):
        order = [*range(turn, len(requests)), *range(turn)]
        try:
            sequences = [bench.begin(requests[i], slot) for slot, i in enumerate(order)]
        except REFUSALS:
            return
        for sequence, i in zip(sequences, order, strict=True):
            sequence.example = examples[i]
        found = bench.peek(sequences)
        fresh = Bench(subject)
        for place, i in enumerate(order):
            alone = fresh.begin(requests[i], slot=40 + place)
            alone.example = examples[i]
            what = "a sequence in a slot where, at the same position, another one was the step before"
            if alone.state is None:
                expect(place not in found.rows, f"{what} has no state, and a row in the payload")
            else:
                expect_alike(found.of(place), fresh.peek([alone]).of(0), f"{what} gets something of it")
        for sequence in sequences:
            bench.release(sequence)


@check("modifier")
def closing_ends_one_instance(subject: ModifierSubject) -> None:
    """A modifier and its transform close without an error, used or unused, and others of their classes go on."""
    unused = Bench(subject)
    for half in (unused.transform, unused.modifier):
        half.close()
    closing, other, alone = Bench(subject), Bench(subject), Bench(subject)
    ending, sequence, wanted = closing.start(0), other.start(0), alone.start(0)
    closing.step([ending])
    found, before = other.step([sequence]), alone.step([wanted])
    expect_alike(found.of(0), before.of(0), "of three instances the second gives something else")
    closing.release(ending)
    for half in (closing.transform, closing.modifier):
        half.close()
    for bench, later in ((other, sequence), (Bench(subject), None)):
        if later is None:
            later = bench.again(wanted)
        if wanted.outcome == "continue":
            what = "after another instance was closed, a sequence gets something else"
            expect_alike(bench.peek([later]).of(0), alone.peek([wanted]).of(0), what)


def _is_token(bench: Bench, value: object) -> bool:
    return isinstance(value, int | np.integer) and 0 <= int(value) < len(bench.vocabulary)


def _moves_nothing(subject: ModifierSubject, ask: Callable[[Bench, Running], object], what: str) -> None:
    """Compare sequences of which one instance is asked and another is not."""
    asked, silent = Bench(subject), Bench(subject)
    for number in range(len(asked.examples)):
        pair = asked.start(number), silent.start(number)
        for _ in range(NUM_STEPS):
            if pair[0].outcome != "continue":
                break
            ask(asked, pair[0])
            found, wanted = asked.step([pair[0]]), silent.step([pair[1]])
            expect_alike(found.of(0), wanted.of(0), f"{what} changed what the sequence gets")
