"""Reports of modifiers to the user about a sequence that has ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from guideway.api import (
    FINISH,
    Feedback,
    FinishReason,
    LogitModifier,
    Outcome,
    Payload,
    PluginError,
    Request,
    SamplingParams,
    SequenceInfo,
    Stage,
    StepBatch,
    fail,
)
from guideway.api.steps import CONTINUE, MAX_REPORT_BYTES

from tests.support.hostility import PROMPT, BanTransform, Panic, assert_alone_ends, host, raiser


class Teller(LogitModifier[dict[str, Any]]):
    """Counts and reports; a request's option `how` replaces the report."""

    name, stage, transform = "teller", Stage.PRE_WARP, BanTransform
    calls: ClassVar[list[str]] = []
    answers: ClassVar[dict[str, Callable[[], Any]]] = {
        "nothing": lambda: None,
        "text": lambda: "six tokens",
        "set": lambda: {"ids": {1, 2}},
        "nan": lambda: {"x": float("nan")},
        "array": lambda: {"x": np.float32(1)},
        "surrogate": lambda: {"x": "\ud800"},
        "large": lambda: {"x": "e" * MAX_REPORT_BYTES},
        "panic": raiser(Panic("unwrap on None")),
        "error": raiser(KeyError("counts")),
    }

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> dict[str, Any] | None:
        options = request.params.modifiers.get(self.name)
        return None if options is None else {"heard": 0, **options}

    def prepare(self, batch: StepBatch, states: Sequence[Any]) -> Payload | None:
        return None

    def accept(self, state: dict[str, Any], token_ids: Sequence[int], feedback: Feedback | None) -> Outcome:
        state["heard"] += len(token_ids)
        if state["heard"] >= state.get("fails_at", 1000):
            return fail("enough")
        return FINISH if state["heard"] >= state.get("finishes_at", 1000) else CONTINUE

    def report(self, state: dict[str, Any]) -> Any:
        self.calls.append("report")
        how = state.get("how")
        return self.answers[how]() if how else {"heard": state["heard"], "ids": (1, 2)}

    def release(self, state: Any) -> None:
        self.calls.append("release")


class Other(Teller):
    name = "other"


def asking(**options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=6, modifiers={"teller": options})


@pytest.mark.parametrize(("options", "reason"), [({}, FinishReason.LENGTH), ({"finishes_at": 3}, FinishReason.STOP)])
@pytest.mark.parametrize("num_drafts", [0, 2])
def test_a_sequence_that_ended_has_reports(options: dict[str, int], reason: FinishReason, num_drafts: int) -> None:
    Teller.calls.clear()
    (result,) = host(Teller, Other, num_drafts=num_drafts).generate([PROMPT], [asking(**options)])
    assert (result.finish_reason, result.error) == (reason, None)
    assert result.reports == {"teller": {"heard": len(result.token_ids), "ids": [1, 2]}}, "as JSON has it"
    assert Teller.calls == ["report", "release", "release"]


def test_no_report_is_none() -> None:
    (quiet, without) = host(Teller).generate([PROMPT] * 2, [asking(how="nothing"), SamplingParams(max_tokens=6)])
    assert quiet.reports == without.reports == {}


def test_one_that_failed_is_not_asked() -> None:
    Teller.calls.clear()
    (result,) = host(Teller).generate([PROMPT], [asking(fails_at=2)])
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert result.reports == {}
    assert Teller.calls == ["release"]


@pytest.mark.parametrize("how", [how for how in Teller.answers if how != "nothing"])
def test_a_report_that_fails_costs_its_request_and_not_its_text(how: str) -> None:
    (fine,) = host(Teller).generate([PROMPT], [asking()])
    result = assert_alone_ends(host(Teller), asking(how=how), SamplingParams(max_tokens=6))
    assert result.finish_reason is FinishReason.INTERNAL_ERROR
    assert isinstance(result.error, PluginError) and result.error.plugin == "modifier.teller"
    assert str(result.error).startswith("modifier.teller failed in report: ")
    assert (result.text, result.token_ids) == (fine.text, fine.token_ids)
    assert result.reports == {}


def test_what_others_report_stays() -> None:
    params = SamplingParams(max_tokens=6, modifiers={"teller": {"how": "error"}, "other": {}})
    (result,) = host(Teller, Other).generate([PROMPT], [params])
    assert result.reports == {"other": {"heard": 6, "ids": [1, 2]}}
    assert "modifier.teller failed in report" in str(result.error)


def test_a_report_is_a_copy() -> None:
    kept: dict[str, list[int]] = {"x": [1]}
    Teller.answers["kept"] = lambda: kept
    (result,) = host(Teller).generate([PROMPT], [asking(how="kept")])
    kept["x"].append(2)
    assert result.reports == {"teller": {"x": [1]}}
