"""Bugs of downloads that are under way, and of operations in whose midst others are done."""

from __future__ import annotations

import queue
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, Thread
from typing import Any

import numpy as np
from guideway.api.steps import Array
from guideway.devices.numpy.device import NumpyDevice
from numpy.typing import NDArray

from saboteurs import saboteur
from saboteurs.device.base import Sabotaged


class _Flight:
    """Arrays that a thread copies."""

    def __init__(self, arrays: dict[str, Array], there_after: int) -> None:
        self.arrays, self.there_after = arrays, there_after
        self.host: dict[str, NDArray[Any]] = {}
        self.there = Event()

    def fly(self) -> None:
        for name, array in self.arrays.items():
            self.host[name] = np.array(array)
            if len(self.host) == self.there_after:
                self.there.set()
        self.there.set()

    def result(self) -> Mapping[str, NDArray[Any]]:
        self.there.wait()
        return dict(self.host)


@saboteur("device.downloads_bring_everything")
class ThereWithTheFirst(Sabotaged):
    """A download is there when its first array is."""

    def download(self, arrays: Mapping[str, Array]) -> _Flight:
        flight = _Flight({name: np.array(array) for name, array in arrays.items()}, 1)
        Thread(target=flight.fly).start()
        return flight


@saboteur("device.downloads_under_way")
class CopiesWhenItsTurnComes(Sabotaged):
    """A download copies its small arrays in a thread, behind the large ones, and operations work in place."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.copiers = ThreadPoolExecutor(1)

    def download(self, arrays: Mapping[str, Array]) -> Any:
        copies = {name: self.copiers.submit(np.array, array) for name, array in arrays.items()}
        return _Landing(copies)


class _Landing:
    def __init__(self, copies: Mapping[str, Future[NDArray[Any]]]) -> None:
        self.copies = copies

    def result(self) -> Mapping[str, NDArray[Any]]:
        return {name: copy.result() for name, copy in self.copies.items()}


@saboteur("device.steps_amid_others")
class MakesReadyThenTakes(Sabotaged):
    """`exp` sees to it that there is scratch memory, which another step may have taken by the time it takes it."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.ready: list[Array] = []

    def exp(self, x: Array) -> Array:
        if not self.ready:
            self.ready.append(np.empty(1))
        self.ready.pop()
        return super().exp(x)


@saboteur("device.steps_amid_others")
class SumsInItself(Sabotaged):
    """`cumsum` keeps what it works on in an attribute."""

    def cumsum(self, x: Array) -> Array:
        self.x = x
        return super().cumsum(self.x)


@saboteur("device.closing_ends_one_backend")
class OneQueueForAll(NumpyDevice):
    """Downloads of all backends are copied by threads that take from one queue, whose end mark any of them may get."""

    waiting: queue.SimpleQueue[_Flight | None] = queue.SimpleQueue()

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.thread: Thread | None = None

    def download(self, arrays: Mapping[str, Array]) -> Any:
        if self.thread is None:
            self.thread = Thread(target=self.carry, daemon=True)
            self.thread.start()
        flight = _Flight({name: np.array(array) for name, array in arrays.items()}, len(arrays))
        self.waiting.put(flight)
        return flight

    def carry(self) -> None:
        while (flight := self.waiting.get()) is not None:
            flight.fly()

    def close(self) -> None:
        if self.thread is not None:
            self.waiting.put(None)
            self.thread.join()
