"""The driver: runs tasks through the parts of a workflow, in the caller's thread or in background threads.

In every mode a step holds the same requests. The order of arrival and the budgets determine it, and a step that is not
full waits while more tasks are about to be added. So results do not depend on the mode.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from threading import Condition, Thread
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from guideway.api.options import short_repr
from guideway.api.workflow import Prepared, Task
from guideway.errors import GuidewayError, InvalidConfiguration, record_progress

from guideway_engine.errors import EngineClosed
from guideway_engine.workflows.computing import Computing
from guideway_engine.workflows.hooks import Listening
from guideway_engine.workflows.parts import Parts

__all__ = ["Driver", "Mode", "mode_for"]

log = logging.getLogger("guideway_engine")

Mode = Literal["sync", "async", "double_buffered"]
"""``sync``: tokenizing and computing alternate in the caller's thread. ``async``: they run concurrently.
``double_buffered``: like ``async``, with two steps in the worker's queue."""

IDLE_SECONDS = 0.01

Pending = deque["Entry"]


class Entry:
    """A task that was submitted."""

    __slots__ = ("done", "error", "result", "task")

    def __init__(self, task: Task) -> None:
        self.task = task
        self.done = False
        self.result: Any = None
        self.error: GuidewayError | None = None
        """Error that replaces even the result that `OutputProcessor.failed` would make of an error."""


def _closed_error() -> EngineClosed:
    return EngineClosed("the engine was closed and takes no more requests; create a new one")


def mode_for(asked: object, where: str) -> Mode:
    """Return the mode for the option `asked` of the component `where`. ``auto`` is ``async`` if a CPU is left for
    tokenizing, else ``sync``. Raises `InvalidConfiguration` for other values."""
    if asked == "auto":
        return "async" if len(os.sched_getaffinity(0)) > torch.get_num_threads() else "sync"
    if asked not in get_args(Mode):
        raise InvalidConfiguration(
            f"driver of {where} must be auto, {', '.join(get_args(Mode))}, not {asked!r}",
            field=f"options.{where}.driver",
        )
    return cast("Mode", asked)


class Stuck(RuntimeError):
    """The scheduler has tasks, but returns none to prepare or compute. `tasks`: those; any added since may go on."""

    def __init__(self, tasks: list[Task]) -> None:
        super().__init__(
            f"the scheduler has {len(tasks)} tasks under way and gives none of them to prepare or to compute, though "
            "no more are about to come"
        )
        self.tasks = tasks


