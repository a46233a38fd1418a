"""Correct strategies of unusual design, which must all be certified."""

from __future__ import annotations

import itertools
import json
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from guideway.api import (
    Choice,
    CompiledGrammar,
    Constraint,
    DeadEnd,
    FillJob,
    Grammar,
    GrammarExample,
    GrammarStrategy,
    InvalidConfiguration,
    InvalidGrammar,
    JsonSchema,
    Matcher,
    Support,
    UnsupportedCapability,
    UnsupportedGrammar,
    Vocabulary,
)
from guideway.api.bitmask import allow_only
from guideway_conformance.registry import TIERS, Tier
from guideway_conformance.runner import run
from guideway_conformance.target import Target
from mistakes.grammars import Full, FullPlace, Place, Sane

from tests.support.stages import everyday


class TextMatcher(Matcher):
    """A matcher that keeps only its text, and asks the grammar. It has neither rollback nor fork nor validate."""

    def __init__(self, grammar: TextGrammar, stop: frozenset[int]) -> None:
        self.grammar, self.stop, self.text, self.over = grammar, stop, b"", False

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            token = self.grammar.vocabulary.tokens[token_id]
            if self.over:
                return count
            if token_id in self.stop and self.grammar.is_whole(self.text):
                self.over = True
            elif token and self.grammar.may_begin(self.text + token):
                self.text += token
            else:
                return count
        return len(token_ids)

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        tokens = self.grammar.vocabulary.tokens
        bits = np.zeros(32 * bitmask.shape[1], dtype=np.uint8)
        for token_id, token in enumerate(tokens):
            bits[token_id] = bool(token) and self.grammar.may_begin(self.text + token)
        if self.grammar.is_whole(self.text):
            bits[sorted(self.stop)] = 1
        if not bits.any():
            raise DeadEnd(f"nothing follows {self.text!r}")
        bitmask[row] = np.packbits(bits, bitorder="little").view(np.int32)

    def is_terminated(self) -> bool:
        return self.over

    def is_accepting(self) -> bool:
        return self.over or self.grammar.is_whole(self.text)


class TextGrammar(CompiledGrammar):
    """A finite language."""

    def __init__(
        self, texts: Sequence[bytes], vocabulary: Vocabulary, matcher: type[TextMatcher] = TextMatcher
    ) -> None:
        self.texts, self.vocabulary, self.type = frozenset(texts), vocabulary, matcher
        self.beginnings = frozenset(text[:i] for text in texts for i in range(len(text) + 1))

    def may_begin(self, text: bytes) -> bool:
        return text in self.beginnings

    def is_whole(self, text: bytes) -> bool:
        return text in self.texts

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return self.type(self, stop_token_ids)

    @property
    def nbytes(self) -> int:
        return 100 + sum(map(len, self.beginnings))


