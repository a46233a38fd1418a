"""Modifiers for the tests inside vLLM, one of each stage and need, and helpers to run them and compare results.

`Chain` detects lost, doubled or reordered calls of `accept`: it adds a function of all accepted tokens to the logits,
and compares the worker's feedback with its own state.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from guideway.api import (
    CONTINUE,
    FINISH,
    Array,
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
    fail,
    hookimpl,
)

from tests.support import probes
from tests.support.distributions import install

MODULE = "tests.vllm.probes_in_vllm"
MODULUS = (1 << 61) - 1


class Ledger:
    """Counts the states that a probe has started and not released."""

    live: ClassVar[set[int]] = set()
    num_started: ClassVar[int] = 0
    twice: ClassVar[list[object]] = []
    """States that were released twice."""


class Counted(LogitModifier[Any]):
    """A modifier that records its states in the ledger."""

    contract = "1.0"

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> Any:
        if self.name not in request.params.modifiers:
            return None
        state = self.begin(request.params.modifiers[self.name], request, sequence)
        Ledger.live.add(id(state))
        Ledger.num_started += 1
        return state

    def begin(self, options: Mapping[str, Any], request: Request, sequence: SequenceInfo) -> Any:
        """Return a state that no other sequence shares."""
        raise NotImplementedError

    def release(self, state: Any) -> None:
        if state is not None:
            if id(state) not in Ledger.live:
                Ledger.twice.append(state)
            Ledger.live.discard(id(state))


def chain_key(key: int, token_ids: Sequence[int]) -> int:
    """Return the key after these tokens."""
    for token_id in token_ids:
        key = (key * 1_000_003 + token_id + 1) % MODULUS
    return key


@dataclass
class Chained:
    key: int
    strength: float


class ChainTransform(LogitTransform):
    """Adds noise that is a function of each row's key."""

    emits: ClassVar = {"key": ((), "int64")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows, keys = step.ops, payload.rows, payload.arrays["key"]
        zeros = payload.arrays["zero"]
        noise = ops.uniform(keys, zeros, zeros, 0, self.context.logits_width) * payload.arrays["strength"][:, None]
        step.emit("key", keys)
        return ops.where_rows(logits, rows, True, ops.gather(logits, rows) + noise)


class Chain(Counted):
    """Its state depends on every accepted token. It fails a sequence whose feedback does not belong to its tokens."""

    name, stage, transform = "chain", Stage.PRE_WARP, ChainTransform
    needs = frozenset({Need.FEEDBACK})

    def begin(self, options: Mapping[str, Any], request: Request, sequence: SequenceInfo) -> Chained:
        return Chained(chain_key(0, sequence.prompt_token_ids), float(options.get("strength", 8.0)))

    def prepare(self, batch: StepBatch, states: Sequence[Chained | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        keys: list[int] = []
        for i, state in enumerate(states):
            if state is not None:
                drafts = batch.drafts(i).tolist()
                keys += [chain_key(state.key, drafts[:k]) for k in range(len(drafts) + 1)]
        strengths = np.array([state.strength if state else 0 for state in states], dtype=np.float32)
        return Payload(
            rows,
            {
                "key": np.array(keys, dtype=np.int64),
                "strength": strengths[sequences],
                "zero": np.zeros(len(rows), dtype=np.int32),
            },
        )

    def accept(self, state: Chained, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if feedback is None:
            return fail("no feedback")
        expected = [chain_key(state.key, token_ids[:k]) for k in range(len(token_ids))]
        if feedback["key"].tolist() != expected:
            return fail(f"feedback {feedback['key'].tolist()} of other rows than {expected}")
        state.key = chain_key(state.key, token_ids)
        return CONTINUE


class ForbidTransform(LogitTransform):
    """Forbids certain tokens in each row."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        banned = payload.arrays["banned"]
        values = step.ops.where_rows(
            step.ops.gather(logits, payload.rows), payload.arrays["every"], banned > 0, float("-inf")
        )
        return step.ops.where_rows(logits, payload.rows, True, values)


class Forbid(LogitModifier[tuple[int, ...]]):
    """A second mask, with derived state."""

    contract = "1.0"
    name, stage, transform, derived = "forbid", Stage.MASK, ForbidTransform, True

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> tuple[int, ...] | None:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else tuple(wanted["ids"])

    def prepare(self, batch: StepBatch, states: Sequence[tuple[int, ...] | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        banned = np.zeros((len(rows), self.context.vocabulary.logits_width), dtype=np.int32)
        for row, sequence in enumerate(sequences.tolist()):
            banned[row, list(states[sequence] or ())] = 1
        return Payload(rows, {"banned": banned, "every": np.arange(len(rows), dtype=np.int32)})


class Always(LogitModifier[bool]):
    """Acts without being selected on each request whose prompt begins with its token, and allows only that token."""

    contract = "1.0"
    name, stage, transform, derived = "always", Stage.MASK, ForbidTransform, True

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if request.prompt_token_ids[0] == self.options["token_id"] else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        rows, _ = batch.select(states)
        banned = np.ones((len(rows), self.context.vocabulary.logits_width), dtype=np.int32)
        banned[:, self.options["token_id"]] = 0
        return Payload(rows, {"banned": banned, "every": np.arange(len(rows), dtype=np.int32)})


NUM_SEEN = 16


class SecondTransform(LogitTransform):
    """Makes the most likely token almost impossible, and emits the most likely ones before that."""

    emits: ClassVar = {"ids": ((NUM_SEEN,), "int64"), "logprobs": ((NUM_SEEN,), "float32")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        ops, rows = step.ops, payload.rows
        values, ids = ops.topk(ops.gather(logits, rows), NUM_SEEN)
        step.emit("ids", ids)
        step.emit("logprobs", values)
        return ops.add_at(logits, rows, ids[:, 0], payload.arrays["penalty"])


class Second(LogitModifier[list[tuple[list[int], list[float]]]]):
    """Records the distribution before its transform. `heard` has the feedback by request."""

    contract = "1.0"
    name, stage, transform = "second", Stage.POST_WARP, SecondTransform
    needs = frozenset({Need.FEEDBACK})
    heard: ClassVar[dict[str, list[tuple[int, list[int], list[float]]]]] = {}

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> list[Any] | None:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else self.heard.setdefault(wanted["label"], [])

    def prepare(self, batch: StepBatch, states: Sequence[list[Any] | None]) -> Payload | None:
        rows, _ = batch.select(states)
        return Payload(rows, {"penalty": np.full(len(rows), -60, dtype=np.float32)})

    def accept(self, state: list[Any], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        assert feedback is not None
        state += zip(token_ids, feedback["ids"].tolist(), feedback["logprobs"].tolist(), strict=True)
        return CONTINUE


NUM_HIDDEN = 8


class PeekTransform(LogitTransform):
    """Emits the first of each row's hidden states, and changes nothing."""

    emits: ClassVar = {"hidden": ((NUM_HIDDEN,), "float32")}

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        step.emit("hidden", step.hidden_states(payload.rows)[:, :NUM_HIDDEN])
        return logits


class Peek(LogitModifier[list[list[float]]]):
    """Reads hidden states. `heard` keeps them by label."""

    contract = "1.0"
    name, stage, transform = "peek", Stage.PRE_WARP, PeekTransform
    needs = frozenset({Need.HIDDEN_STATES, Need.FEEDBACK})
    heard: ClassVar[dict[str, list[list[float]]]] = {}

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> list[list[float]] | None:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else self.heard.setdefault(wanted["label"], [])

    def prepare(self, batch: StepBatch, states: Sequence[list[list[float]] | None]) -> Payload | None:
        return Payload(batch.select(states)[0])

    def accept(self, state: list[list[float]], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        assert feedback is not None
        state += feedback["hidden"].tolist()
        return CONTINUE


class NothingTransform(LogitTransform):
    """Changes nothing."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return logits


@dataclass
class Countdown:
    left: int


class Finisher(Counted):
    """Ends a sequence after a number of tokens, and sends no payload."""

    name, stage, transform = "finisher", Stage.PRE_WARP, NothingTransform

    def begin(self, options: Mapping[str, Any], request: Request, sequence: SequenceInfo) -> Countdown:
        return Countdown(options["after"])

    def prepare(self, batch: StepBatch, states: Sequence[Countdown | None]) -> Payload | None:
        return None

    def validate(self, state: Countdown, token_ids: Sequence[int]) -> int:
        return min(len(token_ids), max(0, state.left - 1))

    def accept(self, state: Countdown, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state.left -= len(token_ids)
        return CONTINUE if state.left > 0 else FINISH


class Decider(Counted):
    """Needs to decide in the scheduler, which no host offers here."""

    name, stage, transform = "decider", Stage.PRE_WARP, NothingTransform
    needs = frozenset({Need.SCHEDULER_DRAW})

    def begin(self, options: Mapping[str, Any], request: Request, sequence: SequenceInfo) -> Countdown:
        return Countdown(0)

    def prepare(self, batch: StepBatch, states: Sequence[Countdown | None]) -> Payload | None:
        return None


def doubled(token_ids: list[int], logits: Any) -> Any:
    """Forbid tokens that were generated before; a logits processor in the usual form."""
    logits[token_ids] = float("-inf")
    return logits


CLASSES: dict[str, type[LogitModifier[Any]]] = {
    cls.name: cls
    for cls in (
        *(probes.GreenList, probes.Gumbel, probes.Guidance, probes.LastWordB, probes.LastWordA),
        *(Always, Chain, Decider, Finisher, Forbid, Peek, Second),
    )
}
ALWAYS = 7
"""The token of `Always`: an exclamation mark."""

GUIDEWAY: dict[str, Any] = {
    "grammar": ["llguidance", "xgrammar"],
    "modifiers": [*CLASSES, "hello", "legacy"],
    "options": {
        "modifier.always": {"token_id": ALWAYS},
        "modifier.legacy": {"processors": [{"kind": "callable", "target": f"{MODULE}:doubled", "prompt": False}]},
    },
}


@hookimpl
def guideway_logit_modifier(name: str) -> type[LogitModifier[Any]]:
    """Return the class of a probe."""
    return CLASSES[name]


@contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Install the probes as a distribution."""
    install(folder, "probes-in-vllm", {f"modifier.{name}": MODULE for name in CLASSES})
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def core_of(llm: Any) -> Any:
    """Return the guest in the engine core of this process."""
    return llm.llm_engine.engine_core.engine_core.scheduler.guest


def check_nothing_left(llm: Any) -> None:
    """Raise AssertionError if guideway still holds any state of a request."""
    core = core_of(llm)
    assert core._states == {}
    assert sorted(core._free) == list(range(core.runtime.context.max_num_sequences))
    assert core.finished == {}
    for runtime in (core.runtime, llm.llm_engine.input_processor.guideway._runtime):
        assert not runtime._slots.taken()
        assert not runtime._open
    assert Ledger.twice == []
    assert Ledger.live == set()


NAMES = ("Anna Berg", "Liam Morris", "Nora Quist", "Omar Diaz", "Ida Holm")


def prompt(i: int, *, padding: int = 0) -> list[int]:
    """Return token ids of a prompt in the demo model's format; `padding` makes it longer."""
    text = " ".join(["Paid in full."] * padding)
    question = f"Extract name, age, married. {text} Meet {NAMES[i % len(NAMES)]}. Age: {20 + i}. Single."
    return _tokenizer()(f"<|user|>{question}<|assistant|>", add_special_tokens=False).input_ids


@cache
def _tokenizer() -> Any:
    from guideway_demo_model import DemoModel
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DemoModel().path())


def params(modifiers: Any = None, *, strategy: str | None = None, records: bool | None = None, **given: Any) -> Any:
    """Return vLLM's parameters, greedy and short by default, with constraints named as vLLM's fields."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    fields = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
    constraint = {name: given.pop(name) for name in fields if name in given}
    extra = {"guideway.modifiers": modifiers, "guideway.strategy": strategy, "guideway.records": records}
    return SamplingParams(
        structured_outputs=StructuredOutputsParams(**constraint) if constraint else None,
        extra_args={key: value for key, value in extra.items() if value is not None} or None,
        **{"temperature": 0, "max_tokens": 24, **given},
    )
