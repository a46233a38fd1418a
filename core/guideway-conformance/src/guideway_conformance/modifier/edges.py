"""Options at the edges of what a modifier takes, and those of two examples together."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from typing import Annotated, Any, Union, get_args, get_origin

from guideway.api import Example

from guideway_conformance.hints import Hints, hints_read
from guideway_conformance.modifier.bench import Bench
from guideway_conformance.modifier.records import Running

__all__ = ["edges", "hints_of", "takes", "together", "under_examples"]

WHOLE = (0, 1, 2, 4, 8, 16, 64, 256, 1 << 10, 1 << 14, 1 << 18, 1 << 24, 1 << 31, 1 << 62)
REAL = (0.0, 1e-3, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 50.0, 100.0, 1e3, 1e5, 1e8)
"""Numbers of which some may be taken and others not."""
HALVINGS = 24
MOST_PAIRS = 6


def hints_of(bench: Bench, example: Example, number: int) -> Hints:
    """The types of the options that are read for a request of `example`."""
    with hints_read() as hints:
        bench.release(bench.begin(bench.request(example, number)))
    return hints


def takes(bench: Bench, example: Example, number: int) -> bool:
    """Return whether `start` takes a request with the options of `example`, and acts on it."""
    try:
        sequence = bench.begin(bench.request(example, number))
    except Exception:  # options that nobody promised to understand
        return False
    bench.release(sequence)
    return sequence.state is not None


def edges(bench: Bench) -> list[Example]:
    """Examples with a number that is the least or the greatest that the modifier takes, beside one that it refuses; all
    of them at once; and those with the options of two."""
    example = bench.examples[0]
    bounds = {key: _bounds(bench, example, key, hint) for key, hint in hints_of(bench, example, 0).items()}
    single = [{key: bound} for key, found in bounds.items() for bound in found if bound is not None]
    least = {key: found[0] for key, found in bounds.items() if found[0] is not None}
    greatest = {key: found[1] for key, found in bounds.items() if found[1] is not None}
    found = list(together(bench))
    for turn, changed in enumerate([*single, least, greatest]):
        for i in range(len(bench.examples)):  # the next one of the examples that takes it
            other = bench.examples[(turn + i) % len(bench.examples)]
            edge = replace(other, options={**other.options, **changed})
            if changed and takes(bench, edge, 5000 + turn):
                found.append(edge)
                break
    return found


def together(bench: Bench) -> Iterator[Example]:
    """For some pairs of examples one with the options of both, where the modifier takes these."""
    known = [dict(example.options) for example in bench.examples]
    for one, other in list(permutations(bench.examples, 2))[:MOST_PAIRS]:
        both = replace(one, options={**one.options, **other.options})
        if both.options not in known and takes(bench, both, 6000 + len(known)):
            known.append(dict(both.options))
            yield both


def under_examples(bench: Bench) -> Iterator[Running]:
    """A new sequence of each example, at least three, and of each two that go together."""
    for number in range(max(3, len(bench.examples))):
        yield bench.start(number)
    for number, example in enumerate(together(Bench(bench.subject))):
        sequence = bench.begin(bench.request(example, 30 + number), slot=number)
        sequence.example = example
        yield sequence


def _bounds(bench: Bench, example: Example, key: str, hint: Any) -> tuple[Any, Any]:
    """The least and the greatest number that the option `key` may be; None where there is no such border."""
    kind = _kind(hint)
    if kind is None:
        return None, None

    def taken(value: Any) -> bool:
        return takes(bench, replace(example, options={**example.options, key: value}), 7000)

    numbers = WHOLE if kind is int else REAL
    ladder = [*(-number for number in numbers[:0:-1]), *numbers]
    good = [i for i, number in enumerate(ladder) if taken(number)]
    if not good:
        return None, None
    first, last = good[0], good[-1]
    # without a border any number is taken, and how large a sensible one is nobody knows
    least = _border(taken, ladder[first], ladder[first - 1]) if first else None
    greatest = _border(taken, ladder[last], ladder[last + 1]) if last + 1 < len(ladder) else None
    return least, greatest


def _kind(hint: Any) -> type | None:
    """int or float, if that is what `hint` says, or one of what it says."""
    if get_origin(hint) is Annotated:
        return _kind(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return next((kind for member in get_args(hint) if (kind := _kind(member)) is not None), None)
    return hint if hint in (int, float) else None


def _border(taken: Callable[[Any], bool], good: Any, bad: Any) -> Any:
    """The number nearest to `bad` that is taken, between `good`, which is, and `bad`, which is not; a round one where
    there is one."""
    whole = isinstance(good, int)
    for _ in range(64 if whole else HALVINGS):
        middle = (good + bad) // 2 if whole else (good + bad) / 2
        if middle in (good, bad):
            break
        good, bad = (middle, bad) if taken(middle) else (good, middle)
    if whole:
        return good
    round_ones = [float(f"{bad:.{digits}g}") for digits in (1, 2, 3, 4)]
    return next((number for number in round_ones if taken(number)), good)
