"""Strategies that take one constraint for another, or a part of one for nothing."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar
from weakref import WeakValueDictionary

from guideway.api import (
    CompiledGrammar,
    Constraint,
    Grammar,
    GrammarExample,
    InvalidGrammar,
    JsonSchema,
    Matcher,
    Regex,
    Support,
    parse_options,
)
from guideway.api.bitmask import allow_only
from guideway.api.options import Range

from saboteurs import saboteur
from saboteurs.grammar.base import Compiled, Full, Place, Sane


@saboteur("grammar.constraints_that_live_together_are_told_apart")
class SharesWhatLives(Sane):
    """Gives out a grammar that lives again, whatever white space is asked for."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.living: WeakValueDictionary[tuple[str, str], CompiledGrammar] = WeakValueDictionary()

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        key = (constraint.kind, constraint.source())
        found = self.living.get(key)
        if found is None:
            found = self.living[key] = super().compile(constraint)
        return found


@saboteur("grammar.constraints_that_live_together_are_told_apart")
class ReadsByValue(Full):
    """Keeps what it read by what the constraint of it is equal to in Python: true is 1."""

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        read = super().from_bytes(data)
        assert isinstance(read, Compiled)
        if not isinstance(read.constraint, JsonSchema):
            return read
        known: list[tuple[Any, CompiledGrammar]] = vars(self).setdefault("known", [])
        for constraint, compiled in known:
            if constraint == read.constraint:
                return compiled
        known.append((read.constraint, read))
        return read


class _Texts(Sane):
    """A dialect in which a grammar is its only text."""

    kinds: ClassVar[frozenset[str]] = frozenset({"grammar:text"})
    examples: ClassVar[Sequence[GrammarExample]] = (GrammarExample(Grammar("ab", "text"), (b"ab",), (b"a",)),)

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        text = self.text_of(constraint)
        if not text:
            raise InvalidGrammar("no text")
        return super().compile(Regex("".join(f"\\{c}" if c in r".\*+?()[]{}|^$" else c for c in text)))

    def text_of(self, constraint: Constraint) -> str:
        return constraint.source()


@saboteur("grammar.forms_of_an_accent_are_told_apart")
class Normalizes(_Texts):
    """Puts accents together."""

    def text_of(self, constraint: Constraint) -> str:
        return unicodedata.normalize("NFC", constraint.source())


@saboteur("grammar.constraints_that_live_together_are_told_apart")
class KeepsTheStripped(_Texts):
    """Takes a text for one that lives, if they differ in white space at their ends."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        living = vars(self).setdefault("living", WeakValueDictionary())
        key = constraint.source().strip()
        if key not in living:
            found = living[key] = super().compile(constraint)
            return found
        return living[key]  # type: ignore[no-any-return]


@saboteur("grammar.a_dead_end_is_raised")
class ClearsTheRowOfADialect(_Texts):
    """Clears the row before it finds that no token is legal."""

    class State(Place):
        def fill_bitmask(self, bitmask: Any, row: int) -> None:
            bitmask[row] = 0
            super().fill_bitmask(bitmask, row)


class _OfTheRoot(Sane):
    """Knows a keyword at the root alone."""

    names_it: ClassVar[bool] = False

    def supports(self, constraint: Constraint) -> Support:
        found = super().supports(constraint)
        if found.refused or not isinstance(constraint, JsonSchema) or not isinstance(constraint.parsed, dict):
            return found
        gone = frozenset() if self.names_it or "pattern" in constraint.parsed else frozenset({"pattern"})
        return replace(found, enforced=found.enforced - gone)


@saboteur("grammar.keywords_of_parts_are_named")
class NamesNothingBelow(_OfTheRoot):
    """A pattern of a part is not named."""


@saboteur("grammar.keywords_of_parts_are_enforced")
class EnforcesNothingBelow(_OfTheRoot):
    """A pattern of items is not enforced."""

    names_it: ClassVar[bool] = True

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JsonSchema):
            schema = constraint.parsed
            items = schema.get("items") if isinstance(schema, dict) else None
            if isinstance(items, dict) and "pattern" in items:
                items.pop("pattern")
                return super().compile(JsonSchema(schema, whitespace=constraint.whitespace))
        return super().compile(constraint)


@saboteur("grammar.constraints_are_not_changed")
class FillsInProperties(Sane):
    """Writes down the properties that an object might have."""

    def supports(self, constraint: Constraint) -> Support:
        schema = constraint.parsed if isinstance(constraint, JsonSchema) else None
        if isinstance(schema, dict) and schema.get("type") == "object":
            schema.setdefault("properties", {})
        return super().supports(constraint)


class _Pooled(Compiled):
    """With a pool of matchers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.spare: list[Place] = []

    def recycle(self, matcher: Matcher) -> None:
        assert isinstance(matcher, Place)
        if len(self.spare) < 64:
            self.spare.append(matcher)

    def begin(self, matcher: Place, stop_token_ids: frozenset[int]) -> Matcher:
        matcher.stop_token_ids, matcher.states = stop_token_ids, [self.inner.start]
        return matcher


@saboteur("grammar.long_sequences_are_freed")
class PoolsWithTheirPast(Sane):
    """A matcher forgets its sequence when it begins another one."""

    class Grammar(_Pooled):
        def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
            try:
                return self.begin(self.spare.pop(), stop_token_ids)
            except IndexError:
                return super().matcher(stop_token_ids)

    class State(Place):
        def push(self, token_id: int) -> None:
            super().push(token_id)
            self.noted = [*getattr(self, "noted", ()), f"token {token_id} at {len(self.states)}"]


