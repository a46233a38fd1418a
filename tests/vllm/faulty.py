"""Plugins that fail on request: in a chosen method, in a chosen way, at a chosen step; otherwise they work.

A request asks for a failure by ``{"phase": "accept", "how": "raise", "at": 2}``: in that method, once `at` tokens are
final. Its neighbors use the same plugin without a failure, so shared parts fail. `install` makes a distribution of the
plugins; `GUIDEWAY` is a configuration that uses all of them.
"""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    Array,
    CompiledGrammar,
    Constraint,
    DeadEnd,
    Feedback,
    FillJob,
    GrammarStrategy,
    InvalidGrammar,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    Matcher,
    Need,
    Payload,
    PluginUnavailable,
    Request,
    Sampler,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    Support,
    ValidationContext,
    Vocabulary,
    WorkerMixin,
    WorkerStep,
    fail,
    hookimpl,
)
from guideway.api.bitmask import Bitmask, allow_only
from numpy.typing import NDArray

from tests.support import distributions
from tests.support.processes import owner_of_host

STAGES = ("pre_warp", "mask", "post_warp", "sample")
PENALIZED = 4.0
"""Amount that a modifier subtracts from certain letters' logits, enough to change the draw."""
COMPILES_FOR = 0.6
"""Seconds that a slow compilation takes: longer than the front end waits for it."""

UNBUILT = "GUIDEWAY_FAULTY_UNBUILT"
"""Environment variable with the path of a file; while it exists, the engine core's hosts cannot build the strategy."""

GUIDEWAY: dict[str, Any] = {
    "grammar": ["faulty", "replayed"],
    "grammar_host": "inline",
    "modifiers": [f"faulty_{stage}" for stage in STAGES],
    "refuse_within": COMPILES_FOR / 3,
    "plugins": {"enable": ["faulty"]},
}


def install(folder: Path) -> None:
    """Install the distribution in `folder`, which must be on the path."""
    entries = [
        *("grammar.faulty", "grammar.replayed", "hooks.faulty", "worker.faulty"),
        *(f"modifier.faulty_{stage}" for stage in (*STAGES, "compiles")),
    ]
    distributions.install(folder, "faulty", dict.fromkeys(entries, __name__))


class Panic(BaseException):
    """An exception that, like a Rust panic, is not an `Exception`."""


@dataclass(frozen=True)
class Plan:
    """The failure to produce, and when."""

    phase: str = ""
    how: str = ""
    at: int = 2

    def due(self, phase: str, num_tokens: int = 0) -> bool:
        """Return whether to fail now, for failures that the caller implements; raise for the others."""
        if phase != self.phase or num_tokens < self.at:
            return False
        if self.how == "raise":
            raise RuntimeError(f"{phase} was asked to fail")
        if self.how == "panic":
            raise Panic(f"{phase} was asked to panic")
        if self.how == "exit":
            raise SystemExit(f"{phase} was asked to exit")
        if self.how == "interrupt":
            raise KeyboardInterrupt(f"{phase} was asked to interrupt")
        if self.how == "leave":
            raise GeneratorExit(f"{phase} was asked to leave")
        return True

    def compile(self) -> str | None:
        """Return the value to return instead of a grammar; None to work normally."""
        if not self.due("compile", self.at):
            return None
        if self.how == "hang":
            time.sleep(3600)
        if self.how == "invalid":
            raise InvalidGrammar("this is no grammar")
        return "no grammar"


def is_in_core() -> bool:
    """Return whether the caller is the engine core rather than the front end, which may be in the same process. In a
    grammar host, return whether the host is the core's."""
    frames = traceback.walk_stack(None)
    return any(frame.f_globals["__name__"] == "guideway_vllm.core" for frame, _ in frames) or _is_of_core()


def _is_of_core() -> bool:
    owner = owner_of_host(os.getpid())
    return owner is not None and b"EngineCore" in Path(f"/proc/{owner}/cmdline").read_bytes()


def hold_at(gate: str | None) -> None:
    """Create a file that says that a call has arrived, and wait for another file."""
    if gate is not None:
        Path(f"{gate}.reached").touch()
        while not Path(f"{gate}.open").exists():
            time.sleep(0.01)


