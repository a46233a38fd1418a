"""Plugins that are slow to admit a request and refuse it in the end, for the benchmarks of admission.

If a server has `FOLDER` in its environment, it is watched (`watchdog.py`) from the moment it loads the strategy, in its
front end and in its engine core.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from guideway.api import (
    CompiledGrammar,
    Constraint,
    InvalidGrammar,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    StepBatch,
    Submission,
    Support,
    hookimpl,
)
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy

FOLDER = "GUIDEWAY_WATCHDOG"
ENTRIES = dict.fromkeys(("grammar.slow", "modifier.compiles", "hooks.slow"), __name__)
WAITS = 0.5
"""Delay in seconds."""


class Slow(ReferenceStrategy):
    """Says slowly that it supports only repetitions of ``b``, whose compilation fails slowly."""

    contract = "1.0"
    name = "slow"

    def supports(self, constraint: Constraint) -> Support:
        time.sleep(WAITS)
        if constraint.source().startswith("b"):
            return Support(enforced=frozenset({constraint.kind}))
        return Support(reason="it was slow to say so")

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        time.sleep(WAITS)
        raise InvalidGrammar("it was slow to say so")


class Nothing(LogitTransform):
    def apply(self, logits: Any, payload: Payload, step: Any) -> Any:
        return logits


class Compiles(LogitModifier[None]):
    contract = "1.0"
    name, stage, transform = "compiles", Stage.PRE_WARP, Nothing

    def compile(self, request: Request, grammar: CompiledGrammar | None) -> None:
        if self.name in request.params.modifiers:
            time.sleep(WAITS)
            raise InvalidRequest("it was slow to say so", field="modifiers")

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> None:
        return None

    def prepare(self, batch: StepBatch, states: Sequence[None]) -> Payload | None:
        return None


@hookimpl
def guideway_grammar_strategy() -> type:
    if FOLDER in os.environ:
        from watchdog import watch

        watch(Path(os.environ[FOLDER]))
    return Slow


@hookimpl
def guideway_logit_modifier() -> type:
    return Compiles


@hookimpl
def guideway_validate_submission(submission: Submission) -> None:
    if submission.tenant == "slow":
        time.sleep(WAITS)
        raise InvalidRequest("it was slow to say so", field="tenant")
