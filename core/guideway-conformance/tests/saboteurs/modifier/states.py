"""Modifiers that lose, share or move states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    Array,
    Companion,
    Feedback,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Step,
    StepBatch,
    UnsupportedCapability,
)

from saboteurs import saboteur
from saboteurs.modifier.references import Ban, Guide, Mass, Repetition, RepetitionState, RepetitionTransform, Watermark


@saboteur("modifier.start_leaves_the_request_alone")
class TakesItsOptions(Repetition):
    """Takes its options out of the request."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        state = super().start(request, sequence, compiled)
        if state is not None:
            wanted: Any = request.params.modifiers[self.name]
            wanted.pop("strength")
        return state


@saboteur("modifier.start_takes_every_request")
class ExpectsToBeSelected(Repetition):
    """Looks for its options in every request."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        strength = request.params.modifiers[self.name]["strength"]
        return RepetitionState(strength, list(sequence.prompt_token_ids))


@saboteur("modifier.sequences_have_a_state_each")
class OneStatePerRequest(Repetition):
    """Gives all sequences of a request the same state."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.states: dict[str, Any] = {}

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        return self.states.setdefault(request.request_id, super().start(request, sequence, compiled))


@saboteur("modifier.sequences_have_a_state_each")
class ClassWideState(Repetition):
    """Counts tokens of all sequences together."""

    heard = 0

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        self.heard += len(token_ids)
        return super().accept(state, token_ids, feedback)

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, drafts, ids, values)
        values *= 1 + self.heard


@saboteur("modifier.derived_states_do_not_move")
class DerivedWithMemory(Watermark):
    """Says that its state is derived, and counts steps in it."""

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        for state in states:
            if state is not None:
                state[1] += 0.5
        return super().prepare(batch, states)


@saboteur("modifier.derived_states_do_not_move")
class DerivedByIndex(Watermark):
    """Says that its state is derived, and makes it from the sequence's index, which forks do not share."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        state = super().start(request, sequence, compiled)
        return None if state is None else [state[0] + sequence.index, state[1]]


@saboteur("modifier.replay_rebuilds_the_state")
class CountsStarts(Repetition):
    """Gives each sequence another strength."""

    started = 0

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        state = super().start(request, sequence, compiled)
        if state is not None:
            self.started += 1
            state.strength += self.started
        return state


@saboteur("modifier.replay_rebuilds_the_state")
class LearnsInPrepare(Repetition):
    """Keeps in the state what only prepare saw."""

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        for state in states:
            if state is not None:
                state.strength += 0.25
        return super().prepare(batch, states)


@saboteur("modifier.accept_gives_an_outcome")
class TellsNothing(Repetition):
    """Forgets to answer after some tokens."""

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Any:
        state.tokens += token_ids
        return CONTINUE if len(state.tokens) < 10 else None


@saboteur("modifier.forced_keeps_its_limit")
class ForcesTooMuch(Repetition):
    """Forces three tokens whatever the limit is."""

    def forced(self, state: RepetitionState, limit: int) -> Sequence[int]:
        return [97, 98, 99]


@saboteur("modifier.forced_keeps_its_limit")
class ForcesNoToken(Repetition):
    """Forces a token of the padding."""

    def forced(self, state: RepetitionState, limit: int) -> Sequence[int]:
        return [len(self.context.vocabulary)][:limit]


@saboteur("modifier.forced_moves_nothing")
class ForcedConsumes(Repetition):
    """Takes forced tokens as heard."""

    def forced(self, state: RepetitionState, limit: int) -> Sequence[int]:
        ids = [97][:limit]
        state.tokens += ids
        return ids


@saboteur("modifier.validate_counts")
class CountsTheBonus(Repetition):
    """Counts the token after the drafts as well."""

    def validate(self, state: RepetitionState, token_ids: Sequence[int]) -> int:
        return len(token_ids) + 1


@saboteur("modifier.validate_counts")
class FindsNothing(Repetition):
    """Says -1 where it lets no draft pass."""

    def validate(self, state: RepetitionState, token_ids: Sequence[int]) -> int:
        return -1 if 98 in token_ids else len(token_ids)


@saboteur("modifier.validate_knows_what_is_forbidden")
class LetsWhatIsForbiddenPass(Ban):
    """Lets the first draft pass, and looks at the others alone."""

    def validate(self, state: bool, token_ids: Sequence[int]) -> int:
        return next((k for k, token_id in enumerate(token_ids) if k and token_id % 3 == 0), len(token_ids))


@saboteur("modifier.validate_moves_nothing")
class ValidateAccepts(Repetition):
    """Takes drafts as final."""

    def validate(self, state: RepetitionState, token_ids: Sequence[int]) -> int:
        state.tokens += token_ids
        return len(token_ids)


@saboteur("modifier.forks_go_on_as_their_parent")
class ForkForgets(Repetition):
    """A fork has forgotten all tokens."""

    def fork(self, state: RepetitionState) -> RepetitionState:
        return RepetitionState(state.strength)


@saboteur("modifier.forks_go_on_as_their_parent")
class ForkTakes(Repetition):
    """A fork takes the tokens with it."""

    def fork(self, state: RepetitionState) -> RepetitionState:
        tokens, state.tokens = state.tokens, []
        return RepetitionState(state.strength, tokens)


@saboteur("modifier.forks_are_independent")
class ForkIsTheSame(Repetition):
    """A fork is the state itself, which accept changes."""

    def fork(self, state: RepetitionState) -> RepetitionState:
        return state


@saboteur("modifier.forks_are_independent")
class ShallowFork(Mass):
    """A fork with feedback shares its list."""

    def fork(self, state: list[float]) -> list[float]:
        return state


@saboteur("modifier.forks_go_on_as_their_parent", outcome="error")
@saboteur("modifier.forks_are_independent", outcome="error")
@saboteur("modifier.forks_end_alone", outcome="error")
class RefusesEveryFork(Repetition):
    """Its class says that it can fork, but it refuses each state."""

    def fork(self, state: RepetitionState) -> RepetitionState:
        raise UnsupportedCapability("this sequence cannot be forked", field="fork")


class _SecretFork(Watermark):
    derived = False

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        secret: Any = self
        secret.fork = lambda state: state


@saboteur("modifier.forks_go_on_as_their_parent", mode="refusal")
class ForksInSecret(_SecretFork):
    """Can fork, but its class does not say so."""


@saboteur("modifier.forks_are_independent", mode="refusal")
class ForksInSecretToo(_SecretFork):
    """Can fork, but its class does not say so."""


@saboteur("modifier.release_takes_every_end")
class ReleaseNeedsAState(Repetition):
    """Cannot release a sequence whose start failed."""

    def release(self, state: Any) -> None:
        state.tokens.clear()


@saboteur("modifier.release_ends_one_sequence")
class ReleasesAll(Repetition):
    """Lets go of every sequence at once."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.states: list[RepetitionState] = []

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        state = super().start(request, sequence, compiled)
        self.states += [] if state is None else [state]
        return state

    def release(self, state: RepetitionState | None) -> None:
        for known in self.states if state else ():
            known.tokens.clear()


