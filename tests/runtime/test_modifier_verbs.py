"""Methods that serve the grammar mask, implemented by another modifier: faults of a step, unenforced names, the plugin
to blame, and the report that a forbidden token was drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from guideway.api import (
    CONTINUE,
    Array,
    Fault,
    Feedback,
    FinishReason,
    GenerationResult,
    LogitModifier,
    LogitTransform,
    Outcome,
    Payload,
    Request,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    StepOutput,
    fail,
)
from guideway.api.bitmask import allocate
from guideway.devices.numpy.device import NumpyDevice

from tests.support.fake_host import FakeHost
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
PROMPTS = [encode(VOCABULARY, text) for text in (b"first", b"second", b"third")]


class Forbids(LogitTransform):
    bitmask, hard, idempotent = "bitmask", True, True

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return self.context.device.apply_bitmask(logits, payload.arrays["bitmask"], payload.rows)


class Chatty(LogitModifier[str]):
    """A bitmask that allows everything; the request chooses what to report."""

    name, stage, transform = "chatty", Stage.MASK, Forbids

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> str | None:
        options = request.params.modifiers.get("chatty")
        return None if options is None else str(options["what"])

    def unenforced(self, state: str) -> Sequence[str]:
        return {"names": ["spelling"], "no names": [5]}.get(state, ())  # type: ignore[return-value]

    def plugin_of(self, state: str | None) -> str:
        if state == "silent":
            raise RuntimeError("no name")
        return "grammar.elsewhere"

    def prepare(self, batch: StepBatch, states: Sequence[str | None]) -> Payload | None:
        rows, _ = batch.select(states)
        bitmask: np.ndarray[Any, Any] = allocate(len(rows), VOCABULARY.logits_width)
        faults: dict[int, Fault] = {}
        for slot, state in zip(batch.slots.tolist(), states, strict=True):
            match state:
                case "fault":
                    faults[slot] = Fault("grammar.elsewhere", "fill", "it is broken")
                case "fault of nobody":
                    faults[99] = Fault("grammar.elsewhere", "fill", "it is broken")
                case "narrow":
                    bitmask = bitmask[:, 1:]
                case "wide words":
                    bitmask = bitmask.astype(np.int64)
                case "no bitmask":
                    return Payload(rows)
        return Payload(rows, {"bitmask": bitmask}, faults=faults)

    def accept(self, state: str, token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        if state in ("raises", "silent"):
            raise RuntimeError("boom")
        return fail("not that one", was_forbidden=state == "was forbidden") if "forbidden" in state else CONTINUE


class Late(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return logits


class Watermark(LogitModifier[bool]):
    name, stage, transform = "watermark", Stage.POST_WARP, Late

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if "watermark" in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        return Payload(batch.select(states)[0])


def run(what: str, *, late: bool = False, num_drafts: int = 0) -> list[GenerationResult]:
    host = FakeHost(VOCABULARY, NumpyDevice(), modifiers=[Chatty, Watermark], num_drafts=num_drafts)
    others: dict[str, Any] = {"watermark": {}} if late else {}
    params = [SamplingParams(max_tokens=6, modifiers={"chatty": {"what": each}} | others) for each in ("", what, "")]
    return host.generate(PROMPTS, params)


@pytest.mark.parametrize("num_drafts", [0, 2])
@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("fault", "grammar.elsewhere failed in fill: it is broken"),
        ("fault of nobody", "as the fault of slot 99, which has no state"),
        ("narrow", "'bitmask' is int32[1, 3]; its transform declares it as a bitmask, int32[1, 4]"),
        ("wide words", "is int64["),
        ("no bitmask", "'bitmask' is missing; its transform declares it as a bitmask, int32[1, 4]"),
        ("raises", "grammar.elsewhere failed in accept: RuntimeError: boom"),
        ("silent", "modifier.chatty failed in accept: RuntimeError: boom"),
    ],
)
def test_a_failure_is_one_sequences_and_names_the_plugin(what: str, error: str, num_drafts: int) -> None:
    healthy, broken = run("", num_drafts=num_drafts), run(what, num_drafts=num_drafts)
    assert [result.finish_reason for result in healthy] == [FinishReason.LENGTH] * 3
    assert broken[1].finish_reason is FinishReason.INTERNAL_ERROR
    num_rows = 1 + num_drafts
    assert error.replace("[1, ", f"[{num_rows}, ") in str(broken[1].error)
    assert [broken[0], broken[2]] == [healthy[0], healthy[2]]


@pytest.mark.parametrize(("row", "fails"), [(-1, True), (0, True), (1, True), (2, False)])
def test_a_fault_in_the_worker_counts_if_the_token_of_its_row_is_final(row: int, fails: bool) -> None:
    """Faults are by slot: the rows of the slots 3 and 1 are 0 to 2 and 3 to 5."""
    host = FakeHost(VOCABULARY, NumpyDevice(), modifiers=[])
    for slot in (1, 3):
        request = Request(request_id=str(slot), prompt_token_ids=(1, 2), params=SamplingParams(max_tokens=9))
        host.runtime.start(host.runtime.admit(request), slot)
    batch = StepBatch.build([3, 1], [2, 2], [[5, 6], [5, 6]])
    host.runtime.prepare(batch)
    output = StepOutput(np.array([5, 7, 8] * 2, np.int32), faults={1: Fault("device.it", "apply", "broke", row)})
    outcomes = host.runtime.accept(batch, [(5, 7), (5, 7)], output)
    assert [outcome.action for outcome in outcomes] == ["continue", "fail" if fails else "continue"]
    assert (host.runtime.fault(3), host.runtime.fault(1)) == (None, output.faults[1] if fails else None)


def test_what_a_modifier_does_not_enforce_is_in_the_result() -> None:
    assert [result.unenforced for result in run("names")] == [(), ("spelling",), ()]
    broken = run("no names")
    assert "grammar.elsewhere failed in unenforced: " in str(broken[1].error)
    assert [result.finish_reason for result in broken[::2]] == [FinishReason.LENGTH] * 2


@pytest.mark.parametrize(
    ("what", "late", "plugin"),
    [
        ("forbidden", False, "grammar.elsewhere failed in accept"),
        ("forbidden", True, "grammar.elsewhere failed in accept"),
        ("was forbidden", False, "grammar.elsewhere failed in accept"),
        ("was forbidden", True, "modifier.watermark failed in apply"),
    ],
)
def test_a_forbidden_token_is_the_failure_of_what_acted_later(what: str, late: bool, plugin: str) -> None:
    assert f"{plugin}: not that one" in str(run(what, late=late)[1].error)


def test_the_name_of_the_grammar_mask_is_reserved() -> None:
    named: Callable[[str], Any] = lambda name: type("Named", (Chatty,), {"name": name})  # noqa: E731
    with pytest.raises(ValueError, match=r"a logit modifier is named 'grammar', but that name is reserved for"):
        FakeHost(VOCABULARY, NumpyDevice(), modifiers=[named("grammar")])
    with pytest.raises(ValueError, match=r"two logit modifiers are named 'a'; rename one of them$"):
        FakeHost(VOCABULARY, NumpyDevice(), modifiers=[named("a"), named("a")])
