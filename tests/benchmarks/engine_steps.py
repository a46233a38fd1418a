"""Helpers of the benchmarks of the engine: a batch kept full, and CPU time of its decode steps by part."""

from __future__ import annotations

import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from guideway import Engine, SamplingParams
from guideway.api import GenerationResult
from guideway.api.forward import ForwardStep

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.processes import seconds_of, tree

__all__ = ["Parts", "decode_steps", "milliseconds"]

FORWARD, PIPELINE, RUNTIME, SCHEDULER, HOSTS = "forward", "pipeline", "runtime", "scheduler", "hosts"
TOTAL = "step"


class Parts:
    """CPU time of this thread inside some methods, excluding nested calls of other such methods, and with
    `counts_hosts` of the processes that `find_hosts` finds."""

    def __init__(self, engine: Engine, *, counts_hosts: bool = False) -> None:
        self.counts_hosts = counts_hosts
        self._hosts: frozenset[int] = frozenset()
        self._of_hosts = 0.0
        self._seconds: dict[str, float] = defaultdict(float)
        self._inside: list[float] = []
        self._step: ForwardStep | None = None
        executor: Any = engine._executor  # `local`, which runs calls in this thread
        worker = executor._worker
        self.watch(engine._scheduler, "step", SCHEDULER)
        self.watch(engine._runtime, "prepare", RUNTIME)
        self.watch(engine._runtime, "accept", RUNTIME)
        self.watch(worker, "forward", FORWARD)
        self.watch(worker, "sample", PIPELINE)
        run = worker.forward

        def forward(step: ForwardStep) -> None:
            self._step = step
            run(step)

        worker.forward = forward

    def watch(self, owner: Any, method: str, part: str) -> None:
        """From now on count the time of `owner`'s method as `part`."""
        run = getattr(owner, method)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            start = time.thread_time()
            try:
                return run(*args, **kwargs)
            finally:
                taken = time.thread_time() - start
                self._seconds[part] += taken - self._inside.pop()
                if self._inside:
                    self._inside[-1] += taken

        setattr(owner, method, watched)

    def find_hosts(self) -> None:
        """Count the CPU time of the processes that this one has started until now."""
        self._hosts = frozenset(tree(os.getpid()) - {os.getpid()})
        self._of_hosts = seconds_of(self._hosts)

    def take(self, batch_size: int) -> dict[str, float] | None:
        """Return the seconds of the last step by part, and their sum as `TOTAL`; None unless exactly `batch_size`
        sequences decoded one token each in that step."""
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        before, self._of_hosts = self._of_hosts, seconds_of(self._hosts)
        seconds[HOSTS] = self._of_hosts - before
        step, self._step = self._step, None
        if step is None or not step.num_sequences == step.num_tokens == step.num_rows == batch_size:
            return None
        return {**seconds, TOTAL: sum(seconds.values())}


def decode_steps(
    engine: Engine,
    parts: Parts,
    requests: Iterator[tuple[list[int], SamplingParams]],
    *,
    batch_size: int,
    num_steps: int,
    after_step: Callable[[], None] = lambda: None,
) -> tuple[list[dict[str, float]], list[GenerationResult]]:
    """Return `num_steps` steps in which `batch_size` sequences decode one token each, by part, and the result of each
    request. A sequence that ends is replaced by the next request; steps that compute prompts do not count, and
    `after_step` is called after those that do. Requests that still run at the end are aborted."""
    started = [engine.submit(*next(requests), wait=False) for _ in range(batch_size)]
    steps: list[dict[str, float]] = []
    knows_hosts = not parts.counts_hosts
    while len(steps) < num_steps:
        engine.step()
        taken = parts.take(batch_size)
        if taken is not None and not knows_hosts:  # hosts may have been started again since the last run
            parts.find_hosts()
            knows_hosts = True
        elif taken is not None:
            steps.append(taken)
            after_step()
        num_ended = batch_size - sum(generation.result is None for generation in started)
        started += [engine.submit(*next(requests), wait=False) for _ in range(num_ended)]
    for generation in started:
        generation.abort()
    parts.take(batch_size)
    return steps, [generation.wait() for generation in started]


def milliseconds(steps: Iterable[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each part over `steps`."""
    every = list(steps)
    return {part: 1e3 * sum(step.get(part, 0.0) for step in every) / len(every) for part in every[0]}
