"""A clock that tells the operator which part of a step takes guideway's time."""

from __future__ import annotations

import time
from types import TracebackType

from guideway.runtime.work.metrics import STEP_SECONDS

__all__ = ["StepClock"]


class StepClock:
    """Measures the parts of consecutive steps by the clock, for ``guideway_step_seconds``.

    Enter a part with ``with``. Parts may be nested, and each moment counts for the innermost one. One thread uses it.
    """

    def __init__(self) -> None:
        self._entered: list[_Part] = []
        self._since = 0.0
        """When the innermost part was entered or returned to, on the monotonic clock, in seconds."""
        self.accept = self._part("accept")
        """Final tokens are passed to strategies and modifiers, and recorded."""
        self.close = self._part("close")
        """Tokens that an output could not be completed after are looked for."""
        self.draft = self._part("draft")
        """Forced tokens are found, hosts are asked for the next step, and drafts are validated."""
        self.fill = self._part("fill")
        """Strategies in this process fill masks."""
        self.prepare = self._part("prepare")
        """All other work before the draw."""
        self.wait = self._part("wait")
        """Hosts are asked and answer."""
        self._parts = (self.accept, self.close, self.draft, self.fill, self.prepare, self.wait)

    def begin_step(self) -> None:
        """Add the parts of the last step, which have all been left, to the metric."""
        for part in self._parts:
            if part.seconds:
                part.observe(part.seconds)
                part.seconds = 0.0

    def _part(self, name: str) -> _Part:
        return _Part(self, name)

    def _enter(self, part: _Part) -> None:
        now, entered = time.monotonic(), self._entered
        if entered:
            entered[-1].seconds += now - self._since
        self._since = now
        entered.append(part)

    def _leave(self) -> None:
        now = time.monotonic()
        self._entered.pop().seconds += now - self._since
        self._since = now


class _Part:
    """One part of the steps."""

    __slots__ = ("_clock", "observe", "seconds")

    def __init__(self, clock: StepClock, name: str) -> None:
        self.seconds = 0.0
        """What it took in the current step."""
        self.observe = STEP_SECONDS.labels(name).observe
        self._clock = clock

    def __enter__(self) -> None:
        self._clock._enter(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._clock._leave()
