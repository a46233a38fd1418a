"""Correct modifiers of unusual design, in which the suite must find nothing wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from guideway.api import (
    CONTINUE,
    FINISH,
    Array,
    Example,
    Feedback,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    Need,
    Outcome,
    Payload,
    Request,
    Sampler,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    UnsupportedCapability,
    WorkerContext,
    parse_options,
)
from guideway_conformance.modifier.subject import ModifierSubject
from guideway_conformance.registry import checks, plan
from guideway_conformance.runner import run
from guideway_conformance.subjects import Settings
from guideway_conformance.target import Target
from mistakes import modifiers

from tests.support.probes import Aligned, GreenList, Guidance, Gumbel
from tests.support.stages import everyday


@dataclass(frozen=True)
class NoOptions:
    """There are none."""


class LengthTransform(LogitTransform):
    """Adds a number to the logits of the stop tokens, by position."""

    arrays = frozenset({"torch"})

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        import torch

        rows = payload.rows.long()
        past = step.positions[rows] - payload.arrays["start"]
        logits = logits.clone()
        stops = payload.shared["stops"].long()
        logits[rows[:, None], stops[None]] += (0.1 * past)[:, None].to(torch.float32)
        return logits


class Length(LogitModifier[int]):
    """Needs torch, acts on every request that does not turn it off, and has immutable states."""

    name, stage, transform = "length", Stage.PRE_WARP, LengthTransform
    examples = (Example({}), Example({"off": False}))

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> int | None:
        if request.params.modifiers.get(self.name, {}).get("off"):
            return None
        return len(sequence.prompt_token_ids)

    def prepare(self, batch: StepBatch, states: Sequence[int | None]) -> Payload | None:
        if not any(state is not None for state in states):
            return None
        rows, sequences = batch.select(states)
        starts = np.array([state or 0 for state in states], dtype=np.int64)
        stops = np.array(sorted(self.context.vocabulary.stop_token_ids), dtype=np.int64)
        # in reverse, int64 in `arrays`, and views that are not contiguous
        both = np.stack([starts[sequences], rows], axis=1)[::-1].copy()
        return Payload(both[:, 1].astype(np.int32), {"start": both[:, 0]}, {"stops": stops})

    def fork(self, state: int) -> int:
        return state


class BudgetState:
    """A state with slots and without equality."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class BudgetTransform(LogitTransform):
    """Allows one token."""

    def __init__(self, context: WorkerContext, options: Mapping[str, Any]) -> None:
        super().__init__(context, options)
        columns = np.arange(context.logits_width)[None]
        self.columns = context.device.ops.asarray(columns.astype(np.int32))

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        others = self.columns != payload.arrays["token"][:, None]
        return step.ops.where_rows(logits, payload.rows, others, -np.inf)


