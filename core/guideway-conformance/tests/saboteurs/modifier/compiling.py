"""Modifiers that compile badly."""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    CompiledGrammar,
    Example,
    Feedback,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    StepBatch,
)

from saboteurs import saboteur
from saboteurs.modifier.references import Repetition, RepetitionState


class Compiling(Repetition):
    """Compiles its strength. Correct: both are asked of requests that select it alone."""

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        return [request.params.modifiers[self.name]["strength"]]

    def compile_key(self, request: Request) -> Hashable | None:
        key: Hashable | None = request.params.modifiers[self.name].get("strength")
        return key

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> RepetitionState | None:
        return None if compiled is None else RepetitionState(compiled[0], list(sequence.prompt_token_ids))


@saboteur("modifier.compile_leaves_the_request_alone")
class TakesItsOptionsApart(Compiling):
    """Takes its options out of the request."""

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        wanted: Any = request.params.modifiers.get(self.name)
        return None if wanted is None else [wanted.pop("strength", 3.0)]


@saboteur("modifier.compile_is_a_function_of_the_request")
class CountsCompilations(Compiling):
    """Gives each request another strength."""

    compiled = 0

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        value = super().compile(request, grammar)
        self.compiled += 1
        return None if value is None else [value[0] + self.compiled]


@saboteur("modifier.compile_serves_several_threads")
class CompilesOneAtATime(Compiling):
    """Keeps what it compiles where the next request's is kept too."""

    current: Any = None

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        self.current = super().compile(request, grammar)
        time.sleep(0.001)  # it looks something up
        return self.current


@saboteur("modifier.equal_keys_mean_equal_values")
class OneKeyForAll(Compiling):
    """Says that all requests are equal, and makes something else of each."""

    def compile_key(self, request: Request) -> Hashable | None:
        return self.name


@saboteur("modifier.equal_keys_mean_equal_values")
class KeyWithoutTheSeed(Compiling):
    """Makes something of the seed, and leaves that out of the key."""

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        value = super().compile(request, grammar)
        return None if value is None else [value[0] + request.seed]


@saboteur("modifier.equal_keys_mean_equal_values")
class KeyOfAList(Compiling):
    """Gives a key that nothing can be looked up by."""

    def compile_key(self, request: Request) -> Any:
        return [self.name]


@saboteur("modifier.what_was_compiled_stays")
class GrowsStronger(Compiling):
    """Counts in what all sequences share."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        self.shared = compiled
        return super().start(request, sequence, compiled)

    def accept(self, state: RepetitionState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        super().accept(state, token_ids, feedback)
        self.shared[0] += 1
        return CONTINUE


class Ordered(Compiling):
    """Takes words, and reports how often it heard the first byte of each, in their order. Correct."""

    examples: ClassVar[Sequence[Example]] = (
        Example({"strength": 3.0, "words": ["bc", "ab", "d"]}, generated=(98, 97, 98)),
    )

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        options = request.params.modifiers[self.name]
        return [options["strength"], *(ord(word[0]) for word in options.get("words", ()))]

    def compile_key(self, request: Request) -> Hashable | None:
        options = request.params.modifiers[self.name]
        return options["strength"], tuple(options.get("words", ()))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        state: Any = super().start(request, sequence, compiled)
        if state is not None:
            state.words = compiled[1:]
        return state

    def fork(self, state: Any) -> Any:
        copied: Any = super().fork(state)
        copied.words = state.words
        return copied

    def report(self, state: Any) -> Mapping[str, Any]:
        return {"heard": [state.tokens.count(first) for first in state.words]}


@saboteur("modifier.equal_keys_mean_equal_values")
class KeyWithoutOrder(Ordered):
    """Takes two lists for the same that differ in their order, which its report tells."""

    def compile_key(self, request: Request) -> Hashable | None:
        options = request.params.modifiers[self.name]
        return options["strength"], tuple(sorted(options.get("words", ())))


@saboteur("modifier.compile_leaves_the_request_alone")
class SortsItsWords(Ordered):
    """Sorts a list of the request, which those of most requests are already."""

    examples = (Example({"strength": 3.0, "words": ["ab", "bc"]}, generated=(98, 97, 98)),)

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        words: Any = request.params.modifiers[self.name].get("words", [])
        words.sort()
        return super().compile(request, grammar)


@saboteur("modifier.compile_needs_no_grammar")
class LooksAtTheGrammar(Compiling):
    """Is weaker where a grammar is at hand."""

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Any:
        value = super().compile(request, grammar)
        return value if grammar is None else [value[0] / 2]


@saboteur("modifier.what_start_takes_is_served")
class CountsSigns(Ordered):
    """Takes whatever words it is given, and cannot count their signs in 31 bits."""

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        for state in states:
            if state is not None:
                np.array([1 << first % 32 for first in state.words], dtype=np.int32)
        return super().prepare(batch, states)
