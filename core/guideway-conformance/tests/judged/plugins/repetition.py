"""DRY, which lowers what would go on with a repetition (p-e-w, 2024), and phrases that a request wants to see."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    parse_options,
)

MOST = 8
"""The most tokens of a row that are changed: the arrays of a payload have this many columns."""


class AddTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        columns = payload.arrays["columns"]
        rows = payload.rows[:, None] + 0 * columns
        return step.ops.add_at(logits, rows.reshape(-1), columns.reshape(-1), payload.arrays["values"].reshape(-1))


def table(rows: list[int], entries: list[dict[int, float]]) -> Payload | None:
    """The payload that adds ``entries[i]``, by token, at ``rows[i]``."""
    if not rows:
        return None
    columns = np.zeros((len(rows), MOST), dtype=np.int32)
    values = np.zeros((len(rows), MOST), dtype=np.float32)
    for i, entry in enumerate(entries):
        # the strongest first, and of equal ones the lowest token
        chosen = sorted(entry.items(), key=lambda item: (-abs(item[1]), item[0]))[:MOST]
        for j, (token_id, value) in enumerate(chosen):
            columns[i, j], values[i, j] = token_id, value
    return Payload(np.array(rows, dtype=np.int32), {"columns": columns, "values": values})


@dataclass(frozen=True)
class DryWish:
    multiplier: float = 0.8
    base: float = 1.75
    allowed: int = 1
    breakers: tuple[int, ...] = (10,)


@dataclass
class DryState:
    wish: DryWish
    tokens: list[int] = field(default_factory=list)
    places: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    hits: int = 0

    def hear(self, token_id: int) -> None:
        self.places[token_id].append(len(self.tokens))
        self.tokens.append(token_id)


class Dry(LogitModifier[DryState]):
    contract, name, stage, transform = "1.0", "dry", Stage.PRE_WARP, AddTransform
    examples = (
        Example({}, prompt_token_ids=(97, 98, 99, 97, 98), generated=(99, 97, 98, 99, 97)),
        Example({"multiplier": 3.0, "allowed": 2}),
        Example({"breakers": [98]}, generated=(97, 98, 99, 97, 98, 99, 97, 97)),
    )

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> DryState | None:
        if self.name not in request.params.modifiers:
            return None
        options = {**request.params.modifiers[self.name]}
        if isinstance(options.get("breakers"), list):
            options["breakers"] = tuple(options["breakers"])
        wish = parse_options(DryWish, options, where="modifiers.dry")
        if not 0 <= wish.multiplier <= 10 or not 1 <= wish.base <= 4 or wish.allowed < 1:
            raise InvalidRequest("multiplier is from 0 to 10, base from 1 to 4", field="modifiers.dry")
        state = DryState(wish)
        for token_id in sequence.prompt_token_ids:
            state.hear(token_id)
        return state

    def prepare(self, batch: StepBatch, states: Sequence[DryState | None]) -> Payload | None:
        rows: list[int] = []
        entries: list[dict[int, float]] = []
        for i, state in enumerate(states):
            if state is None:
                continue
            drafts = batch.drafts(i).tolist()
            for j in range(len(drafts) + 1):
                rows.append(int(batch.row_start[i]) + j)
                entries.append(self.penalties(state, drafts[:j]))
        return table(rows, entries)

    def accept(self, state: DryState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            state.hits += token_id in self.penalties(state, [])
            state.hear(token_id)
        return CONTINUE

    def fork(self, state: DryState) -> DryState:
        places = defaultdict(list, {token_id: list(found) for token_id, found in state.places.items()})
        return replace(state, tokens=list(state.tokens), places=places)

    def report(self, state: DryState) -> Mapping[str, Any]:
        return {"hits": state.hits}

    def penalties(self, state: DryState, drafts: list[int]) -> dict[int, float]:
        """By token, what is added to it: it would go on with the longest repetition so far."""
        wish, known = state.wish, len(state.tokens)
        end = known + len(drafts)

        def at(place: int) -> int:
            return state.tokens[place] if place < known else drafts[place - known]

        if not end or at(end - 1) in wish.breakers:
            return {}
        last = at(end - 1)
        places = [*state.places.get(last, ()), *(known + i for i, token_id in enumerate(drafts) if token_id == last)]
        found: dict[int, float] = {}
        for place in places[-17:-1]:
            length = 1
            while length < 12 and place - length >= 0 and at(place - length) == at(end - 1 - length):
                if at(place - length) in wish.breakers:
                    break
                length += 1
            if length >= wish.allowed:
                penalty = -wish.multiplier * wish.base ** (length - wish.allowed)
                following = at(place + 1)
                found[following] = min(found.get(following, 0.0), penalty)
        return found


@dataclass(frozen=True)
class PhraseWish:
    phrases: tuple[str, ...] = ("abc", "abd")
    strength: float = 4.0


Trie = Mapping[int, Any]


@dataclass
class PhraseState:
    strength: float
    root: Trie
    node: Trie
    completed: int = 0


class Phrases(LogitModifier[PhraseState]):
    """Raises the tokens that go on with a phrase that has begun, or begin one."""

    contract, name, stage, transform = "1.0", "phrases", Stage.PRE_WARP, AddTransform
    examples = (
        Example({}, generated=(97, 98, 99, 97, 98, 100)),
        Example({"phrases": ["hello", "help"], "strength": 2.0}, generated=tuple(b"hehellhelp")),
    )

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> Trie:
        ids = {token: token_id for token_id, token in enumerate(self.context.vocabulary.tokens) if len(token) == 1}
        root: dict[int, Any] = {}
        for phrase in self.wish(request).phrases:
            spelled = [ids.get(bytes((byte,))) for byte in phrase.encode()]
            node = root
            for token_id in spelled if None not in spelled else ():
                node = node.setdefault(token_id, {})
        return root

    def compile_key(self, request: Request) -> Hashable:
        return self.wish(request).phrases

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> PhraseState | None:
        return None if compiled is None else PhraseState(self.wish(request).strength, compiled, compiled)

    def prepare(self, batch: StepBatch, states: Sequence[PhraseState | None]) -> Payload | None:
        rows: list[int] = []
        entries: list[dict[int, float]] = []
        for i, state in enumerate(states):
            if state is None:
                continue
            node = state.node
            for j, draft in enumerate((None, *batch.drafts(i).tolist())):
                if draft is not None:
                    node = self.follow(state.root, node, draft) or state.root
                rows.append(int(batch.row_start[i]) + j)
                wanted = dict.fromkeys(state.root, state.strength / 2)
                entries.append({**wanted, **dict.fromkeys(node, state.strength)})
        return table(rows, entries)

    def accept(self, state: PhraseState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        for token_id in token_ids:
            after = self.follow(state.root, state.node, token_id)
            state.completed += not after
            state.node = after or state.root
        return CONTINUE

    def fork(self, state: PhraseState) -> PhraseState:
        return replace(state)

    def report(self, state: PhraseState) -> Mapping[str, Any]:
        return {"completed": state.completed}

    @staticmethod
    def follow(root: Trie, node: Trie, token_id: int) -> Trie:
        after: Trie = node.get(token_id, root.get(token_id, root))
        return after

    def wish(self, request: Request) -> PhraseWish:
        options = {**request.params.modifiers[self.name]}
        if isinstance(options.get("phrases"), list):
            options["phrases"] = tuple(options["phrases"])
        wish = parse_options(PhraseWish, options, where="modifiers.phrases")
        if not all(wish.phrases) or not 0 < wish.strength <= 50:
            raise InvalidRequest("a phrase is empty, or strength not from 0 to 50", field="modifiers.phrases")
        return wish
