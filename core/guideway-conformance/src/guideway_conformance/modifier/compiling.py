"""Checks of what a modifier compiles for a request, before its sequences start."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

from guideway.api import Example, Regex, Request

from guideway_conformance.modifier.bench import REFUSALS, Bench
from guideway_conformance.modifier.comparison import expect_alike
from guideway_conformance.modifier.options import nearly, texts, with_texts
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.modifier.verbs import Answers, expect_same_answers
from guideway_conformance.reference.strategy import Strategy
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.threads import amid, interleaved

__all__: list[str] = []

NUM_STEPS = 3
NUM_THREADS = 8
ROUNDS = 10
NUM_WRITTEN = 16
"""The tokens of a sequence whose text is chosen."""
MOST_VARIANTS = 24
"""The most of them for each example."""

Asked: TypeAlias = tuple[Request, Example]
"""A request, and the example it is one of."""


@check("modifier", trait="compiles")
def compile_leaves_the_request_alone(subject: ModifierSubject) -> None:
    """`compile` and `compile_key` do not change the request."""
    bench = Bench(subject)
    for request in (*_requests(bench), *(request for request, _ in _variants(bench))):
        before = copy.deepcopy(request)
        _compiled(bench, request)
        bench.modifier.compile_key(request)
        expect(request == before, f"after compile the request is {request}; it was {before}")


@check("modifier", trait="compiles", acts=("rows",))
def compile_is_a_function_of_the_request(subject: ModifierSubject) -> None:
    """The value of `compile` is a function of request and options: whatever was compiled before, and wherever."""
    here, elsewhere = Bench(subject), Bench(subject)
    requests = _requests(here)
    values = [_compiled(elsewhere, request) for request in (*requests, *reversed(requests))]
    for request, value in zip(reversed(requests), values[len(requests) :], strict=True):
        _expect_same(subject, request, value, "compiled by another instance, after other requests,")


@check("modifier", trait="compiles", seconds=60, acts=("rows",))
def compile_serves_several_threads(subject: ModifierSubject) -> None:
    """`compile` and `compile_key` may be called from several threads at once."""
    bench = Bench(subject)
    requests = _requests(bench) * ROUNDS
    with interleaved(subject.cls), ThreadPoolExecutor(NUM_THREADS) as threads:
        values = list(threads.map(lambda request: _compiled(bench, request), requests))
    for request, value in zip(requests, values, strict=True):
        _expect_same(subject, request, value, "compiled beside others,")
    asked = [*_asked(bench)[::2], *_variants(bench)[:: max(1, MOST_VARIANTS // 2)]]
    for (request, example), (other, _) in zip(asked, [*asked[1:], asked[0]], strict=True):
        key = bench.modifier.compile_key(request)
        for found_key in amid(subject.cls, partial(bench.modifier.compile_key, request), partial(_keyed, bench, other)):
            said = f"while another thread asks as well, compile_key gives {found_key!r} instead of {key!r}"
            expect(found_key == key, said)
        wanted = _seen(subject, request, example, _compiled(bench, request))
        for value in amid(subject.cls, partial(_compiled, bench, request), partial(_compiled, bench, other)):
            found = _seen(subject, request, example, value)
            for one, own in zip(found, wanted, strict=True):
                expect_alike(one, own, "compiled while another thread compiles as well, a sequence gets something else")


def _keyed(bench: Bench, request: Request) -> None:
    with contextlib.suppress(*REFUSALS):
        bench.modifier.compile_key(request)


def _seen(subject: ModifierSubject, request: Request, example: Example, value: Any) -> list[Any]:
    """The rows that a sequence that starts with `value` gets at first, and after texts of its options."""
    bench = Bench(subject)
    try:
        sequence = bench.begin(request, slot=3, compiled=value)
    except REFUSALS:
        return []
    sequence.example = example
    rows = []
    for token_id in (*_text(example)[:4], None):
        if sequence.state is not None and sequence.outcome == "continue":
            rows.append(bench.peek([sequence]).of(0))
            if token_id is not None:
                bench.accept(sequence, [token_id], None)
    return rows


@check("modifier", trait="compiles", seconds=120)
def equal_keys_mean_equal_values(subject: ModifierSubject) -> None:
    """Either of two requests with equal `compile_key`s may be given what was compiled for the other: rows, end and
    `report` are the same."""
    bench = Bench(subject)
    groups: dict[Hashable, list[Asked]] = {}
    for asked in (*_asked(bench), *_variants(bench)):
        key = bench.modifier.compile_key(asked[0])
        try:
            hash(key)
        except TypeError as error:
            raise AssertionError(f"compile_key gives a {type(key).__name__}, which cannot be hashed") from error
        if key is not None:
            groups.setdefault(key, []).append(asked)
    for key, group in groups.items():
        for (first, other), (second, example) in zip((group[-1], *group[:-1]), group, strict=True):
            if first is not second:
                written = replace(example, generated=_text(example, other))
                value = _compiled(bench, first)
                _expect_same(subject, second, value, f"compiled for another request of key {key!r},", written)


@check("modifier", trait="compiles", seconds=60)
def compile_needs_no_grammar(subject: ModifierSubject) -> None:
    """The value of `compile` is the same with the request's compiled constraint and with None, which it is given where
    the process does not hold it."""
    bench = Bench(subject)
    constraint = Regex("[a-z ]+")
    grammar = Strategy(bench.vocabulary, {}).compile(constraint)
    for request, example in (*_asked(bench), *_variants(bench, _in_quotes)):
        constrained = replace(request, params=replace(request.params, constraint=constraint))
        try:
            value = bench.modifier.compile(constrained, grammar)
        except REFUSALS:
            continue
        written = replace(example, generated=_text(example))
        _expect_same(subject, constrained, value, "compiled with the grammar of its constraint,", written)


@check("modifier", trait="compiles", acts=("rows",))
def what_was_compiled_stays(subject: ModifierSubject) -> None:
    """Sequences share what was compiled, and leave it as it is."""
    bench = Bench(subject)
    for number, request in enumerate(_requests(bench)):
        value = _compiled(bench, request)
        try:
            sequence = bench.begin(request, slot=number % 8, compiled=value)
        except REFUSALS:
            continue
        if sequence.state is None:
            continue
        for _ in range(NUM_STEPS):
            if sequence.outcome == "continue":
                bench.step([sequence])
        _expect_same(subject, request, value, "after another sequence has used what was compiled,")


def _requests(bench: Bench) -> list[Request]:
    """Two of each example, which differ in everything else. All select the modifier: hosts compile for no others."""
    return [request for request, _ in _asked(bench)]


def _asked(bench: Bench) -> list[Asked]:
    """The same with their examples."""
    examples = bench.examples
    return [(bench.request(example, 2 * i + j), example) for i, example in enumerate(examples) for j in range(2)]


def _variants(
    bench: Bench, vary: Callable[[Mapping[str, Any], Sequence[Example]], Iterator[dict[str, Any]]] | None = None
) -> list[Asked]:
    """Requests with options that are nearly those of an example, as far as the modifier takes them."""
    found: list[Asked] = []
    for i, example in enumerate(bench.examples):
        for j, options in enumerate(islice((vary or nearly)(example.options, bench.examples), MOST_VARIANTS)):
            variant, number = replace(example, options=options), len(bench.examples) * 2 + 100 * i + j
            request = bench.request(variant, number)
            try:
                bench.modifier.compile_key(request)
                taken = bench.begin(request)
                taken.example = variant
                for _ in range(NUM_STEPS):
                    if taken.outcome == "continue":
                        bench.step([taken])
            except Exception:  # options that nobody promised to understand
                continue
            bench.release(taken)
            found.append((bench.request(variant, number), variant))
    return found


def _in_quotes(options: Mapping[str, Any], _: Sequence[Example]) -> Iterator[dict[str, Any]]:
    """`options` with all their texts in quotes, as a grammar may have them."""
    quoted = with_texts(options, lambda text: f' "{text}"')
    if quoted != options:
        yield quoted


def _text(*examples: Example) -> tuple[int, ...]:
    """Tokens that may matter to these examples: the first one's own, and then the texts of their options."""
    written = b"".join(texts([dict(example.options) for example in examples]))
    return (*(examples[0].generated or ()), *written * (NUM_WRITTEN // max(1, len(written)) + 1))[:NUM_WRITTEN]


def _compiled(bench: Bench, request: Request) -> Any:
    try:
        return bench.modifier.compile(request, None)
    except REFUSALS:
        return None


def _expect_same(
    subject: ModifierSubject, request: Request, value: Any, how: str, written: Example | None = None
) -> None:
    """A sequence that starts with `value` gets what one gets that starts with a value of its own: the rows, and if it
    is `written` what comes to its end, the report too."""
    given, own = Bench(subject), Bench(subject)
    try:
        pair = given.begin(request, slot=3, compiled=value), own.begin(request, slot=3)
    except REFUSALS:
        return
    if pair[1].state is None:
        return
    for sequence in pair:
        sequence.example = written or _example_of(own, request)
    for _ in range(NUM_WRITTEN if written else NUM_STEPS):
        if pair[1].outcome != "continue":
            break
        found, wanted = given.step([pair[0]]), own.step([pair[1]])
        expect_alike(found.of(0), wanted.of(0), f"{how} a sequence gets what it would not get otherwise")
        said = f"{how} a sequence does not end where it would otherwise"
        expect(pair[0].outcome == pair[1].outcome, f"{said}: {pair[0].outcome} instead of {pair[1].outcome}")
    if written:
        answers = [Answers.of(of, each, report=True) for of, each in zip((given, own), pair, strict=True)]
        expect_same_answers(answers[0], answers[1], f"{how} a sequence")


def _example_of(bench: Bench, request: Request) -> Example | None:
    """The example that a request is one of."""
    for example in bench.examples:
        if dict(example.options) == request.params.modifiers.get(bench.cls.name):
            return example
    return bench.examples[0]
