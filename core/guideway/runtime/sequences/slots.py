"""The slots of a runtime: the sequence in each, and per-slot arrays from which a step's rows are built."""

from __future__ import annotations

from typing import cast

import numpy as np

from guideway.runtime.modifiers.modifier_set import ActiveSequence
from guideway.runtime.modifiers.warp_builder import WarpBuilder

__all__ = ["Slots"]


class Slots:
    """The running sequences, by slot. Raises ValueError if a slot is empty or taken when it should not be."""

    def __init__(self, num_slots: int, warps: WarpBuilder) -> None:
        self._sequences: list[ActiveSequence | None] = [None] * num_slots
        self._acting: list[bool] | None = None
        """By modifier whether any sequence has a state of it; None until it is computed again."""
        self.warps = warps
        self.temperatures = np.zeros(num_slots, dtype=np.float32)
        self.seeds = np.zeros(num_slots, dtype=np.int64)
        self.indices = np.zeros(num_slots, dtype=np.int32)

    def check_free(self, slot: int) -> None:
        """Raise ValueError if a slot is taken or does not exist."""
        if not 0 <= slot < len(self._sequences):
            raise ValueError(f"there is no slot {slot}; slots run from 0 to {len(self._sequences) - 1}")
        if self._sequences[slot] is not None:
            raise ValueError(f"slot {slot} is taken")

    def __getitem__(self, slot: int) -> ActiveSequence:
        sequence = self._sequences[slot]
        if sequence is None:
            raise ValueError(f"no sequence was started in slot {slot}")
        return sequence

    def taken(self) -> list[int]:
        """Return the slots that are not free."""
        return [slot for slot, sequence in enumerate(self._sequences) if sequence is not None]

    def running(self, slots: list[int]) -> list[ActiveSequence]:
        """Return the sequences in these slots."""
        found = [self._sequences[slot] for slot in slots]
        return [self[slot] for slot in slots] if None in found else cast("list[ActiveSequence]", found)

    def occupy(self, slot: int, sequence: ActiveSequence) -> None:
        """Put a sequence in a slot, replacing any other."""
        self._acting = None  # first, so that an interrupt between the two lines does no harm
        self._sequences[slot] = sequence
        self.temperatures[slot] = sequence.journal.request.params.temperature
        self.seeds[slot] = sequence.journal.sequence.seed
        self.indices[slot] = sequence.journal.sequence.index
        self.warps.start(slot, sequence.journal)

    def vacate(self, slot: int) -> None:
        """Free a slot."""
        self._acting = None
        self._sequences[slot] = None
        self.warps.end(slot)

    def acting(self, num_modifiers: int) -> list[bool]:
        """Return for each modifier whether any sequence has a state of it."""
        if self._acting is None:
            running = [sequence.states for sequence in self._sequences if sequence is not None]
            self._acting = [any(states[i] is not None for states in running) for i in range(num_modifiers)]
        return self._acting
