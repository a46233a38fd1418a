"""Workflows with one bug each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    GuidewayError,
    InputProcessor,
    InvalidRequest,
    LimitExceeded,
    ModelFolder,
    OutputProcessor,
    Prepared,
    RequestProcessor,
    StepBuilder,
    Task,
    Workflow,
    WorkflowContext,
    WorkflowRunner,
    WorkScheduler,
)
from tokenizers import Tokenizer

from saboteurs import saboteur

__all__: list[str] = []


class Texts(InputProcessor):
    """Takes text alone."""

    def check(self, task: Task) -> None:
        if not isinstance(task.value, str) or not task.value.isascii():
            raise InvalidRequest("it takes text", field="input")


class Bytes(RequestProcessor):
    """A token for each character."""

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        return [self.one(task) for task in tasks]

    def one(self, task: Task) -> Prepared | GuidewayError:
        if len(task.value) > self.context.max_model_len:
            return LimitExceeded("too long", field="input")
        return Prepared(task=task, token_ids=np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64))


class InOrder(WorkScheduler):
    """First come, first served, seven at a time."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.waiting: list[Task] = []
        self.preparing: list[Task] = []
        self.ready: list[Prepared] = []

    def add(self, task: Task) -> None:
        self.waiting.append(task)

    def upcoming(self) -> list[Task]:
        found, self.waiting = self.waiting[:7], self.waiting[7:]
        self.preparing += found
        return found

    def prepared(self, request: Prepared) -> None:
        if request.task in self.preparing:
            self.preparing.remove(request.task)
            self.ready.append(request)

    def abort(self, task: Task) -> None:
        self.waiting = [each for each in self.waiting if each is not task]
        self.preparing = [each for each in self.preparing if each is not task]
        self.ready = [each for each in self.ready if each.task is not task]

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        work, self.ready = self.ready[:7], self.ready[7:]
        return work or None

    def finished(self, work: Sequence[Prepared]) -> None:
        pass

    def window(self) -> int:
        return 14


class Lists(StepBuilder):
    """The ids of each."""

    def build(self, work: Sequence[Prepared]) -> Any:
        return [request.token_ids for request in work]


class Sums(WorkflowRunner):
    """The sum of each."""

    def load(self) -> None:
        self.weight = 0.5

    def execute(self, step: Any) -> Any:
        return np.array([self.weight * ids.sum() for ids in step])


@dataclass(frozen=True)
class Sum:
    """A result."""

    value: float = 0.0
    error: GuidewayError | None = None


class Results(OutputProcessor):
    """A number of each."""

    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return [Sum(float(value)) for value in output]

    def failed(self, task: Task, error: GuidewayError) -> Any:
        return Sum(error=error)


CORRECT: Mapping[str, str] = {
    "input_processor": f"{__name__}:Texts",
    "request_processor": f"{__name__}:Bytes",
    "scheduler": f"{__name__}:InOrder",
    "step_builder": f"{__name__}:Lists",
    "runner": f"{__name__}:Sums",
    "output_processor": f"{__name__}:Results",
}


class _Correct(Workflow):
    """Sums, with the parts in which the others differ from it."""

    contract = "1.0"
    name = "sums"
    tasks = ("sum",)
    parts: ClassVar[Mapping[str, str]] = CORRECT

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:  # noqa: ARG003
        return None

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:  # noqa: ARG003
        return 32


class SumsWell(_Correct):
    """Breaks no rule."""


def _with(part: str, cls: str) -> Mapping[str, str]:
    return {**CORRECT, part: f"{__name__}:{cls}"}


def _preparing(cls: str) -> Mapping[str, str]:
    """The parts of one that takes any text."""
    return {**_with("request_processor", cls), "input_processor": f"{__name__}:Anything"}


