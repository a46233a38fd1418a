"""Work in threads, shared by equal keys, and a count of the plugins in use."""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import Generic, TypeVar

from prometheus_client import Gauge

from guideway.errors import GuidewayError, LimitExceeded
from guideway.runtime.work.expiring import Expiring
from guideway.runtime.work.threads import Threads
from guideway.runtime.work.wanted import asking

__all__ = ["PluginUses", "SharedWork"]

log = logging.getLogger(__name__)

T = TypeVar("T")


class PluginUses:
    """Counts uses of plugins by threads, so that none is closed while in use."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._in_use: Counter[str] = Counter()
        self._endings: dict[str, Callable[[], None]] = {}

    @contextmanager
    def using(self, name: str) -> Iterator[None]:
        """Count a use of `name`. The end of the last use runs a callback that `end` left, in its thread."""
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
        """Call `ending` once nothing uses `name`: now, or when the last use ends. Does not wait."""
        with self._lock:
            if self._in_use[name]:
                self._endings[name] = ending
                return
        ending()


@dataclass(slots=True)
class _SharedJob(Generic[T]):
    """Work that was submitted and has not ended."""

    future: Future[T]
    owners: set[str]
    """Owners whose queue position it may use."""
    num_waiting: int = 1
    has_begun: bool = False


class SharedWork(Generic[T]):
    """Runs work in threads, once for equal keys, and caches the values. `capacity` bounds the sum of their weights; the
    least recently used value is dropped first. With `isolates`, owners share nothing."""

    def __init__(
        self,
        threads: Threads,
        at_work: PluginUses,
        capacity: int,
        gauge: Gauge | None = None,
        *,
        isolates: bool = False,
    ) -> None:
        self._isolates = isolates
        self._gauge = gauge
        """Gauge of the weights of all cached values."""
        self._threads = threads
        self._at_work = at_work
        self._capacity = capacity
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._under_way: dict[Hashable, _SharedJob[T]] = {}
        self._late: Expiring[Hashable, LimitExceeded] = Expiring()
        """Errors of work that missed its deadline and is not retried for a while."""
        self._closed = False
        self.weight = 0
        """Sum of the weights of the cached values."""

    def submit(
        self,
        uses: Sequence[str],
        key: Hashable | None,
        work: Callable[[], tuple[T, int]],
        *,
        owner: str = "",
    ) -> Future[T]:
        """Return the future of the value for `key`: cached, running, or submitted now. `work` returns the value and its
        weight, and uses the plugins `uses`; when `is_wanted` tells it that all callers have left, it may raise an
        error. With the key None nothing is shared. After `close` the future is canceled. Raises errors of comparing
        keys."""
        future: Future[T] = Future()
        key = self._own(key, owner)
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            if key is not None and (error := self._refusal(key)) is not None:
                future.set_exception(error)
                return future
            if key is not None:
                if key in self._under_way:
                    known = self._under_way[key]
                    known.num_waiting += 1
                    if owner not in known.owners and not known.has_begun:
                        known.owners.add(owner)
                        again = self._threads.submit(partial(self._run, uses, key, work, known.future), owner=owner)
                        again.add_done_callback(partial(self._give_up, key, known.future))
                    return known.future
                if key in self._kept:
                    self._kept.move_to_end(key)
                    future.set_result(self._kept[key][0])
                    return future
            # submit first: if that fails, no entry is left to wait for
            submitted = self._threads.submit(partial(self._run, uses, key, work, future), owner=owner)
            self._under_way[future if key is None else key] = _SharedJob(future, {owner})
        submitted.add_done_callback(partial(self._give_up, key, future))
        return future

    def wait_for(self, future: Future[T], key: Hashable | None, owner: str) -> Generator[Future[T], None, None]:
        """Wait for a future that `submit` returned, as a part of `Steps`; if they end before, leave it."""
        try:
            yield future
        except GeneratorExit:
            self.leave(key, future, owner)
            raise

    def leave(self, key: Hashable | None, future: Future[T], owner: str = "") -> None:
        """Stop waiting for the `future` of `key`. When all callers have left, pending work is dropped, and running work
        is told so if it asks."""
        place = future if key is None else self._own(key, owner)
        with self._lock:
            known = self._under_way.get(place)
            if known is None or known.future is not future:
                return
            known.num_waiting -= 1
            if known.num_waiting or not future.cancel():
                return
            del self._under_way[place]  # the next caller submits it again

    def close(self) -> None:
        """Start no more work, and cancel work that has not begun."""
        with self._lock:
            self._closed = True
            self._weigh(-self.weight)
            self._kept.clear()
            pending = list(self._under_way.values())
        for work in pending:
            work.future.cancel()

    def _own(self, key: Hashable | None, owner: str) -> Hashable | None:
        """Return the key as `owner` sees it."""
        return (owner, key) if self._isolates and key is not None else key

    def _give_up(self, key: Hashable | None, future: Future[T], submitted: Future[None]) -> None:
        """Fail the future of work that missed its deadline, or that no thread will run."""
        error = submitted.exception()
        if not isinstance(error, GuidewayError):
            return
        try:
            with self._lock:
                place = future if key is None else key
                known = self._under_way.get(place)
                if known is not None and known.future is future:
                    if known.has_begun and not isinstance(error, LimitExceeded):
                        return  # it runs in another owner's turn
                    del self._under_way[place]
                if key is not None and isinstance(error, LimitExceeded) and self._threads.deadline is not None:
                    again = f"{error}; it is tried again after {self._threads.deadline.remembered_seconds:g} s"
                    self._late.put(
                        key, LimitExceeded(again, field=error.field), self._threads.deadline.remembered_seconds
                    )
        except BaseException as failed:  # comparing keys calls foreign code
            log.warning("%s: what missed its deadline cannot be remembered", type(failed).__name__, exc_info=True)
        with suppress(InvalidStateError):
            future.set_exception(error)

    def _refusal(self, key: Hashable) -> LimitExceeded | None:
        """Return the error for a key whose work recently missed its deadline, or None."""
        error = self._late.get(key)
        return None if error is None else LimitExceeded(str(error), field=error.field)

    def _run(
        self, uses: Sequence[str], key: Hashable | None, work: Callable[[], tuple[T, int]], future: Future[T]
    ) -> None:
        with ExitStack() as at_work:
            for plugin in uses:
                at_work.enter_context(self._at_work.using(plugin))
            with self._lock:
                known = self._under_way.get(future if key is None else key)
                if self._closed or known is None or known.future is not future or known.has_begun:
                    return
                if not future.set_running_or_notify_cancel():
                    return
                known.has_begun = True
            self._work(key, work, future)

    def _is_wanted(self, place: Hashable, future: Future[T]) -> bool:
        """Return whether somebody waits for running work. If not, it ends: the next caller submits it again."""
        with self._lock:
            known = self._under_way.get(place)
            if known is None or known.future is not future:
                return False
            if not known.num_waiting:
                del self._under_way[place]
            return known.num_waiting > 0

    def _work(self, key: Hashable | None, work: Callable[[], tuple[T, int]], future: Future[T]) -> None:
        place = future if key is None else key
        try:
            try:
                with asking(partial(self._is_wanted, place, future)):
                    value, weight = work()
            finally:
                with self._lock:
                    if place in self._under_way and self._under_way[place].future is future:
                        del self._under_way[place]
            if key is not None:
                with self._lock:
                    self._keep(key, value, weight)
        except BaseException as error:  # waiting callers must get every error, of comparing keys too
            with suppress(InvalidStateError):  # it was given up
                future.set_exception(error)
            return
        with suppress(InvalidStateError):
            future.set_result(value)

    def _keep(self, key: Hashable, value: T, weight: int) -> None:
        if weight > self._capacity or self._closed:
            return
        self._kept[key] = (value, weight)
        self._weigh(weight)
        while self.weight > self._capacity:
            _, (_, freed) = self._kept.popitem(last=False)
            self._weigh(-freed)

    def _weigh(self, more: int) -> None:
        self.weight += more
        if self._gauge is not None:
            self._gauge.inc(more)