# Grammar strategies


class Letters(Matcher):
    """Matches a number of bytes of lower-case letters."""

    def __init__(self, grammar: Compiled, stop_token_ids: frozenset[int]) -> None:
        self.grammar = grammar
        self.plan = grammar.plan
        self.stops = stop_token_ids
        self.taken: list[int] = []

    @property
    def left(self) -> int:
        return self.grammar.num_bytes - sum(len(self.grammar.tokens.get(t, b"")) for t in self.taken)

    def accept(self, token_ids: Sequence[int]) -> Any:
        if token_ids and self.plan.due("accept", len(self.taken)):
            return {"type": "two", "count": len(token_ids) + 1, "refuse": 0}[self.plan.how]
        for i, token_id in enumerate(token_ids):
            if token_id not in self.legal():
                return i
            self.taken.append(token_id)
        return len(token_ids)

    def fill_bitmask(self, bitmask: Bitmask, row: int) -> None:
        if self.plan.due("fill_bitmask", len(self.taken)):
            if self.plan.how == "dead_end":
                raise DeadEnd("nothing may follow")
            if self.plan.how == "empty":
                bitmask[row] = 0
                return
        allow_only(bitmask, row, self.legal())

    def legal(self) -> frozenset[int]:
        if self.is_terminated():
            return frozenset()
        return self.grammar.by_length[self.left] if self.left else self.stops

    def is_terminated(self) -> bool:
        ended = bool(self.taken) and self.taken[-1] in self.stops
        if ended and self.plan.phase == "is_terminated":
            raise RuntimeError("is_terminated was asked to fail")
        return ended

    def is_accepting(self) -> bool:
        return self.left == 0

    def validate(self, token_ids: Sequence[int]) -> Any:
        if self.plan.due("validate", len(self.taken)):
            return "two"
        return super().validate(token_ids)

    def rollback(self, num_tokens: int) -> None:
        self.plan.due("rollback", len(self.taken))
        del self.taken[len(self.taken) - num_tokens :]

    def fork(self) -> Letters:
        copy = Letters(self.grammar, self.stops)
        copy.taken = list(self.taken)
        return copy


class Compiled(CompiledGrammar):
    def __init__(self, vocabulary: Vocabulary, num_bytes: int, plan: Plan) -> None:
        self.plan, self.num_bytes = plan, num_bytes
        tokens = enumerate(vocabulary.tokens)
        self.tokens = {i: token for i, token in tokens if token.isalpha() and token.islower() and token.isascii()}
        self.by_length = [
            frozenset(i for i, token in self.tokens.items() if len(token) <= left) for left in range(num_bytes + 1)
        ]
        self.num_matchers = 0

    def matcher(self, stop_token_ids: frozenset[int]) -> Any:
        self.num_matchers += 1
        # the first one is for the front end's trial
        if self.plan.due("matcher", self.num_matchers):
            return "no matcher"
        return Letters(self, stop_token_ids)

    @property
    def nbytes(self) -> int:
        return 1000


class Faulty(GrammarStrategy):
    """``grammar:faulty``: a JSON object such as ``{"bytes": 12}`` with the fields of a `Plan`."""

    contract = "1.0"
    name = "faulty"
    kinds = frozenset({"grammar:faulty"})
    capabilities = frozenset({"fork"})
    max_rollback: ClassVar[int | None] = None

    def __init__(self, vocabulary: Vocabulary, options: Mapping[str, Any]) -> None:
        super().__init__(vocabulary, options)
        if Path(os.environ.get(UNBUILT, "/nowhere")).exists() and _is_of_core():
            raise PluginUnavailable("it was asked not to be there", plugin="grammar.faulty")

    def supports(self, constraint: Constraint) -> Any:
        spec = json.loads(constraint.source())
        hold_at(spec.get("gate in the core" if is_in_core() else "gate"))
        if plan_of(spec).due("supports in the core" if is_in_core() else "supports", 9):
            return "yes"
        return Support(enforced=frozenset({constraint.kind}))

    def compile(self, constraint: Constraint) -> Any:
        spec = json.loads(constraint.source())
        plan = plan_of(spec)
        if is_in_core():
            hold_at(spec.get("gate in the core"))
        if spec.get("slow"):
            time.sleep(COMPILES_FOR)
        if (result := plan.compile()) is not None:
            return result
        return Compiled(self.vocabulary, spec["bytes"], plan)

    def fill(self, jobs: Sequence[FillJob], bitmask: Bitmask) -> Any:
        for i, job in enumerate(jobs):
            matcher: Any = getattr(job.matcher, "_matcher", job.matcher)
            if not matcher.plan.due("fill", len(matcher.taken)):
                continue
            filled = super().fill(jobs, bitmask)
            if matcher.plan.how == "type":
                return "filled"
            if matcher.plan.how == "shape":
                return filled[:-1]
            filled[i] = -1  # without a reason
            return filled
        return super().fill(jobs, bitmask)


