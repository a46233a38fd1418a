"""A modifier whose state depends on tokens and feedback, and which a request can make crash, hang or eat memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    FINISH,
    Array,
    Companion,
    CompiledGrammar,
    Feedback,
    LogitModifier,
    LogitTransform,
    Need,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    hookimpl,
)

from tests.support.hostile_strategy import act

WINDOW = 4


class HostileTransform(LogitTransform):
    """Adds the state's values to the logits of the last tokens, and emits the probability of the likeliest token."""

    emits: ClassVar = {"top": ((), "float32")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows, ids = step.ops, payload.rows, payload.arrays["ids"]
        step.emit("top", ops.exp(ops.log_softmax(ops.gather(logits, rows))).max(axis=1))
        repeated = (rows[:, None] + 0 * ids).reshape(-1)
        return ops.add_at(logits, repeated, ids.reshape(-1), payload.arrays["values"].reshape(-1))


@dataclass
class HostileState:
    when: str
    what: str
    after: int
    finish: int
    weight: float
    tokens: list[int] = field(default_factory=list)
    heard: float = 0.0
    forks: int = 0

    def maybe(self, when: str) -> None:
        """Misbehave if `when` and the number of tokens match."""
        if when == self.when and len(self.tokens) >= self.after:
            act(self.what)


class Hostile(LogitModifier[HostileState]):
    """Options: `when`, the method that does `what`, after `after` accepted tokens."""

    contract = "1.0"
    name, stage, transform = "hostile", Stage.PRE_WARP, HostileTransform
    needs = frozenset({Need.FEEDBACK, Need.COMPANIONS})

    def __init__(self, options: Mapping[str, Any], context: Any) -> None:
        super().__init__(options, context)
        self.living = 0
        if options.get("refuse") or os.environ.get("GWT_HOSTILE_MODIFIER_REFUSES"):
            raise ValueError("no such options")

    def companions(self, request: Request) -> Sequence[Companion]:
        self._maybe(request, "companions")
        wanted = request.params.modifiers.get(self.name, {})
        return [Companion((1, 2))] if wanted.get("companion") else []

    def compile_key(self, request: Request) -> str:
        self._maybe(request, "compile_key")
        return str(sorted(request.params.modifiers[self.name].items()))

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> float:
        self._maybe(request, "compile")
        return 0.5 if grammar is None else 0.25

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> HostileState | None:
        self.living += 1
        wanted = request.params.modifiers.get(self.name)
        if wanted is None:
            return None
        self._maybe(request, "start")
        when, what, after = wanted.get("when", ""), wanted.get("what", ""), wanted.get("after", 0)
        when = "tell" if wanted.get("tell") else when
        return HostileState(when, what, after, wanted.get("finish", 10**6), compiled, list(sequence.prompt_token_ids))

    def unenforced(self, state: HostileState) -> Sequence[str]:
        return ["modifier.hostile.weight"] if state.weight < 0.5 else ()

    def prepare(self, batch: StepBatch, states: Sequence[HostileState | None]) -> Payload | None:
        rows, _ = batch.select(states)
        ids = np.zeros((len(rows), WINDOW), dtype=np.int32)
        values = np.zeros((len(rows), WINDOW), dtype=np.float32)
        entry = 0
        for i, state in enumerate(states):
            if state is None:
                continue
            state.maybe("prepare")
            drafts = batch.drafts(i).tolist()
            for k in range(len(drafts) + 1):
                near = [*state.tokens, *drafts[:k]][-WINDOW:]
                ids[entry, : len(near)] = near
                values[entry, : len(near)] = -np.arange(len(near)) - state.heard * state.weight
                entry += 1
        return Payload(rows, {"ids": ids, "values": values})

    def accept(self, state: HostileState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.maybe("accept")
        state.tokens += token_ids
        if feedback is not None:
            state.heard = (state.heard * 31 + float(feedback["top"].sum())) % 3
        return FINISH if len(state.tokens) >= state.finish else CONTINUE

    def validate(self, state: HostileState, token_ids: Sequence[int]) -> int:
        state.maybe("validate")
        return len(token_ids) // 2

    def fork(self, state: HostileState) -> HostileState:
        state.maybe("fork")
        self.living += 1
        return replace(state, tokens=list(state.tokens), forks=state.forks + 1)

    def report(self, state: HostileState) -> Mapping[str, Any] | None:
        state.maybe("report")
        if state.when == "tell":
            return {"living": self.living}
        return {"tokens": len(state.tokens), "heard": state.heard, "forks": state.forks}

    def release(self, state: HostileState | None) -> None:
        self.living -= 1
        if state is not None:
            state.maybe("release")

    def close(self) -> None:
        if path := self.options.get("closed"):
            with Path(path).open("a") as file:
                file.write(f"{os.getpid()}\n")

    def _maybe(self, request: Request, when: str) -> None:
        wanted = request.params.modifiers.get(self.name, {})
        if wanted.get("when") == when:
            act(wanted["what"])


class Forcing(Hostile):
    """Forces the last tokens to be repeated, and accepts no other draft."""

    name = "forcing"

    def forced(self, state: HostileState, limit: int) -> Sequence[int]:
        state.maybe("forced")
        return tuple(np.array(state.tokens[-3:]))[:limit]


@hookimpl
def guideway_logit_modifier(name: str) -> type[LogitModifier[Any]]:
    return {"hostile": Hostile, "forcing": Forcing}[name]