@saboteur("grammar.matchers_come_and_go_in_threads")
class PoolsWithoutALock(Sane):
    """Looks at the last matcher of its pool, and takes one out."""

    class Grammar(_Pooled):
        def recycle(self, matcher: Matcher) -> None:
            assert isinstance(matcher, Place)
            matcher.states = [self.inner.start]
            super().recycle(matcher)

        def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
            if not self.spare:
                return super().matcher(stop_token_ids)
            found = self.spare[-1]
            if self.spare:
                self.spare.pop()
            return self.begin(found, stop_token_ids)


@saboteur("grammar.nbytes_counts_what_is_learnt")
class ForgetsItsMasks(Sane):
    """Says how large it was when it was compiled."""

    class Grammar(Compiled):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.masks: dict[Any, Any] = {}
            self.at_first = self.inner.nbytes

        @property
        def nbytes(self) -> int:
            return self.at_first

    class State(Place):
        def fill_bitmask(self, bitmask: Any, row: int) -> None:
            super().fill_bitmask(bitmask, row)
            self.compiled.masks[self.state] = bitmask[row].copy()  # type: ignore[attr-defined]

        def legal(self) -> list[int]:
            ids = [i for i, token in enumerate(self.vocabulary.tokens) if token]
            return [i for i in (*ids, *self.stop_token_ids) if self.is_legal(i)]


@saboteur("grammar.the_constructor_raises_its_error_only")
class PicksItsOptions(Sane):
    """Looks for its option, and leaves alone what else there is."""

    def __init__(self, vocabulary: Any, options: Any) -> None:
        super().__init__(vocabulary, {})
        self.masks = options.get("masks", 8)


@saboteur("grammar.texts_are_judged_by_what_they_mean")
class TrueIsOne(Sane):
    """Takes a boolean for the number that it equals in Python."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JsonSchema) and isinstance(constraint.parsed, dict):
            value = constraint.parsed.get("const")
            if isinstance(value, bool):
                return super().compile(JsonSchema({"enum": [value, int(value)]}, whitespace=constraint.whitespace))
        return super().compile(constraint)


@saboteur("grammar.cases_of_a_letter_are_told_apart")
class LowersNames(_Texts):
    """Reads a constraint in small letters."""

    def text_of(self, constraint: Constraint) -> str:
        return constraint.source().lower()


class _Counts(_Texts):
    """A dialect in which a grammar is a letter, and how many of it there may be."""

    kinds: ClassVar[frozenset[str]] = frozenset({"grammar:count"})
    examples: ClassVar[Sequence[GrammarExample]] = (GrammarExample(Grammar("a 4", "count"), (b"aaaa",), (b"b",)),)

    def text_of(self, constraint: Constraint) -> str:
        letter, _, number = constraint.source().partition(" ")
        return letter * self.number(letter, number)

    def number(self, letter: str, number: str) -> int:
        if len(number) > 3 or not number.isascii() or not number.isdecimal():
            raise InvalidGrammar("no number")
        return int(number)


@saboteur("grammar.constraints_that_live_together_are_told_apart")
class NumbersOfTheFirst(_Counts):
    """Keeps a number by its letter."""

    def number(self, letter: str, number: str) -> int:
        known: dict[str, int] = vars(self).setdefault("known", {})
        return known.setdefault(letter, super().number(letter, number))


@saboteur("grammar.near_constraints_of_a_dialect_have_ends")
class EndsInNothing(_Counts):
    """Past four of a letter it has nothing to go on with."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            text = sum(len(self.vocabulary.tokens[t]) for t in self.taken)
            return (text < 4 and super().is_legal(token_id)) or (
                text == 4 and self.is_accepting() and token_id in self.stop_token_ids
            )

        @property
        def taken(self) -> list[int]:
            return vars(self).setdefault("tokens_taken", [])

        def push(self, token_id: int) -> None:
            super().push(token_id)
            self.taken.append(token_id)

        def rollback(self, num_tokens: int) -> None:
            super().rollback(num_tokens)
            del self.taken[len(self.taken) - num_tokens :]


@dataclass(frozen=True)
class _Most:
    letters: int = 4


@saboteur("grammar.other_values_of_its_options_are_served")
class CallsTheLongInvalid(_Texts):
    """Calls what is longer than the operator allows wrong for everyone."""

    def __init__(self, vocabulary: Any, options: Any) -> None:
        super().__init__(vocabulary, {})
        self.most = parse_options(_Most, options, where="grammar.sane").letters

    def text_of(self, constraint: Constraint) -> str:
        if len(constraint.source()) > self.most:
            raise InvalidGrammar(f"more than {self.most} letters")
        return constraint.source()


@dataclass(frozen=True)
class _Room:
    states: Annotated[int, Range(9, 100_000)] = 10_000


@saboteur("grammar.other_values_of_its_options_are_served")
class CallsTheLargeInvalid(_Texts):
    """Calls what takes more room than the operator gives wrong for everyone; what it has by default is much more."""

    def __init__(self, vocabulary: Any, options: Any) -> None:
        super().__init__(vocabulary, {})
        self.most = parse_options(_Room, options, where="grammar.sane").states

    def text_of(self, constraint: Constraint) -> str:
        if 10 * len(constraint.source()) > self.most:
            raise InvalidGrammar(f"more than {self.most} states")
        return constraint.source()


class _PlaceInALongText(Place):
    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        super().fill_bitmask(bitmask, row)
        if len(self.compiled.constraint.source()) > 5:
            allow_only(bitmask, row, range(3, 259))


@saboteur("grammar.long_constraints_of_a_dialect_are_right")
class ForgetsTheMasksOfLongOnes(_Texts):
    """Allows every byte where a text is longer than those it was tried with."""

    State = _PlaceInALongText
