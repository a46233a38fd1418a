"""A model that reasons first: its answer is complete, begins where the result says, and is the same however it was
computed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from engine_support.engines import engine
from guideway import (
    Choice,
    Completion,
    Engine,
    FinishReason,
    InvalidConfiguration,
    InvalidRequest,
    JsonSchema,
    ReasoningConfig,
    Regex,
    SamplingParams,
)

from tests.support.stages import everyday

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
MARKER = "</think>"
REASONING = ReasoningConfig(end_str=MARKER)
PROMPTS = ["Describe what you see.", "hello", "Extract name and age: Liam, 31.", "Which color?", "count"]
PARAMS = [
    SamplingParams(max_tokens=40, constraint=JsonSchema(PERSON)),
    SamplingParams(max_tokens=50, constraint=JsonSchema(PERSON), thinking_token_budget=6, temperature=1.2, seed=3, n=2),
    SamplingParams(max_tokens=60, constraint=JsonSchema(PERSON), reasoning=False, temperature=1.0, seed=4),
    SamplingParams(max_tokens=44, constraint=Choice(["red", "green"]), temperature=1.5, seed=5, n=3),
    SamplingParams(max_tokens=30, thinking_token_budget=9, temperature=1.0, seed=6),
]


def outputs(**options: Any) -> list[Completion]:
    """Return all outputs of all requests, and check that nothing is left behind."""
    options = {"grammar": ("llguidance",), "grammar_host": "inline", "reasoning": REASONING} | options
    with engine(**options) as built:
        results = built.generate(PROMPTS, PARAMS)
    assert [result.error for result in results] == [None] * len(results)
    return [output for result in results for output in result.outputs]


@pytest.fixture(scope="module")
def expected() -> list[Completion]:
    return outputs()


def test_every_answer_is_complete(expected: list[Completion]) -> None:
    person, choice = expected[:4], expected[4:7]
    for output in (*person, *choice):
        assert (output.finish_reason, output.unenforced) == (FinishReason.STOP, ())
    for output in person:
        jsonschema.validate(json.loads(output.answer), PERSON)
    assert {output.answer for output in choice} <= {"red", "green"}
    assert expected[7].text.find(MARKER) == expected[7].answer_start - len(MARKER)


def test_the_result_says_where_the_answer_begins(expected: list[Completion]) -> None:
    for output in (*expected[:3], *expected[4:]):
        reasoning, answer = output.text[: output.answer_start], output.text[output.answer_start :]
        assert reasoning.endswith(MARKER)
        assert MARKER not in reasoning[: -len(MARKER)]
        assert output.answer == answer
        assert 0 < output.num_reasoning_tokens < len(output.token_ids)
    assert (expected[3].answer_start, expected[3].num_reasoning_tokens) == (0, 0)
    assert [output.num_reasoning_tokens - 5 for output in expected[1:3]] == [6, 6], "the marker takes 5 tokens"


def test_what_forced_the_marker_is_told(expected: list[Completion]) -> None:
    assert expected[0].closed_early, "its limit did"
    assert not expected[7].closed_early, "its budget did"


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    everyday(
        [
            {"num_speculative_tokens": 3},
            {"grammar_host": "process"},
            {"grammar_host": "process", "num_speculative_tokens": 4},
            {"max_num_seqs": 2},
            {"max_num_seqs": 8, "max_model_len": 128, "kv_cache_tokens": 128},
            {"executor": "process"},
        ],
        {"grammar_host": "process", "num_speculative_tokens": 4},
        {"max_num_seqs": 8, "max_model_len": 128, "kv_cache_tokens": 128},
    ),
    ids=str,
)
def test_the_tokens_are_the_same(options: dict[str, Any], expected: list[Completion]) -> None:
    found = outputs(**options)
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    assert [output.closed_early for output in found] == [output.closed_early for output in expected]
    assert [output.answer_start for output in found] == [output.answer_start for output in expected]


@pytest.mark.slow
@pytest.mark.parametrize("num_speculative_tokens", everyday([0, 3], 3))
def test_a_step_that_is_interrupted_is_done_again(
    num_speculative_tokens: int, expected: list[Completion], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every third step is interrupted, right after the runtime has accepted its tokens."""
    options: dict[str, Any] = {"grammar": ("llguidance",), "grammar_host": "inline", "reasoning": REASONING}
    with engine(**options, num_speculative_tokens=num_speculative_tokens) as built:
        runtime, count = built._runtime, 0
        accept = runtime.accept

        def interrupted(*args: Any) -> Any:
            nonlocal count
            found, count = accept(*args), count + 1
            if count % 3 == 0:
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr(runtime, "accept", interrupted)
        generations = [built.submit(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        num_interrupts = 0
        while built.has_work():
            try:
                built.step()
            except KeyboardInterrupt:
                num_interrupts += 1
        assert num_interrupts > 10
        found = [output for generation in generations for output in generation.wait().outputs]
    assert [output.token_ids for output in found] == [output.token_ids for output in expected]
    assert [output.answer_start for output in found] == [output.answer_start for output in expected]


@pytest.fixture(scope="module")
def shared() -> Iterator[Engine]:
    with engine(grammar=("llguidance",), reasoning=REASONING) as built:
        yield built


def test_a_fork_goes_on_with_its_reasoning(shared: Engine) -> None:
    params = SamplingParams(
        max_tokens=60, temperature=1.5, seed=1, constraint=Regex("[a-z]{3,5}"), thinking_token_budget=12
    )
    generation = shared.submit(PROMPTS[0], params)
    for _ in range(4):
        shared.step()
    generation.fork()
    first, second = generation.wait().outputs
    assert first.token_ids[:3] == second.token_ids[:3]
    assert first.token_ids != second.token_ids
    for output in (first, second):
        assert output.num_reasoning_tokens <= 12 + 5
        assert 3 <= len(output.answer) <= 5


def test_the_answer_begins_after_the_prompt_that_is_shown(shared: Engine) -> None:
    params = SamplingParams(max_tokens=30, echo=True, constraint=Regex("[a-z]{3,5}"), thinking_token_budget=3)
    (result,) = shared.generate([PROMPTS[1]], params)
    assert result.text.startswith(PROMPTS[1])
    assert result.text == result.text[: result.outputs[0].answer_start] + result.answer
    assert 3 <= len(result.answer) <= 5
    (plain,) = shared.generate([PROMPTS[1]], SamplingParams(max_tokens=5, echo=True, reasoning=False))
    assert PROMPTS[1] + plain.answer == plain.text


def test_reasoning_that_is_cut_has_no_answer(shared: Engine) -> None:
    params = SamplingParams(max_tokens=10, constraint=JsonSchema(PERSON), close=False)
    (cut,) = shared.generate([PROMPTS[0]], params)
    assert (cut.finish_reason, cut.answer, cut.outputs[0].num_reasoning_tokens) == (FinishReason.LENGTH, "", 10)
    (stopped,) = shared.generate(
        [PROMPTS[0]], SamplingParams(max_tokens=40, constraint=JsonSchema(PERSON), stop=cut.text[4:8])
    )
    assert (stopped.answer, stopped.unenforced) == ("", ("constraint",))
    assert cut.text.startswith(stopped.text)


@pytest.mark.parametrize(("pattern", "unenforced"), [("[a-z]{3}!x", ("constraint",)), ("[a-z]{3}(!x)?", ())])
def test_a_stop_string_in_the_answer_is_judged_by_the_answer(
    shared: Engine, pattern: str, unenforced: tuple[str, ...]
) -> None:
    """Also after reasoning that was forced to end in the middle of a character."""
    begun, mark = shared.vocabulary.tokens.index(b"\xe4"), shared.vocabulary.tokens.index(b"!")
    params = SamplingParams(
        max_tokens=40,
        constraint=Regex(pattern),
        thinking_token_budget=3,
        logit_bias={begun: 200.0, mark: 100.0},
        stop="!",
    )
    (result,) = shared.generate([PROMPTS[1]], params)
    assert result.text[: result.outputs[0].answer_start] == f"\ufffd\ufffd\ufffd{MARKER}"
    assert (len(result.answer), result.outputs[0].stop, result.unenforced) == (3, "!", unenforced)


def test_a_banned_marker_is_forced_and_the_ban_named(shared: Engine) -> None:
    (marker,) = {shared._runtime._gate.marker.endings[0]}  # type: ignore[union-attr]
    params = SamplingParams(
        max_tokens=30,
        constraint=Regex("[a-z]{3,5}"),
        thinking_token_budget=3,
        logit_bias=dict.fromkeys(marker, -math.inf),
    )
    (result,) = shared.generate([PROMPTS[1]], params)
    assert result.text[: result.outputs[0].answer_start].endswith(MARKER)
    assert result.unenforced == ("logit_bias",)


def test_a_chat_template_that_has_ended_the_reasoning_asks_for_the_answer(shared: Engine) -> None:
    (result,) = shared.generate([f"hello<think>\n\n{MARKER}\n\n"], SamplingParams(constraint=Regex("[a-z]{3,5}")))
    assert (result.text, result.outputs[0].num_reasoning_tokens) == (result.answer, 0)


@pytest.mark.slow
def test_the_marker_may_be_a_special_token() -> None:
    with engine(grammar=("llguidance",), reasoning=ReasoningConfig(end_str="<|tool|>")) as built:
        (result,) = built.generate(["hello"], SamplingParams(max_tokens=20, constraint=Regex("[a-z]{3,5}")))
    assert 6 in result.token_ids
    assert result.token_ids.index(6) == result.outputs[0].num_reasoning_tokens - 1
    assert "<|tool|>" not in result.text
    assert 3 <= len(result.answer) <= 5


@pytest.mark.parametrize(
    "options", everyday([{}, {"num_speculative_tokens": 3}, {"grammar_host": "process"}], {}), ids=str
)
def test_the_first_token_decides_where_the_opening_marker_is_known(options: dict[str, Any]) -> None:
    config, likely = ReasoningConfig(start_str="<|system|>", end_str="<|tool|>"), {3: 100.0}
    asked = [
        SamplingParams(max_tokens=30, constraint=Regex("[a-z]{3,5}"), logit_bias=bias, close=close)
        for bias, close in (({}, True), (likely, True), (likely | {40: 200.0}, False))
    ]
    with engine(**{"grammar": ("llguidance",), "grammar_host": "inline", "reasoning": config} | options) as built:
        answered, reasoned, cut = [result.outputs[0] for result in built.generate(["hello"] * 3, asked)]
    assert (answered.num_reasoning_tokens, answered.unenforced) == (0, ())
    assert (reasoned.token_ids[0], 6 in reasoned.token_ids, reasoned.unenforced) == (3, True, ())
    for output in (answered, reasoned):
        assert 3 <= len(output.answer) <= 5
    assert (cut.token_ids[0], cut.finish_reason) == (3, FinishReason.LENGTH)
    assert (cut.answer, cut.unenforced) == ("", ("constraint",))


def test_a_marker_the_model_cannot_write_is_an_error_of_the_configuration() -> None:
    with pytest.raises(InvalidConfiguration, match="not in the vocabulary") as caught:
        Engine("demo", reasoning=ReasoningConfig(end_token_ids=(99_999,)))
    assert caught.value.field == "reasoning.end_token_ids"


def test_without_a_marker_a_request_is_told_what_to_configure() -> None:
    with (
        engine(grammar=("llguidance",), grammar_host="inline") as built,
        pytest.raises(InvalidRequest, match=r"set reasoning\.end_str"),
    ):
        built.submit("hello", SamplingParams(thinking_token_budget=5))


def test_a_stream_has_the_whole_text(shared: Engine) -> None:
    params = SamplingParams(max_tokens=40, constraint=JsonSchema(PERSON), thinking_token_budget=5)
    generation = shared.submit(PROMPTS[0], params)
    text = "".join(generation)
    assert generation.result is not None
    assert text == generation.result.text
    jsonschema.validate(json.loads(text[generation.result.outputs[0].answer_start :]), PERSON)
