"""Workflows that read parameters otherwise than they may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from guideway.api import (
    InvalidRequest,
    Prepared,
    Task,
    WorkflowContext,
)

from saboteurs import saboteur
from saboteurs.workflow.base import Correct, Results, Sum, Texts, with_part

__all__: list[str] = []


class Lenient(Texts):
    def check_params(self, task: Task) -> None:
        if not isinstance(task.params.get("double", False), bool):
            raise InvalidRequest("double is true or false", field="double")


@saboteur("workflow.what_it_does_not_know_is_refused")
class IgnoresTheRest(Correct):
    """Looks at the parameter that it knows, and at no other."""

    parts = with_part("input_processor", Lenient)


class Hashing(Texts):
    def check_params(self, task: Task) -> None:
        for name, value in task.params.items():
            if name != "double" or value not in {False, True}:
                raise InvalidRequest("it takes double, which is true or false", field=str(name))


@saboteur("workflow.any_value_is_served_or_refused")
class TakesValuesForHashable(Correct):
    """Looks a value up in a set."""

    parts = with_part("input_processor", Hashing)


class Untyped(Texts):
    def check_params(self, task: Task) -> None:
        if set(task.params) - {"double"}:
            raise InvalidRequest("it takes double", field="params")


class Multiplying(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        factors = [1 + int(request.task.params.get("double") or 0) for request in work]
        return [Sum(float(value) * factor) for value, factor in zip(output, factors, strict=True)]


@saboteur("workflow.any_value_is_served_or_refused")
class FailsOverTheResults(Correct):
    """Finds out that a value is no number when it makes the results."""

    parts: ClassVar[Mapping[str, str]] = {
        **with_part("input_processor", Untyped),
        "output_processor": f"{__name__}:Multiplying",
    }


class Sticking(Results):
    double = False

    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        found = []
        for request, value in zip(work, output, strict=True):
            self.double = request.task.params.get("double", self.double)
            found.append(Sum(float(value) * (1 + self.double)))
        return found


@saboteur("workflow.any_value_is_served_or_refused")
class GoesOnDoubling(Correct):
    """Takes what one request said for what the next one would say."""

    parts = with_part("output_processor", Sticking)


class TakesAFloor(Texts):
    def check_params(self, task: Task) -> None:
        for name, value in task.params.items():
            if name == "floor" and isinstance(value, int | float) and 0 <= value <= 100:
                continue
            raise InvalidRequest("it takes a floor, from 0 to 100", field=str(name))


@saboteur("workflow.what_it_does_not_know_is_refused")
class IgnoresItsFloor(Correct):
    """Takes a parameter, and makes nothing of it."""

    parts = with_part("input_processor", TakesAFloor)


class TakesAnyFactor(Texts):
    def check_params(self, task: Task) -> None:
        for name, value in task.params.items():
            if name == "factor" and isinstance(value, int | float) and value > 0:
                continue
            raise InvalidRequest("it takes a factor above 0", field=str(name))


class Dividing(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return [
            Sum(float(value) / float(request.task.params.get("factor", 1)))
            for request, value in zip(work, output, strict=True)
        ]


@saboteur("workflow.any_value_is_served_or_refused")
class TakesWhatNoFloatHolds(Correct):
    """Takes whole numbers that are beyond the largest number of floating point."""

    parts: ClassVar[Mapping[str, str]] = {
        **with_part("input_processor", TakesAnyFactor),
        "output_processor": f"{__name__}:Dividing",
    }


class ComparesAnything(Texts):
    def check_params(self, task: Task) -> None:
        for name, value in task.params.items():
            if name != "double" or value not in (False, True):
                raise InvalidRequest("it takes double, which is true or false", field=str(name))


@saboteur("workflow.any_value_is_served_or_refused")
class ComparesAnArray(Correct):
    """Looks a value up in a tuple, which asks each of its own whether they are equal."""

    parts = with_part("input_processor", ComparesAnything)


class Remembering(Results):
    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.known: dict[bytes, Sum] = {}

    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return [
            self.known.setdefault(request.token_ids.tobytes(), found)
            for request, found in zip(work, super().results(work, output), strict=True)
        ]


@saboteur("workflow.any_value_is_served_or_refused")
class RemembersWithoutParameters(Correct):
    """Keeps what came of a text, and not with which parameters."""

    parts = with_part("output_processor", Remembering)
