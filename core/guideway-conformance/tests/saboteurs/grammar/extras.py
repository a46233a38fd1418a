"""Forced tokens, completions, serialized grammars."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from guideway.api import CompiledGrammar, Regex

from saboteurs import saboteur
from saboteurs.grammar.base import Compiled, Full, FullCompiled, FullPlace, Place, Sane


@saboteur("grammar.forced_tokens_are_legal", "refusal")
@saboteur("grammar.forced_tokens_are_the_only_way", "refusal")
@saboteur("grammar.forced_tokens_are_the_tokenizers", "refusal")
class ForcesUnasked(Sane):
    """It declares no forced tokens and returns some."""

    class State(Place):
        def forced_tokens(self) -> Sequence[int]:
            return self.legal()[:1]


@saboteur("grammar.forced_tokens_are_legal")
class ForcesTooMuch(Full):
    """After forced tokens come the same ones again."""

    class State(FullPlace):
        def forced_tokens(self) -> Sequence[int]:
            return tuple(super().forced_tokens()) * 2


@saboteur("grammar.forced_tokens_are_legal")
class ForcingMoves(Full):
    """Asking for forced tokens accepts them."""

    class State(FullPlace):
        def forced_tokens(self) -> Sequence[int]:
            forced = super().forced_tokens()
            self.accept(forced)
            return forced


@saboteur("grammar.forced_tokens_are_the_only_way")
class ForcesTheFirst(Full):
    """Forces one text where several may follow."""

    class State(FullPlace):
        def forced_tokens(self) -> Sequence[int]:
            return [t for t in self.legal() if t not in self.stop_token_ids][:1]


@saboteur("grammar.forced_tokens_are_the_tokenizers")
class ForcesBytes(Full):
    """Forced text comes a byte at a time, which no tokenizer would write."""

    class State(FullPlace):
        def forced_tokens(self) -> Sequence[int]:
            text = self.vocabulary.decode(super().forced_tokens())
            return [self.vocabulary.tokens.index(bytes([byte])) for byte in text]


@saboteur("grammar.forced_tokens_are_the_tokenizers")
class ForcesAPrefix(Full):
    """Spells what is certain by itself, though the tokenizer may have a token for its end and what comes then."""

    class State(FullPlace):
        def forced_tokens(self) -> Sequence[int]:
            ahead, text = self.fork(), b""
            while not ahead.is_terminated() and not ahead.is_accepting():
                following = [t for t in ahead.legal() if len(self.vocabulary.tokens[t]) == 1]
                bytes_after = {self.vocabulary.tokens[t] for t in following}
                if len(bytes_after) != 1:
                    break
                ahead.push(following[0])
                text += bytes_after.pop()
            encoder = self.vocabulary.encoder
            return tuple((encoder and encoder.encode(text)) or ())


@saboteur("grammar.a_completion_completes", "refusal")
@saboteur("grammar.a_completion_is_found_if_there_is_one", "refusal")
class CompletesNothing(Sane):
    """It declares no completions, and says that there are none."""

    class State(Place):
        def shortest_completion(self, limit: int) -> Sequence[int] | None:
            return None


@saboteur("grammar.a_completion_completes")
class CompletesWithoutAStop(Full):
    """A completion lacks its stop token."""

    class State(FullPlace):
        def shortest_completion(self, limit: int) -> Sequence[int] | None:
            found = super().shortest_completion(limit)
            return found and found[:-1]


@saboteur("grammar.a_completion_completes")
class CompletesBeyondTheLimit(Full):
    """The limit does not count the stop token."""

    class State(FullPlace):
        def shortest_completion(self, limit: int) -> Sequence[int] | None:
            return super().shortest_completion(limit + 1)


@saboteur("grammar.a_completion_completes")
class CompletesWithTheVocabularysStop(Full):
    """A completion ends with a stop token of the vocabulary's, whichever the matcher was given."""

    class State(FullPlace):
        def shortest_completion(self, limit: int) -> Sequence[int] | None:
            found = super().shortest_completion(limit)
            return found and (*found[:-1], min(self.vocabulary.stop_token_ids))


@saboteur("grammar.a_completion_is_found_if_there_is_one")
class GivesUp(Full):
    """Within less than ten tokens it does not look."""

    class State(FullPlace):
        def shortest_completion(self, limit: int) -> Sequence[int] | None:
            return super().shortest_completion(limit) if limit >= 10 else None


@saboteur("grammar.a_serialized_grammar_is_the_same", "refusal")
@saboteur("grammar.a_serialized_grammar_goes_to_other_processes", "refusal")
class SerializesUnasked(Sane):
    """It declares no serialization, and writes bytes nobody can read."""

    class Grammar(Compiled):
        def to_bytes(self) -> bytes:
            return b""


@saboteur("grammar.a_serialized_grammar_is_the_same")
class ReadsAnotherGrammar(Full):
    """From bytes it makes whatever grammar."""

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        return self.compile(Regex("[a-z]*"))


class _CompiledInARegistry(FullCompiled):
    known: ClassVar[list[CompiledGrammar]] = []

    def to_bytes(self) -> bytes:
        self.known.append(self)
        return b"%d" % (len(self.known) - 1)


@saboteur("grammar.a_serialized_grammar_goes_to_other_processes")
class SerializesAnAddress(Full):
    """Its bytes say where in this process the grammar is."""

    Grammar = _CompiledInARegistry

    def from_bytes(self, data: bytes) -> CompiledGrammar:
        return _CompiledInARegistry.known[int(data)]
