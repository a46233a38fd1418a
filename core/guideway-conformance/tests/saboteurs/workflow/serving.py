"""Workflows with one bug in what they serve."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    GuidewayError,
    InputProcessor,
    InvalidRequest,
    ModelFolder,
    Prepared,
    RequestProcessor,
    StepBuilder,
    Task,
    WorkflowContext,
)

from saboteurs import saboteur
from saboteurs.workflow.base import Bytes, Correct, Results, Sum, Sums, Texts, with_part

__all__: list[str] = []


class Forgetful(Results):
    def results(self, work: Sequence[Prepared], output: Any) -> list[Any]:
        return super().results(work, output)[1:]


@saboteur("workflow.serves")
class GivesTooFew(Correct):
    """Gives a result too few."""

    parts = with_part("output_processor", Forgetful)


@saboteur("workflow.supports_says_why")
class ReadsALengthThatIsNotThere(Correct):
    """Takes it that a model of a type it knows says how long it is."""

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config.get("model_type") == "bert" else "it takes bert"

    @classmethod
    def max_length(cls, model: ModelFolder) -> int:
        return int(model.config["max_position_embeddings"])


@saboteur("workflow.supports_says_why")
class ReadsWhatIsNotThere(Correct):
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
class MeasuresNumbers(Correct):
    """Asks for the length of what has none."""

    parts = with_part("input_processor", TakesLengths)


class AllOrNothing(Bytes):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        errors = [each for each in found if isinstance(each, GuidewayError)]
        return [errors[0]] * len(tasks) if errors else found


@saboteur("workflow.a_wrong_request_is_wrong_alone")
class RefusesABatch(Correct):
    """Refuses all that is prepared beside something wrong."""

    parts = with_part("request_processor", AllOrNothing)


class SlowTexts(Texts):
    def check(self, task: Task) -> None:
        self.value = task.value
        time.sleep(0)  # it writes a line into its log
        if not isinstance(self.value, str) or not self.value.isascii():
            raise InvalidRequest("it takes text", field="input")
        self.check_params(task)


@saboteur("workflow.checks_in_several_threads")
class ChecksOneAtATime(Correct):
    """Keeps the input that it looks at where the next one is kept too."""

    parts = with_part("input_processor", SlowTexts)


class Endless(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        return Prepared(task=task, token_ids=np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64))


@saboteur("workflow.a_wrong_request_is_wrong_alone")
class TakesAnyLength(Correct):
    """Prepares more tokens than the context has."""

    parts = with_part("request_processor", Endless)


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
class TakesATokenTooMany(Correct):
    """Takes the size of the vocabulary for its last token."""

    parts: ClassVar[Mapping[str, str]] = {
        **with_part("input_processor", Ids),
        "request_processor": f"{__name__}:AsGiven",
    }

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config.get("model_type") == "bert" else "it takes bert"


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
class PadsWhileItTokenizes(Correct):
    """Pads each text to the longest beside it."""

    parts = with_part("request_processor", Padding)


class Caching(Bytes):
    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.kept: dict[str, Any] = {}

    def one(self, task: Task) -> Prepared | GuidewayError:
        ids = self.kept.setdefault(task.value[:16], np.frombuffer(task.value.encode(), np.uint8).astype(np.int64))
        return Prepared(task=task, token_ids=ids)


@saboteur("workflow.tokens_are_their_own")
class KnowsTextsByTheirBeginning(Correct):
    """Keeps the tokens of texts by their first characters."""

    parts = with_part("request_processor", Caching)


class InPlace(Sums):
    def execute(self, step: Any) -> Any:
        for ids in step:
            ids //= 2
        return super().execute(step)


@saboteur("workflow.steps_stay_as_they_are")
class HalvesInPlace(Correct):
    """Writes to the arrays of a step."""

    parts = with_part("runner", InPlace)


class Means(Sums):
    def execute(self, step: Any) -> Any:
        found = super().execute(step)
        return found - found.mean() if len(found) > 1 else found


@saboteur("workflow.company_changes_nothing")
class CentersItsBatch(Correct):
    """Subtracts the mean of those that happen to be computed together."""

    parts = with_part("runner", Means)


class Strict(Results):
    def failed(self, task: Task, error: GuidewayError) -> Any:
        return Sum(error=GuidewayError(f"{task.value[:10]}: {error}"))


@saboteur("workflow.what_failed_has_a_result")
class SaysItInItsOwnWords(Correct):
    """Takes the value of a task that failed for a text, and makes an error of its own."""

    parts = with_part("output_processor", Strict)


class ClosesAll(Sums):
    shared: ClassVar[list[float]] = [0.5]

    def execute(self, step: Any) -> Any:
        self.weight = self.shared[0]
        return super().execute(step)

    def close(self) -> None:
        if hasattr(self, "weight"):
            self.shared.clear()


@saboteur("workflow.closes")
class ClosesWhatAllShare(Correct):
    """Lets go of what all instances share."""

    parts = with_part("runner", ClosesAll)


class OneBuffer(StepBuilder):
    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.buffer = np.zeros(0, dtype=np.int64)

    def build(self, work: Sequence[Prepared]) -> Any:
        ids = np.concatenate([request.token_ids for request in work])
        if len(ids) > len(self.buffer):
            self.buffer = np.zeros(len(ids), dtype=np.int64)
        self.buffer[: len(ids)] = ids
        return np.split(self.buffer[: len(ids)], np.cumsum([request.num_tokens for request in work])[:-1])


@saboteur("workflow.steps_may_overlap")
class BuildsInOneBuffer(Correct):
    """Builds each step where the one before it stands."""

    parts = with_part("step_builder", OneBuffer)


class JoinsTexts(Texts):
    def check(self, task: Task) -> None:
        value = task.value
        if not isinstance(value, tuple) or not all(isinstance(text, str) and text.isascii() for text in value):
            raise InvalidRequest("it takes texts", field="input")
        self.check_params(task)


class KnowsTheJoined(Bytes):
    def __init__(self, context: WorkflowContext) -> None:
        super().__init__(context)
        self.known: dict[str, list[int]] = {}

    def one(self, task: Task) -> Prepared | GuidewayError:
        ids = self.known.setdefault("".join(task.value), [ord(char) for text in task.value for char in (*text, "|")])
        return Prepared(task=task, token_ids=np.array(ids, dtype=np.int64))


@saboteur("workflow.tokens_are_their_own")
class KnowsTextsByWhatTheyAreTogether(Correct):
    """Keeps the tokens of several texts under the text that they are together."""

    parts: ClassVar[Mapping[str, str]] = {
        **with_part("request_processor", KnowsTheJoined),
        "input_processor": f"{__name__}:JoinsTexts",
    }


class OneTaskAtATime(Texts):
    def check(self, task: Task) -> None:
        self.task = task
        if not isinstance(task.value, str) or not task.value.isascii():
            raise InvalidRequest("it takes text", field="input")
        time.sleep(0.0001)  # it looks something up
        self.check_params(self.task)


@saboteur("workflow.checks_in_several_threads")
class ChecksTheParametersOfAnother(Correct):
    """Keeps the task it looks at where the next one is kept too, and reads the parameters there."""

    parts = with_part("input_processor", OneTaskAtATime)
