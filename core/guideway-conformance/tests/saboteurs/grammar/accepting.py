"""Accept, validate, stop tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from guideway.api import Matcher
from guideway_conformance.reference.strategy import Rest

from saboteurs import saboteur
from saboteurs.grammar.base import Compiled, Place, Sane

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask


@saboteur("grammar.has_something_to_test")
class NobodyKnowsItsDialect(Sane):
    """It compiles a dialect of its own and gives no examples of it."""

    kinds: ClassVar[frozenset[str]] = frozenset({"grammar:mine"})


@saboteur("grammar.an_output_is_produced")
class NeverEnds(Sane):
    """is_terminated is always false."""

    class State(Place):
        def is_terminated(self) -> bool:
            return False


@saboteur("grammar.what_it_returns_can_be_called")
class RollsBackAll(Sane):
    """Its matchers roll back without being told how far."""

    class State(Place):
        def rollback(self) -> None:  # type: ignore[override]
            del self.states[1:]


@saboteur("grammar.what_it_returns_can_be_called")
class RecyclesNothing(Sane):
    """Its grammars take no matcher back."""

    class Grammar(Compiled):
        def recycle(self) -> None: ...  # type: ignore[override]


@saboteur("grammar.accept_keeps_what_precedes_a_refused_token")
class AllOrNothing(Sane):
    """A refused token undoes those before it."""

    class State(Place):
        def accept(self, token_ids: Sequence[int]) -> int:
            count = super().accept(token_ids)
            if count < len(token_ids):
                self.rollback(count)
                return 0
            return count


@saboteur("grammar.accept_keeps_what_precedes_a_refused_token")
class SkipsRefused(Sane):
    """A refused token is left out, and those after it are accepted."""

    class State(Place):
        def accept(self, token_ids: Sequence[int]) -> int:
            return sum(super(SkipsRefused.State, self).accept([token_id]) for token_id in token_ids)


@saboteur("grammar.accept_in_parts_is_accept_at_once")
class NothingResets(Sane):
    """Accepting no tokens goes back to the start."""

    class State(Place):
        def accept(self, token_ids: Sequence[int]) -> int:
            if not token_ids:
                self.states = self.states[:1]
            return super().accept(token_ids)


@saboteur("grammar.accept_in_parts_is_accept_at_once")
class JudgesAllBeforeMoving(Sane):
    """From the seventh token of a call on, nothing moves."""

    class State(Place):
        def accept(self, token_ids: Sequence[int]) -> int:
            return super().accept(token_ids[:6]) + len(token_ids[6:])


@saboteur("grammar.token_ids_come_in_tuples")
class ListsOnly(Sane):
    """A tuple of tokens is ignored."""

    class State(Place):
        def accept(self, token_ids: Sequence[int]) -> int:
            return super().accept(token_ids) if isinstance(token_ids, list) else 0


@saboteur("grammar.token_ids_come_in_tuples")
class TakesThemOut(Sane):
    """Accepted tokens are taken out of the list it came in."""

    class State(Place):
        def accept(self, token_ids: Any) -> int:
            count = 0
            while token_ids and super().accept((token_ids.pop(0),)):
                count += 1
            return count


@saboteur("grammar.termination_is_the_end")
class GoesOnAfterTheEnd(Sane):
    """Anything is accepted after a stop token."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            return self.is_terminated() or super().is_legal(token_id)

        def push(self, token_id: int) -> None:
            self.states.append(
                None if self.is_terminated() or token_id in self.stop_token_ids else self.after(token_id)
            )


@saboteur("grammar.accept_without_fills_is_accept_with_fills")
class NeedsAFill(Sane):
    """Tokens of more than two bytes are refused unless a bitmask was filled since the last one."""

    class State(Place):
        is_filled = False

        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            super().fill_bitmask(bitmask, row)
            self.is_filled = True

        def accept(self, token_ids: Sequence[int]) -> int:
            for count, token_id in enumerate(token_ids):
                if not self.is_filled and len(self.vocabulary.tokens[token_id]) > 2:
                    return count
                if not super().accept([token_id]):
                    return count
                self.is_filled = False
            return len(token_ids)


