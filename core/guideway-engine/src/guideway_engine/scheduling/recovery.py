"""After a loss of workers: whether there are new ones, and who costs them their lives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as SequenceOf

from guideway_engine.scheduling.sequence import Sequence

__all__ = ["Recovery"]


class Recovery:
    """Sequences that workers were lost with are suspects. Each of them takes a step alone, so that who costs the
    workers their lives again is found and costs nobody else anything. `restart` makes lost workers anew."""

    def __init__(self, restart: Callable[[], None]) -> None:
        self._restart = restart
        self._suspects: list[Sequence] = []
        self.lost = False
        """Whether the workers are gone and not all of the way back."""

    def lose(self, sequences: SequenceOf[Sequence]) -> Sequence | None:
        """The workers are lost in a step of `sequences`. Returns the one it happened with once more."""
        self.lost = True
        culprit = sequences[0] if len(sequences) == 1 and sequences[0] in self._suspects else None
        suspects = dict.fromkeys([*self._suspects, *sequences])
        self._suspects = [sequence for sequence in suspects if sequence is not culprit]
        return culprit

    def make_workers(self) -> None:
        """Make lost workers anew. Raises what `restart` raises; until it succeeds they are lost."""
        self._restart()
        self.lost = False

    def alone(self) -> Sequence | None:
        """Who has to take the next step alone. A suspect that has no room now keeps nobody waiting."""
        return next((s for s in self._suspects if s.active), None)

    def survived(self, sequences: Iterable[Sequence]) -> None:
        """The workers have drawn tokens for `sequences` and live; and a suspect that has ended is none."""
        if self._suspects:
            cleared = set(sequences)
            self._suspects = [s for s in self._suspects if s not in cleared and s.completion is None]
