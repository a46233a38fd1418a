"""Checks of what a modifier compiles for a request, before its sequences start."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice, product
from typing import Any

from guideway.api import Example, Request

from guideway_conformance.modifier.bench import REFUSALS, Bench
from guideway_conformance.modifier.comparison import expect_alike
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.threads import interleaved

__all__: list[str] = []

NUM_STEPS = 3
NUM_THREADS = 8
ROUNDS = 10
MOST_VARIANTS = 12
"""The most of them for each example."""


@check("modifier", trait="compiles")
def compile_leaves_the_request_alone(subject: ModifierSubject) -> None:
    """`compile` and `compile_key` do not change the request."""
    bench = Bench(subject)
    for request in _requests(bench):
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
    """`compile` may be called from several threads at once."""
    bench = Bench(subject)
    requests = _requests(bench) * ROUNDS
    with interleaved(subject.cls), ThreadPoolExecutor(NUM_THREADS) as threads:
        values = list(threads.map(lambda request: _compiled(bench, request), requests))
    for request, value in zip(requests, values, strict=True):
        _expect_same(subject, request, value, "compiled beside others,")


@check("modifier", trait="compiles")
def equal_keys_mean_equal_values(subject: ModifierSubject) -> None:
    """Either of two requests with equal `compile_key`s may be given what was compiled for the other."""
    bench = Bench(subject)
    keyed: list[tuple[Hashable, Request]] = []
    for request in (*_requests(bench), *_variants(bench)):
        key = bench.modifier.compile_key(request)
        try:
            hash(key)
        except TypeError as error:
            raise AssertionError(f"compile_key gives a {type(key).__name__}, which cannot be hashed") from error
        if key is not None:
            keyed.append((key, request))
    for (key, first), (other, second) in product(keyed, keyed):
        if key == other and first is not second:
            _expect_same(subject, second, _compiled(bench, first), f"compiled for another request of key {key!r},")


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
    examples = bench.examples
    return [bench.request(example, 2 * i + j) for i, example in enumerate(examples) for j in range(2)]


def _variants(bench: Bench) -> list[Request]:
    """Requests with options that are nearly those of an example, as far as the modifier takes them."""
    found: list[Request] = []
    for i, example in enumerate(bench.examples):
        for j, options in enumerate(islice(_changed(dict(example.options)), MOST_VARIANTS)):
            request = bench.request(replace(example, options=options), len(bench.examples) * 2 + 100 * i + j)
            try:
                bench.modifier.compile_key(request)
                taken = bench.begin(request)
            except Exception:  # options that nobody promised to understand
                continue
            bench.release(taken)
            found.append(request)
    return found


def _changed(value: Any) -> Iterator[Any]:
    """Plain values that differ from `value` in one place, and not by much."""
    if isinstance(value, str):
        yield from (value.swapcase(), value[::-1], value[:-1])
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from (value + 1, value + 1e-3 if isinstance(value, float) else value + 2)
    elif isinstance(value, Mapping):
        yield from ({**value, key: other} for key in value for other in _changed(value[key]))
    elif isinstance(value, list | tuple):
        yield from (value[::-1], value[:-1])
        for i, entry in enumerate(value):
            yield from ([*value[:i], other, *value[i + 1 :]] for other in _changed(entry))


def _compiled(bench: Bench, request: Request) -> Any:
    try:
        return bench.modifier.compile(request, None)
    except REFUSALS:
        return None


def _expect_same(subject: ModifierSubject, request: Request, value: Any, how: str) -> None:
    """A sequence that starts with `value` gets what one gets that starts with a value of its own."""
    given, own = Bench(subject), Bench(subject)
    try:
        pair = given.begin(request, slot=3, compiled=value), own.begin(request, slot=3)
        for sequence in pair:
            sequence.example = _example_of(own, request)
    except REFUSALS:
        return
    if pair[1].state is None:
        return
    for _ in range(NUM_STEPS):
        if pair[1].outcome != "continue":
            break
        found, wanted = given.step([pair[0]]), own.step([pair[1]])
        expect_alike(found.of(0), wanted.of(0), f"{how} a sequence gets what it would not get otherwise")


def _example_of(bench: Bench, request: Request) -> Example | None:
    """The example whose generated tokens fit a request: its own, or that of the options that are nearest."""
    for example in bench.examples:
        if dict(example.options) == request.params.modifiers.get(bench.cls.name):
            return example
    return bench.examples[0]
