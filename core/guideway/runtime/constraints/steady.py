"""Steps of sequences with one row each, on which only their constraints act.

Each strategy accepts all tokens in one call and fills all masks in another. The books of a sequence (its journal, and
the grammar mask's state) are written only when they are read, or when it leaves. Sequences may leave and join between
two steps. Anything unusual ends this: the step is then repeated sequence by sequence, as if it had not begun.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
from numpy.typing import NDArray

from guideway.api.grammar import Matcher
from guideway.api.steps import CONTINUE, GRAMMAR_MASK, Fault, Outcome, Payload, StepBatch, StepInput
from guideway.errors import contain
from guideway.runtime.constraints.grammar_state import GrammarState
from guideway.runtime.constraints.mask_rows import MaskRows, StrategyBlock
from guideway.runtime.modifiers.modifier_set import MOST_TOGETHER, ActiveSequence
from guideway.runtime.sequences.replay import advance_matchers
from guideway.runtime.work.stopwatch import Stopwatch

__all__ = ["SteadyBatch", "is_plain"]

SAME = tuple(each.name for each in fields(StepInput) if each.name not in ("batch", "payloads"))
"""The fields of a step that stay the same for the same sequences with one row each."""
MOST_STEPS = 256
"""Steps after which the books are written, so that the log does not grow with the outputs."""


def is_plain(sequence: ActiveSequence, state: GrammarState | None) -> bool:
    """Return whether a sequence may be in a `SteadyBatch`: only its constraint acts on it, and the constraint has
    begun, has not ended and lost no token to closing. `state` is the grammar mask's."""
    if sequence.fault is not None or sequence.bans is not None or sequence.companions:
        return False
    if sequence.opening is not None and not sequence.opening.is_over(sequence.journal.token_ids):
        return False
    if state is None:
        return not sequence.acting
    alone = len(sequence.acting) == 1 and state.first_closed is None
    return alone and state.begins_in == 0 and not state.terminated and not state.canonical


@dataclass(slots=True, eq=False)
class _Member:
    """A sequence of the batch and its books."""

    sequence: ActiveSequence
    state: GrammarState | None
    slot: int
    written: tuple[int, int, int, int]
    """The number of steps, and of tokens, steps and accepted tokens in the books, before the first token that the books
    lack."""
    ends_after: int
    """The number of steps with which it is as long as it may be, and ends."""
    closes_at: int
    """The number of steps before which closing certainly has nothing to do."""


@dataclass(slots=True)
class _Part:
    """The members of one strategy: their indices in the batch, states and matchers."""

    places: NDArray[np.int32]
    states: list[GrammarState]
    matchers: tuple[Matcher, ...]

    def without(self, ending: Collection[int]) -> _Part:
        """Return the part without the members at these indices."""
        kept = [i for i, place in enumerate(self.places.tolist()) if place not in ending]
        return _Part(self.places[kept], [self.states[i] for i in kept], tuple([self.matchers[i] for i in kept]))


