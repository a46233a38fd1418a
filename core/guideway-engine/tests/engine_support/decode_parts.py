"""Replacements for parts of `decode` that record that they were called."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from guideway.api import InvalidRequest
from guideway_engine.decoding.inputs import DecodeInputs
from guideway_engine.decoding.requests import DecodeRequests
from guideway_engine.scheduling.outputs import DecodeOutputs
from guideway_engine.scheduling.scheduler import Scheduler
from guideway_engine.scheduling.sequence import SequenceGroup
from guideway_engine.scheduling.steps import DecodeSteps
from guideway_engine.worker import Worker

asked: Counter[str] = Counter()
"""Number of calls of each part in this process."""


class NoShouting(DecodeInputs):
    def check(self, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        asked["input_processor"] += 1
        if isinstance(prompt, str) and prompt.isupper():
            raise InvalidRequest("write in small letters", field="prompt")
        return super().check(prompt, *args, **kwargs)


class ShortestFirst(DecodeRequests):
    """Starts requests with short prompts first."""

    def prepare(self, submission: Any, *, arrival: int, **rest: Any) -> SequenceGroup:
        asked["request_processor"] += 1
        return super().prepare(submission, arrival=arrival + 1_000_000 * len(submission.prompt), **rest)


class Counting(Scheduler):
    def add(self, group: SequenceGroup) -> None:
        asked["scheduler"] += 1
        super().add(group)


class Watched(DecodeSteps):
    """Records the ids of requests in the order in which they first take part in a step."""

    order: ClassVar[list[str]] = []

    def build(self, works: Any) -> Any:
        asked["step_builder"] += 1
        for work in works:
            if (request_id := work.sequence.request.request_id) not in self.order:
                self.order.append(request_id)
        return super().build(works)


class Read(DecodeOutputs):
    def final_tokens(self, *args: Any) -> Any:
        asked["output_processor"] += 1
        return super().final_tokens(*args)


class Named(Worker):
    def call(self, address: str, args: Any, kwargs: Any) -> Any:
        return type(self).__name__ if address == "which.worker" else super().call(address, args, kwargs)


class Unmakeable(DecodeOutputs):
    def __init__(self, *args: Any) -> None:
        raise OSError("no room")
