"""A budget of tokens for each section of a text: where it is used up, the marker that ends a section has to come."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    Array,
    CompiledGrammar,
    Example,
    Feedback,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    ModifierContext,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    parse_options,
)
from guideway.api.bitmask import FULL, Bitmask, allow_only, num_words
from guideway.api.steps import FINISH


@dataclass(frozen=True)
class Settings:
    """The operator chooses how long a marker may be."""

    longest_marker: int = 64


@dataclass(frozen=True)
class Wish:
    marker: str = "\n\n"
    budget: int = 8  # tokens of a section before its marker is forced
    least: int = 0  # tokens before which no marker may be completed
    sections: int = 0  # so many end the text; 0: any number


@dataclass(frozen=True)
class Marker:
    """The marker as token ids, none where the vocabulary cannot write it, and for each the length of the longest other
    beginning of it that ends there (Knuth, Morris, Pratt)."""

    token_ids: tuple[int, ...]
    borders: tuple[int, ...]

    def after(self, matched: int, token_id: int) -> int:
        while matched and (matched == len(self.token_ids) or self.token_ids[matched] != token_id):
            matched = self.borders[matched - 1]
        return matched + 1 if self.token_ids[matched] == token_id else 0


@dataclass
class State:
    wish: Wish
    marker: Marker
    used: int = 0
    matched: int = 0
    done: int = 0
    cut: int = 0

    @property
    def ended(self) -> bool:
        return 0 < self.wish.sections <= self.done

    def must(self) -> int | None:
        """The one token that may come."""
        return self.marker.token_ids[self.matched] if self.marker.token_ids and self.used >= self.wish.budget else None

    def may_not(self) -> int | None:
        """The one token that may not come."""
        if self.used >= self.wish.least or not self.marker.token_ids:
            return None
        return self.marker.token_ids[-1] if self.matched == len(self.marker.token_ids) - 1 else None

    def forbids(self, token_id: int) -> bool:
        must = self.must()
        return token_id != must if must is not None else token_id == self.may_not()

    def move(self, token_id: int) -> None:
        if not self.marker.token_ids or self.ended:
            return
        self.matched = self.marker.after(self.matched, token_id)
        self.used += 1
        if self.matched == len(self.marker.token_ids):
            self.cut += self.used > self.wish.budget
            self.done, self.used, self.matched = self.done + 1, 0, 0


class SectionsTransform(LogitTransform):
    bitmask: ClassVar = "mask"
    idempotent: ClassVar = True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        allowed = step.ops.unpack_bitmask(payload.arrays["mask"], logits.shape[1])
        return step.ops.where_rows(logits, payload.rows, allowed == False, -np.inf)  # noqa: E712


class Sections(LogitModifier[State]):
    contract, name, stage, transform = "1.0", "sections", Stage.MASK, SectionsTransform
    examples = (
        Example({"budget": 3}),
        Example({"marker": "abab\n", "budget": 4, "sections": 2}),
        Example({"marker": "a", "budget": 5, "least": 3}, logits={97: 9.0}),
    )

    def __init__(self, options: Mapping[str, Any], context: ModifierContext) -> None:
        super().__init__(options, context)
        self.settings = parse_options(Settings, options, where="modifier.sections")
        self.byte_ids: dict[bytes, int] = {}
        for token_id, token in enumerate(context.vocabulary.tokens):
            if len(token) == 1:
                self.byte_ids.setdefault(token, token_id)
        words = num_words(context.vocabulary.logits_width)
        self.buffers = [np.empty((0, words), dtype=np.int32) for _ in range(2)]  # a payload stays for a step

    def wish(self, request: Request) -> Wish:
        wish = parse_options(Wish, request.params.modifiers[self.name], where="modifiers.sections")
        if not 0 < len(wish.marker) <= self.settings.longest_marker:
            raise InvalidRequest("the marker is empty or too long", field="modifiers.sections.marker")
        if not wish.budget >= 1 or not 0 <= wish.least <= wish.budget or not wish.sections >= 0:
            raise InvalidRequest("budget is at least 1, least at most that", field="modifiers.sections")
        return wish

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Marker:
        text = self.wish(request).marker.encode("utf-8", "surrogatepass")
        ids = [self.byte_ids.get(text[i : i + 1], -1) for i in range(len(text))]
        token_ids = tuple(ids) if -1 not in ids else ()
        borders = [0] * len(token_ids)
        for i in range(1, len(token_ids)):
            k = borders[i - 1]
            while k and token_ids[k] != token_ids[i]:
                k = borders[k - 1]
            borders[i] = k + 1 if token_ids[k] == token_ids[i] else 0
        return Marker(token_ids, tuple(borders))

    def compile_key(self, request: Request) -> Hashable:
        return self.wish(request).marker

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> State | None:
        return None if compiled is None else State(self.wish(request), compiled)

    def unenforced(self, state: State) -> Sequence[str]:
        return () if state.marker.token_ids else ("sections.marker",)

    def prepare(self, batch: StepBatch, states: Sequence[State | None]) -> Payload | None:
        rows, _ = batch.select(states)
        if not len(rows):
            return None
        mask = self.room(len(rows))
        entry = 0
        for i, state in enumerate(states):
            if state is None:
                continue
            ahead = replace(state)
            self.fill(mask, entry, ahead)
            for token_id in batch.drafts(i).tolist():
                ahead.move(token_id)
                entry += 1
                self.fill(mask, entry, ahead)
            entry += 1
        return Payload(rows, {"mask": mask})

    def room(self, count: int) -> Bitmask:
        self.buffers.reverse()
        if len(self.buffers[0]) < count:
            self.buffers[0] = np.empty((2 * count, self.buffers[0].shape[1]), dtype=np.int32)
        return self.buffers[0][:count]

    def fill(self, mask: Bitmask, entry: int, state: State) -> None:
        must, may_not = state.must(), state.may_not()
        if must is not None:
            allow_only(mask, entry, (must,))
            return
        mask[entry] = FULL
        if may_not is not None:
            mask[entry].view(np.uint32)[may_not // 32] ^= np.uint32(1 << may_not % 32)

    def accept(self, state: State, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            state.move(token_id)
        return FINISH if state.ended else CONTINUE

    def forced(self, state: State, limit: int) -> Sequence[int]:
        ahead, found = replace(state), list[int]()
        while len(found) < limit and not ahead.ended and (must := ahead.must()) is not None:
            found.append(must)
            ahead.move(must)
        return found

    def validate(self, state: State, token_ids: Sequence[int]) -> int:
        ahead = replace(state)
        for count, token_id in enumerate(token_ids):
            if ahead.forbids(token_id) or ahead.ended:
                return count
            ahead.move(token_id)
        return len(token_ids)

    def fork(self, state: State) -> State:
        return replace(state)

    def report(self, state: State) -> Mapping[str, Any]:
        return {"sections": state.done, "cut": state.cut, "open": state.used}
