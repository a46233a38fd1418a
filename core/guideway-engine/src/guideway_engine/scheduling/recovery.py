"""After a loss of workers: whether there are new ones, and which sequence the workers are lost with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from guideway_engine.scheduling.sequence import SequenceState

__all__ = ["Recovery"]


class Recovery:
    """Sequences that workers were lost with are suspects. Each of them takes a step alone, so that the one that the
    workers are lost with again is found and costs no other one anything. `restart` makes lost workers anew."""

    def __init__(self, restart: Callable[[], None]) -> None:
        self._restart = restart
        self._suspects: list[SequenceState] = []
        self.workers_lost = False
        """True if the workers are gone and not all of the way back."""

    def record_loss(self, sequences: Sequence[SequenceState]) -> SequenceState | None:
        """The workers are lost in a step of `sequences`. Returns the one it happened with once more."""
        self.workers_lost = True
        culprit = sequences[0] if len(sequences) == 1 and sequences[0] in self._suspects else None
        suspects = dict.fromkeys([*self._suspects, *sequences])
        self._suspects = [sequence for sequence in suspects if sequence is not culprit]
        return culprit

    def restart_workers(self) -> None:
        """Make lost workers anew. Raises what `restart` raises; until it succeeds they are lost."""
        self._restart()
        self.workers_lost = False

    def next_suspect(self) -> SequenceState | None:
        """Return the sequence that has to take the next step alone. A suspect that has no room now keeps no other one
        waiting."""
        return next((s for s in self._suspects if s.active), None)

    def clear(self, sequences: Iterable[SequenceState]) -> None:
        """The workers have drawn tokens for `sequences` and are still there; and one that has ended is no suspect."""
        if self._suspects:
            cleared = set(sequences)
            self._suspects = [s for s in self._suspects if s not in cleared and s.completion is None]
