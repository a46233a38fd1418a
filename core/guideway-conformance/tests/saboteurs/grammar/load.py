"""Threads, long outputs, large vocabularies, other processes."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from guideway.api import CompiledGrammar, Constraint, Vocabulary

from saboteurs import saboteur
from saboteurs.grammar.base import Compiled, Place, Sane

A_MOMENT = 0.002
"""Another thread's turn."""


@saboteur("grammar.compile_is_thread_safe")
class CompilesOneAtATime(Sane):
    """Keeps what it is compiling in an attribute."""

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        self.current = constraint
        time.sleep(A_MOMENT)
        return super().compile(self.current)


class _CompiledWithScratch(Compiled):
    scratch: Sequence[int] = ()


@saboteur("grammar.a_compiled_grammar_is_shared_by_threads")
class SharesABuffer(Sane):
    """All matchers of a grammar compute their masks in one buffer."""

    Grammar = _CompiledWithScratch

    class State(Place):
        def legal(self) -> list[int]:
            compiled: Any = self.compiled
            compiled.scratch = super().legal()
            time.sleep(A_MOMENT)
            return list(compiled.scratch)


class _CompiledThatCounts(Compiled):
    @property
    def nbytes(self) -> int:
        known: dict[object, list[int]] = vars(self).setdefault("known", {})
        return super().nbytes + sum(8 * len(mask) for mask in known.values())


@saboteur("grammar.a_compiled_grammar_is_shared_by_threads")
class CountsWhatOthersAdd(Sane):
    """Goes through the masks that it keeps while others keep more of them."""

    Grammar = _CompiledThatCounts

    class State(Place):
        def legal(self) -> list[int]:
            known: dict[object, list[int]] = vars(self.compiled).setdefault("known", {})
            for number, token_id in enumerate(found := super().legal()):
                known[self.state, number] = [token_id]
            return found


@saboteur("grammar.forks_go_to_other_threads")
class ForksShareABuffer(Sane):
    """A matcher and its forks compute their masks in one buffer."""

    class State(Place):
        scratch: list[Sequence[int]] | None = None

        def fork(self) -> Place:
            other = super().fork()
            if self.scratch is None:
                self.scratch = [()]
            vars(other)["scratch"] = self.scratch
            return other

        def legal(self) -> list[int]:
            if self.scratch is None:
                return super().legal()
            self.scratch[0] = super().legal()
            time.sleep(A_MOMENT)
            return list(self.scratch[0])


@saboteur("grammar.long_outputs_work")
class ForgetsTheBeginning(Sane):
    """After 5,000 tokens it is at the start again."""

    class State(Place):
        def push(self, token_id: int) -> None:
            super().push(token_id)
            if len(self.states) == 5000:
                self.states = self.states[:1]


@saboteur("grammar.long_outputs_work")
class RemembersAThousand(Sane):
    """It declares that it can roll back all tokens, but remembers the last thousand states."""

    class State(Place):
        def push(self, token_id: int) -> None:
            super().push(token_id)
            if len(self.states) > 2000:
                self.states = self.states[-1000:]


@saboteur("grammar.long_outputs_work")
class ForksTheEnd(Sane):
    """A fork has the last 64 states alone."""

    class State(Place):
        def fork(self) -> Place:
            return type(self)(self.compiled, self.stop_token_ids, self.states[-64:])


@saboteur("grammar.large_vocabularies_work")
class TokenIdsOf16Bits(Sane):
    """Looks at the lower 16 bits of a token id."""

    class State(Place):
        def is_legal(self, token_id: int) -> bool:
            return super().is_legal(token_id if token_id in self.stop_token_ids else token_id & 0xFFFF)


@saboteur("grammar.other_processes_give_the_same")
class DependsOnTheTime(Sane):
    """Every strategy leaves out some tokens, drawn when it is built."""

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        left_out = frozenset(random.Random(time.time_ns()).sample(range(260, len(vocabulary)), len(vocabulary) // 3))

        class Lacking(Place):
            def is_legal(self, token_id: int) -> bool:
                return token_id not in left_out and super().is_legal(token_id)

        self.State = Lacking  # type: ignore[misc]
