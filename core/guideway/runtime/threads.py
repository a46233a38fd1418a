"""Threads that never keep the interpreter from ending, and work in them that is done once for equal keys."""

from __future__ import annotations

import queue
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from guideway.errors import GuidewayError

__all__ = ["ADMISSION_THREADS", "AtWork", "SharedWork", "Threads"]

STACK_BYTES = 64 << 20
"""Stack of a thread. Native compilers recurse over `$ref` and rule chains; at the usual 8 MiB they overflow from about
2,500 links on, which kills the process. Virtual memory only."""

ADMISSION_THREADS = 4
"""In which a host admits requests beside the thread that decodes, or its event loop."""

T = TypeVar("T")


class Threads:
    """Daemons that take work in order of arrival: work that never ends keeps its request waiting, but not the
    interpreter. They are started with the first work, so that a host without any has none."""

    def __init__(self, name: str, num_threads: int) -> None:
        self._name = name
        self._num_threads = num_threads
        self._threads: list[threading.Thread] = []
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """What `work` returns or raises. Raises `GuidewayError` once closed, and if the system has no thread for it."""
        future: Future[T] = Future()

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # whatever it is, whoever waits must hear of it
                    future.set_exception(error)

        with self._lock:
            if self._closed:
                raise GuidewayError(f"the threads {self._name!r} are closed")
            self._start()
            self._queue.put(run)
        return future

    def close(self) -> None:
        """Take nothing more; what was taken ends in its own time."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)

    def _start(self) -> None:
        if len(self._threads) == self._num_threads:
            return
        previous = threading.stack_size(STACK_BYTES)
        try:
            while len(self._threads) < self._num_threads:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._threads.append(thread)
        except RuntimeError as error:  # the system has no more threads; one is enough
            if not self._threads:
                raise GuidewayError(f"no thread {self._name!r} can be started: {error}") from error
        finally:
            threading.stack_size(previous)

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            job()
            del job  # it holds what it worked on, and the next one may be long in coming


class AtWork:
    """What is in use by threads, by name, so that nothing is closed while it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._in_use: Counter[str] = Counter()
        self._endings: dict[str, Callable[[], None]] = {}

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """Around a use; the last one calls what `end` has asked for meanwhile, in its own thread."""
        with self._lock:
            self._in_use[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_use[name] -= 1
                ending = None if self._in_use[name] else self._endings.pop(name, None)
            if ending is not None:
                ending()

    def end(self, name: str, ending: Callable[[], None]) -> None:
        """Call `ending` once nothing uses `name`: now, or when the last use ends. Waits for nothing."""
        with self._lock:
            if self._in_use[name]:
                self._endings[name] = ending
                return
        ending()


@dataclass(slots=True)
class _UnderWay(Generic[T]):
    """Work that was taken and has not ended."""

    future: Future[T]
    interrupt: Callable[[], None] | None
    num_waiting: int = 1


class SharedWork(Generic[T]):
    """Work for threads: what has equal keys and is under way is one, and values are kept for later, as many as weigh
    `capacity` together; the one that was used longest ago goes first."""

    def __init__(self, threads: Threads, at_work: AtWork, capacity: int) -> None:
        self._threads = threads
        self._at_work = at_work
        self._capacity = capacity
        self._lock = threading.Lock()
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._under_way: dict[Hashable, _UnderWay[T]] = {}
        self._closed = False
        self.weight = 0
        """Of all values that are kept."""

    def submit(
        self,
        uses: Sequence[str],
        key: Hashable | None,
        work: Callable[[], tuple[T, int]],
        interrupt: Callable[[], None] | None = None,
    ) -> Future[T]:
        """The value for `key`: kept, under way, or begun; `work`, which uses these plugins, returns it with what it
        weighs. None is no key, and nothing is shared. After `close` the future is cancelled. Raises what comparing keys
        raises. `interrupt` ends work that has begun, where that can be done."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            if key is not None:
                if key in self._under_way:
                    self._under_way[key].num_waiting += 1
                    return self._under_way[key].future
                if key in self._kept:
                    self._kept.move_to_end(key)
                    future.set_result(self._kept[key][0])
                    return future
            # submitted before it is known: what cannot be, or is interrupted here, leaves nothing to wait for
            self._threads.submit(partial(self._run, uses, key, work, future))
            self._under_way[future if key is None else key] = _UnderWay(future, interrupt)
        return future

    def leave(self, key: Hashable, future: Future[T]) -> None:
        """One of those who were given `future` for `key` waits no more. With the last one work that has not begun is
        dropped, and work that has is interrupted, where that can be done."""
        with self._lock:
            known = self._under_way.get(key)
            if known is None or known.future is not future:
                return
            known.num_waiting -= 1
            if known.num_waiting or (known.interrupt is None and future.running()):
                return
            del self._under_way[key]  # who comes now begins anew
        if not future.cancel() and known.interrupt is not None:
            known.interrupt()

    def close(self) -> None:
        """Begin nothing more, and cancel what has not begun."""
        with self._lock:
            self._closed = True
            pending = list(self._under_way.values())
        for work in pending:
            work.future.cancel()

    def _run(
        self, uses: Sequence[str], key: Hashable | None, work: Callable[[], tuple[T, int]], future: Future[T]
    ) -> None:
        with ExitStack() as at_work:
            for plugin in uses:
                at_work.enter_context(self._at_work.using(plugin))
            with self._lock:
                if self._closed or not future.set_running_or_notify_cancel():
                    return
            self._work(key, work, future)

    def _work(self, key: Hashable | None, work: Callable[[], tuple[T, int]], future: Future[T]) -> None:
        try:
            try:
                value, weight = work()
            finally:
                with self._lock:
                    place = future if key is None else key
                    if place in self._under_way and self._under_way[place].future is future:
                        del self._under_way[place]
            if key is not None:
                with self._lock:
                    self._keep(key, value, weight)
        except BaseException as error:  # whatever it is, also of comparing keys: whoever waits must hear of it
            future.set_exception(error)
            return
        future.set_result(value)

    def _keep(self, key: Hashable, value: T, weight: int) -> None:
        if weight > self._capacity:
            return
        self._kept[key] = (value, weight)
        self.weight += weight
        while self.weight > self._capacity:
            _, (_, freed) = self._kept.popitem(last=False)
            self.weight -= freed
