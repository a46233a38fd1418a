"""Streams: work that is done in order, and as late as can be.

Nothing happens when it is launched. An event is waited for, and only then is done what it depends on, so whoever
forgets to wait reads what was there before: every time, not once in a while.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from threading import RLock

__all__ = ["Event", "Stream"]


class Stream:
    """A queue of work. Work of different streams is in no order but that of the events they wait for.

    Streams that wait for one another have one `lock`, so that threads may launch and wait too.
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
        """The event after all that has been launched."""
        return Event(self, self._launched)

    def wait(self, event: Event) -> None:
        """Let what is launched from now on begin after `event`."""
        if event.stream is not self:
            self.launch(event.synchronize)

    def run(self, number: int) -> None:
        """Do what was launched, up to and with the work of this number."""
        with self._lock:  # whoever finds that work has begun may go on only when it is done
            while self._begun < number:
                self._begun += 1
                self._queue.popleft()()


@dataclass(frozen=True, slots=True)
class Event:
    """A place in a stream."""

    stream: Stream
    number: int

    def synchronize(self) -> None:
        """Have everything before it done."""
        self.stream.run(self.number)
