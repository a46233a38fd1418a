"""Daemon thread pools with deadlines. They never keep the interpreter from exiting."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from guideway.errors import CALLS, GuidewayError, LimitExceeded
from guideway.plugins.limits import Limits
from guideway.runtime.work.metrics import DEADLINES_MISSED, LOST_THREADS
from guideway.runtime.work.quarantine import Quarantine
from guideway.runtime.work.stacks import STACK_BYTES

__all__ = ["ADMISSION_THREADS", "Deadline", "Threads"]

log = logging.getLogger(__name__)

ADMISSION_THREADS = 4
"""Threads in which a host admits requests, outside the decoding thread or event loop."""

MAX_LOST = 8
"""Abandoned threads that are replaced; further ones shrink the pool."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time limits of a piece of work."""

    wall_seconds: float
    processor_seconds: float = float("inf")
    """Processor seconds of its thread, where the system measures them (Linux)."""
    remembered_seconds: float = 300.0
    """Seconds before work that missed its deadline is tried again."""

    @classmethod
    def of_processor(cls, seconds: float, limits: Limits) -> Deadline:
        """Return a deadline of `seconds` processor time; the limits say how much more wall time is allowed."""
        return cls(seconds * limits.wall_factor, seconds, limits.remembered_seconds)


@dataclass(eq=False, slots=True)
class _Job:
    """Work that waits for a thread or runs in one."""

    future: Future[Any]
    run: Callable[[], None]
    owner: str
    thread: threading.Thread | None = None
    began: float = 0.0
    processor: float = 0.0
    """Processor seconds of its thread when the work began."""
    excused: bool = False
    """True if it was in a call that has deadlines of its own."""


