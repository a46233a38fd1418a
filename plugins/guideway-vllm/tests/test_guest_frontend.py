"""Tests of request trials as vLLM's server runs them: in the main thread, under an event loop that handles Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from guideway.api import (
    Choice,
    CompiledGrammar,
    Constraint,
    GuidewayError,
    InvalidRequest,
    LogitModifier,
    LogitTransform,
    ModifierContext,
    Payload,
    Request,
    SamplingParams,
    SequenceInfo,
    Stage,
    StepBatch,
    Support,
    ValidationContext,
    Vocabulary,
)
from guideway.runtime import Runtime
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_vllm.config import GuestConfig
from guideway_vllm.frontend import FrontEnd

VOCABULARY = Vocabulary([b"a", b"b", b""], stop_token_ids={2})


def at(phase: str, request: str) -> None:
    """Raise the exception that `request` names for this phase: ``PHASE ERROR``."""
    here, _, error = request.partition(" ")
    if here == phase:
        raise {"KeyboardInterrupt": KeyboardInterrupt, "GeneratorExit": GeneratorExit}[error]


class Hostile(ReferenceStrategy):
    name, kinds = "hostile", frozenset({"choice"})

    def supports(self, constraint: Constraint) -> Support:
        at("supports", constraint.choices[1])  # type: ignore[attr-defined]
        return super().supports(constraint)

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        at("compile", constraint.choices[1])  # type: ignore[attr-defined]
        return super().compile(constraint)


class HostileModifier(LogitModifier[None]):
    name, stage, transform = "hostile", Stage.PRE_WARP, LogitTransform

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> None:
        at("start", request.tenant)

    def prepare(self, batch: StepBatch, states: Sequence[None]) -> Payload | None:
        return None


def validate(request: Request, context: ValidationContext) -> None:
    at("validate", request.tenant)


@pytest.fixture
def front_end() -> FrontEnd:
    """Return a front end with only the parts that need no vLLM."""
    context = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=1, max_model_len=64)
    front_end = FrontEnd.__new__(FrontEnd)
    front_end._config = GuestConfig(modifiers=["hostile"])
    front_end._slot = threading.Lock()
    front_end._runtime = Runtime(
        context,
        strategies={"hostile": Hostile(VOCABULARY, {})},
        modifiers=[HostileModifier({}, context)],
        validators={Request: [("hostile", validate)]},
    )
    return front_end


def tried(front_end: FrontEnd, request: Request) -> list[str]:
    """Return the modifiers that act on the request."""
    trial = front_end._try(request)
    while True:
        try:
            next(trial).wait()
        except StopIteration as end:
            acting: list[str] = end.value[0]
            return acting


def on_the_event_loop(act: Callable[[], Any]) -> Any:
    async def main() -> Any:
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, lambda: None)  # as vLLM's launcher does
        return act()

    return asyncio.run(main())


def test_no_field_of_a_request_names_a_file_of_code(front_end: FrontEnd, tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("open(__file__ + '.ran', 'w')\nclass Mine: name = 'mine'", encoding="utf-8")
    trap = f"{tmp_path}/trap.py:Mine"
    for params in (SamplingParams(modifiers={trap: {}}), SamplingParams(constraint=Choice(["a"], strategy=trap))):
        with pytest.raises(InvalidRequest, match=r"is configured"):
            tried(front_end, Request(request_id="r", prompt_token_ids=(0,), params=params))
    assert not (tmp_path / "trap.py.ran").exists()


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "GeneratorExit"])
@pytest.mark.parametrize("phase", ["supports", "compile", "validate", "start"])
def test_a_plugin_that_raises_what_ends_a_program_refuses_its_request(
    front_end: FrontEnd, phase: str, error: str
) -> None:
    asked = f"{phase} {error}"
    bad = Request(
        request_id="bad",
        prompt_token_ids=(0,),
        params=SamplingParams(constraint=Choice(["ab", asked])),
        tenant=asked,
    )
    with pytest.raises(GuidewayError, match=error):
        on_the_event_loop(lambda: tried(front_end, bad))
    good = Request(request_id="good", prompt_token_ids=(0,), params=SamplingParams(constraint=Choice(["ab", "ba"])))
    assert on_the_event_loop(lambda: tried(front_end, good)) == []
    assert not front_end._runtime._open
