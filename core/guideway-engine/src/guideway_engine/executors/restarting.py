"""Restarting lost workers in several attempts with growing pauses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from guideway.api.provisional import Call
from guideway.errors import WorkerLost, contain, text_of

__all__ = ["ATTEMPTS", "Restarts"]

log = logging.getLogger("guideway_engine")

ATTEMPTS = 8
"""Attempts before restarting fails: one more than the six kills per minute of a soak test."""

LONGEST_PAUSE = 8.0
"""Maximum pause in seconds. The first attempt is made at once, the second after one second, and each later one after
twice the previous pause, up to this: 39 seconds in all, plus the time of the attempts themselves."""


class Restarts:
    """Restarts lost workers. `begin` starts new ones: its iterator submits the calls that prepare them, one at a time.
    Used by one thread; an interrupted attempt is repeated."""

    def __init__(self, begin: Callable[[], Iterator[Call]]) -> None:
        self._begin = begin
        self.needed = False
        """True if the workers are lost and not all of them are restarted."""
        self.failure: WorkerLost | None = None
        """Error raised after all attempts failed, until the next attempt begins."""
        self._why: BaseException | None = None
        """Reason for the next attempt."""
        self._num_failed = 0
        self._due = 0.0
        """Monotonic time of the next attempt."""
        self._calls: Iterator[Call] | None = None
        """Remaining calls of the current attempt; None if there is no attempt."""
        self._call: Call | None = None
        """The call being waited for."""

    def record_loss(self, why: WorkerLost) -> None:
        """Record that the workers are lost. Does nothing if that is recorded already."""
        if not self.needed:
            self._why, self._num_failed, self._due, self._calls = why, 0, 0.0, None
            self.needed = True

    def advance(self, seconds: float) -> bool:
        """Restart the workers, waiting at most `seconds` for anything. Return whether they are running. Raises
        `WorkerLost` if the last attempt has failed; a later call starts new attempts."""
        if not self.needed:
            return True
        if self._calls is None:
            pause = self._due - time.monotonic()
            if pause > 0:
                time.sleep(min(pause, seconds))
            if pause > seconds:
                return False
        try:
            if self._calls is None:
                self._announce()
                self._call, self._calls = None, self._begin()
            while (call := self._call or next(self._calls, None)) is not None:
                self._call = call
                if not call.wait(seconds):
                    return False
                call.result()
                self._call = None
        except BaseException as error:
            self._calls = None
            contain(error)
            self._record_failure(error)
            return False
        self._calls, self.needed = None, False
        return True

    def _announce(self) -> None:
        from guideway.runtime.work.metrics import WORKER_RESTARTS  # not needed for every model

        WORKER_RESTARTS.inc()
        self.failure = None
        assert self._why is not None
        why = self._why if isinstance(self._why, WorkerLost) else text_of(self._why)
        log.error("%s; restarting the workers (attempt %d of %d)", why, self._num_failed + 1, ATTEMPTS)

    def _record_failure(self, error: BaseException) -> None:
        self._why = error
        self._num_failed += 1
        pause = min(2.0 ** (self._num_failed - 1), LONGEST_PAUSE)
        self._due = time.monotonic() + pause
        if self._num_failed < ATTEMPTS:
            return
        self._num_failed = 0
        why = error if isinstance(error, WorkerLost) else text_of(error)
        self.failure = WorkerLost(f"the workers could not be restarted in {ATTEMPTS} attempts: {why}")
        raise self.failure from error