class SteadyBatch:
    """The sequences of a prepared step, in the order of the batch. `rows` fills their masks. `num_left` returns how
    many more tokens a sequence may have. `accept_alone` accepts the token of a sequence that leaves."""

    def __init__(
        self,
        rows: MaskRows,
        stopwatch: Stopwatch,
        num_left: Callable[[ActiveSequence], int],
        accept_alone: Callable[[ActiveSequence, Sequence[int]], Outcome],
    ) -> None:
        self._rows = rows
        self._stopwatch = stopwatch
        self._num_left = num_left
        self._accept_alone = accept_alone
        self._members: dict[ActiveSequence, _Member] = {}
        self._log: tuple[int, list[dict[int, int]]] = 0, []
        """By slot the tokens of each step that not all books have, and the number of steps before these."""
        self._is_whole = False
        """False after a sequence has left, until the next step is prepared."""

    def takes(self, sequences: Sequence[ActiveSequence], states: Sequence[GrammarState | None]) -> bool:
        """Return whether these sequences may be the next batch."""
        pairs = zip(sequences, states, strict=True)
        return all(is_plain(sequence, state) for sequence, state in pairs if sequence not in self._members)

    def enter(
        self,
        step: StepInput,
        sequences: Sequence[ActiveSequence],
        states: Sequence[GrammarState | None],
        blocks: Sequence[StrategyBlock],
    ) -> None:
        """Let these sequences be the batch, which it `takes`: some that are in it, and others that join. `blocks`, of
        which there is at least one, are their rows as `MaskRows` has laid them out."""
        for sequence in self._members.keys() - set(sequences):
            self.leave(sequence)
        self._step_again = partial(StepInput, **{name: getattr(step, name) for name in SAME})
        """Makes the input of a step from a batch and payloads."""
        self._blocks = blocks
        self._parts = [
            _Part(np.array(block.sequences, np.int32), block.states, tuple([job.matcher for job in block.jobs]))
            for block in blocks
        ]
        self._places = np.concatenate([part.places for part in self._parts])
        """``int32[m]``: the indices in the batch of the constrained sequences, grouped by strategy."""
        constrained = [state for block in blocks for state in block.states]
        self._forecasts = constrained[0].forecast is not None
        """True if the constrained states have forecasts: all of them, or none."""
        self._share = min(MOST_TOGETHER, 1 + (len(constrained) - 1) / 8)
        self._stops = frozenset[int]().union(*{state.stop_token_ids for state in constrained})
        """The stop tokens of all constrained sequences."""
        members, self._slots = self._members, step.batch.slots.tolist()
        self._members = {
            sequence: members.get(sequence) or self._member(sequence, state, slot)
            for sequence, state, slot in zip(sequences, states, self._slots, strict=True)
        }
        self._ends_at = min([sequence.ends_at for sequence in sequences])
        self._ends_after = min([member.ends_after for member in self._members.values()])
        self._closes_at = min([member.closes_at for member in self._members.values()])
        self._is_whole = True

    @property
    def is_whole(self) -> bool:
        """True if no sequence has left since the last step was prepared."""
        return self._is_whole

    def is_of(self, batch: StepBatch) -> bool:
        """Return whether a batch has the same sequences, one row each."""
        return self._is_whole and batch.num_rows == batch.num_sequences and batch.slots.tolist() == self._slots

    def prepare(self, batch: StepBatch) -> StepInput | None:
        """Return the worker's input for the next step; None if it must be prepared sequence by sequence."""
        if time.monotonic() > self._ends_at:
            return None
        now, closing = self._num_steps, list[GrammarState]()
        if self._closes_at <= now:
            closing = self._find_closing(now)
        try:
            began = self._stopwatch.start()
            bitmask = self._rows.fill_again(self._blocks, closing)
            if bitmask is None or self._stopwatch.overrun(began, self._share):
                return None
        except BaseException as error:
            self._break()
            contain(error)
            self._go_back(self._parts, None)
            return None
        return self._step_again(batch=batch, payloads={GRAMMAR_MASK: Payload(self._places, {"bitmask": bitmask})})

    def accept(self, token_ids: Sequence[Sequence[int]]) -> list[Outcome] | None:
        """Accept the final tokens of a step and return the outcomes; None if they must be accepted sequence by
        sequence. In that case nothing has changed. Sequences that probably end leave, and accept theirs alone."""
        try:
            ids = [token_id for (token_id,) in token_ids]
        except ValueError:  # not one token each
            return None
        now, members, parts, ending = self._num_steps + 1, list(self._members.values()), self._parts, list[int]()
        if now >= self._ends_after or not self._stops.isdisjoint(ids):
            pairs = enumerate(zip(members, ids, strict=True))
            ending = [i for i, (member, token) in pairs if now >= member.ends_after or token in self._stops]
            parts = [part.without(ending) for part in parts]
        given = np.array(ids, dtype=np.int32)
        for part in parts if self._forecasts else ():
            for state in part.states:
                state.learn_forced()
        counts, taken = list[int](), 0.0
        try:
            began = self._stopwatch.start()
            for block, part in zip(self._blocks, parts, strict=True):
                asked = time.monotonic()
                if part.matchers:
                    counts += advance_matchers(block.strategy, part.matchers, given[part.places]).tolist()
                if block.home.waits:  # the call may have waited for its host
                    self._stopwatch.leave_out(asked, waited=True)
            taken = self._stopwatch.overrun(began, self._share)
        except BaseException as error:
            self._break()
            contain(error)
            counts += [-1] * (sum([len(part.matchers) for part in parts]) - len(counts))
        if taken or not set(counts) <= {1}:
            self._go_back(parts, counts)
            return None
        for i in ending:
            self.leave(members[i].sequence)
        self._log[1].append(dict(zip(self._slots, ids, strict=True)))
        for part in parts if self._forecasts else ():
            for state, token_id in zip(part.states, given[part.places].tolist(), strict=True):
                if state.forecast is not None:
                    state.forecast.accept((token_id,), 0)
        for member in self._members.values() if self._rows.closing else ():
            if member.state in self._rows.closing:  # its record holds after the token of this step
                self._write(member)
                self._rows.record_end(member.state, member.sequence.journal)
        if len(self._log[1]) >= MOST_STEPS:
            self.settle()
        outcomes = [CONTINUE] * len(members)
        for i in ending:
            outcomes[i] = self._accept_alone(members[i].sequence, token_ids[i])
        return outcomes

    def leave(self, sequence: ActiveSequence) -> None:
        """Write the books of a sequence and let it leave, if it is in the batch."""
        if (member := self._members.get(sequence)) is not None:
            self._is_whole = False
            self._write(member)
            del self._members[sequence]

    def settle(self) -> None:
        """Write the accepted tokens into all books. May be repeated after an interrupt."""
        for member in self._members.values():
            self._write(member)
        self._log = self._num_steps, []

    def settle_one(self, sequence: ActiveSequence) -> None:
        """Write the accepted tokens into the books of a sequence, if it is in the batch."""
        if (member := self._members.get(sequence)) is not None:
            self._write(member)

    @property
    def _num_steps(self) -> int:
        """Steps whose tokens were accepted."""
        return self._log[0] + len(self._log[1])

    def _member(self, sequence: ActiveSequence, state: GrammarState | None, slot: int) -> _Member:
        """Return a sequence that joins, with its present books."""
        now, journal = self._num_steps, sequence.journal
        closer = None if state is None else state.closer
        num_accepted = 0 if state is None else len(state.accepted)
        return _Member(
            sequence,
            state,
            slot,
            (now, len(journal.token_ids), len(journal.step_ends), num_accepted),
            now + self._num_left(sequence),
            now + (1 << 31 if closer is None else closer.num_free),
        )

    def _write(self, member: _Member) -> None:
        num_steps, *counts = member.written
        first, log = self._log
        if column := [ids[member.slot] for ids in log[num_steps - first :]]:
            num_tokens, num_ends, num_accepted = counts
            member.sequence.journal.write(num_tokens, num_ends, column)
            if member.state is not None:
                member.state.write(num_accepted, column)
            num_steps, num_tokens, num_ends, num_accepted = (n + len(column) for n in member.written)
            member.written = num_steps, num_tokens, num_ends, num_accepted

    def _find_closing(self, now: int) -> list[GrammarState]:
        """Return the states for which closing may have something to do in the next step."""
        found = []
        for member in self._members.values():
            if member.closes_at <= now and member.state is not None and member.state.closer is not None:
                self._write(member)  # the closer reads them
                member.closes_at = now + member.state.closer.num_free
                if member.closes_at <= now:
                    found.append(member.state)
        self._closes_at = min([member.closes_at for member in self._members.values()])
        return found

    def _break(self) -> None:
        for sequence in self._members:
            sequence.broken = True

    def _go_back(self, parts: Sequence[_Part], counts: Sequence[int] | None) -> None:
        """Restore all matchers to the end of the books, after a call of `GrammarStrategy.advance` that returned
        `counts`, or that left them in any state (None). A sequence whose matcher cannot be restored gets a fault."""
        self.settle()
        sequences = list(self._members)
        pairs = [pair for part in parts for pair in zip(part.states, part.places.tolist(), strict=True)]
        for i, (state, place) in enumerate(pairs):
            count = -1 if counts is None else counts[i]
            try:
                if count == 1:
                    state.job.matcher.rollback(1)
                elif count != 0:
                    state.replay()
            except BaseException as error:
                contain(error)
                sequence = sequences[place]
                sequence.broken = True
                sequence.fault = Fault.of(f"grammar.{state.candidate.name}", "accept", error)
