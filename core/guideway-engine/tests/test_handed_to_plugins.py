"""Plugins that write to their arguments: each fails only its own request, with an error that names it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from guideway import Engine, EngineConfig, FinishReason, SamplingParams
from guideway.api import (
    CONTINUE,
    Array,
    Choice,
    CompiledGrammar,
    Constraint,
    Feedback,
    LogitModifier,
    LogitTransform,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    hookimpl,
)
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

from tests.support.distributions import install
from tests.support.stages import one_in

PROMPT = list(range(40, 60))
CHOICE = ["abab abab abab", "baba baba baba"]


class Untouched(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return logits


class Scribbler(LogitModifier[str]):
    """A modifier that writes to its arguments."""

    contract = "1.0"
    name, stage, transform = "scribbler", Stage.PRE_WARP, Untouched

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> str | None:
        options = request.params.modifiers.get(self.name)
        return None if options is None else str(options["what"])

    def prepare(self, batch: StepBatch, states: Sequence[str | None]) -> Payload | None:
        if "positions" in states:
            batch.positions[:] = 0
        return Payload(batch.select(states)[0])

    def accept(self, state: str, token_ids: Any, feedback: Feedback | None) -> Outcome:
        if state == "token_ids":
            token_ids.append(1)
        return CONTINUE


class Scribbling(ReferenceStrategy):
    """A strategy whose matchers append to accepted tokens or write outside their rows."""

    name = "scribbling"

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        grammar: Any = super().compile(constraint)
        make = grammar.matcher
        assert isinstance(constraint, Choice)
        appends = "append" in constraint.choices

        def matcher(stop_token_ids: frozenset[int]) -> Any:
            made = make(stop_token_ids)
            accept, fill = made.accept, made.fill_bitmask

            def appending(token_ids: Any) -> int:
                token_ids.append(1)
                return int(accept(token_ids))

            def overflowing(bitmask: Any, row: int) -> None:
                fill(bitmask, row)
                bitmask[row - 1 : row + 2] = np.int32(0)
                fill(bitmask, row)

            if appends:
                made.accept = appending
            else:
                made.fill_bitmask = overflowing
            return made

        grammar.matcher = matcher
        return grammar  # type: ignore[no-any-return]


@hookimpl
def guideway_logit_modifier() -> type[LogitModifier[Any]]:
    return Scribbler


@hookimpl
def guideway_grammar_strategy() -> type[ReferenceStrategy]:
    return Scribbling


def constrained(strategy: str, *more: str) -> SamplingParams:
    return SamplingParams(max_tokens=12, constraint=Choice([*CHOICE, *more], strategy=strategy), close=False)


def scribbler(what: str) -> SamplingParams:
    return SamplingParams(max_tokens=6, modifiers={"scribbler": {"what": what}})


BAD = {
    "append": (constrained("scribbling", "append"), "grammar.scribbling failed in accept: AttributeError"),
    "overflow": (constrained("scribbling", "overflow"), "grammar.scribbling failed in fill: ConformanceError"),
    "token_ids": (scribbler("token_ids"), "modifier.scribbler failed in accept: AttributeError"),
    "positions": (scribbler("positions"), "modifier.scribbler failed in prepare: ValueError"),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("plugins")
    install(folder, "scribbling", dict.fromkeys(("modifier.scribbler", "grammar.scribbling"), "test_handed_to_plugins"))
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder))
        config = EngineConfig(
            model="demo",
            grammar=("reference", "scribbling"),
            modifiers=("scribbler",),
            dtype="float64",
            grammar_host="inline",
        )
        with Engine(config) as engine:
            yield engine


@pytest.mark.parametrize("case", one_in(2, BAD))
def test_it_costs_its_own_request(engine: Engine, case: str) -> None:
    bad, message = BAD[case]
    good = [constrained("reference"), scribbler(""), SamplingParams(max_tokens=6)]
    alone = [engine.generate([PROMPT], [params])[0] for params in good]
    first, failed, *others = engine.generate([PROMPT] * 4, [good[0], bad, *good[1:]])
    assert failed.finish_reason is FinishReason.INTERNAL_ERROR
    assert str(failed.error).startswith(message)
    assert [r.error for r in (first, *others)] == [None] * 3
    assert [r.token_ids for r in (first, *others)] == [r.token_ids for r in alone]