class Forgetful(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return super().results(work, output)[1:]


@saboteur("workflow.serves")
class GivesTooFew(_Correct):
    """Gives a result too few."""

    parts = _with("output_processor", "Forgetful")


@saboteur("workflow.supports_says_why")
class ReadsWhatIsNotThere(_Correct):
    """Takes every model's file for complete."""

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config["model_type"] == "conformance" else "another type"


class TakesLengths(Texts):
    def check(self, task: Task) -> None:
        if len(task.value) > 1000 or not isinstance(task.value, str) or not task.value.isascii():
            raise InvalidRequest("it takes text", field="input")


@saboteur("workflow.passes_or_refuses")
class MeasuresNumbers(_Correct):
    """Asks for the length of what has none."""

    parts = _with("input_processor", "TakesLengths")


class AllOrNothing(Bytes):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        errors = [each for each in found if isinstance(each, GuidewayError)]
        return [errors[0]] * len(tasks) if errors else found


@saboteur("workflow.a_wrong_request_is_wrong_alone")
class RefusesABatch(_Correct):
    """Refuses all that is prepared beside something wrong."""

    parts = _with("request_processor", "AllOrNothing")


class Endless(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        return Prepared(task=task, token_ids=np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64))


@saboteur("workflow.a_wrong_request_is_wrong_alone")
class TakesAnyLength(_Correct):
    """Prepares more tokens than the context has."""

    parts = _with("request_processor", "Endless")


class Anything(Texts):
    """Takes text with half characters, too."""

    def check(self, task: Task) -> None:
        if not isinstance(task.value, str):
            raise InvalidRequest("it takes text", field="input")


class Guarded(Bytes):
    """Gives a text that has no bytes its error."""

    def one(self, task: Task) -> Prepared | GuidewayError:
        try:
            return super().one(task)
        except UnicodeEncodeError as error:
            return InvalidRequest(f"the text has half a character: {error}", field="input")


def _has_no_bytes(outcome: Prepared | GuidewayError) -> bool:
    return isinstance(outcome, InvalidRequest) and not isinstance(outcome, LimitExceeded)


class SumsAnything(_Correct):
    """Breaks no rule, and leaves it to its request processor to find out what has no tokens."""

    parts = _preparing("Guarded")


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class RaisesForABatch(_Correct):
    """Raises at a text that has no bytes."""

    parts = _preparing("Bytes")


class Halting(Guarded):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        wrong = next((i for i, each in enumerate(found) if _has_no_bytes(each)), len(found))
        return [*found[: wrong + 1], *(GuidewayError("not reached") for _ in found[wrong + 1 :])]


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class DropsWhatComesAfter(_Correct):
    """Prepares nothing after the first text that has no bytes."""

    parts = _preparing("Halting")


class Omitting(Guarded):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        return [each for each in found if not _has_no_bytes(each)] or found


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class LeavesItOut(_Correct):
    """Returns nothing of a text that has no bytes, where there are others."""

    parts = _preparing("Omitting")


class Sorting(Guarded):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        return sorted(super().prepare(tasks), key=_has_no_bytes)


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class PutsErrorsLast(_Correct):
    """Returns the errors of a batch after its requests."""

    parts = _preparing("Sorting")


class Swallowing(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        ids = np.frombuffer(task.value.encode(errors="ignore"), dtype=np.uint8).astype(np.int64)
        if len(ids) > self.context.max_model_len:
            return LimitExceeded("too long", field="input")
        return Prepared(task=task, token_ids=ids)


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class AnswersNothing(_Correct):
    """Answers a text that has no bytes as if it were empty."""

    parts = _preparing("Swallowing")


class Wordless(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        try:
            return super().one(task)
        except UnicodeEncodeError:
            return InvalidRequest("", field="input")


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class DoesNotSayWhy(_Correct):
    """Has no word for a text that has no bytes."""

    parts = _preparing("Wordless")


class Resentful(Guarded):
    failed = False

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        if self.failed and len(tasks) > 1 and all(isinstance(each, Prepared) for each in found):
            found = [GuidewayError("the tokenizer is broken") for _ in found]
        self.failed = any(map(_has_no_bytes, found))
        return found


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class FailsTheNextBatch(_Correct):
    """Fails the batch that follows one with an error."""

    parts = _preparing("Resentful")


class Words(RequestProcessor):
    """Tokenizes in one call."""

    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.tokenizer = Tokenizer.from_file(str(context.model.path / "tokenizer.json"))

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = self.tokenizer.encode_batch([task.value for task in tasks])
        return [
            Prepared(task=task, token_ids=np.array(each.ids))
            if len(each) <= self.context.max_model_len
            else LimitExceeded("too long", field="input")
            for task, each in zip(tasks, found, strict=True)
        ]


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class TokenizesTogether(_Correct):
    """Takes it that a tokenizer has a token for every word."""

    parts = _with("request_processor", "Words")

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config.get("model_type") == "bert" else "it takes bert"


class Cutting(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        ids = np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64)
        return Prepared(task=task, token_ids=ids[: self.context.max_model_len])


@saboteur("workflow.too_long_is_cut_or_refused")
class CutsInSilence(_Correct):
    """Cuts what is too long, and does not say so."""

    parts = _with("request_processor", "Cutting")


class Vague(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        found = super().one(task)
        return InvalidRequest("not so", field="input") if isinstance(found, GuidewayError) else found


@saboteur("workflow.too_long_is_cut_or_refused")
class RefusesWithoutANameForIt(_Correct):
    """Refuses what is too long as it refuses anything."""

    parts = _with("request_processor", "Vague")


class Awaiting(InOrder):
    awaited = 0

    def upcoming(self) -> list[Task]:
        found = super().upcoming() if not self.awaited else []
        self.awaited += len(found)
        return found

    def prepared(self, request: Prepared) -> None:
        self.awaited -= 1
        super().prepared(request)


@saboteur("workflow.failed_tasks_hold_nothing_up")
class AwaitsWhatFailed(_Correct):
    """Hands out no more tasks until each of the last ones came to a request."""

    parts = _with("scheduler", "Awaiting")


class Padding(Bytes):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        longest = max((each.num_tokens for each in found if isinstance(each, Prepared)), default=0)
        return [
            Prepared(task=each.task, token_ids=np.pad(each.token_ids, (0, longest - each.num_tokens)))
            if isinstance(each, Prepared)
            else each
            for each in found
        ]


@saboteur("workflow.tokens_are_their_own")
class PadsWhileItTokenizes(_Correct):
    """Pads each text to the longest beside it."""

    parts = _with("request_processor", "Padding")


class InPlace(Sums):
    def execute(self, step: Any) -> Any:
        for ids in step:
            ids //= 2
        return super().execute(step)


@saboteur("workflow.steps_stay_as_they_are")
class HalvesInPlace(_Correct):
    """Writes to the arrays of a step."""

    parts = _with("runner", "InPlace")


class Means(Sums):
    def execute(self, step: Any) -> Any:
        found = super().execute(step)
        return found - found.mean() if len(found) > 1 else found


@saboteur("workflow.company_changes_nothing")
class CentersItsBatch(_Correct):
    """Subtracts the mean of those that happen to be computed together."""

    parts = _with("runner", "Means")


class Strict(Results):
    def failed(self, task: Task, error: GuidewayError) -> Any:
        return Sum(error=GuidewayError(f"{task.value[:10]}: {error}"))


@saboteur("workflow.what_failed_has_a_result")
class SaysItInItsOwnWords(_Correct):
    """Takes the value of a task that failed for a text, and makes an error of its own."""

    parts = _with("output_processor", "Strict")


class ClosesAll(Sums):
    shared: ClassVar[list[float]] = [0.5]

    def execute(self, step: Any) -> Any:
        self.weight = self.shared[0]
        return super().execute(step)

    def close(self) -> None:
        if hasattr(self, "weight"):
            self.shared.clear()


@saboteur("workflow.closes")
class ClosesWhatAllShare(_Correct):
    """Lets go of what all instances share."""

    parts = _with("runner", "ClosesAll")


class Repeating(InOrder):
    def upcoming(self) -> list[Task]:
        if self.waiting and len(self.waiting) <= 7 and not hasattr(self, "once"):
            self.once = True
            self.preparing += self.waiting
            return list(self.waiting)
        return super().upcoming()


@saboteur("workflow.each_has_its_turn_once")
class HandsOutTheLastTwice(_Correct):
    """Hands the last tasks out twice."""

    parts = _with("scheduler", "Repeating")


class Unforgetting(InOrder):
    def abort(self, task: Task) -> None:
        self.waiting = [each for each in self.waiting if each is not task]
        self.ready = [each for each in self.ready if each.task is not task]


@saboteur("workflow.aborted_tasks_are_gone")
class ForgetsNotWhatIsTokenized(_Correct):
    """Keeps a task that is aborted while it is prepared."""

    parts = _with("scheduler", "Unforgetting")


class Counting(InOrder):
    count = 0

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        Counting.count += 1
        size = 3 + Counting.count % 5
        work, self.ready = self.ready[:size], self.ready[size:]
        return work or None


@saboteur("workflow.order_settles_steps")
class GoesByTheClock(_Correct):
    """Makes steps of a size that something else than the tasks decides."""

    parts = _with("scheduler", "Counting")
