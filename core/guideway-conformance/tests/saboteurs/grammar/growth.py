"""Strategies that keep what they should let go, and work more the longer an output is."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from guideway.api import CompiledGrammar, Constraint, Matcher, Vocabulary

from saboteurs import saboteur
from saboteurs.grammar.base import Compiled, Place, Sane

if TYPE_CHECKING:
    from guideway.api.bitmask import Bitmask


@saboteur("grammar.released_grammars_are_freed")
class KeepsWhatItCompiled(Sane):
    """Has a cache of its own, without a limit."""

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.cache: dict[str, CompiledGrammar] = {}

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        return self.cache.setdefault(repr(constraint), super().compile(constraint))


@saboteur("grammar.released_grammars_are_freed")
class KeepsTables(Sane):
    """Lets go of its grammars, and keeps a table of each."""

    tables: ClassVar[dict[str, list[int]]] = {}

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        self.tables[repr(constraint)] = list(range(1000, 101_000))
        return super().compile(constraint)


@saboteur("grammar.ended_sequences_are_freed")
class KeepsMatchers(Sane):
    """Notes all matchers it made."""

    class Grammar(Compiled):
        def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
            made = super().matcher(stop_token_ids)
            vars(self).setdefault("made", []).append(made)
            return made


@saboteur("grammar.nbytes_is_near_what_is_held")
class CountsItsConstraint(Sane):
    """Says how long the constraint is, and leaves out what it became."""

    class Grammar(Compiled):
        @property
        def nbytes(self) -> int:
            return len(repr(self.constraint))


@saboteur("grammar.closing_ends_threads_and_files")
class LeavesAThread(Sane):
    """Starts a thread that nobody ends."""

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        threading.Thread(target=threading.Event().wait, daemon=True).start()


class _CompiledThatCounts(Compiled):
    """Adds the size of each mask that it makes, and keeps none."""

    made = 0

    @property
    def nbytes(self) -> int:
        return super().nbytes + 128 * self.made


class _PlaceThatCounts(Place):
    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        super().fill_bitmask(bitmask, row)
        assert isinstance(self.compiled, _CompiledThatCounts)
        self.compiled.made += 1


@saboteur("grammar.nbytes_stops_growing")
class CountsWhatItLetGo(Sane):
    """Forgets to subtract the masks that it throws out."""

    Grammar = _CompiledThatCounts
    State = _PlaceThatCounts


@saboteur("grammar.closing_ends_threads_and_files")
class LeavesAFileOpen(Sane):
    """Opens a file that nobody closes."""

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        self.file = Path(__file__).open(encoding="utf-8")  # noqa: SIM115 - the bug


class _PlaceThatLooksBack(Place):
    """Goes through all that it has accepted before it fills a mask."""

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        for state in self.states:
            for byte in b"{[,]}":
                if state is not None:
                    self.compiled.inner.derive(state, byte)
        super().fill_bitmask(bitmask, row)


class _PlaceThatWritesItAll(Place):
    """Writes all that it has accepted, to look at its end."""

    def is_accepting(self) -> bool:
        return super().is_accepting() and bool(b"".join([b"%100d" % len(self.states)] * len(self.states))[-1:])


class _PlaceThatAddsUp(Place):
    """Works more the more it has accepted, in one call of a library."""

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        assert sum(range(1000 * len(self.states))) >= 0
        super().fill_bitmask(bitmask, row)


@saboteur("grammar.a_token_costs_the_same_however_many_came_before")
class LooksBack(Sane):
    """Reads its output from the start for each mask."""

    State = _PlaceThatLooksBack


@saboteur("grammar.a_token_costs_the_same_however_many_came_before")
class WritesItAll(Sane):
    """Writes its output from the start for each mask."""

    State = _PlaceThatWritesItAll


@saboteur("grammar.a_token_costs_the_same_however_many_came_before")
class AddsUp(Sane):
    """Has a library read its output from the start for each mask."""

    State = _PlaceThatAddsUp