class _ByFirstSight(Repetition):
    """Remembers by slot."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.strengths: dict[int, float] = {}

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        known = [
            state and RepetitionState(self.strengths.setdefault(slot, state.strength + state.tokens[0]), state.tokens)
            for slot, state in zip(batch.slots.tolist(), states, strict=True)
        ]
        return super().prepare(batch, known)


@saboteur("modifier.release_ends_one_sequence")
class SlotsKeepTheirTenant(_ByFirstSight):
    """Gives a sequence what the one before it in its slot had asked for."""


@saboteur("modifier.any_history")
class SlotsRemember(_ByFirstSight):
    """Gives a sequence what the one before it in its slot had asked for."""


@saboteur("modifier.companions_are_prompts")
class CompanionOutside(Guide):
    """Starts its companion with a token that there is not."""

    def companions(self, request: Request) -> Sequence[Companion]:
        return [Companion((len(self.context.vocabulary), 97))] if self.name in request.params.modifiers else []


@saboteur("modifier.no_companions_for_others")
class CompanionsForAll(Guide):
    """Wants companions for requests it leaves alone."""

    def companions(self, request: Request) -> Sequence[Companion]:
        return [Companion((101, 102))]


@saboteur("modifier.long_sequences")
class FixedBuffer(Repetition):
    """Has room for 512 tokens."""

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if len(state.tokens) + len(token_ids) > 512:
            raise IndexError("the buffer is full")
        return super().accept(state, token_ids, feedback)


@saboteur("modifier.any_process")
class HashesText(Repetition):
    """Takes a number from `hash` of a text, which is another one in each process."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        state = super().start(request, sequence, compiled)
        if state is not None:
            state.strength += hash(request.request_id) % 7
        return state


@saboteur("modifier.long_prompts")
class ShortPrompts(Repetition):
    """Has room for prompts of 4096 tokens."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        state = super().start(request, sequence, compiled)
        if state is not None and len(state.tokens) > 4096:
            raise IndexError("the buffer is full")
        return state


@saboteur("modifier.derived_states_hear_nothing")
class DerivedThatHears(Repetition):
    """Says that its state is derived, and keeps in it what it hears."""

    derived = True


@saboteur("modifier.hearing_changes_nothing_else")
class EatsTokens(Repetition):
    """Takes the tokens it hears out of the host's list."""

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        given: Any = token_ids
        while given:
            state.tokens.append(given.pop(0))
        return CONTINUE


