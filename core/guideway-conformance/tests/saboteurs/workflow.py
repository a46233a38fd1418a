"""Workflows with one bug each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
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
    """Takes text alone, and whether to double what comes of it."""

    def check(self, task: Task) -> None:
        if not isinstance(task.value, str) or not task.value.isascii():
            raise InvalidRequest("it takes text", field="input")
        self.check_params(task)

    def check_params(self, task: Task) -> None:
        for name, value in task.params.items():
            if name != "double" or not isinstance(value, bool):
                raise InvalidRequest("it takes double, which is true or false", field=str(name))


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
        if more and len(self.ready) < 7:
            return None
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
        return [
            Sum(float(value) * (2 if request.task.params.get("double") else 1))
            for request, value in zip(work, output, strict=True)
        ]

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
class ReadsALengthThatIsNotThere(_Correct):
    """Takes it that a model of a type it knows says how long it is."""

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config.get("model_type") == "bert" else "it takes bert"

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        return int(model.config["max_position_embeddings"])


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
        self.check_params(task)


@saboteur("workflow.passes_or_refuses")
class MeasuresNumbers(_Correct):
    """Asks for the length of what has none."""

    parts = _with("input_processor", "TakesLengths")


class Lenient(Texts):
    def check_params(self, task: Task) -> None:
        if not isinstance(task.params.get("double", False), bool):
            raise InvalidRequest("double is true or false", field="double")


@saboteur("workflow.what_it_does_not_know_is_refused")
class IgnoresTheRest(_Correct):
    """Looks at the parameter that it knows, and at no other."""

    parts = _with("input_processor", "Lenient")


class Hashing(Texts):
    def check_params(self, task: Task) -> None:
        for name, value in task.params.items():
            if name != "double" or value not in {False, True}:
                raise InvalidRequest("it takes double, which is true or false", field=str(name))


@saboteur("workflow.any_value_is_served_or_refused")
class TakesValuesForHashable(_Correct):
    """Looks a value up in a set."""

    parts = _with("input_processor", "Hashing")


class Untyped(Texts):
    def check_params(self, task: Task) -> None:
        if set(task.params) - {"double"}:
            raise InvalidRequest("it takes double", field="params")


class Multiplying(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        factors = [1 + int(request.task.params.get("double") or 0) for request in work]
        return [Sum(float(value) * factor) for value, factor in zip(output, factors, strict=True)]


@saboteur("workflow.any_value_is_served_or_refused")
class FailsOverTheResults(_Correct):
    """Finds out that a value is no number when it makes the results."""

    parts: ClassVar[Mapping[str, str]] = {
        **_with("input_processor", "Untyped"),
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
class GoesOnDoubling(_Correct):
    """Takes what one request said for what the next one would say."""

    parts = _with("output_processor", "Sticking")


class AllOrNothing(Bytes):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        errors = [each for each in found if isinstance(each, GuidewayError)]
        return [errors[0]] * len(tasks) if errors else found


@saboteur("workflow.a_wrong_request_is_wrong_alone")
class RefusesABatch(_Correct):
    """Refuses all that is prepared beside something wrong."""

    parts = _with("request_processor", "AllOrNothing")


class SlowTexts(Texts):
    def check(self, task: Task) -> None:
        self.value = task.value
        time.sleep(0)  # it writes a line into its log
        if not isinstance(self.value, str) or not self.value.isascii():
            raise InvalidRequest("it takes text", field="input")
        self.check_params(task)


@saboteur("workflow.checks_in_several_threads")
class ChecksOneAtATime(_Correct):
    """Keeps the input that it looks at where the next one is kept too."""

    parts = _with("input_processor", "SlowTexts")


class Endless(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        return Prepared(task=task, token_ids=np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64))


@saboteur("workflow.a_wrong_request_is_wrong_alone")
class TakesAnyLength(_Correct):
    """Prepares more tokens than the context has."""

    parts = _with("request_processor", "Endless")


class Ids(InputProcessor):
    def check(self, task: Task) -> None:
        size = self.context.model.config["vocab_size"]
        ids = [1] if task.value in ("w1", "w1 w9") else task.value
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i <= size for i in ids):
            raise InvalidRequest("it takes token ids and two words", field="input")
        if task.params:
            raise InvalidRequest("it has no parameters", field="params")


class AsGiven(RequestProcessor):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        values = [[1] if isinstance(task.value, str) else task.value for task in tasks]
        return [
            Prepared(task=task, token_ids=np.array(ids, dtype=np.int64))
            for task, ids in zip(tasks, values, strict=True)
        ]


@saboteur("workflow.a_wrong_request_is_wrong_alone")
class TakesATokenTooMany(_Correct):
    """Takes the size of the vocabulary for its last token."""

    parts: ClassVar[Mapping[str, str]] = {
        **_with("input_processor", "Ids"),
        "request_processor": f"{__name__}:AsGiven",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config.get("model_type") == "bert" else "it takes bert"


class Anything(Texts):
    """Takes text with half characters, too."""

    def check(self, task: Task) -> None:
        if not isinstance(task.value, str):
            raise InvalidRequest("it takes text", field="input")
        self.check_params(task)


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


class Overcautious(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        ids = np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64)
        most = self.context.max_model_len
        return Prepared(task=task, token_ids=ids[:most], truncated=len(ids) >= most)


@saboteur("workflow.too_long_is_cut_or_refused")
class SaysThatItCutsWhatFits(_Correct):
    """Says that it cut a text that fits exactly."""

    parts = _with("request_processor", "Overcautious")


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


class Caching(Bytes):
    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.kept: dict[str, Any] = {}

    def one(self, task: Task) -> Prepared | GuidewayError:
        ids = self.kept.setdefault(task.value[:16], np.frombuffer(task.value.encode(), np.uint8).astype(np.int64))
        return Prepared(task=task, token_ids=ids)


@saboteur("workflow.tokens_are_their_own")
class KnowsTextsByTheirBeginning(_Correct):
    """Keeps the tokens of texts by their first characters."""

    parts = _with("request_processor", "Caching")


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


class LoadsForAll(Sums):
    loaded: ClassVar[list[float]] = []

    def load(self) -> None:
        seed = int(self.context.model.path.name == "other")
        self.loaded[:] = [0.5 + seed]

    def execute(self, step: Any) -> Any:
        return np.array([self.loaded[0] * ids.sum() for ids in step])


@saboteur("workflow.each_runner_has_its_model")
class KeepsOneModel(_Correct):
    """Keeps the model on the class, so that the last one loaded serves all."""

    parts: ClassVar[Mapping[str, str]] = {
        **_with("runner", "LoadsForAll"),
        "request_processor": f"{__name__}:Words",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config.get("model_type") == "bert" else "it takes bert"


class AsItLies(Sums):
    def load(self) -> None:
        super().load()
        self.model = torch.nn.Linear(2, 2)


@saboteur("workflow.weights_are_as_the_context_says")
class LoadsAsItLies(_Correct):
    """Loads weights of the type in which they happen to be."""

    parts = _with("runner", "AsItLies")


class Raising(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        if not np.isfinite(output).all():
            raise GuidewayError("the model gave numbers that are not finite")
        return super().results(work, output)


@saboteur("workflow.what_is_not_finite_ends_alone")
class FailsAStep(_Correct):
    """Raises over all requests of a step if the numbers of one are not finite."""

    parts = _with("output_processor", "Raising")


class Filtering(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return [Sum(float(value)) for value in output if np.isfinite(value)]


@saboteur("workflow.what_is_not_finite_ends_alone")
class LeavesOutWhatIsNotFinite(_Correct):
    """Has no result in the place of a request whose number is not finite."""

    parts = _with("output_processor", "Filtering")


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


class Counted(InOrder):
    def prepared(self, request: Prepared) -> None:
        self.ready.append(request)

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        number = min(7, len(self.ready))
        work = [request for request in self.ready if request.task in self.preparing[:number]]
        self.ready, self.preparing = self.ready[len(work) :], self.preparing[len(work) :]
        return work or None


@saboteur("workflow.each_has_its_turn_once")
class TakesItThatAllCameInOrder(_Correct):
    """Takes as many off its list as it gave out, whichever these were."""

    parts = _with("scheduler", "Counted")


class Impatient(InOrder):
    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        return super().next(more=False)


@saboteur("workflow.a_step_that_is_not_full_waits")
class WaitsForNobody(_Correct):
    """Makes a step of what is there, though more is to come."""

    parts = _with("scheduler", "Impatient")


class Watching(InOrder):
    began: float | None = None

    def next(self, *, more: bool) -> Sequence[Prepared] | None:
        self.began = self.began or time.monotonic()
        return super().next(more=more and time.monotonic() - self.began < 0.5)


@saboteur("workflow.a_step_that_is_not_full_waits")
class WaitsHalfASecond(_Correct):
    """Waits for a full step, but not long."""

    parts = _with("scheduler", "Watching")


class HighFirst(InOrder):
    def upcoming(self) -> list[Task]:
        self.waiting.sort(key=lambda task: -task.priority)
        return super().upcoming()


@saboteur("workflow.the_urgent_are_not_overtaken")
class TakesHighForUrgent(_Correct):
    """Lets the higher priority go first."""

    parts = _with("scheduler", "HighFirst")


class Narrow(InOrder):
    def window(self) -> int:
        return 7


@saboteur("workflow.its_window_holds_several_steps")
class TakesOneStep(_Correct):
    """Takes no more from a caller than one step has."""

    parts = _with("scheduler", "Narrow")


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
