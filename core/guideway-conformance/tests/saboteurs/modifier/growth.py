"""Modifiers that keep what they should let go, and work more the longer a sequence is."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from guideway.api import Feedback, ModifierContext, Outcome, Request, SequenceInfo

from saboteurs import saboteur
from saboteurs.modifier.references import Repetition, RepetitionState


@saboteur("modifier.released_states_are_freed")
class KeepsStates(Repetition):
    """Notes all states, and strikes none out."""

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        self.states: list[RepetitionState] = []

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> RepetitionState | None:
        state = super().start(request, sequence, compiled)
        self.states += [] if state is None else [state]
        return state


@saboteur("modifier.released_states_are_freed")
class KeepsAStatistic(Repetition):
    """Lets go of states, and keeps what it counted for each."""

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        self.counts: list[bytearray] = []

    def release(self, state: RepetitionState | None) -> None:
        self.counts.append(bytearray(4096))


@saboteur("modifier.closing_ends_threads_and_files_of_a_modifier")
class LeavesAThreadRunning(Repetition):
    """Starts a thread that nobody ends."""

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


@saboteur("modifier.work_for_a_token_has_a_budget")
class CountsAnew(Repetition):
    """Counts, after each token, for each token how often it stands before it."""

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        outcome = super().accept(state, token_ids, feedback)
        repeated = 0
        for number, token_id in enumerate(state.tokens):
            for earlier in state.tokens[:number]:
                repeated += earlier == token_id
        return outcome


@saboteur("modifier.work_for_a_token_has_a_budget")
class CopiesEachPast(Repetition):
    """Keeps a copy of the sequence for each of its tokens, and copies them all for each row."""

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        pasts = [state.tokens[:number] for number in range(len(state.tokens))]
        super().fill(state, [*drafts, *pasts[0]], ids, values)
