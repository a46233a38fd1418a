"""A budget for thinking: after so many tokens the end marker is all that may come; and texts that nobody may see."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from guideway.api import (
    CONTINUE,
    FINISH,
    Array,
    CompiledGrammar,
    Example,
    Feedback,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    parse_options,
)
from guideway.api.bitmask import Bitmask, allocate, allow_only


@dataclass(frozen=True)
class BudgetWish:
    """The wish of a request; `marker` is text, spelled one byte after the other."""

    tokens: int = 4
    marker: str = "</t>"
    answer: int = 0


@dataclass(frozen=True)
class BudgetState:
    """The place of a sequence: the tokens it thought, how much of the marker is written, and how long its answer is."""

    wish: BudgetWish
    marker: tuple[int, ...]
    thought: int = 0
    written: int = 0
    answered: int = 0
    cut: bool = False

    @property
    def over(self) -> bool:
        return self.written == len(self.marker)

    def after(self, token_id: int) -> BudgetState:
        if self.over:
            return replace(self, answered=self.answered + 1)
        cut = self.cut or self.must is not None
        if token_id == self.marker[self.written]:
            return replace(self, written=self.written + 1, thought=self.thought + 1, cut=cut)
        written = 1 if token_id == self.marker[0] else 0
        return replace(self, written=written, thought=self.thought + 1, cut=cut)

    @property
    def must(self) -> int | None:
        """The only token that may come, or None."""
        if self.over or self.thought < self.wish.tokens:
            return None
        return self.marker[self.written]


@dataclass
class Sequenced:
    """The box of a sequence's state, which accept moves."""

    now: BudgetState


class BudgetTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        columns = ops.asarray(np.arange(self.context.logits_width, dtype=np.int32))
        must = payload.arrays["must"][:, None]
        return ops.where_rows(logits, rows, (must >= 0) * (columns[None, :] != must), -np.inf)


