"""Records of outputs inside vLLM: what an independent computation says, whatever happens to the sequence meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from guideway import Records
from numpy.typing import NDArray

from tests.vllm.conftest import USES_V2
from tests.vllm.probes_in_vllm import params, prompt
from tests.vllm.test_exact_state import DRAFTS, SMALL, counter_value

GUIDEWAY = {"grammar": ["llguidance"], "modifiers": ["hello", "kgw"]}
NUM_DIGITS = 9
ASKED: dict[str, dict[str, Any]] = {
    "free": {"temperature": 1.7, "top_k": 20, "seed": 5, "ignore_eos": True},
    "greedy": {"modifiers": {"hello": {"letter": "e"}}, "ignore_eos": True},
    "digits": {"regex": f"[0-9]{{{NUM_DIGITS}}}", "temperature": 1.5, "seed": 6},
    "two": {"temperature": 1.0, "seed": 7, "n": 2, "modifiers": {"kgw": {"key": 3, "delta": 2.0}}},
    "stopped": {"temperature": 1.0, "seed": 8, "stop": ["e"], "min_tokens": 4},
}
"""Fields of requests, all of which are recorded."""
MAX_TOKENS = 8 if USES_V2 else 32


def asked(kind: str, **more: Any) -> Any:
    return params(records=True, **{"max_tokens": MAX_TOKENS, **ASKED[kind], **more})


def answers(llm: Any) -> dict[str, list[tuple[list[int], Records]]]:
    """Return the tokens of each sequence of each request, and their records."""
    given = [asked(kind) for kind in ASKED]
    prompts = [{"prompt_token_ids": prompt(i, padding=2 * i)} for i in range(len(given))]
    found = {}
    for kind, output in zip(ASKED, llm.generate(prompts, given, use_tqdm=False), strict=True):
        report = output.kv_transfer_params["guideway"]
        reports = report["outputs"] if len(output.outputs) > 1 else [report]
        found[kind] = [
            (list(one.token_ids), Records.from_lists(each["records"]))
            for one, each in zip(output.outputs, reports, strict=True)
        ]
    return found


@pytest.fixture(scope="module")
def undisturbed(start: Callable[..., Any]) -> dict[str, list[tuple[list[int], Records]]]:
    return answers(start(GUIDEWAY))


def raw_logprobs(demo_model: str, before: list[int], token_ids: list[int]) -> NDArray[np.float64]:
    """Return ``[len(token_ids), width]``: log-probabilities by `transformers`, in one pass over prompt and output."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(demo_model, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([[*before, *token_ids]])).logits[0].double()
    return torch.log_softmax(logits, dim=-1).numpy()[len(before) - 1 : -1]


