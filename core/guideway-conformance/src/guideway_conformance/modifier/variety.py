"""Uses of a modifier that none of its examples is: other options, other tokens, other orders of requests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice
from typing import Any

import numpy as np
from guideway.api import Example, InvalidConfiguration
from guideway.runtime.answers import read_names
from numpy.typing import NDArray

from guideway_conformance.hints import Hints, hints_read, typed
from guideway_conformance.modifier.bench import REFUSALS, Bench
from guideway_conformance.modifier.comparison import expect_alike
from guideway_conformance.modifier.options import nearly, texts
from guideway_conformance.modifier.records import Applied, Running
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.modifier.verbs import Answers, expect_same_answers
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect

MOST = 32
"""The variants of each example that are tried."""
AT_ONCE = 12
"""The sequences of a crowd of variants."""
NUM_STEPS = 4
REQUESTS, TURNS = 24, 4
"""The requests that come after one another, and how often they do."""
SORTS = 60
"""The sequences of a batch of all sorts."""
UNKNOWN = "no_such_option"
ANY = (32, 98, 97, 98, 10, 998, 400, 65, 0, 255, 97, 97)
"""Tokens of all sorts: letters, a space, a line break, a special token, bytes that are no text."""


def variants(bench: Bench, most: int = MOST) -> list[Example]:
    """Examples whose options are near those of the modifier's own, as far as it takes them: of the types it reads them
    as, where it does so with `parse_options`."""
    found: list[Example] = []
    for i, example in enumerate(bench.examples):
        hints = _hints(bench, example, i)
        size = len(bench.vocabulary)
        near = chain(typed(example.options, hints, size), nearly(example.options, bench.examples))
        for j, options in enumerate(islice(near, most)):
            variant = replace(example, options=options)
            if _taken(bench, variant, 1000 * (i + 1) + j):
                found.append(variant)
    return found


def _hints(bench: Bench, example: Example, number: int) -> Hints:
    with hints_read() as hints:
        bench.release(bench.begin(bench.request(example, number)))
    return dict(hints)


def _taken(bench: Bench, variant: Example, number: int) -> bool:
    """Return whether `start` takes a request with the options of `variant`, and acts on it."""
    try:
        sequence = bench.begin(bench.request(variant, number))
    except Exception:  # options that nobody promised to understand
        return False
    bench.release(sequence)
    return sequence.state is not None


def written(bench: Bench, example: Example) -> tuple[int, ...]:
    """Tokens that may matter to `example`, whether it allows them or not: its own, those of its options, and others."""
    spelled = b"".join(texts(dict(example.options)))
    ids = (*(example.generated or ()), *spelled[:24], *_token_ids(dict(example.options)), *ANY)
    return tuple(i for i in ids if 0 <= i < len(bench.vocabulary) and i not in bench.vocabulary.stop_token_ids)


def _token_ids(value: Any) -> Iterator[int]:
    """The lists of whole numbers in a plain value, which may be of token ids."""
    if isinstance(value, dict):
        yield from chain.from_iterable(map(_token_ids, value.values()))
    elif isinstance(value, list | tuple):
        yield from (entry for entry in value if isinstance(entry, int) and not isinstance(entry, bool))


@check("modifier", tier="extended", seconds=180)
def options_near_its_examples_are_served(subject: ModifierSubject) -> None:
    """A request that `start` takes is served as the examples are, with other options than theirs: other numbers, NaN
    and infinite ones too, token ids, texts and lists. Results are numbers or -inf, rows are the same alone and after
    drafts, a state that heard the same says the same, and companions have prompts of the vocabulary."""
    _serve(subject, variants(Bench(subject)))


@check("modifier", tier="extended", trait="constructs", seconds=180)
def operators_options_are_served(subject: ModifierSubject) -> None:
    """A modifier that is built with other options of the operator than the default serves its examples as always, by
    the same rules."""
    given = dict(subject.settings.options)
    with hints_read() as hints:
        Bench(subject)
    size = len(Bench(subject).vocabulary)
    for options in islice(typed(given, dict(hints), size), MOST):
        other = ModifierSubject(subject.component, replace(subject.settings, options=options))
        try:
            examples = [e for i, e in enumerate(other.examples()) if _taken(Bench(other), e, i)]
        except Exception:  # it refuses them
            continue
        _serve(other, examples)


@check("modifier", trait="constructs")
def operators_options_are_known(subject: ModifierSubject) -> None:
    """A modifier with a constructor of its own refuses an operator's option that it does not know with
    `InvalidConfiguration`, as `parse_options` does: where it takes none, any."""
    options = {**subject.settings.options, UNKNOWN: 1}
    try:
        Bench(ModifierSubject(subject.component, replace(subject.settings, options=options)))
    except InvalidConfiguration:
        return
    raise AssertionError(
        f"it was built with the operator's option {UNKNOWN!r}: its constructor has to read `options` with "
        "`parse_options`, into a dataclass without fields if it takes none"
    )


def _serve(subject: ModifierSubject, examples: Sequence[Example]) -> None:
    """Serve sequences of `examples`, some at a time, and each of them alone as well."""
    for first in range(0, len(examples), AT_ONCE):
        bench = Bench(subject)
        crowd = [
            _begin(bench, example, first + i, slot=i) for i, example in enumerate(examples[first : first + AT_ONCE])
        ]
        alone = [Bench(subject) for _ in crowd]
        copies = [one.again(sequence, slot=40) for one, sequence in zip(alone, crowd, strict=True)]
        for turn in range(NUM_STEPS):
            there = [i for i, sequence in enumerate(crowd) if sequence.outcome == "continue"]
            if not there:
                break
            running = [crowd[i] for i in there]
            drafts = bench.drafts(running, turn)
            found = bench.peek(running, drafts)
            _expect_numbers(found)
            for place, i in enumerate(there):
                wanted = alone[i].peek([copies[i]], [drafts[place]])
                what = f"with the options {_of(crowd[i])} a sequence gets among others not what it gets alone"
                expect_alike(found.of(place), wanted.of(0), what)
            bench.step(running, drafts)
            for i in there:
                alone[i].accept(copies[i], *_last(crowd[i]))
        for sequence, one, copy in zip(crowd, alone, copies, strict=True):
            what = f"with the options {_of(sequence)}"
            _drafts_are_as_tokens(subject, sequence, written(bench, _example(sequence)), what)
            said = f"{what} a sequence says something else than one that heard the same alone"
            expect_same_answers(Answers.of(bench, sequence, report=True), Answers.of(one, copy, report=True), said)
            bench.release(sequence)


def _begin(bench: Bench, example: Example, number: int, *, slot: int) -> Running:
    """A sequence of `example`, asked what a host asks at its start."""
    sequence = bench.begin(bench.request(example, number), slot)
    sequence.example = example
    for companion in sequence.companions:
        ids = companion.prompt_token_ids
        wrong = [i for i in ids if not 0 <= i < len(bench.vocabulary)]
        what = f"with the options {_of(sequence)} a companion has the prompt {list(ids)[:8]}"
        expect(ids and not wrong, f"{what}; token ids are 0..{len(bench.vocabulary) - 1}")
    read_names(bench.modifier.unenforced(sequence.state))
    return sequence


def _example(sequence: Running) -> Example:
    assert sequence.example is not None
    return sequence.example


def _of(sequence: Running) -> dict[str, Any]:
    return dict(_example(sequence).options)


def _last(sequence: Running) -> tuple[list[int], Any]:
    token_ids, feedback = sequence.journal[-1]
    return list(token_ids), feedback


def _expect_numbers(applied: Applied) -> None:
    """Fail if rows are not numbers, or if what was forbidden is not."""
    before, after = applied.work.logits, applied.logits
    for i, sequence in enumerate(applied.work.sequences):
        rows = slice(*applied.work.batch.row_start[i : i + 2])
        wrong = np.isnan(after[rows]) | np.isposinf(after[rows])
        what = f"with the options {_of(sequence)}"
        expect(not wrong.any(), f"{what} it made {after[rows][wrong][:1]} and the like of {int(wrong.sum())} logits")
        freed = np.isneginf(before[rows]) & ~np.isneginf(after[rows])
        expect(not freed.any(), f"{what} {int(freed.sum())} tokens that were at -inf are not after it")


def _drafts_are_as_tokens(subject: ModifierSubject, sequence: Running, token_ids: Sequence[int], what: str) -> None:
    """Compare rows after drafts with those after the same tokens once they are final, also where they are forbidden: a
    row that is left without a token is drawn without the modifier."""
    slow, fast = Bench(subject), Bench(subject)
    pair = slow.again(sequence), fast.again(sequence)
    heard: list[int] = []
    place = 0
    while place < len(token_ids) and pair[0].outcome == "continue" == pair[1].outcome:
        offered = fast.passing(pair[1], token_ids[place : place + 2 + len(heard)])
        rows = fast.peek([pair[1]], [offered]).of(0)
        for k, token_id in enumerate([*offered, None]):
            row = slow.peek([pair[0]]).of(0)
            expect_alike(
                rows[k : k + 1], row, f"{what} the row after the drafts {offered[:k]} gets not what it gets then"
            )
            if token_id is None:
                break
            slow.accept(pair[0], [token_id], None)
            if pair[0].outcome != "continue":
                break
        heard.append(max(1, len(offered)))
        step = list(token_ids[place : place + heard[-1]])
        if not offered:
            slow.accept(pair[0], step, None)
        fast.accept(pair[1], step, None)
        place += heard[-1]
    said = f"{what} the tokens {list(token_ids[:place])}, heard in steps of {heard}, lead elsewhere than one by one"
    expect(pair[0].outcome == pair[1].outcome, f"{said}: accept says {pair[1].outcome} instead of {pair[0].outcome}")
    if pair[0].outcome == "continue":
        expect_alike(fast.peek([pair[1]]).of(0), slow.peek([pair[0]]).of(0), said)
    if len(pair[0].tokens) == len(pair[1].tokens):
        expect_same_answers(Answers.of(fast, pair[1], report=True), Answers.of(slow, pair[0], report=True), said)


@check("modifier", tier="extended", seconds=60)
def any_token_may_come(subject: ModifierSubject) -> None:
    """Any token may be drafted, and heard, also one that the modifier forbade: where it and the grammar together leave
    a row without a token, the row is drawn without it. No later call fails, drafts and steps of any size lead where
    single tokens lead, and a state is rebuilt from them."""
    if subject.transform_class().hard:
        return
    bench = Bench(subject)
    for number in range(max(3, len(bench.examples))):
        sequence = bench.start(number)
        ids = written(bench, _example(sequence))
        for tokens in (ids, ids[::-1], [97, 98] * 8):
            try:
                _drafts_are_as_tokens(subject, sequence, tuple(tokens), "of tokens that no transform was asked for")
            except AssertionError:
                raise
            except Exception as error:
                raise AssertionError(
                    f"it failed over the tokens {list(tokens)}, of which it may forbid some"
                ) from error


@check("modifier", tier="extended")
def prompts_may_be_short(subject: ModifierSubject) -> None:
    """A prompt may be of one token, be of special tokens, or be what the options name; `unenforced` gives names of it,
    and a sequence goes on as one that is rebuilt."""
    bench = Bench(subject)
    for number, example in enumerate(bench.examples):
        named = tuple(i for i in _token_ids(dict(example.options)) if 0 <= i < len(bench.vocabulary))
        for j, prompt in enumerate(dict.fromkeys([(97,), (98, 97), (len(bench.vocabulary) - 2,), named or (99,)])):
            short = replace(example, prompt_token_ids=prompt)
            try:
                sequence = bench.begin(bench.request(short, 10 * number + j))
            except REFUSALS:
                continue
            sequence.example = short
            if sequence.state is None:
                continue
            names = bench.modifier.unenforced(sequence.state)
            try:
                read_names(names)
            except Exception as error:
                what = f"of a prompt of {len(prompt)} tokens unenforced gives {names!r}"
                raise AssertionError(f"{what}, which is no sequence of names") from error
            for turn in range(NUM_STEPS):
                if sequence.outcome == "continue":
                    bench.step([sequence], bench.drafts([sequence], turn))
            fresh = Bench(subject)
            again = fresh.again(sequence)
            what = f"after a prompt of {len(prompt)} tokens"
            if sequence.outcome == "continue":
                expect_alike(bench.peek([sequence]).of(0), fresh.peek([again]).of(0), f"{what} a state that is rebuilt")
            answers = [Answers.of(of, each, report=True) for of, each in ((fresh, again), (bench, sequence))]
            expect_same_answers(answers[0], answers[1], f"{what} a state that is rebuilt")
            bench.release(sequence)


@check("modifier", tier="extended", seconds=60)
def one_request_after_another(subject: ModifierSubject) -> None:
    """A request gets what it would get had there been none before, whatever those asked for: a name that a request had
    may come again with other options, and so may the memory that its objects were in."""
    bench, fresh = Bench(subject), Bench(subject)
    asked = [*fresh.examples, *variants(fresh, 16)][:REQUESTS]
    if bench.transform.emits:  # what it hears it may keep for all
        return
    wanted = [_life(Bench(subject), example, f"alone-{i}") for i, example in enumerate(asked)]
    for turn in range(TURNS):
        for i in range(len(asked)):
            place = (i * (1 + turn) + turn) % len(asked)
            found = _life(bench, asked[place], "the-same" if turn % 2 else f"{turn}-{i}")
            for k, (row, other) in enumerate(zip(found, wanted[place], strict=True)):
                what = f"after {i + turn * len(asked)} other requests one gets at step {k} not what it gets alone"
                expect_alike(row, other, f"{what}, with the options {dict(asked[place].options)}")


def _life(bench: Bench, example: Example, request_id: str) -> list[NDArray[Any]]:
    """The rows of a sequence in its steps; nothing else of it is kept."""
    request = replace(bench.request(example, 5), request_id=request_id)
    bench.forget(request_id)
    sequence = bench.begin(request, slot=3)
    sequence.example = example
    rows = []
    for _ in range(3):
        if sequence.outcome == "continue":
            rows.append(bench.step([sequence]).of(0))
    bench.release(sequence)
    bench.forget(request_id)
    del bench.subject.evidence.sequences[:]
    return rows


@check("modifier", tier="stress", seconds=120, acts=("rows",))
def crowds_of_all_sorts(subject: ModifierSubject) -> None:
    """A batch may be full of requests that are all different, and each gets what it gets alone."""
    bench = Bench(subject)
    asked = [*bench.examples, *variants(bench, 96)]
    step = max(1, len(asked) // SORTS)
    crowd = [_begin(bench, example, i, slot=i) for i, example in enumerate(islice(cycle(asked[::step]), SORTS))]
    for turn in (1, 2):
        running = [sequence for sequence in crowd if sequence.outcome == "continue"]
        drafts = bench.drafts(running, turn)
        together = bench.peek(running, drafts)
        for i, sequence in enumerate(running):
            alone = bench.peek([sequence], [drafts[i]])
            what = f"among {len(running)} that are all different one gets not what it gets alone"
            expect_alike(together.of(i), alone.of(0), what)
        if running:
            bench.step(running, drafts)
