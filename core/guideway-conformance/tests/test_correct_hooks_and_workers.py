"""Correct plugins of unusual design, which must pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from guideway.api import (
    GenerationResult,
    InvalidConfiguration,
    InvalidRequest,
    Request,
    SequencesFailed,
    Submission,
    Worker,
    WorkerMixin,
    WorkerStep,
    hookimpl,
    parse_options,
)
from guideway_conformance.runner import run
from guideway_conformance.target import Target

from tests.support.stages import everyday


class RefusesEverything:
    @hookimpl
    def guideway_validate_request(self) -> None:
        raise InvalidRequest("this host is closed", field="tenant")


class RefusesWhatIsLong:
    @hookimpl
    def guideway_validate_submission(self, submission: Submission) -> None:
        if isinstance(submission.prompt, str) and len(submission.prompt) > 5:
            raise InvalidRequest("that is long", field="prompt")


class KeepsWhatRuns:
    """Keeps requests by request id, as an observer may."""

    def __init__(self) -> None:
        self.running: dict[str, Request] = {}

    @hookimpl
    def guideway_request_started(self, request: Request) -> None:
        assert request.request_id not in self.running
        self.running[request.request_id] = request

    @hookimpl
    def guideway_request_failed(self, request: Request, error: BaseException) -> None:
        assert self.running[request.request_id] is not None
        assert isinstance(error, BaseException)

    @hookimpl
    def guideway_request_finished(self, request: Request, result: GenerationResult) -> None:
        del self.running[result.request_id]


class OnlyHearsEnds:
    @hookimpl
    def guideway_request_finished(self, result: GenerationResult) -> None:
        assert all(completion.finish_reason.value for completion in result.outputs)


@dataclass(frozen=True)
class NoOptions:
    """There are none."""


class DoesNothing(WorkerMixin):
    name = "nothing"

    def __init__(self, options: Mapping[str, Any]) -> None:
        parse_options(NoOptions, options, where="worker.nothing")


class EndsEverything(WorkerMixin):
    """Ends the sequences of each step."""

    name = "ends_everything"

    def __init__(self, options: Mapping[str, Any]) -> None:
        if options:
            raise InvalidConfiguration("it has no options", field="worker.ends_everything")

    def before_step(self, step: WorkerStep) -> None:
        raise SequencesFailed("it is too much", sequence_ids=step.sequence_ids)


class Slotted(WorkerMixin):
    """Has no docstring for __init__, but a property, a static method and a method that takes arguments."""

    name = "slotted"
    limit = 3

    def __init__(self, options: Mapping[str, Any]) -> None:
        parse_options(NoOptions, options, where="worker.slotted")
        self.slotted_seen: list[int] = []
        self.slotted_model: Any = None

    def on_model_loaded(self, worker: Worker) -> None:
        self.slotted_model = worker.model
        self.slotted_place = (worker.device, worker.rank, worker.num_workers)

    def before_step(self, step: WorkerStep) -> None:
        self.slotted_seen = [*self.slotted_seen, step.num_rows][-self.limit :]

    def close(self) -> None:
        self.slotted_model = None

    @property
    def slotted_last(self) -> int:
        return self.slotted_seen[-1]

    @staticmethod
    def twice(value: int) -> int:
        return 2 * value

    def seen(self) -> tuple[int, ...]:
        return tuple(self.slotted_seen)


@pytest.mark.parametrize(
    "plugin",
    everyday(
        [RefusesEverything, RefusesWhatIsLong, KeepsWhatRuns, OnlyHearsEnds, DoesNothing, EndsEverything, Slotted],
        OnlyHearsEnds,
    ),
    ids=lambda plugin: plugin.__name__,
)
def test_is_certified(plugin: type) -> None:
    report = run(Target.of_class(plugin))
    assert [(r.obligation.check, r.detail) for r in report.results if r.outcome != "pass"] == []
    assert report.verdict == "certified"