class Minimal(GrammarStrategy):
    """Choices without anything optional; `supports` accepts all of them, and `compile` may refuse."""

    name: ClassVar[str] = "minimal"
    kinds: ClassVar[frozenset[str]] = frozenset({"choice"})

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({"choice"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind != "choice":
            raise UnsupportedGrammar("choices only", feature=constraint.kind)
        return TextGrammar([text.encode() for text in json.loads(constraint.source())], self.vocabulary)


class RecentMatcher(TextMatcher):
    """Remembers three states."""

    def __init__(self, grammar: TextGrammar, stop: frozenset[int]) -> None:
        super().__init__(grammar, stop)
        self.recent: deque[tuple[bytes, bool]] = deque(maxlen=3)

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            before = (self.text, self.over)
            if not super().accept([token_id]):
                return count
            self.recent.append(before)
        return len(token_ids)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens <= len(self.recent):
            raise IndexError(f"{num_tokens} tokens are not remembered")
        for _ in range(num_tokens):
            self.text, self.over = self.recent.pop()

    def validate(self, token_ids: Sequence[int]) -> int:
        other = RecentMatcher(self.grammar, self.stop)
        other.text, other.over = self.text, self.over
        return other.accept(token_ids)


class ThreeBack(Minimal):
    """Rolls back three tokens; looks ahead, and leaves out choices that the vocabulary cannot spell; has its own
    `fill`."""

    name: ClassVar[str] = "three-back"
    max_rollback: ClassVar[int | None] = 3

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        found = super().compile(constraint)
        assert isinstance(found, TextGrammar)
        known = {token for token in self.vocabulary.tokens if len(token) == 1}
        spelled = [text for text in found.texts if all(text[i : i + 1] in known for i in range(len(text)))]
        if not spelled:
            raise InvalidGrammar("the vocabulary spells none of the choices")
        return TextGrammar(spelled, self.vocabulary, RecentMatcher)

    def fill(self, jobs: Sequence[FillJob], bitmask: Any) -> Any:
        results = []
        for job in jobs:
            row, count = bitmask[job.first_row : job.first_row + 1], 0
            try:
                job.matcher.fill_bitmask(row, 0)
                count = job.matcher.validate(job.draft_token_ids)
                for i in range(count):
                    job.matcher.accept(job.draft_token_ids[i : i + 1])
                    if not job.matcher.is_terminated():
                        job.matcher.fill_bitmask(bitmask, job.first_row + i + 1)
                job.matcher.rollback(count)
                results.append(count)
            except Exception as error:
                job.error = error
                results.append(-1)
        return np.array(results, dtype=np.int32)


class FiniteJson(GrammarStrategy):
    """Schemas with few instances, written compactly or, if requested, with a space after each comma and colon. Tries
    all values, and refuses other schemas."""

    name: ClassVar[str] = "finite-json"
    kinds: ClassVar[frozenset[str]] = frozenset({"json_schema"})

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        if len(vocabulary) < 200 or vocabulary.encoder is None:
            raise InvalidConfiguration("needs a real vocabulary", field="vocabulary")
        super().__init__(vocabulary, options)

    def supports(self, constraint: Constraint) -> Support:
        try:
            schema = json.loads(constraint.source())
            list(_instances(schema))
        except (InvalidGrammar, UnsupportedGrammar) as error:
            return Support(reason=str(error))
        return Support(enforced=frozenset(schema))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if not isinstance(constraint, JsonSchema):
            raise UnsupportedGrammar("schemas only", feature=constraint.kind)
        separators = (", ", ": ") if constraint.spacing == "spaced" else (",", ":")
        values = _instances(json.loads(constraint.source()))
        texts = [json.dumps(value, ensure_ascii=False, separators=separators).encode() for value in values]
        return TextGrammar(texts, self.vocabulary)


def _instances(schema: Any) -> list[Any]:
    if schema is False:
        raise InvalidGrammar("nothing")
    values = schema.get("enum", [schema["const"]] if "const" in schema else []) if isinstance(schema, dict) else []
    if values and len(schema) == 1:
        return list(values)
    match schema:
        case {"type": "boolean"} if len(schema) == 1:
            return [True, False]
        case {"type": "null"} if len(schema) == 1:
            return [None]
        case {"type": "array", "items": {"type": "boolean"}, "minItems": int(low), "maxItems": int(high)}:
            if len(schema) == 4 and len(schema["items"]) == 1 and high < 5:
                return [list(p) for n in range(low, high + 1) for p in itertools.product([True, False], repeat=n)]
    raise UnsupportedGrammar("only enum, const, boolean, null and short lists of booleans", feature="json_schema")


class Words(GrammarStrategy):
    """A dialect of its own, which the suite knows only by its examples: a number of words from a list,
    space-separated."""

    name: ClassVar[str] = "words"
    kinds: ClassVar[frozenset[str]] = frozenset({"grammar:words"})
    examples: ClassVar[Sequence[GrammarExample]] = (
        GrammarExample(Grammar("2 ab é", "words"), (b"ab ab", "é ab".encode()), (b"ab", b"ab  ab", b"ab x")),
        GrammarExample(Grammar("1 foo", "words"), (b"foo",)),
    )

    def supports(self, constraint: Constraint) -> Support:
        if re.fullmatch(r"[1-3]( [^\W\d]+)+", constraint.source()) is None:
            return Support(reason="a number up to 3, and words")
        return Support(enforced=frozenset({"grammar:words"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if constraint.kind not in self.kinds or self.supports(constraint).refused:
            raise UnsupportedGrammar("it is no list of words", feature="words")
        count, *words = constraint.source().split()
        texts = [" ".join(chosen).encode() for chosen in itertools.product(words, repeat=int(count))]
        return TextGrammar(texts, self.vocabulary)


class RemembersMasks(Place):
    """A place whose grammar caches the legal tokens of each state, for all matchers."""

    def legal(self) -> list[int]:
        known: dict[Any, list[int]] = vars(self.compiled).setdefault("known", {})
        place = (self.state, self.stop_token_ids)
        if place not in known:
            known[place] = super().legal()
        return known[place]


class Everything(Full):
    """Every capability."""

    class State(RemembersMasks, FullPlace):
        pass


class LooksAhead(Sane):
    """Refuses tokens that lead to a dead end, and constraints that it does not support; otherwise ordinary."""

    kinds: ClassVar[frozenset[str]] = frozenset({"regex", "choice"})
    State: ClassVar[type[Place]] = RemembersMasks

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, Choice) and len(constraint.choices) > 100:
            raise UnsupportedGrammar("too many choices", feature="choice")
        if constraint.kind not in self.kinds:
            raise UnsupportedGrammar(f"no {constraint.kind}", feature=constraint.kind)
        return super().compile(constraint)


class PlainLetters(RemembersMasks):
    """A place that writes JSON beyond ASCII in escapes."""

    def is_legal(self, token_id: int) -> bool:
        return self.vocabulary.tokens[token_id].isascii() and super().is_legal(token_id)


class AsciiJson(Sane):
    """JSON in ASCII."""

    kinds: ClassVar[frozenset[str]] = frozenset({"json_schema", "json_object"})
    State: ClassVar[type[Place]] = PlainLetters

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        if isinstance(constraint, JsonSchema) and not json.dumps(constraint.parsed, ensure_ascii=False).isascii():
            raise UnsupportedGrammar("names and values beyond ASCII would need escapes", feature="enum")
        return super().compile(constraint)


class NestingMatcher(Matcher):
    """A matcher with immutable states, of a depth and whether it is over; it remembers two of them."""

    def __init__(self, grammar: Nesting, stop: frozenset[int], states: tuple[tuple[int, bool], ...] = ((0, False),)):
        self.grammar, self.stop, self.states = grammar, stop, states

    def after(self, token_id: int) -> tuple[int, bool] | None:
        depth, over = self.states[-1]
        if over or (token_id in self.stop and depth):
            return None
        if token_id in self.stop:
            return depth, True
        token = self.grammar.vocabulary.tokens[token_id]
        for byte in token:
            depth += {self.grammar.pair[0]: 1, self.grammar.pair[1]: -1}.get(byte, -depth - 1)
            if depth < 0:
                return None
        return (depth, False) if token else None

    def accept(self, token_ids: Sequence[int]) -> int:
        for count, token_id in enumerate(token_ids):
            state = self.after(token_id)
            if state is None:
                return count
            self.states = (*self.states[-2:], state)
        return len(token_ids)

    def validate(self, token_ids: Sequence[int]) -> int:
        return self.fork().accept(token_ids)

    def fork(self) -> Matcher:
        return NestingMatcher(self.grammar, self.stop, self.states)

    def rollback(self, num_tokens: int) -> None:
        if not 0 <= num_tokens < len(self.states):
            raise UnsupportedCapability(f"{num_tokens} tokens are not remembered", field="rollback")
        self.states = self.states[: len(self.states) - num_tokens]

    def fill_bitmask(self, bitmask: Any, row: int) -> None:
        legal = [t for t in range(len(self.grammar.vocabulary)) if self.after(t) is not None]
        if not legal:
            raise DeadEnd("no token is a bracket")
        allow_only(bitmask, row, legal)

    def is_terminated(self) -> bool:
        return self.states[-1][1]

    def is_accepting(self) -> bool:
        return self.states[-1] == (0, False)


class Nesting(CompiledGrammar):
    """A pair of brackets, nested."""

    def __init__(self, pair: bytes, vocabulary: Vocabulary) -> None:
        self.pair, self.vocabulary = pair, vocabulary

    def matcher(self, stop_token_ids: frozenset[int]) -> Matcher:
        return NestingMatcher(self, stop_token_ids)

    @property
    def nbytes(self) -> int:
        return len(self.pair)


class Brackets(GrammarStrategy):
    """A language that is not regular, in a dialect of its own; rolls back two tokens, and forks."""

    name: ClassVar[str] = "brackets"
    kinds: ClassVar[frozenset[str]] = frozenset({"grammar:brackets"})
    capabilities: ClassVar[frozenset[str]] = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = 2
    examples: ClassVar[Sequence[GrammarExample]] = (
        GrammarExample(Grammar("()", "brackets"), (b"", b"()", b"(())()"), (b"(", b")", b"())", b"x")),
        GrammarExample(Grammar("[]", "brackets"), (b"[]", b"[[]]"), (b"[", b"]]", b"()")),
    )

    def supports(self, constraint: Constraint) -> Support:
        return Support(enforced=frozenset({"grammar:brackets"}))

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        pair = constraint.source()
        if len(pair) != 2 or not pair.isascii() or pair[0] == pair[1]:
            raise InvalidGrammar("two characters")
        return Nesting(pair.encode(), self.vocabulary)


EVERY_DAY: tuple[tuple[type, Tier], ...] = ((Brackets, "core"),)
CERTIFIED = [(strategy, TIERS[-1]) for strategy in (Minimal, ThreeBack, FiniteJson, Words, Brackets, LooksAhead)]


@pytest.mark.parametrize(("strategy", "up_to"), everyday([*EVERY_DAY, *CERTIFIED], *EVERY_DAY))
def test_is_certified(strategy: type[GrammarStrategy], up_to: Tier) -> None:
    _expect_certified(strategy, up_to)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Everything, AsciiJson])
def test_what_is_slow_is_certified_without_stress(strategy: type[GrammarStrategy]) -> None:
    _expect_certified(strategy, "stateful")


def _expect_certified(strategy: type[GrammarStrategy], up_to: Tier) -> None:
    report = run(Target.of_class(strategy), up_to=up_to)
    wrong = [f"{r.obligation}: {r.detail}" for r in report.results if r.outcome != "pass"]
    assert not wrong
    assert report.verdict == "certified"