@saboteur("modifier.hearing_changes_nothing_else")
class NormalizesFeedback(Mass):
    """Works in the arrays of its feedback."""

    def accept(self, state: list[float], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        outcome = super().accept(state, token_ids, feedback)
        for array in (feedback or {}).values():
            array *= 0.5
        return outcome


@saboteur("modifier.forks_end_alone")
class ReleasesTheFamily(Repetition):
    """Lets go of parent and forks together."""

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.relatives: list[tuple[RepetitionState, RepetitionState]] = []

    def fork(self, state: RepetitionState) -> RepetitionState:
        child = super().fork(state)
        self.relatives += [(state, child), (child, state)]
        return child

    def release(self, state: RepetitionState | None) -> None:
        for one, other in self.relatives:
            if one is state:
                other.tokens.clear()


@saboteur("modifier.forks_end_alone", mode="refusal")
class ForksInSecretAgain(_SecretFork):
    """Can fork, but its class does not say so."""


@saboteur("modifier.hearing_changes_nothing_else")
class UnlocksFeedback(Mass):
    """Makes feedback writable, and clears it."""

    def accept(self, state: list[float], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        outcome = super().accept(state, token_ids, feedback)
        for array in (feedback or {}).values():
            array.setflags(write=True)
            array[:] = 0
        return outcome


@saboteur("modifier.keeps_copies")
class KeepsFeedback(Mass):
    """Keeps the feedback itself, and reads it in the next step."""

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        return super().prepare(
            batch, [None if state is None else [float(array.sum()) for array in state] for state in states]
        )

    def accept(self, state: Any, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if feedback is not None:
            state.append(feedback["mass"])
        return CONTINUE


@saboteur("modifier.keeps_copies")
class KeepsTheBatch(Repetition):
    """Looks up in the batch of the step before where a sequence was."""

    before: StepBatch | None = None

    def prepare(self, batch: StepBatch, states: Sequence[RepetitionState | None]) -> Payload | None:
        payload = super().prepare(batch, states)
        if payload is not None and self.before is not None:
            payload.arrays["values"][:] += self.before.positions[0]
        self.before = batch
        return payload


@saboteur("modifier.closing_ends_one_instance")
class ClosesForAll(Repetition):
    """Closing one instance ends all of its class."""

    closed = False

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        if self.closed:
            raise RuntimeError("closed")
        return super().prepare(batch, states)

    def close(self) -> None:
        type(self).closed = True


@saboteur("modifier.closing_ends_one_instance")
class ClosesWhatAStepOpened(Repetition):
    """Closes what only a step opens."""

    opened: Any

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        self.opened = True
        return super().prepare(batch, states)

    def close(self) -> None:
        del self.opened


class _ClosedTransform(RepetitionTransform):
    """Its table is the class's."""

    table: ClassVar[list[float]] = [1.0]

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return super().apply(logits, payload, step) * self.table[0]

    def close(self) -> None:
        self.table.clear()


@saboteur("modifier.closing_ends_one_instance")
class TransformClosesForAll(Repetition):
    """Its transform lets go of what all transforms use."""

    transform = _ClosedTransform


@saboteur("modifier.reports_are_small_json")
class ReportsEveryToken(Repetition):
    """Tells of each token, at such length that a few of them are too much."""

    def report(self, state: RepetitionState) -> Any:
        return {str(i): f"token {token_id} ".ljust(500) for i, token_id in enumerate(state.tokens)}


@saboteur("modifier.reports_are_small_json")
class ReportsArrays(Mass):
    """Tells numbers as NumPy has them."""

    def report(self, state: list[float]) -> Any:
        return {"mass": np.float32(sum(state))}


@saboteur("modifier.reports_are_small_json")
class ReportsAText(Repetition):
    """Tells a text."""

    def report(self, state: RepetitionState) -> Any:
        return f"{len(state.tokens)} tokens"


@saboteur("modifier.unenforced_gives_names")
class OneNameAsAText(Repetition):
    """Gives one name, and not a sequence of names."""

    def unenforced(self, state: RepetitionState) -> Sequence[str]:
        return "strength" if state.strength > 5 else ()


@saboteur("modifier.unenforced_gives_names")
class NamesWhatItDid(Repetition):
    """Names something of how often it was asked, and not of the state."""

    asked = 0

    def unenforced(self, state: RepetitionState) -> Sequence[str]:
        self.asked += 1
        return [f"strength of {self.asked}"] if self.asked > 3 else []


@saboteur("modifier.unenforced_gives_names")
class UnenforcedWeakens(Repetition):
    """Gives up a little of what it does, each time that it is asked."""

    def unenforced(self, state: RepetitionState) -> Sequence[str]:
        state.strength -= 0.5
        return ()


@saboteur("modifier.forks_go_on_as_their_parent")
class ForgetsLongAgo(Repetition):
    """Copies the last tokens, which do for the first hundred."""

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, drafts, ids, values)
        values *= 1 + 0.01 * len({*state.tokens, *drafts})

    def fork(self, state: RepetitionState) -> RepetitionState:
        return RepetitionState(state.strength, state.tokens[-16:])


@saboteur("modifier.any_vocabulary_beside_another")
class OneTableForAll(Repetition):
    """Looks up the letter that it spares once, in the vocabulary of the first instance."""

    table: ClassVar[dict[bytes, int]] = {}

    def __init__(self, options: Any, context: Any) -> None:
        super().__init__(options, context)
        self.spared = self.table.setdefault(b"a", context.vocabulary.tokens.index(b"a"))

    def fill(self, state: RepetitionState, drafts: list[int], ids: Any, values: Any) -> None:
        super().fill(state, drafts, ids, values)
        ids[-1], values[-1] = self.spared, 1.0