def normalized(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def of_tokens(rows: NDArray[np.float64], token_ids: list[int]) -> NDArray[np.float64]:
    return rows[np.arange(len(token_ids)), token_ids]


def test_every_token_has_a_record(undisturbed: dict[str, list[tuple[list[int], Records]]]) -> None:
    lengths = {kind: [len(token_ids) for token_ids, _ in found] for kind, found in undisturbed.items()}
    assert lengths == {kind: [len(records) for _, records in found] for kind, found in undisturbed.items()}
    assert len(lengths["two"]) == 2
    assert min(length for kind in lengths.values() for length in kind) > 3


def test_a_filtered_draw_is_what_an_independent_computation_says(
    undisturbed: dict[str, list[tuple[list[int], Records]]], demo_model: str
) -> None:
    ((token_ids, records),) = undisturbed["free"]
    rows = raw_logprobs(demo_model, prompt(0), token_ids)
    np.testing.assert_allclose(records.model, of_tokens(rows, token_ids), atol=1e-4)
    likely = rows >= np.sort(rows, axis=1)[:, [-20]]
    drawn = normalized(np.where(likely, normalized(rows / 1.7), -np.inf))
    np.testing.assert_allclose(records.drawn, of_tokens(drawn, token_ids), atol=1e-4)
    np.testing.assert_allclose(records.pressure, 1, atol=1e-5)
    assert records.modifiers == ()


def test_a_constraint_is_what_an_independent_computation_says(
    undisturbed: dict[str, list[tuple[list[int], Records]]], demo_model: str, start: Callable[..., Any]
) -> None:
    ((token_ids, records),) = undisturbed["digits"]
    tokens = start(GUIDEWAY).llm_engine.input_processor.guideway._runtime.context.vocabulary.tokens
    rows = raw_logprobs(demo_model, prompt(2, padding=4), token_ids)
    left = NUM_DIGITS
    for i, token_id in enumerate(token_ids):
        allowed = np.array([0 < len(token) <= left and token.isdigit() for token in tokens])
        if left == 0:  # only the end is left
            assert records.allowed[i] == 1 and records.drawn[i] == 0 and i == len(token_ids) - 1
            break
        assert records.allowed[i] == allowed.sum()
        kept = np.where(allowed, rows[i, : len(tokens)], -np.inf)[None]
        np.testing.assert_allclose(records.pressure[i], np.exp(kept).sum(), rtol=1e-4)
        np.testing.assert_allclose(records.model[i], rows[i, token_id], atol=1e-4)
        np.testing.assert_allclose(records.drawn[i], normalized(kept / 1.5)[0, token_id], atol=1e-4)
        assert records.changed_by(i) == ("grammar",)
        left -= len(tokens[token_id])


def test_who_changed_a_row_is_told(undisturbed: dict[str, list[tuple[list[int], Records]]]) -> None:
    assert undisturbed["greedy"][0][1].modifiers == ("hello",)
    assert undisturbed["two"][0][1].modifiers == ("kgw",)
    assert undisturbed["stopped"][0][1].modifiers == ()


@pytest.mark.parametrize("drafts", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_records_do_not_depend_on_how_vllm_steps(
    start: Callable[..., Any], undisturbed: dict[str, list[tuple[list[int], Records]]], drafts: bool
) -> None:
    llm = start(GUIDEWAY, **SMALL, **({"speculative_config": DRAFTS} if drafts else {}))
    drafted = counter_value(llm, "spec_decode_num_draft_tokens") if drafts else 0
    found = answers(llm)
    if drafts:
        assert counter_value(llm, "spec_decode_num_draft_tokens") > drafted
    for kind, disturbed in found.items():
        for (token_ids, records), (same_ids, same) in zip(undisturbed[kind], disturbed, strict=True):
            assert token_ids == same_ids
            for name in ("model", "drawn", "pressure"):
                np.testing.assert_allclose(getattr(records, name), getattr(same, name), atol=1e-4)
            assert records.allowed.tolist() == same.allowed.tolist()
            assert [records.changed_by(i) for i in range(len(records))] == [
                same.changed_by(i) for i in range(len(same))
            ]


def test_of_a_streamed_output_the_last_piece_has_all_records(
    start: Callable[..., Any], undisturbed: dict[str, list[tuple[list[int], Records]]]
) -> None:
    from vllm.sampling_params import RequestOutputKind

    engine = start(GUIDEWAY).llm_engine
    place = list(ASKED).index("stopped")
    given = {"prompt_token_ids": prompt(place, padding=2 * place)}
    engine.add_request("streamed", given, asked("stopped", output_kind=RequestOutputKind.DELTA))
    pieces = []
    while engine.has_unfinished_requests():
        pieces += engine.step()
    token_ids = [token_id for piece in pieces for token_id in piece.outputs[0].token_ids]
    reports = [(piece.kv_transfer_params or {}).get("guideway", {}) for piece in pieces]
    ((same_ids, records),) = undisturbed["stopped"]
    assert token_ids == same_ids
    assert ["records" in report for report in reports] == [False] * (len(reports) - 1) + [True]
    np.testing.assert_allclose(Records.from_lists(reports[-1]["records"]).drawn, records.drawn, atol=1e-4)


def test_what_needs_vllms_draw_is_refused_by_name(start: Callable[..., Any]) -> None:
    from vllm.exceptions import VLLMValidationError

    said = (
        "guideway.records is of the final distribution, so guideway draws the tokens of this request; logprobs only go"
    )
    with pytest.raises(VLLMValidationError, match=re.escape(said)):
        start(GUIDEWAY).generate([{"prompt_token_ids": prompt(0)}], [asked("free", logprobs=1)], use_tqdm=False)
