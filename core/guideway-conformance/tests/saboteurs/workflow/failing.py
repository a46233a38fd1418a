"""Workflows that fail over a request otherwise than they may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
from guideway.api import (
    GuidewayError,
    InvalidRequest,
    LimitExceeded,
    ModelFolder,
    Prepared,
    Task,
)

from saboteurs import saboteur
from saboteurs.workflow.base import Bytes, Correct, Guarded, Texts, Words, preparing, with_part

__all__: list[str] = []


def _has_no_bytes(outcome: Prepared | GuidewayError) -> bool:
    return isinstance(outcome, InvalidRequest) and not isinstance(outcome, LimitExceeded)


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class RaisesForABatch(Correct):
    """Raises at a text that has no bytes."""

    parts = preparing(Bytes)


class Halting(Guarded):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        wrong = next((i for i, each in enumerate(found) if _has_no_bytes(each)), len(found))
        return [*found[: wrong + 1], *(GuidewayError("not reached") for _ in found[wrong + 1 :])]


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class DropsWhatComesAfter(Correct):
    """Prepares nothing after the first text that has no bytes."""

    parts = preparing(Halting)


class Omitting(Guarded):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        return [each for each in found if not _has_no_bytes(each)] or found


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class LeavesItOut(Correct):
    """Returns nothing of a text that has no bytes, where there are others."""

    parts = preparing(Omitting)


class Sorting(Guarded):
    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        return sorted(super().prepare(tasks), key=_has_no_bytes)


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class PutsErrorsLast(Correct):
    """Returns the errors of a batch after its requests."""

    parts = preparing(Sorting)


class Swallowing(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        ids = np.frombuffer(task.value.encode(errors="ignore"), dtype=np.uint8).astype(np.int64)
        if len(ids) > self.context.max_model_len:
            return LimitExceeded("too long", field="input")
        return Prepared(task=task, token_ids=ids)


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class AnswersNothing(Correct):
    """Answers a text that has no bytes as if it were empty."""

    parts = preparing(Swallowing)


class Wordless(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        try:
            return super().one(task)
        except UnicodeEncodeError:
            return InvalidRequest("", field="input")


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class DoesNotSayWhy(Correct):
    """Has no word for a text that has no bytes."""

    parts = preparing(Wordless)


class Resentful(Guarded):
    failed = False

    def prepare(self, tasks: Sequence[Task]) -> list[Prepared | GuidewayError]:
        found = super().prepare(tasks)
        if self.failed and len(tasks) > 1 and all(isinstance(each, Prepared) for each in found):
            found = [GuidewayError("the tokenizer is broken") for _ in found]
        self.failed = any(map(_has_no_bytes, found))
        return found


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class FailsTheNextBatch(Correct):
    """Fails the batch that follows one with an error."""

    parts = preparing(Resentful)


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class TokenizesTogether(Correct):
    """Takes it that a tokenizer has a token for every word."""

    parts = with_part("request_processor", Words)

    @classmethod
    def supports(cls, model: ModelFolder) -> str | None:
        return None if model.config.get("model_type") == "bert" else "it takes bert"


class Cutting(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        ids = np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64)
        return Prepared(task=task, token_ids=ids[: self.context.max_model_len])


@saboteur("workflow.too_long_is_cut_or_refused")
class CutsInSilence(Correct):
    """Cuts what is too long, and does not say so."""

    parts = with_part("request_processor", Cutting)


class Overcautious(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        ids = np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64)
        most = self.context.max_model_len
        return Prepared(task=task, token_ids=ids[:most], truncated=len(ids) >= most)


@saboteur("workflow.too_long_is_cut_or_refused")
class SaysThatItCutsWhatFits(Correct):
    """Says that it cut a text that fits exactly."""

    parts = with_part("request_processor", Overcautious)


class Vague(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        found = super().one(task)
        return InvalidRequest("not so", field="input") if isinstance(found, GuidewayError) else found


@saboteur("workflow.too_long_is_cut_or_refused")
class RefusesWithoutANameForIt(Correct):
    """Refuses what is too long as it refuses anything."""

    parts = with_part("request_processor", Vague)


class TakesCut(Texts):
    def check_params(self, task: Task) -> None:
        for name, value in task.params.items():
            if name != "shorten" or not isinstance(value, bool):
                raise InvalidRequest("it takes shorten, which is true or false", field=str(name))


class CutsQuietly(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        if task.params.get("shorten"):
            ids = np.frombuffer(task.value.encode(), dtype=np.uint8).astype(np.int64)[: self.context.max_model_len]
            return Prepared(task=task, token_ids=ids, truncated=len(ids) > self.context.max_model_len)
        return super().one(task)


@saboteur("workflow.too_long_is_cut_or_refused")
class ComparesWhatIsCut(Correct):
    """Looks whether a text was too long when it is cut, as the caller allows by a word of the workflow's own."""

    parts: ClassVar[Mapping[str, str]] = {
        **with_part("request_processor", CutsQuietly),
        "input_processor": f"{__name__}:TakesCut",
    }


class TakesASide(Texts):
    def check_params(self, task: Task) -> None:
        for name, value in task.params.items():
            if name != "side" or not isinstance(value, str) or value not in ("left", "right"):
                raise InvalidRequest("side is 'left' or 'right'", field=str(name))


class CutsOneEnd(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        most = self.context.max_model_len
        if len(task.value) <= most or "side" not in task.params:
            return super().one(task)
        found = super().one(replace(task, value=task.value[:most]))
        return replace(found, task=task, truncated=True) if isinstance(found, Prepared) else found


@saboteur("workflow.too_long_is_cut_or_refused")
class KnowsOneSide(Correct):
    """Takes either end to cut at, and cuts at one."""

    parts: ClassVar[Mapping[str, str]] = {
        **with_part("input_processor", TakesASide),
        "request_processor": f"{__name__}:CutsOneEnd",
    }


class Numbers(Texts):
    def check(self, task: Task) -> None:
        ids = task.value
        if isinstance(ids, list) and ids and all(type(each) is int for each in ids):
            if max(ids) >= 64:
                raise InvalidRequest("it has 64 tokens", field="input")
            self.check_params(task)
        else:
            super().check(task)


class Given(Bytes):
    def one(self, task: Task) -> Prepared | GuidewayError:
        if isinstance(task.value, str):
            return super().one(task)
        if len(task.value) > self.context.max_model_len:
            return LimitExceeded("too long", field="input")
        try:
            return Prepared(task=task, token_ids=np.array(task.value, dtype=np.int64))
        except OverflowError as error:
            return InvalidRequest(f"that is no token: {error}", field="input")


@saboteur("workflow.what_cannot_be_prepared_ends_alone")
class LooksAtTheLargest(Correct):
    """Looks whether the largest token is behind the vocabulary, and at none before it."""

    parts: ClassVar[Mapping[str, str]] = {
        **with_part("input_processor", Numbers),
        "request_processor": f"{__name__}:Given",
    }
