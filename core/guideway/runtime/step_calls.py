"""What the runtime asks of modifiers while sequences run: every call guarded, every failure one sequence's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import index as index_of
from typing import Any, TypeVar

from guideway.api.modifier import LogitModifier
from guideway.api.steps import CONTINUE, Fault, Feedback, Outcome, Payload, Stage, StepBatch, fail
from guideway.errors import ConformanceError, contain
from guideway.runtime.grammar_mask import GrammarState
from guideway.runtime.modifier_set import ActiveSequence, ModifierSet
from guideway.runtime.rows import check_payload

__all__ = ["StepCalls"]

T = TypeVar("T")


class StepCalls:
    """A failure is noted in the sequence's `fault`, and never raised."""

    def __init__(self, modifiers: ModifierSet) -> None:
        self._modifiers = modifiers

    def forced(self, sequence: ActiveSequence, limit: int) -> Sequence[int]:
        """At most `limit` tokens that must come next, as all modifiers of the sequence agree."""

        def read(found: Any) -> list[int]:
            return [index_of(token_id) for token_id in found][:limit]

        for modifier, state in self._modifiers.with_states(sequence):
            ids = self._ask(sequence, modifier, state, "forced", limit, read)
            if ids:
                return ids[: self.validate(sequence, ids)]
        return ()

    def validate(self, sequence: ActiveSequence, token_ids: Sequence[int]) -> int:
        """How many of these drafts every modifier of the sequence would let pass."""
        count = len(token_ids)
        for modifier, state in self._modifiers.with_states(sequence):
            ids = token_ids[:count]
            count = self._ask(sequence, modifier, state, "validate", ids, partial(read_count, len(ids))) or 0
        return count

    def hear(self, sequence: ActiveSequence, ids: Sequence[int], feedback: Mapping[str, Feedback] | None) -> Outcome:
        """Tell everyone the final tokens of a step, note them in the journal, and gather what is to become of it."""
        verdict = CONTINUE
        for modifier, state in sequence.listeners:
            try:
                outcome = modifier.accept(state, ids, feedback.get(modifier.name) if feedback else None)
                if outcome is CONTINUE:
                    continue
                if not isinstance(outcome, Outcome):
                    raise ConformanceError(f"accept must return an Outcome, not {type(outcome).__name__}")
            except BaseException as error:
                contain(error)
                sequence.fault = Fault.of(self._modifiers.id(modifier, state), "accept", error)
                return fail(str(sequence.fault))
            if outcome.action == "fail":
                sequence.fault = self._blamed(sequence, modifier, state, ids, outcome.message)
                return fail(str(sequence.fault))
            if outcome.action == "finish":
                verdict = outcome
        sequence.journal.record(ids, feedback)
        return verdict

    def _blamed(
        self, sequence: ActiveSequence, modifier: LogitModifier[Any], state: Any, ids: Sequence[int], message: str
    ) -> Fault:
        """Whose fault it is that `modifier` failed: a token the mask forbade was made possible by what acted later."""
        if isinstance(state, GrammarState) and self._modifiers.mask.forbade(state, ids):
            acting = self._modifiers.with_states(sequence)
            later = [m for m, _ in acting if m.stage in (Stage.POST_WARP, Stage.SAMPLE)]
            if later:
                phase = "sample" if later[-1].stage is Stage.SAMPLE else "apply"
                return Fault(f"modifier.{later[-1].name}", phase, message)
        return Fault(self._modifiers.id(modifier, state), "accept", message)

    def prepare(
        self, modifier: LogitModifier[Any], batch: StepBatch, states: list[Any], sequences: list[ActiveSequence]
    ) -> Payload | None:
        """One modifier's payload for the sequences it does not fail for."""

        def attempt(some: list[Any]) -> Payload | None:
            payload = modifier.prepare(batch, some)
            if modifier is self._modifiers.mask:
                return payload
            return check_payload(payload, batch, [state is not None for state in some])

        try:
            payload = attempt(states)
            self._note_mask_faults(sequences)
            return payload
        except BaseException as error:
            contain(error)
        for i, state in enumerate(states):  # one by one, to learn whose it is
            if state is not None:
                try:
                    attempt([state if j == i else None for j in range(len(states))])
                except BaseException as error:
                    contain(error)
                    sequences[i].fault = Fault.of(self._modifiers.id(modifier, state), "prepare", error)
        healthy = [None if sequence.fault else state for state, sequence in zip(states, sequences, strict=True)]
        try:
            return attempt(healthy) if any(state is not None for state in healthy) else None
        except BaseException as error:  # each works alone, but not together
            contain(error)
            for state, sequence in zip(healthy, sequences, strict=True):
                if state is not None:
                    sequence.fault = Fault.of(self._modifiers.id(modifier, state), "prepare", error)
            return None

    def _note_mask_faults(self, sequences: list[ActiveSequence]) -> None:
        for state, fault in self._modifiers.mask.take_faults():
            for sequence in sequences:
                if self._modifiers.grammar_state(sequence) is state:
                    sequence.fault = fault

    def _ask(
        self,
        sequence: ActiveSequence,
        modifier: LogitModifier[Any],
        state: Any,
        phase: str,
        argument: Any,
        read: Callable[[Any], T],
    ) -> T | None:
        """``read(modifier.phase(state, argument))``; if that raises, the sequence is at fault and the answer None."""
        try:
            answer: T = read(getattr(modifier, phase)(state, argument))
            return answer
        except BaseException as error:
            contain(error)
            sequence.fault = Fault.of(self._modifiers.id(modifier, state), phase, error)
            return None


def read_count(most: int, value: Any) -> int:
    """`value` as a count from 0 to `most`. Raises `ConformanceError`."""
    count = index_of(value)
    if not 0 <= count <= most:
        raise ConformanceError(f"it must return a count from 0 to {most}, not {count}")
    return count
