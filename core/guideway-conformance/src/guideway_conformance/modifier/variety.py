"""Uses of a modifier that none of its examples is: other options, other tokens, other orders of requests."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, cycle, islice
from typing import Any

import numpy as np
from guideway.api import Example, InvalidConfiguration, Payload, Sampler
from guideway.runtime.modifiers.answers import read_names
from numpy.typing import NDArray

from guideway_conformance.hints import hints_read, typed
from guideway_conformance.modifier.bench import REFUSALS, Bench
from guideway_conformance.modifier.comparison import expect_alike
from guideway_conformance.modifier.edges import edges, hints_of, takes
from guideway_conformance.modifier.harder import expect_allowed, forbidding, only_few, without_some_columns
from guideway_conformance.modifier.options import nearly, texts
from guideway_conformance.modifier.records import Applied, Running, Work
from guideway_conformance.modifier.subject import MAX_MODEL_LEN, ModifierSubject
from guideway_conformance.modifier.verbs import Answers, expect_same_answers
from guideway_conformance.modifier.vocabulary import synthetic
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
MOST_NAMED = 32
"""The tokens of its options that a sequence hears."""
ANY = (32, 98, 97, 98, 10, 998, 400, 65, 0, 255, 97, 97)
"""Tokens of all sorts: letters, a space, a line break, a special token, bytes that are no text."""


def variants(bench: Bench, most: int = MOST) -> list[Example]:
    """Examples whose options are near those of the modifier's own, as far as it takes them: of the types it reads them
    as, where it does so with `parse_options`."""
    found: list[Example] = []
    for i, example in enumerate(bench.examples):
        hints = hints_of(bench, example, i)
        size = len(bench.vocabulary)
        near = chain(typed(example.options, hints, size), nearly(example.options, bench.examples))
        for j, options in enumerate(islice(near, most)):
            variant = replace(example, options=options)
            if takes(bench, variant, 1000 * (i + 1) + j):
                found.append(variant)
    return found


def written(bench: Bench, example: Example) -> tuple[int, ...]:
    """Tokens that may matter to `example`, whether it allows them or not: its own, those of its options, and others."""
    spelled = b"".join(texts(dict(example.options)))
    named = islice(_token_ids(dict(example.options)), MOST_NAMED)
    ids = (*(example.generated or ()), *spelled[:24], *named, *ANY)
    return tuple(i for i in ids if 0 <= i < len(bench.vocabulary) and i not in bench.vocabulary.stop_token_ids)


def _token_ids(value: Any) -> Iterator[int]:
    """The whole numbers in the lists of a plain value, which may be token ids."""
    if isinstance(value, dict):
        yield from chain.from_iterable(map(_token_ids, value.values()))
    elif isinstance(value, list | tuple):
        for entry in value:
            if isinstance(entry, int) and not isinstance(entry, bool):
                yield entry
            elif isinstance(entry, list | tuple | dict):
                yield from _token_ids(entry)


SMALL = 192
"""The tokens of a small context."""
BESIDE: tuple[tuple[Mapping[str, Any], int], ...] = (
    ({"max_tokens": 1, "temperature": 0.0, "min_tokens": 1}, MAX_MODEL_LEN),
    ({"max_tokens": 8, "repetition_penalty": 1.3, "logit_bias": {98: -math.inf, 97: 2.0}, "logprobs": 3}, SMALL),
    ({"max_tokens": None, "top_k": 5, "top_p": 0.5, "stop_token_ids": (98,), "stop": ("ab",)}, SMALL),
)
"""The parameters of requests beside the options of a modifier, and how long a text may be."""


@check("modifier", tier="extended", seconds=180)
def options_near_its_examples_are_served(subject: ModifierSubject) -> None:
    """A request that `start` takes is served as the examples are, with other options than theirs: other numbers, NaN
    and infinite ones too, the least and the greatest that it takes, token ids, texts and lists, or those of two
    examples. Results are numbers or -inf, what was forbidden stays so and is not drawn, rows are the same alone and
    after drafts, a state that heard the same says the same, and companions have prompts of the vocabulary."""
    bench = Bench(subject)
    _serve(subject, [*variants(bench), *edges(bench)])


@check("modifier", tier="extended", seconds=120)
def requests_ask_for_other_things_too(subject: ModifierSubject) -> None:
    """A request may ask for anything beside a modifier: few tokens, or as many as a small context leaves room for, no
    randomness, penalties, biases, tokens that end it. If the modifier takes it, it is served by the same rules."""
    for params, max_model_len in BESIDE:
        bench = Bench(subject, max_model_len=max_model_len)
        examples = [e for i, e in enumerate(bench.examples) if _admits(bench, e, 100 + i, params)]
        _serve(subject, examples, params=params, max_model_len=max_model_len)


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
            examples = [e for i, e in enumerate(other.examples()) if takes(Bench(other), e, i)]
        except Exception:  # it refuses them
            continue
        _serve(other, examples)


@check("modifier", trait="constructs")
def operators_options_are_known(subject: ModifierSubject) -> None:
    """A modifier with a constructor of its own refuses an operator's option that it does not know with
    `InvalidConfiguration`, as `parse_options` does: where it takes none, any. It does not leave that to its transform,
    which may be built elsewhere."""
    options = {**subject.settings.options, UNKNOWN: 1}
    try:
        ModifierSubject(subject.component, replace(subject.settings, options=options)).modifier(synthetic())
    except InvalidConfiguration:
        return
    raise AssertionError(
        f"it was built with the operator's option {UNKNOWN!r}: its constructor has to read `options` with "
        "`parse_options`, into a dataclass without fields if it takes none"
    )


def _admits(bench: Bench, example: Example, number: int, params: Mapping[str, Any]) -> bool:
    """Return whether the modifier acts on a request with `params`, and does not refuse it."""
    try:
        sequence = bench.begin(bench.request(example, number, params))
    except REFUSALS:
        return False
    bench.release(sequence)
    return sequence.state is not None


def _serve(
    subject: ModifierSubject,
    examples: Sequence[Example],
    *,
    params: Mapping[str, Any] | None = None,
    max_model_len: int = MAX_MODEL_LEN,
) -> None:
    """Serve sequences of `examples`, some at a time, and each of them alone as well."""
    for first in range(0, len(examples), AT_ONCE):
        bench = Bench(subject, max_model_len=max_model_len)
        crowd = [
            _begin(bench, example, first + i, slot=i, params=params)
            for i, example in enumerate(examples[first : first + AT_ONCE])
        ]
        alone = [Bench(subject, max_model_len=max_model_len) for _ in crowd]
        copies = [one.again(sequence, slot=40) for one, sequence in zip(alone, crowd, strict=True)]
        for turn in range(NUM_STEPS):
            there = [i for i, sequence in enumerate(crowd) if sequence.outcome == "continue"]
            if not there:
                break
            running = [crowd[i] for i in there]
            drafts = bench.drafts(running, turn)
            work = bench.work(running, drafts)
            payload = bench.prepare(work)
            found = bench.apply(work, payload)
            _expect_numbers(found)
            _expect_forbidden_stays(bench, work, payload)
            for place, i in enumerate(there):
                wanted = alone[i].peek([copies[i]], [drafts[place]])
                what = f"with the options {_of(crowd[i])} a sequence gets among others not what it gets alone"
                expect_alike(found.of(place), wanted.of(0), what)
            bench.step(running, drafts)
            for i in there:
                alone[i].accept(copies[i], *_last(crowd[i]))
        for sequence, one, copy in zip(crowd, alone, copies, strict=True):
            what = f"with the options {_of(sequence)}"
            _drafts_are_as_tokens(subject, sequence, written(bench, _example(sequence)), what, max_model_len)
            said = f"{what} a sequence says something else than one that heard the same alone"
            expect_same_answers(Answers.of(bench, sequence, report=True), Answers.of(one, copy, report=True), said)
            bench.release(sequence)


def _begin(
    bench: Bench, example: Example, number: int, *, slot: int, params: Mapping[str, Any] | None = None
) -> Running:
    """A sequence of `example`, asked what a host asks at its start."""
    sequence = bench.begin(bench.request(example, number, params), slot)
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


def _expect_forbidden_stays(bench: Bench, work: Work, payload: Payload | None) -> None:
    """Fail if tokens that others have forbidden are not at -inf after it, or are drawn."""
    if payload is None or not len(payload):
        return
    if isinstance(bench.transform, Sampler):
        for logits in (only_few(work, 40), only_few(work, 1)):
            drawn = bench.apply(work, payload, logits=logits)
            for i, sequence in enumerate(work.sequences):
                rows = slice(*work.batch.row_start[i : i + 2])
                expect_allowed(drawn.of(i), logits[rows], f"with the options {_of(sequence)}")
        return
    for logits in (forbidding(work), without_some_columns(work)):
        after = bench.apply(work, payload, logits=logits).logits
        for i, sequence in enumerate(work.sequences):
            rows = slice(*work.batch.row_start[i : i + 2])
            freed = after[rows][np.isneginf(logits[rows]) & ~np.isneginf(after[rows])]
            what = f"with the options {_of(sequence)} {len(freed)} tokens that were at -inf are at {freed[:1]}"
            expect(not len(freed), f"{what} and the like after it")


def _drafts_are_as_tokens(
    subject: ModifierSubject,
    sequence: Running,
    token_ids: Sequence[int],
    what: str,
    max_model_len: int = MAX_MODEL_LEN,
) -> None:
    """Compare rows after drafts with those after the same tokens once they are final, also where they are forbidden: a
    row that is left without a token is drawn without the modifier."""
    slow, fast = (Bench(subject, max_model_len=max_model_len) for _ in range(2))
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
