"""Rollback and fork, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from saboteurs import saboteur
from saboteurs.grammar.base import Place, Sane


@saboteur("grammar.rollback_restores_masks", "refusal")
@saboteur("grammar.rollback_goes_over_a_termination", "refusal")
@saboteur("grammar.all_that_is_declared_can_be_rolled_back", "refusal")
@saboteur("grammar.rollback_of_nothing_does_nothing", "refusal")
@saboteur("grammar.after_a_rollback_all_ways_are_open", "refusal")
@saboteur("grammar.a_refused_token_is_not_rolled_back", "refusal")
@saboteur("grammar.a_negative_rollback_is_no_silent_change", "refusal")
@saboteur("grammar.rollback_works_at_every_position", "refusal")
class IgnoresRollbacks(Sane):
    """It declares no rollback, and one asked for is not made and not refused."""

    max_rollback: ClassVar[int | None] = 0

    class State(Place):
        def rollback(self, num_tokens: int) -> None:
            pass


@saboteur("grammar.rollback_restores_masks")
class RollsBackOneTooFew(Sane):
    """Leaves one of several tokens."""

    class State(Place):
        def rollback(self, num_tokens: int) -> None:
            super().rollback(max(num_tokens - 1, 1) if num_tokens else 0)


@saboteur("grammar.rollback_goes_over_a_termination")
class StaysTerminated(Sane):
    """Rollback does not undo a termination."""

    class State(Place):
        over = False

        def push(self, token_id: int) -> None:
            super().push(token_id)
            self.over |= token_id in self.stop_token_ids

        def is_terminated(self) -> bool:
            return self.over


@saboteur("grammar.rollback_of_nothing_does_nothing")
class RollbackOfNothingIsOfAll(Sane):
    """``states[:-0]`` is empty."""

    class State(Place):
        def rollback(self, num_tokens: int) -> None:
            self.states = [self.states[0], *self.states[1:][:-num_tokens]]


@saboteur("grammar.after_a_rollback_all_ways_are_open")
class MasksByPosition(Sane):
    """Each position's mask is remembered, over rollbacks too."""

    class State(Place):
        def legal(self) -> list[int]:
            masks: dict[int, list[int]] = self.__dict__.setdefault("masks", {})
            return masks.setdefault(len(self.states), super().legal())


@saboteur("grammar.a_refused_token_is_not_rolled_back")
class RemembersRefusedTokens(Sane):
    """A refused token takes a place among those that can be rolled back."""

    class State(Place):
        def accept(self, token_ids: Sequence[int]) -> int:
            count = super().accept(token_ids)
            if count < len(token_ids) and not self.is_terminated():
                self.states.append(self.state)
            return count


@saboteur("grammar.a_negative_rollback_is_no_silent_change")
class NegativeRollbacks(Sane):
    """``del states[-n:]`` with a negative n takes away nearly everything."""

    class State(Place):
        def rollback(self, num_tokens: int) -> None:
            if num_tokens:
                del self.states[1:][-num_tokens:]
                self.states = self.states[:1] + self.states[1:][: -num_tokens or None]


@saboteur("grammar.rollback_works_at_every_position")
class ShortMemory(Sane):
    """It declares that it can roll back all tokens, but remembers the last eight states."""

    class State(Place):
        def rollback(self, num_tokens: int) -> None:
            super().rollback(min(num_tokens, 8))


@saboteur("grammar.all_that_is_declared_can_be_rolled_back")
class RemembersOneTokenLess(Sane):
    """It keeps as many states as it declares tokens: one too few, as the one that it is in is among them."""

    max_rollback: ClassVar[int | None] = 64

    class State(Place):
        def push(self, token_id: int) -> None:
            super().push(token_id)
            self.states = self.states[-64:]


@saboteur("grammar.all_that_is_declared_can_be_rolled_back")
class ForksRememberHalf(Sane):
    """A fork keeps half of what its matcher can undo."""

    max_rollback: ClassVar[int | None] = 64

    class State(Place):
        def fork(self) -> Place:
            return type(self)(self.compiled, self.stop_token_ids, self.states[-33:])


@saboteur("grammar.a_fork_is_in_the_same_state", "refusal")
@saboteur("grammar.a_fork_is_independent", "refusal")
@saboteur("grammar.forks_go_to_other_threads", "refusal")
class ForksAreTheMatcherItself(Sane):
    """It declares no fork, and one asked for is the matcher itself."""

    capabilities: ClassVar[frozenset[str]] = frozenset()

    class State(Place):
        def fork(self) -> Place:
            return self


@saboteur("grammar.a_fork_is_in_the_same_state")
class ForksAtTheStart(Sane):
    """A fork is a new matcher."""

    class State(Place):
        def fork(self) -> Place:
            return type(self)(self.compiled, self.stop_token_ids)


@saboteur("grammar.a_fork_is_in_the_same_state")
class ForksComeAlive(Sane):
    """A fork of a terminated matcher goes on."""

    class State(Place):
        def fork(self) -> Place:
            return type(self)(self.compiled, self.stop_token_ids, [s for s in self.states if s is not None])


@saboteur("grammar.a_fork_is_in_the_same_state")
class ForksStopLikeTheVocabulary(Sane):
    """A fork has the vocabulary's stop tokens, not those of its matcher."""

    class State(Place):
        def fork(self) -> Place:
            return type(self)(self.compiled, self.vocabulary.stop_token_ids, self.states)


@saboteur("grammar.a_fork_is_independent")
class ForksShareStates(Sane):
    """A fork and its matcher have one list of states."""

    class State(Place):
        def fork(self) -> Place:
            other = type(self)(self.compiled, self.stop_token_ids)
            other.states = self.states
            return other


@saboteur("grammar.a_fork_rolls_back_on_its_own")
class ForksForget(Sane):
    """A fork has no history: it rolls back to where it was forked and no further."""

    class State(Place):
        def fork(self) -> Place:
            return type(self)(self.compiled, self.stop_token_ids, self.states[-1:])

        def rollback(self, num_tokens: int) -> None:
            super().rollback(min(num_tokens, len(self.states) - 1))


@saboteur("grammar.regexes_follow_the_reference")
@saboteur("grammar.choices_follow_the_reference")
@saboteur("grammar.any_order_of_calls_is_replay")
class ForksAfterARollbackAreWhereItWas(Sane):
    """After a rollback and before the next token, a fork is where the matcher had been."""

    class State(Place):
        furthest: Sequence[object] = ()

        def rollback(self, num_tokens: int) -> None:
            before = list(self.states)
            super().rollback(num_tokens)
            self.furthest = before if num_tokens > 1 else ()

        def push(self, token_id: int) -> None:
            super().push(token_id)
            self.furthest = ()

        def fork(self) -> Place:
            other = super().fork()
            other.states = list(self.furthest or self.states)  # type: ignore[arg-type]
            return other
