"""Streams: queues of work that is done in order, and as late as possible.

Launching does nothing. Only when an event is waited for, the work that it depends on is done, so code that forgets to
wait reads the old contents: every time, not once in a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock

__all__ = ["Event", "Stream"]


class Stream:
    """A queue of work. The work of different streams is ordered only by the events that they wait for.

    Streams that wait for one another share one `lock`, so that threads may launch and wait too.
    """

    def __init__(self, lock: RLock | None = None) -> None:
        self._lock = lock or RLock()
        self._queue: deque[Callable[[], None]] = deque()
        self._launched = 0
        self._begun = 0

    def launch(self, work: Callable[[], None]) -> Event:
        """Queue `work`, which must not raise."""
        with self._lock:
            self._queue.append(work)
            self._launched += 1
            return self.now()

    def now(self) -> Event:
        """Return the event after all work that is already launched."""
        return Event(self, self._launched)

    def wait(self, event: Event) -> None:
        """Make work that is launched from now on begin after `event`."""
        if event.stream is not self:
            self.launch(event.synchronize)

    def run(self, number: int) -> None:
        """Do the launched work, up to and including the given number."""
        with self._lock:  # a thread that finds the work begun must wait until it is done
            while self._begun < number:
                self._begun += 1
                self._queue.popleft()()


@dataclass(frozen=True, slots=True)
class Event:
    """A place in a stream."""

    stream: Stream
    number: int

    def synchronize(self) -> None:
        """Complete all work before this event."""
        self.stream.run(self.number)