class _CompiledWithMasks(Compiled):
    """Masks by how many tokens were accepted, as if that said where a matcher is."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.masks: dict[tuple[int, frozenset[int]], list[int]] = {}


@saboteur("grammar.matchers_are_independent")
class SharesMasks(Sane):
    """Matchers of one grammar share masks by position."""

    Grammar = _CompiledWithMasks

    class State(Place):
        def legal(self) -> list[int]:
            masks = self.compiled.masks  # type: ignore[attr-defined]
            found: list[int] = masks.setdefault((len(self.states), self.stop_token_ids), super().legal())
            return found


@saboteur("grammar.strategies_are_independent")
class SharesMasksBetweenStrategies(Sane):
    """Matchers of all strategies share masks by constraint and position."""

    masks: ClassVar[dict[tuple[str, int], list[int]]] = {}

    class State(Place):
        def legal(self) -> list[int]:
            key = (self.compiled.constraint.source(), len(self.states))
            return SharesMasksBetweenStrategies.masks.setdefault(key, super().legal())


@saboteur("grammar.validate_counts_as_accept_does")
class ValidatesInOnePlace(Sane):
    """Validate judges every token as if it came next."""

    class State(Place):
        def validate(self, token_ids: Sequence[int]) -> int:
            for count, token_id in enumerate(token_ids):
                if not self.is_legal(token_id):
                    return count
            return len(token_ids)


@saboteur("grammar.validate_counts_as_accept_does")
class ValidatesPastTheEnd(Sane):
    """Validate counts what follows a stop token."""

    class State(Place):
        def validate(self, token_ids: Sequence[int]) -> int:
            count = super().validate(token_ids)
            return len(token_ids) if count and token_ids[count - 1] in self.stop_token_ids else count


@saboteur("grammar.validate_moves_nothing")
class ValidateMoves(Sane):
    """Validate forgets to go back where a token was refused."""

    class State(Place):
        def validate(self, token_ids: Sequence[int]) -> int:
            count = self.accept(token_ids)
            if count == len(token_ids):
                self.rollback(count)
            return count


@saboteur("grammar.stop_tokens_are_legal_when_accepting")
class StopsAtTheStart(Sane):
    """At the start a stop token is always legal."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            return super().is_legal(token_id) or (len(self.states) == 1 and token_id in self.stop_token_ids)


@saboteur("grammar.stop_tokens_are_legal_when_accepting")
class AcceptingOnlyWhenNothingElseIsLegal(Sane):
    """is_accepting is false where the output could go on."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            if token_id in self.stop_token_ids:
                return super().is_accepting()
            return super().is_legal(token_id)

        def is_accepting(self) -> bool:
            others = (t for t in range(len(self.vocabulary)) if t not in self.stop_token_ids)
            return super().is_accepting() and not any(map(self.is_legal, others))


@saboteur("grammar.every_stop_token_stops")
class OneStopTokenStops(Sane):
    """Stop tokens but the first are accepted and end nothing."""

    class State(Place):
        def push(self, token_id: int) -> None:
            if token_id in self.stop_token_ids and token_id != min(self.stop_token_ids):
                self.states.append(self.state)
            else:
                super().push(token_id)


class _CompiledOfTheVocabulary(Compiled):
    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return self.state(self, self.inner.vocabulary.stop_token_ids)


@saboteur("grammar.stop_tokens_are_those_of_the_matcher")
class StopTokensOfTheVocabulary(Sane):
    """A matcher's stop tokens are the vocabulary's, whatever it is given."""

    Grammar = _CompiledOfTheVocabulary


class _CompiledWithStopTokens(Compiled):
    latest: frozenset[int] = frozenset()

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        self.latest = stop_token_ids
        return super().matcher(stop_token_ids)


@saboteur("grammar.matchers_with_other_stop_tokens_are_independent")
class LatestStopTokens(Sane):
    """The stop tokens of the newest matcher are those of all of its grammar."""

    Grammar = _CompiledWithStopTokens

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            self.stop_token_ids = self.compiled.latest  # type: ignore[attr-defined]
            return super().is_legal(token_id)


@saboteur("grammar.matchers_with_other_stop_tokens_are_independent")
class StopTokensInTheKeptMask(Sane):
    """Writes a matcher's stop tokens into the mask that it keeps for all of its grammar."""

    class State(Place):
        def legal(self) -> list[int]:
            known: dict[Rest, set[int]] = vars(self.compiled).setdefault("known", {})
            assert self.state is not None
            return sorted(known.setdefault(self.state, set()).union(super().legal()))

        def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
            super().fill_bitmask(bitmask, row)
            assert self.state is not None
            vars(self.compiled)["known"][self.state].update(self.stop_token_ids if self.is_accepting() else ())


@saboteur("grammar.special_tokens_are_no_text")
class SpecialTokensAreEmptyText(Sane):
    """A token without bytes is accepted anywhere, as the empty text it looks like."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            is_empty = not self.vocabulary.tokens[token_id] and token_id not in self.stop_token_ids
            return (is_empty and not self.is_terminated()) or super().is_legal(token_id)

        def push(self, token_id: int) -> None:
            if self.vocabulary.tokens[token_id] or token_id in self.stop_token_ids:
                super().push(token_id)
            else:
                self.states.append(self.state)


@saboteur("grammar.special_tokens_are_no_text")
class SpecialTokensAreTheirNames(Sane):
    """A special token is accepted where its name would be, as text."""

    class State(Place):
        def after(self, token_id: int) -> Rest:
            inner, state = self.compiled.inner, self.state
            name = self.vocabulary.special_tokens.get(token_id)
            if state is None or name is None:
                return super().after(token_id)
            for byte in name.encode():
                state = inner.derive(state, byte)
            return state


@saboteur("grammar.validate_takes_any_number_of_tokens")
class ValidatesByAccepting(Sane):
    """Validate accepts and rolls back, which a matcher with a short memory cannot."""

    max_rollback: ClassVar[int | None] = 8

    class State(Place):
        def validate(self, token_ids: Sequence[int]) -> int:
            count = self.accept(token_ids)
            self.rollback(count)
            return count

        def rollback(self, num_tokens: int) -> None:
            if num_tokens > 8:
                raise ValueError(f"cannot roll back {num_tokens} tokens")
            super().rollback(num_tokens)
