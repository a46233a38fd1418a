"""Several workers in one process, and what a worker's object tells."""

from __future__ import annotations

import contextlib
import math
import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from guideway.api import SequencesFailed, UnsupportedCapability, WorkerMixin

from guideway_conformance.registry import check
from guideway_conformance.subjects import expect
from guideway_conformance.worker.subject import OneStep, OneWorker, WorkerSubject, blaming, without_arguments
from guideway_conformance.worker.ways import under_many_options, under_other_options

__all__: list[str] = []

STEPS_OF_EACH = (1, 2, 1, 3, 1)
"""The steps of worker after worker: a count of all grows by them."""
GOOD_AND_BAD = (1.0, math.nan, 1.0, 1.0, math.nan, 1.0, math.nan, math.nan, 1.0, math.nan, math.nan, math.nan)
"""The factors of what enters the first layer, in several steps."""
OF_ONE_WORKER = 31_415
"""The number of the first sequence that one worker alone has."""


@check("worker", seconds=60)
def workers_do_not_share_what_they_see(subject: WorkerSubject) -> None:
    """Each worker has an object of its own: closing one leaves another, and its model, as they were, and what one has
    seen no other tells."""
    first, second = subject.mixin(), subject.mixin()
    one, other = subject.worker(), subject.worker()
    first.on_model_loaded(one)
    second.on_model_loaded(other)
    step = OneStep(first=OF_ONE_WORKER)
    subject.step(first, one, step)
    first.close()
    subject.step(second, other)
    _expect_silence(second, step)
    second.close()
    early = subject.mixin()
    early.on_model_loaded(one)
    subject.step(early, one, step)
    late = subject.mixin()
    late.on_model_loaded(other)
    subject.step(late, other)
    _expect_silence(late, step)
    early.close()
    late.close()
    _expect_own_counts(subject)
    _expect_own_answers(subject)
    _expect_own_verdicts(subject)


@under_many_options
def _expect_own_verdicts(subject: WorkerSubject) -> None:
    """That what it says of sequences is not of those of the same names that another worker has, of which the numbers
    are bad where its own are good, or all of them."""
    usual = [_verdicts(subject, first) for first in (10_000, 10_100)]
    if usual[0] != usual[1]:
        return
    for first, whose in ((10_200, GOOD_AND_BAD[::-1]), (10_300, (math.nan,) * len(GOOD_AND_BAD))):
        beside = _verdicts(subject, first, whose)
        for i, (alone, found) in enumerate(zip(usual[0], beside, strict=True)):
            expect(
                alone == found,
                f"in step {i} it ended the sequences {[*alone]}, and beside another worker, whose sequences have the "
                f"same names, {[*found]}",
            )


