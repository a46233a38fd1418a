"""Keeps a text on a leash: some token sequences are never said, and after a budget of tokens the text says its closing
words and ends."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from guideway import api
from guideway.api.bitmask import allocate, allow_only, num_words

LONGEST = 16
"""The most tokens of a banned sequence."""


@dataclass(frozen=True)
class Wish:
    banned: tuple[tuple[int, ...], ...] = ()
    budget: int = 0
    """Tokens before the closing; 0: as many as may be."""
    closing: tuple[int, ...] = ()


@dataclass(frozen=True)
class Rules:
    """Tables that were compiled: shared, and only read."""

    last: dict[tuple[int, ...], frozenset[int]]
    """By all tokens of banned sequences but the last: the tokens that would complete one."""
    lengths: tuple[int, ...]
    """The lengths of these."""
    closing: tuple[int, ...]


@dataclass(frozen=True)
class Place:
    """A moment of a text."""

    recent: tuple[int, ...] = ()
    count: int = 0
    said: int = 0
    """Tokens of the closing."""
    hits: int = 0
    """Banned sequences that were said all the same."""


@dataclass
class State:
    rules: Rules
    budget: int
    short: bool
    """True if the request leaves no room for the closing."""
    place: Place

    def closes(self, place: Place) -> bool:
        return 0 < self.budget <= place.count and place.said < len(self.rules.closing)

    def ended(self, place: Place) -> bool:
        return 0 < self.budget <= place.count and place.said == len(self.rules.closing)

    def forbidden(self, place: Place) -> set[int]:
        if self.budget and place.count >= self.budget:
            return set()
        found: set[int] = set()
        for length in self.rules.lengths:
            if length <= len(place.recent):
                found |= self.rules.last.get(place.recent[len(place.recent) - length :], frozenset())
        return found

    def after(self, place: Place, token_id: int) -> Place:
        said = place.said + (self.closes(place) and token_id == self.rules.closing[place.said])
        hits = place.hits + (token_id in self.forbidden(place))
        return Place((*place.recent, token_id)[1 - LONGEST :], place.count + 1, said, hits)


class LeashTransform(api.LogitTransform):
    bitmask = "allowed"
    idempotent = True

    def apply(self, logits: api.Array, payload: api.Payload, step: api.Step) -> api.Array:
        allowed = step.ops.unpack_bitmask(payload.arrays["allowed"], self.context.logits_width)
        return step.ops.where_rows(logits, payload.rows, allowed == False, -np.inf)  # noqa: E712 (of arrays)


class Leash(api.LogitModifier[State]):
    contract, name, stage, transform = "1.0", "leash", api.Stage.MASK, LeashTransform
    examples = (
        api.Example({"banned": [[97, 98], [99], [98, 97, 98]]}, generated=(97, 98, 97, 100)),
        api.Example({"budget": 4, "closing": [46, 10, 46]}),
        api.Example({"banned": [[97]], "budget": 5}),
    )

    def wish(self, request: api.Request) -> Wish:
        wish = api.parse_options(Wish, request.params.modifiers[self.name], where="modifiers.leash")
        if not 0 <= wish.budget <= 1 << 24:
            raise api.InvalidRequest("budget must be from 0 to 16777216", field="modifiers.leash.budget")
        if len(wish.banned) > 2000 or not all(1 <= len(each) <= LONGEST for each in wish.banned):
            raise api.InvalidRequest(f"at most 2000, of 1 to {LONGEST} tokens", field="modifiers.leash.banned")
        if len(wish.closing) > 256:
            raise api.InvalidRequest("the closing has at most 256 tokens", field="modifiers.leash.closing")
        for each in (*wish.banned, wish.closing):
            if not all(0 <= token_id < len(self.context.vocabulary) for token_id in each):
                raise api.InvalidRequest("a token is not in the vocabulary", field="modifiers.leash")
        return wish

    def compile(self, request: api.Request, grammar: api.CompiledGrammar | None) -> Rules:
        wish = self.wish(request)
        last: dict[tuple[int, ...], frozenset[int]] = {}
        for each in wish.banned:
            start = tuple(each[:-1])
            last[start] = last.get(start, frozenset()) | {each[-1]}
        return Rules(last, tuple(sorted({len(start) for start in last})), wish.closing)

    def compile_key(self, request: api.Request) -> Hashable:
        wish = self.wish(request)
        return tuple(tuple(each) for each in wish.banned), wish.closing

    def start(self, request: api.Request, sequence: api.SequenceInfo, compiled: Any) -> State | None:
        if compiled is None:
            return None
        budget = self.wish(request).budget
        most = request.params.max_tokens
        room = self.context.max_model_len - len(sequence.prompt_token_ids)
        room = room if most is None else min(room, most)
        short = budget > 0 and budget + len(compiled.closing) > room
        return State(compiled, budget, short, Place())

    def unenforced(self, state: State) -> Sequence[str]:
        return ("leash.closing",) if state.short else ()

    def prepare(self, batch: api.StepBatch, states: Sequence[State | None]) -> api.Payload | None:
        rows, _ = batch.select(states)
        if not len(rows):
            return None
        allowed = allocate(len(rows), self.context.vocabulary.logits_width)
        entry = 0
        for i, state in enumerate(states):
            if state is None:
                continue
            place = state.place
            for draft in (*batch.drafts(i).tolist(), None):
                if state.closes(place):
                    allow_only(allowed, entry, [state.rules.closing[place.said]])
                for token_id in state.forbidden(place):
                    allowed[entry, token_id // 32] &= ~np.array(1 << token_id % 32, dtype=np.uint32).view(np.int32)
                entry += 1
                if draft is not None:
                    place = state.after(place, draft)
        assert allowed.shape[1] == num_words(self.context.vocabulary.logits_width)
        return api.Payload(rows, {"allowed": allowed})

    def accept(self, state: State, token_ids: Sequence[int], feedback: api.Feedback | None) -> api.Outcome:
        outcome = api.CONTINUE
        for token_id in token_ids:
            state.place = state.after(state.place, token_id)
            if state.ended(state.place):
                outcome = api.FINISH
        return outcome

    def forced(self, state: State, limit: int) -> Sequence[int]:
        if not state.closes(state.place):
            return ()
        said = state.place.said
        return state.rules.closing[said : said + max(limit, 0)]

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        place = state.place
        for passed, token_id in enumerate(token_ids):
            if state.closes(place) and token_id != state.rules.closing[place.said]:
                return passed
            if token_id in state.forbidden(place):
                return passed
            place = state.after(place, token_id)
        return len(token_ids)

    def fork(self, state: State) -> State:
        return State(state.rules, state.budget, state.short, state.place)

    def report(self, state: State) -> dict[str, Any]:
        return {"tokens": state.place.count, "hits": state.place.hits, "closed": state.ended(state.place)}


@api.hookimpl
def guideway_logit_modifier() -> type[api.LogitModifier[State]]:
    return Leash
