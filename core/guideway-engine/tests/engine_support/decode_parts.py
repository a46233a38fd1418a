"""Parts of `decode` in place of the engine's own: each does its work, and tells that it was asked."""

from __future__ import annotations

from collections import Counter
from typing import Any

from guideway.api import InvalidRequest
from guideway_engine.decoding.inputs import DecodeInputs
from guideway_engine.decoding.requests import DecodeRequests
from guideway_engine.scheduling.outputs import DecodeOutputs
from guideway_engine.scheduling.scheduler import Scheduler
from guideway_engine.scheduling.sequence import SequenceGroup
from guideway_engine.scheduling.steps import DecodeSteps
from guideway_engine.worker import Worker

asked: Counter[str] = Counter()
"""Counts the calls of the parts in this process."""


class NoShouting(DecodeInputs):
    def check(self, prompt: Any, *args: Any, **kwargs: Any) -> Any:
        asked["input_processor"] += 1
        if isinstance(prompt, str) and prompt.isupper():
            raise InvalidRequest("write in small letters", field="prompt")
        return super().check(prompt, *args, **kwargs)


class Told(DecodeRequests):
    def prepare(self, *args: Any, **kwargs: Any) -> SequenceGroup:
        asked["request_processor"] += 1
        return super().prepare(*args, **kwargs)


class OneByOne(Scheduler):
    """Lets a request in when the one before it has ended."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._later: list[SequenceGroup] = []

    def add(self, group: SequenceGroup) -> None:
        asked["scheduler"] += 1
        self._later.append(group)

    def has_work(self) -> bool:
        return bool(self._later) or super().has_work()

    def step(self) -> None:
        if self._later and not super().has_work():
            super().add(self._later.pop(0))
        super().step()


class Widths(DecodeSteps):
    """Keeps how many sequences each step has."""

    most = 0

    def build(self, works: Any) -> Any:
        asked["step_builder"] += 1
        Widths.most = max(Widths.most, len(works))
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
