"""Recovery after workers are lost: restarting them, and finding the sequence that causes the losses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future

from guideway.api.provisional import Call
from guideway.errors import WorkerLost

from guideway_engine.executors.restarting import Restarts
from guideway_engine.scheduling.sequence import SequenceState

__all__ = ["DEATHS_ALONE", "Recovery"]

DEATHS_ALONE = 2
"""Losses in steps of one sequence alone after which that sequence is ended."""


class Recovery:
    """Finds the sequence that the workers are lost with.

    The sequences of a step in which workers were lost are suspects. Each of them takes a step alone, so that a sequence
    that kills workers again and again is found without ending any other. `restart` starts new workers, one call at a
    time.
    """

    def __init__(self, restart: Callable[[], Iterator[Call]]) -> None:
        self._restarts = Restarts(restart)
        self._suspects: dict[SequenceState, int] = {}
        """Number of losses in steps of each suspect alone."""
        self.workers: Future[None] = Future()
        """Future that is never done; it stands for lost workers among the futures to wait for."""

    @property
    def workers_lost(self) -> bool:
        """True if the workers are lost and not all of them are restarted."""
        return self._restarts.needed

    @property
    def failure(self) -> WorkerLost | None:
        """The error if every attempt to restart the workers has failed."""
        return self._restarts.failure

    def record_loss(self, error: WorkerLost, sequences: Sequence[SequenceState]) -> SequenceState | None:
        """Record that the workers were lost in a step of `sequences`. Return the sequence to blame, if one is found."""
        self._restarts.record_loss(error)
        for sequence in sequences:
            deaths = self._suspects.get(sequence)
            self._suspects[sequence] = 0 if deaths is None else deaths + (len(sequences) == 1)
            if self._suspects[sequence] == DEATHS_ALONE:
                del self._suspects[sequence]
                return sequence
        return None

    def advance(self, seconds: float) -> bool:
        """Restart lost workers, waiting at most `seconds`. Return whether they are running. Raises `WorkerLost` if
        every attempt has failed."""
        return self._restarts.advance(seconds)

    def next_suspect(self) -> SequenceState | None:
        """Return the sequence that has to take the next step alone. Suspects without room are skipped."""
        return next((s for s in self._suspects if s.active), None)

    def clear(self, sequences: Iterable[SequenceState]) -> None:
        """Record that the workers survived a step of `sequences`. These and ended ones are no longer suspects."""
        if self._suspects:
            cleared = set(sequences)
            self._suspects = {s: n for s, n in self._suspects.items() if s not in cleared and s.completion is None}
