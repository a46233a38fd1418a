"""The options that an operator may give a mixin, alone and several at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from itertools import combinations, islice, product
from typing import Any, Literal, get_args, get_origin

from guideway.api.options import fits, short_repr

from guideway_conformance.hints import hints_read
from guideway_conformance.subjects import CannotRunHere, NotPerformed
from guideway_conformance.worker.subject import WorkerSubject

__all__ = [
    "Options",
    "combined",
    "numbers_of_modules",
    "one_at_a_time",
    "said",
    "under_many_options",
    "under_other_options",
]

Options = Mapping[str, Any]

VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, 2, 3, 8, 64, -1, 0.5, 1.0, 2.5, 1e9, math.inf, math.nan),
    *("", "a", "Linear", "lm_head"),
    *([], ["lm_head"], ["a", "b"], [1, 2], {}, {"a": 1}, {"a": "b"}, b"a", object),
)
MOST = 12
"""The values of an option with which a mixin is put to work."""
MOST_TOGETHER = 20_000
"""The combinations among which those are looked for that have every two values together."""
WAYS = 3
"""The combinations of options with which a check is made again."""
FEW = (1, 2)
"""Counts of a few: what happens only so many times is seen."""
BEYOND = 2
"""The numbers behind that of the last module of a model which are named, and those before the first."""


def one_at_a_time(subject: WorkerSubject) -> Iterator[Options]:
    """The options with other values, right and wrong, of each that the mixin has."""
    for name, hint in _hints(subject).items():
        args = get_args(hint) if get_origin(hint) is Literal else ()
        taken = 0
        for value in (*args, *VALUES):
            taken += fits(value, hint)
            if taken <= MOST or not fits(value, hint):
                yield {**subject.settings.options, name: value}


def combined(subject: WorkerSubject, most: int) -> list[Options]:
    """At most so many options with several values that the mixin takes, together: every two of them are in some."""
    usual = subject.settings.options
    choices = {name: _choices(subject, name, hint) for name, hint in _hints(subject).items()}
    names = [name for name, values in choices.items() if len(values) > 1]
    every = product(*(range(len(choices[name])) for name in names))
    rows = [row for row in islice(every, MOST_TOGETHER) if any(row)]
    left = {
        (a, x, b, y)
        for a, b in combinations(range(len(names)), 2)
        for x, y in product(range(len(choices[names[a]])), range(len(choices[names[b]])))
    }
    found: list[Options] = []
    while rows and len(found) < most and (left or not found):
        row = max(rows, key=lambda row: (len(left & _pairs(row)), sum(map(bool, row))))
        rows.remove(row)
        left -= _pairs(row)
        found.append({**usual, **{name: choices[name][i] for name, i in zip(names, row, strict=True) if i}})
    return found


def numbers_of_modules(subject: WorkerSubject) -> Iterator[Options]:
    """The options with each number that one of the model's modules may have, alone and in a list, in each option that
    takes one, and with some that none has."""
    last = sum(1 for _ in subject.worker().model.modules())
    for name, hint in _hints(subject).items():
        if fits("a", hint) or fits(["a"], hint):
            continue  # it takes anything
        for number in (*range(-BEYOND, last + BEYOND), 10**6):
            for value in (number, [number], [0, number]):
                if fits(value, hint):
                    yield {**subject.settings.options, name: value}


def said(subject: WorkerSubject, options: Options) -> str:
    """The differences of `options` from the usual ones."""
    usual = subject.settings.options
    return ", ".join(f"{name} = {short_repr(value)}" for name, value in options.items() if name not in usual)


def under_other_options(function: Callable[[WorkerSubject], None]) -> Callable[[WorkerSubject], None]:
    """`function`, carried out again with several options that the mixin takes together, and with which it starts."""
    return _again(function, few=False)


def under_many_options(function: Callable[[WorkerSubject], None]) -> Callable[[WorkerSubject], None]:
    """The same, and once more with a few in each option that is a count."""
    return _again(function, few=True)


def _again(function: Callable[[WorkerSubject], None], *, few: bool) -> Callable[[WorkerSubject], None]:
    @wraps(function)
    def each(subject: WorkerSubject) -> None:
        function(subject)
        for options in (*combined(subject, WAYS), *(_of_a_few(subject) if few else ())):
            other = WorkerSubject(subject.component, replace(subject.settings, options=options))
            if not _starts(other):
                continue
            what = f"with {said(subject, options) or short_repr(options)}"
            try:
                function(other)
            except (CannotRunHere, NotPerformed):
                continue
            except AssertionError as error:
                raise AssertionError(f"{what}, {error}") from error
            except Exception as error:
                raise AssertionError(f"{what} it raised {error!r}") from error

    return each


def _of_a_few(subject: WorkerSubject) -> Iterator[Options]:
    """The options with a few in each that takes whole numbers alone, one at a time."""
    for name, hint in _hints(subject).items():
        for value in FEW:
            if fits(value, hint) and not fits(0.5, hint) and _takes(subject, name, value):
                yield {**subject.settings.options, name: value}


def _hints(subject: WorkerSubject) -> dict[str, Any]:
    with hints_read() as hints:
        subject.mixin()
    return hints


def _choices(subject: WorkerSubject, name: str, hint: Any) -> Sequence[Any]:
    """Values of an option: the one that it has, in whose place stands None, and others that it takes, of numbers the
    smallest and the largest."""
    args = get_args(hint) if get_origin(hint) is Literal else ()
    taken = [value for value in (*args, *VALUES) if fits(value, hint) and _takes(subject, name, value)]
    numbers = sorted(value for value in taken if type(value) in (int, float) and math.isfinite(value))
    others = [value for value in taken if type(value) not in (int, float) and value is not None]
    return [None, *dict.fromkeys((*numbers[:1], *numbers[-1:])), *others[:2]]


def _takes(subject: WorkerSubject, name: str, value: Any) -> bool:
    try:
        subject.mixin({**subject.settings.options, name: value})
    except Exception:  # of what kind, `takes_or_refuses_its_options` asks
        return False
    return True


def _starts(subject: WorkerSubject) -> bool:
    """Return whether an engine starts with these options; why not, `takes_or_refuses_its_options` asks."""
    try:
        mixin = subject.mixin()
        mixin.on_model_loaded(subject.worker())
        mixin.close()
    except Exception:
        return False
    return True


def _pairs(row: tuple[int, ...]) -> set[tuple[int, int, int, int]]:
    return {(a, row[a], b, row[b]) for a, b in combinations(range(len(row)), 2)}
