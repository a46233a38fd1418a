"""Keyword steering: raises the tokens that begin or continue a request's words, until the text contains them."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from guideway import api
from guideway.api.options import Range

WIDTH = 64
"""Columns of a row's payload: the maximum of tokens that are raised at once."""
MAX_BYTES = 48


@dataclass(frozen=True)
class Options:
    """The operator's options: the maximum number of words of a request, and the maximum added to a logit."""

    max_words: Annotated[int, Range(1, 64)] = 16
    max_strength: Annotated[float, Range(above=0.0, most=100.0)] = 20.0


@dataclass(frozen=True)
class Wish:
    words: tuple[str, ...] = ("the",)
    strength: float = 3.0
    """Added to the first tokens of a word; negative: words are avoided, even after they occurred."""
    going_on: float = 2.0
    """Added in addition to tokens that continue a word that has begun."""
    times: Annotated[int, Range(1, 100)] = 1
    """Occurrences of a word until it is no longer steered to."""
    end: Literal["never", "any", "all"] = "never"
    """End the text once any or all of the words occurred `times` times."""


@dataclass(frozen=True)
class Plan:
    """The words' tokens in the vocabulary, shared by sequences."""

    words: tuple[bytes, ...]
    failure: tuple[tuple[int, ...], ...]
    """By word and number of its bytes that match: the shorter match to try if the next byte differs (Knuth, Morris,
    Pratt)."""
    tokens: tuple[tuple[tuple[int, ...], ...], ...]
    """By word and number of its bytes in the text: the tokens that continue it."""
    unspellable: tuple[str, ...]


@dataclass
class State:
    wish: Wish
    plan: Plan
    progress: list[int]
    """By word: the number of its bytes that the text ends with."""
    said: list[int]

    def copy(self) -> State:
        return State(self.wish, self.plan, self.progress[:], self.said[:])

    def hear(self, text: bytes) -> None:
        for i, (word, failure) in enumerate(zip(self.plan.words, self.plan.failure, strict=True)):
            at = self.progress[i]
            for byte in text:
                while at and (at == len(word) or word[at] != byte):
                    at = failure[at]
                at += word[at] == byte
                self.said[i] += at == len(word)
            self.progress[i] = at

    def outstanding(self, i: int) -> bool:
        return self.wish.strength < 0 or self.said[i] < self.wish.times

    def is_over(self) -> bool:
        enough = [count >= self.wish.times for count in self.said]
        return (self.wish.end == "any" and any(enough)) or (self.wish.end == "all" and all(enough))


class LexiconTransform(api.LogitTransform):
    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        ops, m = step.ops, len(payload)
        entries = ops.asarray(np.repeat(np.arange(m, dtype=np.int32), WIDTH))
        columns = payload.arrays["columns"].reshape(m * WIDTH)
        values = payload.arrays["values"].reshape(m * WIDTH)
        return ops.add_at(logits, payload.rows[entries], columns, values)


