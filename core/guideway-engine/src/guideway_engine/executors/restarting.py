"""Lost workers are made anew: in several attempts, each after a longer pause than the one before."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from guideway.api.provisional import Call
from guideway.errors import WorkerLost, contain, text_of

__all__ = ["ATTEMPTS", "Restarts"]

log = logging.getLogger("guideway_engine")

ATTEMPTS = 8
"""Attempts before whatever needs workers fails: one more than the six kills in a minute that a soak test does."""

LONGEST_PAUSE = 8.0
"""Seconds. The first attempt is made at once, the second after one second, and each later one after twice as long as
the one before, up to this: 39 seconds in all, beside the time that the attempts themselves take."""


class Restarts:
    """Brings lost workers back. `begin` makes new ones: its iterator submits what brings them to where they can work,
    call by call. Used by one thread; an attempt that was interrupted is made again."""

    def __init__(self, begin: Callable[[], Iterator[Call]]) -> None:
        self._begin = begin
        self.needed = False
        """True if the workers are gone and not all of the way back."""
        self.failure: WorkerLost | None = None
        """The error that was raised when no attempt had succeeded, until the next one begins."""
        self._why: BaseException | None = None
        """Why there have to be new ones."""
        self._num_failed = 0
        self._due = 0.0
        """When the next attempt is made, by the monotonic clock."""
        self._calls: Iterator[Call] | None = None
        """The calls that are left of an attempt; None: none is under way."""
        self._call: Call | None = None
        """The call that is waited for."""

    def record_loss(self, why: WorkerLost) -> None:
        """The workers are gone. Without effect if that is known."""
        if not self.needed:
            self._why, self._num_failed, self._due, self._calls = why, 0, 0.0, None
            self.needed = True

    def advance(self, seconds: float) -> bool:
        """Bring the workers back, waiting at most so long for anything. Returns whether they are there. Raises
        `WorkerLost` if the last attempt has failed; a later call makes new ones."""
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
        from guideway.runtime.metrics import WORKER_RESTARTS  # not loaded beside every model

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