class Budget(LogitModifier[Sequenced]):
    contract, name, stage, transform = "1.0", "budget", Stage.MASK, BudgetTransform
    examples = (Example({}), Example({"tokens": 2, "marker": "ab", "answer": 5}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Sequenced | None:
        if self.name not in request.params.modifiers:
            return None
        wish = parse_options(BudgetWish, request.params.modifiers[self.name], where="modifiers.budget")
        if wish.tokens < 1 or not wish.marker or wish.answer < 0:
            raise InvalidRequest("tokens must be at least 1, and marker not empty", field="modifiers.budget")
        ids = {token: token_id for token_id, token in enumerate(self.context.vocabulary.tokens) if len(token) == 1}
        marker = [ids.get(bytes((byte,))) for byte in wish.marker.encode()]
        if None in marker:
            raise InvalidRequest("the vocabulary cannot spell the marker", field="modifiers.budget.marker")
        return Sequenced(BudgetState(wish, tuple(token_id for token_id in marker if token_id is not None)))

    def prepare(self, batch: StepBatch, states: Sequence[Sequenced | None]) -> Payload | None:
        rows, musts = [], []
        for i, state in enumerate(states):
            if state is None:
                continue
            now = state.now
            for j, draft in enumerate((None, *batch.drafts(i).tolist())):
                now = now if draft is None else now.after(draft)
                if now.must is not None:
                    rows.append(int(batch.row_start[i]) + j)
                    musts.append(now.must)
        if not rows:
            return None
        return Payload(np.array(rows, dtype=np.int32), {"must": np.array(musts, dtype=np.int32)})

    def accept(self, state: Sequenced, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            state.now = state.now.after(token_id)
        most = state.now.wish.answer
        return FINISH if most and state.now.answered >= most else CONTINUE

    def forced(self, state: Sequenced, limit: int) -> Sequence[int]:
        found: list[int] = []
        now = state.now
        while len(found) < limit and now.must is not None:
            found.append(now.must)
            now = now.after(found[-1])
        return tuple(found)

    def validate(self, state: Sequenced, token_ids: Sequence[int]) -> int:
        now = state.now
        for count, token_id in enumerate(token_ids):
            if now.must not in (None, token_id):
                return count
            now = now.after(token_id)
        return len(token_ids)

    def fork(self, state: Sequenced) -> Sequenced:
        return replace(state)

    def report(self, state: Sequenced) -> Mapping[str, Any]:
        return {"thought": state.now.thought, "cut": state.now.cut}


@dataclass(frozen=True)
class UnsaidWish:
    texts: tuple[str, ...] = ("ba", "c")


@dataclass
class UnsaidState:
    masks: Mapping[bytes, Bitmask]
    """By what is written of a text: of all sequences with these texts."""
    texts: tuple[bytes, ...]
    tail: bytes


class UnsaidTransform(LogitTransform):
    bitmask = "allowed"
    hard = True
    idempotent = True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        allowed = ops.unpack_bitmask(payload.arrays["allowed"], self.context.logits_width)
        return ops.where_rows(logits, rows, allowed == 0, -np.inf)


class Unsaid(LogitModifier[UnsaidState]):
    """Texts that do not appear in the output, however they are cut into tokens."""

    contract, name, stage, transform = "1.0", "unsaid", Stage.MASK, UnsaidTransform
    examples = (Example({}, generated=(98, 98, 100, 98)), Example({"texts": ["abca"]}, generated=(97, 98, 99, 97, 97)))

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Mapping[bytes, Bitmask]:
        texts = [text.encode() for text in self.wish(request).texts]
        masks: dict[bytes, Bitmask] = {}
        for text in texts:
            for length in range(len(text)):
                masks.setdefault(text[:length], self.mask(text[:length], texts))
        return masks

    def compile_key(self, request: Request) -> Hashable:
        return self.wish(request).texts

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> UnsaidState | None:
        if compiled is None:
            return None
        texts = tuple(text.encode() for text in self.wish(request).texts)
        return UnsaidState(compiled, texts, b"")

    def prepare(self, batch: StepBatch, states: Sequence[UnsaidState | None]) -> Payload | None:
        rows, masks = [], []
        for i, state in enumerate(states):
            if state is None:
                continue
            tail = state.tail
            for j, draft in enumerate((None, *batch.drafts(i).tolist())):
                if draft is not None:
                    tail = self.longest(state, tail + self.context.vocabulary.tokens[draft])
                rows.append(int(batch.row_start[i]) + j)
                masks.append(state.masks[tail])
        if not rows:
            return None
        return Payload(np.array(rows, dtype=np.int32), {"allowed": np.stack(masks)})

    def accept(self, state: UnsaidState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            state.tail = self.longest(state, state.tail + self.context.vocabulary.tokens[token_id])
        return CONTINUE

    def validate(self, state: UnsaidState, token_ids: Sequence[int]) -> int:
        tail = state.tail
        for count, token_id in enumerate(token_ids):
            tail += self.context.vocabulary.tokens[token_id]
            if any(text in tail for text in state.texts):
                return count
            tail = self.longest(state, tail)
        return len(token_ids)

    def fork(self, state: UnsaidState) -> UnsaidState:
        return replace(state)

    @staticmethod
    def longest(state: UnsaidState, written: bytes) -> bytes:
        """The longest end of `written` that begins a text."""
        most = max(map(len, state.texts)) - 1
        ends = (written[len(written) - n :] for n in range(min(most, len(written)), -1, -1))
        return next(end for end in ends if end in state.masks)

    def mask(self, tail: bytes, texts: Sequence[bytes]) -> Bitmask:
        tokens = self.context.vocabulary.tokens
        legal = [i for i, token in enumerate(tokens) if not any(text in tail + token for text in texts)]
        row = allocate(1, self.context.vocabulary.logits_width)
        allow_only(row, 0, legal)
        row.setflags(write=False)
        return row[0]

    def wish(self, request: Request) -> UnsaidWish:
        options = {**request.params.modifiers[self.name]}
        if isinstance(options.get("texts"), list):
            options["texts"] = tuple(options["texts"])
        wish = parse_options(UnsaidWish, options, where="modifiers.unsaid")
        if not wish.texts or not all(wish.texts):
            raise InvalidRequest("texts must not be empty", field="modifiers.unsaid.texts")
        return wish