class Driver:
    """Runs the tasks of any number of callers, each in its own thread."""

    def __init__(self, parts: Parts, computing: Computing, listening: Listening, mode: Mode) -> None:
        self._parts = parts
        self._computing = computing
        self._listening = listening
        self._mode = mode
        self._most = parts.scheduler.window()
        self._entries: dict[Task, Entry] = {}
        self._changed = Condition()
        """Held while calling the scheduler; notified when an entry is done or a task is added."""
        self._news = self._known = 0
        """Number of notifications, and its value when there was last nothing to prepare."""
        self._filling = self._open = self._awaiting = 0
        """Number of callers that are about to add tasks, that have more tasks, and that wait for a result."""
        self._driving = False
        """True while a caller computes, in the mode ``sync``."""
        self._closed = False
        self.broken: GuidewayError | None = None
        """Failure of a part that ended all tasks; None if there was none since the last result."""
        self._threads: list[Thread] = []

    def run(self, tasks: Iterable[Task], *, live: bool = False) -> Iterator[Any]:
        """Yield the results of `tasks` in order, each as soon as it and all before it are done.

        Reads `tasks` as results are consumed, so that few are in memory. If the caller stops reading, its tasks are
        dropped. `live`: the next task may take long to arrive, so other callers do not wait for it.
        """
        source = iter(tasks)
        pending: Pending = deque()
        exhausted = False
        self._count(opened=1)
        try:
            while True:
                if not exhausted and self._fill(source, pending, live=live):
                    exhausted = True
                    self._count(opened=-1)
                if not pending:
                    return
                self._await(pending[0])
                while pending and pending[0].done:
                    entry = pending.popleft()
                    if entry.error is not None:
                        raise entry.error
                    yield entry.result
        finally:
            self._abandon(pending)
            if not exhausted:
                self._count(opened=-1)

    def close(self) -> None:
        """End all tasks and the threads. Closing twice is fine."""
        with self._changed:
            self._closed = True
        self._computing.close()
        self._end_under_way(_closed_error())
        for thread in self._threads:
            thread.join()

    def _fill(self, source: Iterator[Task], pending: Pending, *, live: bool) -> bool:
        """Add tasks until enough are submitted. Return True if there are no more."""
        self._count(filling=0 if live else 1)
        try:
            while len(pending) < self._most:
                task = next(source, None)
                if task is None:
                    return True
                entry = Entry(task)
                pending.append(entry)
                try:
                    self._parts.input_processor.check(task)
                    self._listening.check(task)
                    self._add(entry)
                except EngineClosed:
                    raise
                except BaseException as error:
                    self._end(entry, self._computing.named(error))
            return False
        finally:
            self._count(filling=0 if live else -1)

    def _add(self, entry: Entry) -> None:
        with self._changed:
            if self._closed:
                raise _closed_error()
            self._entries[entry.task] = entry
            try:
                self._parts.scheduler.add(entry.task)
            except BaseException:
                del self._entries[entry.task]
                self._forget(entry.task)
                raise
            self._tell()

    def _count(self, *, filling: int = 0, opened: int = 0, awaiting: int = 0) -> None:
        with self._changed:
            self._filling += filling
            self._open += opened
            self._awaiting += awaiting
            self._tell()

    def _tell(self) -> None:
        """Wake all waiting threads. The caller must hold `_changed`."""
        self._news += 1
        self._changed.notify_all()

    def _await(self, entry: Entry) -> None:
        """Wait until `entry` is done; in the mode ``sync``, compute until it is."""
        self._count(awaiting=1)
        try:
            if self._mode == "sync":
                while not self._turn(entry):
                    pass
            else:
                self._start()
                with self._changed:
                    self._changed.wait_for(lambda: entry.done)
        finally:
            self._count(awaiting=-1)

    def _turn(self, entry: Entry) -> bool:
        """Compute a step, unless another caller does. Return whether `entry` is done."""
        with self._changed:
            self._changed.wait_for(lambda: entry.done or not self._driving)
            if entry.done:
                return True
            self._driving = True
        tasks: list[Task] = []
        work = None
        try:
            tasks = self._upcoming()
            self._prepare(tasks)
            work = self._next()
            if work is not None:
                self._deliver(work, self._computing.results(work, self._computing.submit(work)))
        except BaseException as error:
            if not self._end_after(error):
                self._give_back(work)
                raise
        finally:
            with self._changed:
                self._driving = False
                if not tasks and work is None and not entry.done:
                    self._changed.wait(IDLE_SECONDS)  # another caller is about to add tasks to the step
                self._tell()
        return entry.done

    def _end_after(self, error: BaseException) -> bool:
        """End the tasks under way because a part failed. Return False if `error` is an interrupt instead."""
        try:
            self.broken = self._computing.named(error)
        except BaseException:
            return False
        log.error("all that is under way ends: %s", self.broken, exc_info=error)
        self._end_under_way(self.broken, error.tasks if isinstance(error, Stuck) else None)
        return True

    def _give_back(self, work: list[Prepared] | None) -> None:
        """Start all tasks again, including any the scheduler was about to return. The interrupted caller computed for
        the other callers too."""
        with self._changed:
            if work is not None:
                self._parts.scheduler.finished(work)
            for task in self._entries:
                self._forget(task)
                self._parts.scheduler.add(task)

    # One turn, in one thread or two

    def _prepare(self, tasks: list[Task]) -> None:
        if not tasks:
            return
        requests = [self._admit(request) for request in self._requests(tasks)]
        failed: list[tuple[Task, GuidewayError]] = []
        with self._changed:
            for task, request in zip(tasks, requests, strict=True):
                error = self._enqueue(request) if isinstance(request, Prepared) else request
                if error is not None:
                    self._forget(task)
                    failed.append((task, error))
            given_up = [task for task in tasks if task not in self._entries]
            self._tell()
        for task in given_up:
            self._listening.ended(task, given_up=True)
        for task, error in failed:  # before their callers continue
            self._listening.ended(task, error)
        with self._changed:
            for task, error in failed:
                self._finish(task, error)
            self._tell()

    def _enqueue(self, request: Prepared) -> GuidewayError | None:
        """Pass a request to the scheduler, and return the error it raised, if any."""
        try:
            self._parts.scheduler.prepared(request)
        except BaseException as error:
            return self._computing.named(error)
        return None

    def _requests(self, tasks: list[Task]) -> list[Prepared | GuidewayError]:
        """Return the request of each task; if preparing them together fails, prepare each alone."""
        try:
            requests = self._parts.request_processor.prepare(tasks)
            if len(requests) != len(tasks):
                raise ValueError(f"{len(requests)} requests of {len(tasks)} tasks")
        except BaseException as error:
            named = self._computing.named(error)
            return [named] if len(tasks) == 1 else [self._requests([task])[0] for task in tasks]
        return [self._check_request(task, request) for task, request in zip(tasks, requests, strict=True)]

    def _check_request(self, task: Task, request: object) -> Prepared | GuidewayError:
        """Return the request that a request processor made for a task, or an error if it is invalid."""
        if isinstance(request, GuidewayError):
            return request
        if not (isinstance(request, Prepared) and request.task is task):
            said = f"the request processor made {short_repr(request)} of a task, and not its request or an error"
            return self._computing.named(TypeError(said))
        rows: dict[str, object] = {"token_ids": request.token_ids}
        if request.token_types is not None:
            rows["token_types"] = request.token_types
        for name, row in rows.items():
            if not (isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype == np.int64):
                found = f"{row.dtype} {list(row.shape)}" if isinstance(row, np.ndarray) else short_repr(row)
                said = f"{name} of a request must be an int64 array of one dimension, and the request processor made "
                return self._computing.named(TypeError(said + found))
        return request

    def _admit(self, request: Prepared | GuidewayError) -> Prepared | GuidewayError:
        """Return a request that validators accept, after notifying observers, or the error."""
        if isinstance(request, GuidewayError) or request.task not in self._entries:
            return request
        if self._listening.has_started(request.task):  # before an interrupt
            return request
        try:
            admitted = self._listening.admit(request)
        except GuidewayError as error:
            return error
        if admitted is not None:
            self._listening.started(request.task, admitted)
        return request

    def _upcoming(self) -> list[Task]:
        """Return the tasks to prepare next. May be called while holding `_changed`."""
        with self._changed:
            tasks = self._parts.scheduler.upcoming()
            self._known = -1 if tasks else self._news
            return tasks

    def _next(self, *, idle: bool = True) -> list[Prepared] | None:
        """Return the next work, or None. `idle`: the worker has no step. May be called while holding `_changed`.
        Raises `Stuck`."""
        with self._changed:
            more = self._filling > 0 or (self._open > 0 and not self._awaiting)
            work = self._parts.scheduler.next(more=more)
            if work is not None:
                return list(work)
            if idle and not more and self._entries and self._known == self._news:
                raise Stuck(list(self._entries))
            return None

    def _deliver(self, work: list[Prepared], results: list[Any]) -> None:
        for request, result in zip(work, results, strict=True):  # before their callers continue
            self._listening.ended(request.task, result if isinstance(result, GuidewayError) else None)
        with self._changed:
            self._parts.scheduler.finished(work)
            for request, result in zip(work, results, strict=True):
                self._finish(request.task, result)
            self.broken = None
            self._tell()
        record_progress()

    def _finish(self, task: Task, result: Any) -> None:
        if (entry := self._entries.get(task)) is not None:  # otherwise its caller has left
            self._end(entry, result)
            del self._entries[task]

    def _end(self, entry: Entry, result: Any) -> None:
        """Set the result of `entry`; the output processor converts an error."""
        if isinstance(result, GuidewayError):
            try:
                result = self._parts.output_processor.failed(entry.task, result)
            except BaseException as error:
                entry.error = self._computing.named(error)
        entry.result, entry.done = result, True

    def _forget(self, task: Task) -> None:
        """Abort a task in the scheduler, and log any error."""
        try:
            self._parts.scheduler.abort(task)
        except BaseException as broken:
            log.warning("a scheduler forgets no task: %s", self._computing.named(broken))

    def _abandon(self, pending: Pending) -> None:
        given_up = []
        with self._changed:
            for entry in pending:
                if self._entries.pop(entry.task, None) is not None:
                    self._forget(entry.task)
                    given_up.append(entry.task)
            self._tell()
        for task in given_up:
            self._listening.ended(task, given_up=True)

    # The threads of the other modes

    def _start(self) -> None:
        with self._changed:
            if self._threads or self._closed:
                return
            self._threads = [
                Thread(target=self._run_guarded, args=(target,), name=f"guideway-{name}", daemon=True)
                for name, target in (("tokenizing", self._tokenize), ("computing", self._compute))
            ]
            for thread in self._threads:
                thread.start()

    def _run_guarded(self, target: Callable[[], None]) -> None:
        """Run `target` in a loop until the engine is closed. If a part fails, its error ends all tasks but not the
        thread."""
        while not self._closed:
            try:
                target()
            except BaseException as error:
                self._end_after(error)  # only the main thread is ever interrupted
            with self._changed:
                self._changed.wait_for(lambda: self._entries or self._closed)

    def _tokenize(self) -> None:
        while True:
            with self._changed:
                while not (tasks := self._upcoming()):
                    if self._closed:
                        return
                    self._changed.notify_all()  # no news except that there is nothing to prepare
                    self._changed.wait()
            self._prepare(tasks)

    def _compute(self) -> None:
        under_way: deque[tuple[list[Prepared], Any]] = deque()
        try:
            self._compute_in_turn(under_way)
        except BaseException as error:
            self._end_after(error)  # first, because a step may take long or never end
            for _, call in under_way:
                self._computing.drop(call)

    def _compute_in_turn(self, under_way: deque[tuple[list[Prepared], Any]]) -> None:
        depth = 2 if self._mode == "double_buffered" else 1
        while True:
            with self._changed:
                while (work := self._next(idle=not under_way)) is None and not under_way:
                    if self._closed:
                        return
                    self._changed.wait()
            if work is not None:
                under_way.append((work, self._computing.submit(work)))
            if work is None or len(under_way) == depth:
                oldest, call = under_way.popleft()
                self._deliver(oldest, self._computing.results(oldest, call))

    def _end_under_way(self, error: GuidewayError, tasks: list[Task] | None = None) -> None:
        """End `tasks`, by default all, with `error`, even if the scheduler fails."""
        with self._changed:
            ended = list(self._entries) if tasks is None else [task for task in tasks if task in self._entries]
            for task in ended:
                self._finish(task, error)
            self._tell()
            for task in ended:
                self._forget(task)
        for task in ended:
            self._listening.ended(task, error)