class Threads:
    """A pool of daemon threads that run work in order of arrival. Work that never ends blocks its request, but not the
    exit of the interpreter. Threads start with the first work.

    With `reserve` there is one more thread, for owners that have no work running, so that no owner occupies all
    threads.

    With `deadline`, work that misses it fails with `LimitExceeded`: its thread is abandoned and replaced, and
    `quarantine` counts a strike of the plugin that it was calling.
    """

    def __init__(
        self,
        name: str,
        num_threads: int,
        *,
        reserve: bool = False,
        deadline: Deadline | None = None,
        quarantine: Quarantine | None = None,
    ) -> None:
        self._name = name
        self._num_free = num_threads
        """Threads that work for any owner."""
        self._num_threads = num_threads + reserve
        self.deadline = deadline
        self._quarantine = quarantine
        self._threads: set[threading.Thread] = set()
        self._lost = 0
        """Abandoned threads that are still running."""
        self._waiting: deque[_Job] = deque()
        self._owners: Counter[str] = Counter()
        """Running jobs of each owner."""
        self._running: dict[Future[Any], _Job] = {}
        """Running jobs with a deadline."""
        self._watcher: threading.Thread | None = None
        self._watches_nothing = False
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        """Notified when work arrives; idle threads wait for it."""
        self._changed = threading.Condition(self._lock)
        """Notified when jobs change; the deadline watcher waits for it."""
        self._closed = False

    def submit(self, work: Callable[[], T], late: Callable[[T], object] | None = None, *, owner: str = "") -> Future[T]:
        """Run `work` and return the future of its result. A result after the deadline is passed to `late`. Raises
        `GuidewayError` if the pool is closed or no thread is left or can be started."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise GuidewayError(f"the threads {self._name!r} are closed")
            self._start()
            self._waiting.append(_Job(future, partial(self._run, future, work, late), owner))
            self._arrived.notify()
        return future

    def why_none(self) -> str | None:
        """Return the reason why work is refused for lack of a thread, or None."""
        with self._lock:
            return None if self._threads or self._num_wanted() else f"no thread {self._name!r} is left"

    def close(self) -> None:
        """Accept no more work; submitted work still runs."""
        with self._lock:
            self._closed = True
            self._arrived.notify_all()
            self._changed.notify()

    def _run(self, future: Future[T], work: Callable[[], T], late: Callable[[T], object] | None) -> None:
        if not future.set_running_or_notify_cancel():
            self._finish(future)
            return
        try:
            value = work()
        except BaseException as error:  # waiting callers must get every error
            if self._finish(future):
                future.set_exception(error)
            return
        if self._finish(future):
            future.set_result(value)
        elif late is not None:
            late(value)

    def _finish(self, future: Future[Any]) -> bool:
        """Return whether the work ended before its deadline."""
        if self.deadline is None:
            return True
        with self._lock:
            return self._running.pop(future, None) is not None

    def _start(self) -> None:
        wanted = self._num_wanted()
        if len(self._threads) >= wanted > 0:
            return
        if not wanted and not self._threads:
            raise GuidewayError(
                f"no thread {self._name!r} is left, because all run calls that missed their deadline and do not end"
            )
        previous = threading.stack_size(STACK_BYTES)
        try:
            if self._watcher is None and self.deadline is not None:
                watcher = threading.Thread(target=self._watch, name=f"{self._name}-deadlines", daemon=True)
                watcher.start()
                self._watcher = watcher
            while len(self._threads) < wanted:
                thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                thread.start()
                self._threads.add(thread)
        except RuntimeError as error:  # one thread is enough if the system has no more
            if not self._threads:
                raise GuidewayError(f"no thread {self._name!r} can be started: {error}") from error
        finally:
            threading.stack_size(previous)

    def _num_wanted(self) -> int:
        return max(self._num_threads - max(0, self._lost - MAX_LOST), 0)

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.run()
            if self._is_lost(job):
                return
            del job  # frees its objects, since the next job may arrive much later

    def _next(self) -> _Job | None:
        """Return the next job; None if the pool is closed and empty."""
        with self._lock:
            while (job := next((job for job in self._waiting if self._may_begin(job.owner)), None)) is None:
                if self._closed and not self._waiting:
                    return None
                self._arrived.wait()
            self._waiting.remove(job)
            if self._closed:
                self._arrived.notify_all()  # the last job ends all waiting threads
            self._owners[job.owner] += 1
            if self.deadline is not None:
                self._expect(job)
        return job

    def _may_begin(self, owner: str) -> bool:
        num_at_work = self._owners.total()
        return num_at_work < self._num_free or (num_at_work < self._num_threads and not self._owners[owner])

    def _is_lost(self, job: _Job) -> bool:
        """Return whether this thread was abandoned; it then ends."""
        with self._lock:
            if threading.current_thread() in self._threads:
                self._release(job)
                return False
            self._lost -= 1
            LOST_THREADS.labels(self._name).dec()
            if not self._closed:
                with suppress(GuidewayError):
                    self._start()
            return True

    def _release(self, job: _Job) -> None:
        self._owners[job.owner] -= 1
        if not self._owners[job.owner]:
            del self._owners[job.owner]
        self._arrived.notify()

    # Deadlines

    def _expect(self, job: _Job) -> None:
        """Start the deadline of a job in this thread. The lock must be held."""
        job.thread, job.began, job.processor = threading.current_thread(), time.monotonic(), time.thread_time()
        self._running[job.future] = job
        if self._watches_nothing:
            self._changed.notify()

    def _watch(self) -> None:
        assert self.deadline is not None
        least = min(self.deadline.processor_seconds, self.deadline.wall_seconds)
        while True:
            with self._lock:
                if not self._running:
                    if self._closed:
                        return
                    self._watches_nothing = True
                    self._changed.wait()
                    self._watches_nothing = False
                    continue
                now = time.monotonic()
                late = [(job, why) for job in self._running.values() if (why := self._overdue(job, now))]
                failed: list[tuple[Future[Any], GuidewayError]] = [
                    (job.future, self._lose(job, why)) for job, why in late
                ]
                if not failed:
                    nap = min(max(job.began + least - now, least / 10) for job in self._running.values())
                    self._changed.wait(nap)
                    overslept = time.monotonic() - now - nap
                    # the process was stopped, or the watcher got no processor
                    if overslept > least / 10:
                        for job in self._running.values():
                            job.began += overslept
                    continue
                if not self._threads:
                    failed += self._drain()
            for future, error in failed:
                with suppress(InvalidStateError):
                    future.set_exception(error)

    def _overdue(self, job: _Job, now: float) -> str:
        """Return the limit that a job has exceeded, for the message; empty if none."""
        assert self.deadline is not None
        assert job.thread is not None
        assert job.thread.ident is not None
        call = CALLS.get(job.thread.ident)
        excused = call is not None and call.keeps_deadlines
        if excused or job.excused:  # such a call, and the time since the last check, does not count
            job.excused, job.began, job.processor = excused, now, self._processor_seconds(job)
            return ""
        if now - job.began > self.deadline.wall_seconds:
            return f"{self.deadline.wall_seconds:g} s"
        most = self.deadline.processor_seconds
        if now - job.began > most and self._processor_seconds(job) - job.processor > most:
            return f"{most:g} s processor time"
        return ""

    @staticmethod
    def _processor_seconds(job: _Job) -> float:
        """Return the processor seconds of the job's thread, 0 if the system cannot measure them. The lock must be held,
        which keeps the thread alive."""
        assert job.thread is not None
        if job.thread.ident is None or not hasattr(time, "pthread_getcpuclockid"):
            return 0.0
        return time.clock_gettime(time.pthread_getcpuclockid(job.thread.ident))

    def _lose(self, job: _Job, why: str) -> LimitExceeded:
        """Abandon the thread of `job` and return the error for its future. The lock must be held."""
        assert job.thread is not None
        call = CALLS.get(job.thread.ident or 0)
        del self._running[job.future]
        self._threads.discard(job.thread)
        self._release(job)
        self._lost += 1
        if not self._closed:
            with suppress(GuidewayError):
                self._start()
        DEADLINES_MISSED.labels(*(("", "") if call is None else (call.plugin, call.phase))).inc()
        LOST_THREADS.labels(self._name).inc()
        assert self.deadline is not None
        # blame only a plugin that used most of the time itself
        took_most = call is not None and time.monotonic() - call.began > self.deadline.wall_seconds / 2
        if call is not None and took_most and self._quarantine is not None:
            self._quarantine.strike(call.plugin)
        said = f"{call.plugin} ({call.when})" if call is not None else "reading the request"
        log.error(
            "%s: %s took more than %s; its thread is abandoned (%d of at most %d)",
            self._name,
            said,
            why,
            self._lost,
            MAX_LOST + self._num_threads,
        )
        if not self._threads and not self._closed:
            log.error("%s: no thread is left; requests that need one are refused until one returns", self._name)
        field = "constraint" if call is not None and call.plugin.startswith("grammar.") else "request"
        return LimitExceeded(f"{said} took more than the allowed {why}", field=field)

    def _drain(self) -> list[tuple[Future[Any], GuidewayError]]:
        """Return all waiting jobs with their error, since no thread will run them."""
        drained = [(job.future, GuidewayError(f"no thread {self._name!r} is left")) for job in self._waiting]
        self._waiting.clear()
        return drained