def _verdicts(subject: WorkerSubject, first: int, others: Sequence[float] = ()) -> list[tuple[int, ...]]:
    """Return which sequences it names in each of several steps, counted from `first`. `others`: what enters the first
    layer of another worker in the step before each is multiplied by these."""
    mixin, worker = subject.mixin(), subject.worker(seed=1)
    neighbor, other = subject.mixin(), subject.worker(seed=1)
    mixin.on_model_loaded(worker)
    if others:
        neighbor.on_model_loaded(other)
    found: list[tuple[int, ...]] = []
    for i, factor in enumerate(GOOD_AND_BAD):
        step = OneStep(1 + i % 2, first=first + i % 3 // 2)
        if others:
            _named(subject, neighbor, other, step, others[i])
        found.append(
            tuple(int(re.findall(r"\d+", name)[0]) - first for name in _named(subject, mixin, worker, step, factor))
        )
    mixin.close()
    if others:
        neighbor.close()
    return found


def _named(
    subject: WorkerSubject, mixin: WorkerMixin, worker: OneWorker, step: OneStep, factor: float
) -> tuple[str, ...]:
    """The sequences that cannot go on, as it says in a step."""
    try:
        mixin.before_step(step)
        subject.forward(worker, step, factor=factor)
        mixin.after_step(step)
    except SequencesFailed as failed:
        return tuple(sorted(failed.sequence_ids))
    return ()


def _expect_own_counts(subject: WorkerSubject) -> None:
    """That no number counts the steps of all objects there are."""
    seen: list[dict[str, int]] = []
    for number in STEPS_OF_EACH:
        mixin, worker = subject.mixin(), subject.worker()
        mixin.on_model_loaded(worker)
        for _ in range(number):
            subject.step(mixin, worker)
        seen.append(_numbers(mixin))
        mixin.close()
    growth = [sum(STEPS_OF_EACH[1 : i + 1]) for i in range(len(STEPS_OF_EACH))]
    for place in seen[0]:
        found = [each.get(place, 0) - seen[0][place] for each in seen]
        shared = found[1] and [value * growth[1] for value in found] == [found[1] * steps for steps in growth]
        expect(not shared, f"{place} grew by the steps of each new worker's object in turn: it counts those of all")


def _expect_own_answers(subject: WorkerSubject) -> None:
    """That nothing it tells is other than usual beside a worker with a larger model, whose numbers are larger too, and
    which is always a step ahead."""
    for steps in (0, 2):
        alone = [_told(subject, steps) for _ in range(3)]
        beside = [_told(subject, steps, beside_another=True) for _ in range(2)]
        for place, value in alone[0].items():
            if all(each.get(place) == value for each in alone):  # no time of day, and the like
                others = {each.get(place) for each in beside}
                expect(value in others, f"{place} was {value}, and beside another worker with a larger model {others}")


def _told(subject: WorkerSubject, steps: int, *, beside_another: bool = False) -> dict[str, str]:
    """Return what a worker's object tells after some steps."""
    mixin, worker = subject.mixin(), subject.worker(seed=1)
    neighbor, other = subject.mixin(), subject.worker(width=128, seed=2)
    if beside_another:
        neighbor.on_model_loaded(other)
        _turn(subject, [(neighbor, other, OneStep(5, 999, 5, first=OF_ONE_WORKER), 1e3)])
    mixin.on_model_loaded(worker)
    for _ in range(steps):
        turns: list[tuple[WorkerMixin, OneWorker, OneStep, float]] = [(mixin, worker, OneStep(), 1.0)]
        if beside_another:
            turns.append((neighbor, other, OneStep(5, 999, 5, first=OF_ONE_WORKER), 1e3))
        _turn(subject, turns)
    found = _leaves(mixin)
    if beside_another:
        neighbor.close()
    mixin.close()
    return found


def _turn(subject: WorkerSubject, turns: Sequence[tuple[WorkerMixin, OneWorker, OneStep, float]]) -> None:
    """A step of each, all at once."""
    for mixin, _, step, _ in turns:
        with blaming(step):
            mixin.before_step(step)
    for _, worker, step, factor in turns:
        subject.forward(worker, step, factor=factor)
    for mixin, _, step, _ in reversed(turns):
        with blaming(step):
            mixin.after_step(step)


def _numbers(mixin: WorkerMixin) -> dict[str, int]:
    """The whole numbers in what its public methods return, by where they stand."""
    return {place: int(value) for place, value in _leaves(mixin).items() if value.isdecimal()}


def _leaves(mixin: WorkerMixin) -> dict[str, str]:
    """The values in what its public methods return, by where they stand."""
    found: dict[str, str] = {}

    def note(place: str, value: Any) -> None:
        if value is None or isinstance(value, int | float | str | bytes):
            found[place] = repr(value)
        elif isinstance(value, Mapping):
            for key, each in value.items():
                note(f"{place}[{key!r}]", each)
        elif isinstance(value, list | tuple):
            for i, each in enumerate(value):
                note(f"{place}[{i}]", each)

    for name, value in _answers(mixin):
        note(f"{name}()", value)
    return found


def _expect_silence(mixin: WorkerMixin, step: OneStep) -> None:
    """That `mixin` tells nothing of the sequences of `step`, which it has not seen."""
    for name, value in _answers(mixin):
        told = [known for known in step.sequence_ids if known in repr(value)]
        expect(not told, f"{name}() tells of {', '.join(told)}, which another worker's object saw")


@check("worker", tier="extended")
@under_other_options
def results_pickle(subject: WorkerSubject) -> None:
    """Results of its public methods pickle, because they go to another process, and hold no tensors, whose device that
    one may not have."""
    mixin, worker = subject.mixin(), subject.worker()
    mixin.on_model_loaded(worker)
    subject.step(mixin, worker)
    for name, value in _answers(mixin):
        try:
            pickle.loads(pickle.dumps(value))
        except Exception as error:
            kind = type(value).__name__
            raise AssertionError(f"what {name}() returned, a {kind}, does not pickle: {error}") from error
        expect(not _has_tensor(value), f"what {name}() returned holds a tensor; give numbers, or an array of NumPy")
    mixin.close()


def _has_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_tensor, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_tensor, value))
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage")


def _answers(mixin: WorkerMixin) -> Iterator[tuple[str, Any]]:
    """Yield what the public methods return that need no arguments: others need what only their author knows."""
    for name in without_arguments(mixin):
        with contextlib.suppress(UnsupportedCapability):
            yield name, getattr(mixin, name)()
