"""After a loss of workers: whether there are new ones, and which sequence the workers are lost with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

from guideway.api.provisional import Call
from guideway.errors import WorkerLost

from guideway_engine.executors.restarting import Restarts
from guideway_engine.scheduling.sequence import SequenceState

__all__ = ["DEATHS_ALONE", "Recovery"]

DEATHS_ALONE = 2
"""The workers have to be lost so often in steps of a suspect alone, before it is the culprit."""


class Recovery:
    """Sequences that workers were lost with are suspects. Each of them takes a step alone, so that the one that the
    workers are lost with again and again is found and costs no other one anything. `restart` makes lost workers
    anew, call by call."""

    def __init__(self, restart: Callable[[], Iterator[Call]]) -> None:
        self._restarts = Restarts(restart)
        self._suspects: dict[SequenceState, int] = {}
        """For each, how often the workers were lost in its steps alone."""
        self.workers: Future[None] = Future()
        """Stands for lost workers among what is waited for; it is never done."""

    @property
    def workers_lost(self) -> bool:
        """True if the workers are gone and not all of the way back."""
        return self._restarts.needed

    @property
    def failure(self) -> WorkerLost | None:
        """Why there are no workers, if no attempt to restart them has succeeded."""
        return self._restarts.failure

    def record_loss(self, error: WorkerLost, sequences: Sequence[SequenceState]) -> SequenceState | None:
        """The workers are lost in a step of `sequences`. Returns the one it happened with too often."""
        self._restarts.record_loss(error)
        for sequence in sequences:
            deaths = self._suspects.get(sequence)
            self._suspects[sequence] = 0 if deaths is None else deaths + (len(sequences) == 1)
            if self._suspects[sequence] == DEATHS_ALONE:
                del self._suspects[sequence]
                return sequence
        return None

    def advance(self, seconds: float) -> bool:
        """Bring lost workers back, waiting at most so long. Returns whether they are there. Raises `WorkerLost` if no
        attempt has succeeded."""
        return self._restarts.advance(seconds)

    def next_suspect(self) -> SequenceState | None:
        """Return the sequence that has to take the next step alone. A suspect that has no room now keeps no other one
        waiting."""
        return next((s for s in self._suspects if s.active), None)

    def clear(self, sequences: Iterable[SequenceState]) -> None:
        """The workers have drawn tokens for `sequences` and are still there; and one that has ended is no suspect."""
        if self._suspects:
            cleared = set(sequences)
            self._suspects = {s: n for s, n in self._suspects.items() if s not in cleared and s.completion is None}