class Lexicon(api.LogitModifier[State]):
    contract, name, stage, transform = "1.0", "lexicon", api.Stage.PRE_WARP, LexiconTransform
    examples = (
        api.Example({"words": ["aa", "b"], "strength": 6.0, "times": 2}, generated=(97, 97, 97, 98, 98)),
        api.Example({}),
        api.Example({"words": ["abba", "ab"], "strength": -2.0, "times": 2}, generated=(97, 98, 98, 97, 98)),
        api.Example({"words": ["abc", "xyz"], "end": "any"}, generated=(97, 98, 97, 98, 99)),
        api.Example({"words": ["ab", "b"], "end": "all", "going_on": 5.0}, generated=(98, 99, 97, 98)),
    )

    def __init__(self, options: Mapping[str, Any], context: api.ModifierContext) -> None:
        super().__init__(options, context)
        self.operator = api.parse_options(Options, options, where="modifier.lexicon")
        self.by_text: dict[bytes, list[int]] = {}
        for token_id, token in enumerate(context.vocabulary.tokens):
            if token and len(token) <= MAX_BYTES:
                self.by_text.setdefault(token, []).append(token_id)
        self.lock = threading.Lock()
        self.known: dict[bytes, tuple[tuple[int, ...], ...]] = {}
        """A cache of the tokens of words."""

    def wish(self, request: api.Request) -> Wish:
        wish = api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.lexicon")
        if not 1 <= len(wish.words) <= self.operator.max_words:
            raise api.InvalidRequest(f"words: 1 to {self.operator.max_words}", field="modifiers.lexicon.words")
        if not all(0 < len(word.encode(errors="replace")) <= MAX_BYTES for word in wish.words):
            raise api.InvalidRequest(f"a word has 1 to {MAX_BYTES} bytes", field="modifiers.lexicon.words")
        for field in ("strength", "going_on"):
            if not abs(getattr(wish, field)) <= self.operator.max_strength:
                raise api.InvalidRequest(
                    f"{field}: at most {self.operator.max_strength}", field=f"modifiers.lexicon.{field}"
                )
        return wish

    def compile(self, request: api.Request, grammar: api.CompiledGrammar | None) -> Plan:
        words = self.wish(request).words
        texts = tuple(word.encode(errors="replace") for word in words)
        tokens = tuple(self.look_up(text) for text in texts)
        unspellable = tuple(word for word, found in zip(words, tokens, strict=True) if not all(found[:-1]))
        return Plan(texts, tuple(map(failure_of, texts)), tokens, unspellable)

    def compile_key(self, request: api.Request) -> Hashable:
        return self.wish(request).words

    def look_up(self, text: bytes) -> tuple[tuple[int, ...], ...]:
        with self.lock:
            if text in self.known:
                return self.known[text]
        found = []
        for said in range(len(text) + 1):
            rest = text[said:]
            ids = [token_id for k in range(len(rest), 0, -1) for token_id in self.by_text.get(rest[:k], ())]
            found.append(tuple(ids[:WIDTH]))
        with self.lock:
            if len(self.known) >= 1000:
                self.known.clear()
            self.known[text] = tuple(found)
        return tuple(found)

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> State | None:
        if compiled is None:
            return None
        wish = self.wish(request)
        return State(wish, compiled, [0] * len(wish.words), [0] * len(wish.words))

    def unenforced(self, state: State) -> Sequence[str]:
        return tuple(f"lexicon: {word}" for word in state.plan.unspellable)

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        rows, _ = batch.select(states)
        if not len(rows):
            return None
        columns = np.zeros((len(rows), WIDTH), dtype=np.int32)
        values = np.zeros((len(rows), WIDTH), dtype=np.float32)
        entry = 0
        for i, state in enumerate(states):
            if state is None:
                continue
            ahead = state.copy()
            for j in range(1 + len(batch.drafts(i))):
                if j:
                    ahead.hear(self.context.vocabulary.tokens[batch.drafts(i)[j - 1]])
                for k, (token_id, value) in enumerate(self.raised(ahead).items()):
                    columns[entry, k], values[entry, k] = token_id, value
                entry += 1
        return api.Payload(rows, {"columns": columns, "values": values})

    def raised(self, state: State) -> dict[int, float]:
        """Return the numbers to add to the logits of the next token of `state`."""
        wish, raised = state.wish, dict[int, float]()
        for i, found in enumerate(state.plan.tokens):
            if not state.outstanding(i):
                continue
            word, at = state.plan.words[i], state.progress[i]
            begun = state.plan.failure[i][at] if at == len(word) else at
            steps = [(0, wish.strength)]
            if begun:
                steps.append((begun, wish.strength + (wish.going_on if wish.strength > 0 else 0.0)))
            for at, value in steps:
                for token_id in found[at]:
                    if token_id in raised or len(raised) < WIDTH:
                        raised[token_id] = raised.get(token_id, 0.0) + value
        return raised

    def accept(self, state: State, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        for token_id in token_ids:
            state.hear(self.context.vocabulary.tokens[token_id])
        return api.FINISH if state.is_over() else api.CONTINUE

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        ahead = state.copy()
        for passed, token_id in enumerate(token_ids):
            ahead.hear(self.context.vocabulary.tokens[token_id])
            if ahead.is_over():
                return passed
        return len(token_ids)

    def fork(self, state: State) -> State:
        return state.copy()

    def report(self, state: State) -> Mapping[str, Any]:
        return {"said": list(state.said), "missing": sum(not count for count in state.said)}


def failure_of(word: bytes) -> tuple[int, ...]:
    """Return, for each prefix of `word`, the length of the longest shorter prefix that it ends with."""
    failure, at = [0, 0], 0
    for i in range(1, len(word)):
        while at and word[at] != word[i]:
            at = failure[at]
        at += word[at] == word[i]
        failure.append(at)
    return tuple(failure)