class Budget(LogitModifier[BudgetState]):
    """Implements every method: accepts no drafts but the tokens it forces, finishes, and has no payload until it must.

    Two sets of buffers are used in turn. It refuses some requests, and forks of a spent state with its own message.
    """

    name, stage, transform = "budget", Stage.MASK, BudgetTransform
    examples = tuple(Example({"tokens": tokens}) for tokens in (6, -1, 2, 9))
    SCRIPT = (97, 98, 99)

    def __init__(self, options: Mapping[str, Any], context: Any) -> None:
        super().__init__(options, context)
        parse_options(NoOptions, options, where="modifier.budget")
        self.buffers = [np.zeros((2, 4096), dtype=np.int32) for _ in range(2)]
        self.turn = 0
        self.live = 0

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> BudgetState | None:
        wanted = request.params.modifiers.get(self.name)
        if wanted is None:
            return None
        if wanted["tokens"] < 0:
            raise InvalidRequest("a budget is 0 or more")
        self.live += 1
        return BudgetState(wanted["tokens"])

    def prepare(self, batch: StepBatch, states: Sequence[BudgetState | None]) -> Payload | None:
        self.turn = 1 - self.turn
        rows, tokens = self.buffers[self.turn]
        m = 0
        for i, state in enumerate(states):
            if state is None:
                continue
            for k, row in enumerate(range(batch.row_start[i], batch.row_start[i + 1])):
                place = k - state.left
                if 0 <= place < len(self.SCRIPT):
                    rows[m], tokens[m] = row, self.SCRIPT[place]
                    m += 1
        return Payload(rows[:m], {"token": tokens[:m]}) if m else None

    def accept(self, state: BudgetState, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.left -= len(token_ids)
        return FINISH if state.left <= -len(self.SCRIPT) else CONTINUE

    def validate(self, state: BudgetState, token_ids: Sequence[int]) -> int:
        for k, token_id in enumerate(token_ids):
            place = k - state.left
            if place >= len(self.SCRIPT) or (place >= 0 and token_id != self.SCRIPT[place]):
                return k
        return len(token_ids)

    def fork(self, state: BudgetState) -> BudgetState:
        if state.left <= 0:
            raise UnsupportedCapability("a budget that is spent is not shared", field="fork")
        self.live += 1
        return BudgetState(state.left)

    def release(self, state: BudgetState | None) -> None:
        if state is not None:
            self.live -= 1


class Mirostat(NamedTuple):
    """A state that is replaced inside a list."""

    surprise: float
    target: float


class SurpriseTransform(LogitTransform):
    """Forbids tokens whose surprise is too large, and emits the two largest values."""

    emits: ClassVar = {"top": ((2,), "float32")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops = step.ops
        gathered = ops.gather(logits, payload.rows)
        best = ops.topk(gathered, 2)[0]
        step.emit("top", best)
        return ops.where_rows(logits, payload.rows, gathered < best[:, :1] - payload.arrays["most"][:, None], -np.inf)


class Surprise(LogitModifier[list[Mirostat]]):
    """Gets feedback from the worker after the warp, and accepts no draft, because drafts have no feedback."""

    name, stage, transform = "surprise", Stage.POST_WARP, SurpriseTransform
    needs = frozenset({Need.FEEDBACK})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> list[Mirostat] | None:
        return [Mirostat(4.0, 3.0)] if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[list[Mirostat] | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        most = np.array([0 if state is None else state[0].surprise for state in states], dtype=np.float32)
        return Payload(rows, {"most": most[sequences]})

    def accept(self, state: list[Mirostat], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if feedback is not None:
            for top, _ in feedback["top"]:
                state[0] = state[0]._replace(surprise=state[0].surprise + 0.1 * (state[0].target + float(top)))
        return CONTINUE

    def validate(self, state: list[Mirostat], token_ids: Sequence[int]) -> int:
        return 0


class GreedySampler(Sampler):
    """Draws nothing at random."""

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        return step.ops.argmax(step.ops.gather(logprobs, payload.rows))


class Greedy(LogitModifier[Any]):
    """Owns the draw of every row, needs nothing, gets no feedback, and still declares that its states are not
    derived."""

    name, stage, transform = "greedy", Stage.SAMPLE, GreedySampler

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        return ()

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        return Payload(batch.select(states)[0])

    def fork(self, state: Any) -> Any:
        return state


class FollowTransform(LogitTransform):
    """Copies the logits and adds to one of each row, entry by entry."""

    arrays = frozenset({"numpy"})

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        changed = logits.copy()
        for row, token, bonus in zip(payload.rows, payload.arrays["token"], payload.arrays["bonus"], strict=True):
            changed[row, token] += bonus
        return changed


class Follow(LogitModifier[int]):
    """Raises the previous token. Its states are numbers, from 0, of entries in its table. It acts on every second
    sequence of a request, which a fork need not be; two payload buffers are used in turn; its rows are descending."""

    name, stage, transform = "follow", Stage.PRE_WARP, FollowTransform
    examples: ClassVar[Sequence[Example]] = (Example({"bonus": 2}), Example({"bonus": -1.5}))

    def __init__(self, options: Mapping[str, Any], context: Any) -> None:
        super().__init__(options, context)
        parse_options(NoOptions, options, where="modifier.follow")
        self.table: dict[int, tuple[int, float]] = {}
        self.free = list(range(255, -1, -1))
        self.buffers = [np.empty(2048, dtype=np.int32) for _ in range(2)]

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> int | None:
        mine = request.params.modifiers.get(self.name)
        if mine is None or sequence.index % 2:
            return None
        return self.enter(sequence.prompt_token_ids[-1], mine["bonus"] + 0.01 * sequence.index)

    def enter(self, token_id: int, bonus: float) -> int:
        number = self.free.pop()
        self.table[number] = (token_id, bonus)
        return number

    def prepare(self, batch: StepBatch, states: Sequence[int | None]) -> Payload | None:
        rows, owners = (array[::-1] for array in batch.select(states))
        self.buffers.reverse()
        tokens, bonuses = self.buffers[0][: len(rows)], []
        for i, (row, owner) in enumerate(zip(rows.tolist(), owners.tolist(), strict=True)):
            state = states[owner]
            assert state is not None
            last, bonus = self.table[state]
            tokens[i] = last if row == batch.row_start[owner] else batch.draft_token_ids[row - owner - 1]
            bonuses.append(bonus)
        return Payload(rows, {"token": tokens, "bonus": np.array(bonuses, dtype=np.float32)})

    def accept(self, state: int, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        self.table[state] = (token_ids[-1], self.table[state][1])
        return CONTINUE

    def fork(self, state: int) -> int:
        return self.enter(*self.table[state])

    def release(self, state: int | None) -> None:
        if state is not None:
            del self.table[state]
            self.free.append(state)


class ProbeTransform(LogitTransform):
    """Adds noise, weighted by a random projection of the hidden states."""

    history_length = 3

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        score = step.hidden_states(rows).sum(axis=1) * 0.05 + (step.history(rows) * payload.shared["weights"]).sum(
            axis=1
        )
        allowed = step.bitmask(rows)
        lifted = ops.gather(logits, rows) + score[:, None] * step.uniform("noise", rows, self.context.logits_width)
        return ops.where_rows(logits, rows, allowed, lifted)


class Probe(LogitModifier[str]):
    """Needs almost everything. Its state is a text, shared by forks, and without drafts it acts only on the first row
    of a step: rows after drafts would be drawn without it, so it accepts none."""

    name, stage, transform = "probe", Stage.PRE_WARP, ProbeTransform
    needs = frozenset({Need.HIDDEN_STATES, Need.BITMASK, Need.HISTORY, Need.UNIFORM})

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> str | None:
        return sequence.prompt_token_ids.__repr__() if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[str | None]) -> Payload | None:
        rows = [int(batch.row_start[i]) for i, state in enumerate(states) if state is not None]
        weights = np.array([[1e-4, 1e-3, 1e-2]], dtype=np.float32)
        return Payload(np.array(rows, dtype=np.int32), shared={"weights": weights})

    def validate(self, state: str, token_ids: Sequence[int]) -> int:
        return 0


REQUESTS: dict[type, tuple[Mapping[str, Any], ...]] = {
    GreenList: ({"key": 3, "delta": 2.0}, {"key": 9, "delta": -4.0}),
    Guidance: ({"scale": 2.0, "negative_prompt": (101, 102)},),
}


CORRECT = (Length, Budget, Surprise, Greedy, Follow, Probe, GreenList, Gumbel, Guidance, Aligned)


@pytest.mark.slow
@pytest.mark.parametrize("modifier", CORRECT)
def test_a_correct_modifier_is_certified(modifier: type[LogitModifier[Any]]) -> None:
    settings = Settings(requests=REQUESTS.get(modifier, ()))
    report = run(Target.of_class(modifier, settings))
    assert [(r.obligation.check, r.detail) for r in report.results if r.outcome != "pass"] == []
    assert report.verdict == "certified"


@pytest.mark.slow
@pytest.mark.parametrize(
    "modifier",
    everyday(
        (
            *(modifiers.Watermark, modifiers.Ban, modifiers.Draw, modifiers.Mass),
            modifiers.Guide,
            modifiers.Allow,
            modifiers.Compiling,
            modifiers.Trim,
            modifiers.Speculate,
        ),
        modifiers.Compiling,
        modifiers.Watermark,
        modifiers.Draw,
        modifiers.Allow,
    ),
)
def test_bases_of_mistakes_are_correct(modifier: type[LogitModifier[Any]]) -> None:
    known = {check.id: check for check in checks("modifier")}
    for obligation in plan("modifier", ModifierSubject.declared(modifier), ModifierSubject.traits(modifier)):
        found = known[obligation.check]
        function = found.positive if obligation.mode == "positive" else found.refusal
        assert function is not None
        function(ModifierSubject(modifier, Settings()))