class Replayed(Faulty):
    """Cannot roll back or fork, so the host replays."""

    name = "replayed"
    kinds = frozenset({"grammar:replayed"})
    capabilities = frozenset()
    max_rollback = 0


def plan_of(options: Mapping[str, Any]) -> Plan:
    return Plan(**{name: options[name] for name in ("phase", "how", "at") if name in options})


# Logit modifiers


@dataclass
class State:
    plan: Plan
    num_tokens: int = 0
    released: bool = False


class FaultyTransform(LogitTransform):
    """Subtracts from the logits of the payload's letters, unless one of its rows is to fail."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Any:
        how = failing(payload)
        if how == "raise":
            logits[np.asarray(payload.rows)[0]] = 0.0  # half done
            raise RuntimeError("apply was asked to fail")
        if how == "panic":
            raise Panic("apply was asked to panic")
        if how == "interrupt":
            raise KeyboardInterrupt("apply was asked to interrupt")
        if how == "type":
            return "logits"
        if how == "shape":
            return logits[:, :-1]
        if how == "dtype":
            return logits.double() if hasattr(logits, "double") else logits.astype("float64")
        ids = payload.shared["ids"]
        rows = (payload.rows[:, None] + 0 * ids[None, :]).reshape(-1)
        values = payload.arrays["value"][:, None] + 0.0 * ids[None, :]
        return step.ops.add_at(logits, rows, (0 * payload.rows[:, None] + ids[None, :]).reshape(-1), values.reshape(-1))


class FaultySampler(Sampler):
    """Draws the most likely token after adding noise."""

    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Any:
        ops, how = step.ops, failing(payload)
        if how == "raise":
            raise RuntimeError("sample was asked to fail")
        if how == "panic":
            raise Panic("sample was asked to panic")
        if how == "type":
            return "token"
        noise = -ops.log(-ops.log(step.uniform("noise", payload.rows, self.context.logits_width)))
        drawn = ops.argmax(ops.gather(logprobs, payload.rows) + noise)
        if how == "shape":
            return drawn[:-1]
        if how == "dtype":
            return drawn + 0.5
        return drawn + 10**6 * (payload.arrays["how"] == HOWS.index("value"))


HOWS = ("", "nan", "raise", "panic", "interrupt", "type", "shape", "dtype", "value")


def failing(payload: Payload) -> str:
    """Return how the first failing row fails."""
    codes = np.asarray(payload.arrays["how"])
    return HOWS[int(codes.max(initial=0))]


class FaultyModifier(LogitModifier[State]):
    """Fails as its `Plan` says."""

    contract = "1.0"
    transform: ClassVar[type[LogitTransform]] = FaultyTransform
    states: ClassVar[list[State]] = []
    """States of the engine core, in order of creation."""

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        wanted = request.params.modifiers.get(self.name)
        if wanted is None:
            return None
        plan = plan_of(wanted)
        in_front_end = self.context.max_num_sequences == 1
        if plan.due("start" if in_front_end else "start in the core", 9):
            raise InvalidRequest("this request is refused", field="modifiers")
        if not in_front_end:
            self.states.append(state := State(plan))
            return state
        return State(plan)

    def prepare(self, batch: StepBatch, states: Sequence[State | None]) -> Any:
        rows, sequences = batch.select(states)
        for state in states:
            if state is not None and state.plan.due("prepare", state.num_tokens):
                match state.plan.how:
                    case "type":
                        return "payload"
                    case "rows":
                        return Payload(rows + batch.num_rows, self.arrays(states, sequences), self.shared())
                    case "others":  # rows of its neighbors
                        every = np.arange(batch.num_rows, dtype=np.int32)
                        return Payload(every, self.arrays(states, 0 * every), self.shared())
        return Payload(rows, self.arrays(states, sequences), self.shared())

    def arrays(self, states: Sequence[State | None], sequences: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        plans = [state.plan if state and state.num_tokens >= state.plan.at else Plan() for state in states]
        hows = [plan.how if plan.phase in ("apply", "sample") else "" for plan in plans]
        usual = -np.inf if self.stage is Stage.MASK else -PENALIZED
        values = [np.nan if how == "nan" else usual for how in hows]
        return {
            "how": np.array([HOWS.index(how) for how in hows], dtype=np.int32)[sequences],
            "value": np.array(values, dtype=np.float32)[sequences],
        }

    def shared(self) -> dict[str, NDArray[Any]]:
        tokens = self.context.vocabulary.tokens
        ids = [i for i, token in enumerate(tokens) if b"e" in token]
        return {"ids": np.array(ids, dtype=np.int32)}

    def accept(self, state: State, token_ids: Sequence[int], feedback: Feedback | None) -> Any:
        if state.plan.due("accept", state.num_tokens):
            return fail("it gives up") if state.plan.how == "fail" else "continue"
        state.num_tokens += len(token_ids)
        return CONTINUE

    def validate(self, state: State, token_ids: Sequence[int]) -> Any:
        if state.plan.due("validate", state.num_tokens):
            return -1
        return len(token_ids)

    def release(self, state: State | None) -> None:
        if state is not None:
            assert not state.released, "a state is released once"
            state.released = True
            if state.plan.phase == "release":
                raise RuntimeError("release was asked to fail")


class PreWarp(FaultyModifier):
    name, stage = "faulty_pre_warp", Stage.PRE_WARP


class Mask(FaultyModifier):
    name, stage = "faulty_mask", Stage.MASK


class PostWarp(FaultyModifier):
    name, stage = "faulty_post_warp", Stage.POST_WARP


class Sample(FaultyModifier):
    name, stage, transform = "faulty_sample", Stage.SAMPLE, FaultySampler
    needs = frozenset({Need.UNIFORM})


class Compiles(FaultyModifier):
    """Its `compile` can block, before its sequences start."""

    name, stage = "faulty_compiles", Stage.PRE_WARP

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> None:
        hold_at(request.params.modifiers[self.name].get("gate"))


# Worker mixins and hooks


class FaultyMixin(WorkerMixin):
    """Fails in chosen steps."""

    contract = "1.0"
    name = "faulty"

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.plan = Plan()

    def fail_in(self, phase: str, how: str, num_sequences: int) -> None:
        """Fail in the next step of `num_sequences` sequences."""
        self.plan = Plan(phase, how, num_sequences)

    def before_step(self, step: WorkerStep) -> None:
        self._do("before_step", step)

    def after_step(self, step: WorkerStep) -> None:
        self._do("after_step", step)

    def _do(self, phase: str, step: WorkerStep) -> None:
        plan = self.plan
        if plan.phase == phase and step.num_sequences == plan.at:
            self.plan = Plan()
            plan.due(phase, plan.at)


@hookimpl
def guideway_validate_request(request: Request, context: ValidationContext) -> None:
    if request.tenant in ("raise", "panic", "interrupt", "leave"):
        Plan("validate_request", request.tenant, 0).due("validate_request")
    if request.tenant.startswith("gate:"):
        hold_at(request.tenant.removeprefix("gate:"))
    if request.tenant == "refused":
        raise InvalidRequest("this tenant is not served", field="tenant")


@hookimpl
def guideway_grammar_strategy(name: str) -> type[GrammarStrategy]:
    return {cls.name: cls for cls in (Faulty, Replayed)}[name]


@hookimpl
def guideway_logit_modifier(name: str) -> type[LogitModifier[Any]]:
    return {cls.name: cls for cls in (PreWarp, Mask, PostWarp, Sample, Compiles)}[name]


@hookimpl
def guideway_worker_mixin() -> type[WorkerMixin]:
    return FaultyMixin
