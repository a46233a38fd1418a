"""Results of a request: several outputs, the best of several, stop strings, log-probabilities, the prompt repeated.

The effect of parameters on logits is tested without an engine (`tests/constraints/test_warping.py`); these tests
compare with `transformers` to check that the parameters are passed on.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from guideway import AsyncEngine, Engine, EngineConfig, FinishReason, InvalidRequest, JsonSchema, Regex, SamplingParams
from guideway.api import UnsupportedCapability
from guideway_demo_model import DemoModel
from transformers import AutoModelForCausalLM

from tests.support.stages import everyday, one_in

TEXT = "Extract name, age, married. Meet Zoë Garcia. Age: 21. Married."
PROMPT = [{"role": "user", "content": TEXT}]
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(EngineConfig(model="demo", grammar=("llguidance",), max_num_seqs=8)) as built:
        yield built


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(DemoModel().path(), dtype=torch.float32)


def one(engine: Engine, prompt: Any = PROMPT, **params: Any) -> Any:
    (result,) = engine.generate([prompt], SamplingParams(**{"max_tokens": 40} | params))
    assert result.error is None, result.error
    return result


def raw_logprobs(model: Any, token_ids: list[int]) -> torch.Tensor:
    """Return ``[len(token_ids) - 1, width]``: log-probabilities of each token but the first, given the tokens before
    it."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([token_ids])).logits[0, :-1].float(), dim=-1)


@pytest.mark.slow
def test_greedy_with_penalties_bias_and_min_tokens_equals_generate(engine: Engine, model: Any) -> None:
    from transformers import LogitsProcessorList, MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

    prompt = list(one(engine, max_tokens=1).prompt_token_ids)
    plain = one(engine, prompt)
    assert plain.finish_reason is FinishReason.STOP
    num_tokens = len(plain.token_ids) + 5
    penalty, banned = 1.4, plain.token_ids[0]

    class Bias:
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            scores = scores.clone()
            scores[:, banned] = -torch.inf
            return scores

    processors = LogitsProcessorList(
        [
            RepetitionPenaltyLogitsProcessor(penalty),
            MinNewTokensLengthLogitsProcessor(len(prompt), num_tokens, [2]),
            Bias(),
        ]
    )
    ids = torch.tensor([prompt])
    expected = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=num_tokens,
        logits_processor=processors,
    )[0, len(prompt) :].tolist()  # fmt: skip
    for num_speculative_tokens in (0, 4):
        with Engine(EngineConfig(model="demo", num_speculative_tokens=num_speculative_tokens)) as built:
            result = one(
                built, prompt, max_tokens=num_tokens, min_tokens=num_tokens, repetition_penalty=penalty,
                logit_bias={banned: -math.inf},
            )  # fmt: skip
        assert list(result.token_ids) == expected


def test_several_outputs_each_draw_for_themselves(engine: Engine) -> None:
    result = one(engine, n=4, temperature=4.0, seed=3, max_tokens=15)
    assert [output.index for output in result.outputs] == [0, 1, 2, 3]
    assert len({output.token_ids for output in result.outputs}) == 4
    assert result.outputs[0].token_ids == one(engine, temperature=4.0, seed=3, max_tokens=15).token_ids
    assert result.text == result.outputs[0].text
    assert one(engine, n=4, temperature=4.0, seed=3, max_tokens=15).outputs == result.outputs


def test_each_of_several_outputs_obeys_the_schema(engine: Engine) -> None:
    result = one(engine, n=3, temperature=0.7, seed=1, max_tokens=80, constraint=JsonSchema(PERSON))
    assert [output.strategy for output in result.outputs] == ["llguidance"] * 3
    assert all(output.text.startswith('{"name"') for output in result.outputs)


def test_the_best_of_several_are_those_with_the_highest_mean_logprob(engine: Engine) -> None:
    params: dict[str, Any] = {"temperature": 4.0, "seed": 3, "max_tokens": 15}
    every = one(engine, n=5, logprobs=0, **params).outputs
    by_mean = sorted(every, key=lambda o: -sum(t.logprob for t in o.logprobs) / len(o.logprobs))
    best = one(engine, n=2, best_of=5, **params).outputs
    assert [output.token_ids for output in best] == [output.token_ids for output in by_mean[:2]]
    assert best[0].logprobs is None
    with pytest.raises(UnsupportedCapability, match="best_of"):
        list(engine.submit(PROMPT, SamplingParams(n=2, best_of=5, **params)).chunks())
    while engine.has_work():
        engine.step()


def test_logprobs_are_the_models_own(engine: Engine, model: Any) -> None:
    """Log-probabilities are computed from the model's raw logits, even if parameters change the draw."""
    result = one(
        engine, n=2, logprobs=3, prompt_logprobs=2, temperature=1.2, top_p=0.9, seed=5, repetition_penalty=1.3,
        constraint=JsonSchema(PERSON), max_tokens=30,
    )  # fmt: skip
    prompt = list(result.prompt_token_ids)
    for output in result.outputs:
        raw = raw_logprobs(model, [*prompt, *output.token_ids])[len(prompt) - 1 :]
        assert len(output.logprobs) == len(output.token_ids)
        for entry, token_id, row in zip(output.logprobs, output.token_ids, raw, strict=True):
            assert entry.token_id == token_id
            assert entry.logprob == pytest.approx(row[token_id].item(), abs=1e-3)
            values, ids = row.topk(3)
            assert [logprob for _, logprob in entry.top] == pytest.approx(values.tolist(), abs=1e-3)
            if (values[:-1] - values[1:]).min() > 1e-3:
                assert [top for top, _ in entry.top] == ids.tolist()
    first, *others = result.prompt_logprobs
    assert first is None
    for entry, token_id, row in zip(others, prompt[1:], raw_logprobs(model, prompt), strict=True):
        assert (entry.token_id, len(entry.top)) == (token_id, 2)
        assert entry.logprob == pytest.approx(row[token_id].item(), abs=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_processed_logprobs_are_those_of_the_draw(engine: Engine, model: Any, temperature: float) -> None:
    """They include the mask, the bias, the temperature and the filters. Other requests of the step keep raw ones."""
    params: dict[str, Any] = {"seed": 5, "logit_bias": {20: 2.5}, "constraint": Regex("[0-9]{1,12}"), "logprobs": 4}
    warped = {"temperature": temperature} | ({"top_k": 6} if temperature else {})
    processed, raw = engine.generate(
        [PROMPT, PROMPT],
        [SamplingParams(**params, **warped, logprobs_mode=mode, max_tokens=12) for mode in ("processed", "raw")],
    )
    assert processed.token_ids == raw.token_ids
    prompt = list(processed.prompt_token_ids)
    whole = torch.tensor([[*prompt, *processed.token_ids]])
    with torch.inference_mode():
        logits = model(whole).logits[0, len(prompt) - 1 : -1].float()
    tokens = engine.vocabulary.tokens
    digits = [i for i, text in enumerate(tokens) if text and re.fullmatch(b"[0-9]+", text)]
    for entry, plain, row in zip(processed.logprobs, raw.logprobs, logits, strict=True):
        assert plain.logprob == pytest.approx(torch.log_softmax(row, dim=-1)[plain.token_id].item(), abs=1e-4)
        if entry.token_id in engine.vocabulary.stop_token_ids or len(entry.token) > 1:
            break
        allowed = torch.full_like(row, -torch.inf)
        ends = [] if entry is processed.logprobs[0] else sorted(engine.vocabulary.stop_token_ids)
        fitting = [i for i in digits if len(tokens[i]) == 1] + ends
        allowed[fitting] = row[fitting]
        allowed[20] += 2.5
        allowed /= temperature or 1
        if temperature:
            allowed[allowed < allowed.topk(6).values[-1]] = -torch.inf
        expected = torch.log_softmax(allowed, dim=-1)
        assert entry.logprob == pytest.approx(expected[entry.token_id].item(), abs=1e-4)
        assert [value for _, value in entry.top] == pytest.approx(expected.topk(4).values.tolist(), abs=1e-4)


def test_each_logprob_has_the_text_of_its_tokens(engine: Engine) -> None:
    result = one(engine, logprobs=2, prompt_logprobs=1, max_tokens=40)
    vocabulary = engine.vocabulary
    entries = [*result.logprobs, *result.prompt_logprobs[1:]]
    for entry in entries:
        for token_id, text in zip(
            (entry.token_id, *(top for top, _ in entry.top)), (entry.token, *entry.top_tokens), strict=True
        ):
            named = vocabulary.special_tokens.get(token_id)
            assert text == named or (named is None and text == vocabulary.tokens[token_id].decode(errors="replace"))
    assert result.finish_reason is FinishReason.STOP and entries[len(result.token_ids) - 1].token.startswith("<")
    refused = engine.generate(["x"], SamplingParams(logprobs_mode="processed"))[0]
    assert "set logprobs" in str(refused.error)


LABELS = ("yes", "no", " not at all", "é")


@pytest.mark.parametrize("prompt", [PROMPT, TEXT, [5, 80, 81]], ids=["chat", "text", "ids"])
def test_labels_are_scored_as_by_the_model_alone(engine: Engine, model: Any, prompt: Any) -> None:
    scores = engine.score(prompt, LABELS)
    (asked,) = engine.generate([prompt], SamplingParams(max_tokens=1))
    expected = []
    for label, num_tokens in zip(LABELS, scores.num_tokens, strict=True):
        ids = engine.vocabulary.encode(label.encode())
        assert ids is not None and len(ids) == num_tokens
        rows = raw_logprobs(model, [*asked.prompt_token_ids, *ids])[-len(ids) :]
        expected.append(sum(row[token_id].item() for row, token_id in zip(rows, ids, strict=True)))
    assert scores.labels == LABELS
    assert scores.logprobs == pytest.approx(expected, abs=1e-4)
    assert scores.probabilities == pytest.approx(torch.softmax(torch.tensor(expected), 0).tolist(), abs=1e-4)
    assert scores.best == LABELS[expected.index(max(expected))]
    assert scores.lengths_differ and "differ in their number of tokens" in str(scores)
    same = engine.score(prompt, ["0", "1"])
    assert not same.lengths_differ and "differ" not in str(same)


def test_labels_are_scored_in_an_async_engine(engine: Engine) -> None:
    async def run() -> Any:
        async with AsyncEngine("demo", grammar=()) as serving:
            return await serving.score(PROMPT, LABELS)

    scores = asyncio.run(run())
    assert scores.logprobs == pytest.approx(engine.score(PROMPT, LABELS).logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("prompt", "labels", "field"),
    [
        (PROMPT, "yes", "labels"),
        (PROMPT, [], "labels"),
        (PROMPT, ["yes", 5], "labels"),
        (PROMPT, ["yes", ""], "labels"),
        (PROMPT, ["yes", "yes"], "labels"),
        (5, ["yes"], "prompt"),
        ([], ["yes"], "prompt"),
        ("x " * 4000, ["yes"], "prompt"),
    ],
)
def test_wrong_labels_are_refused(engine: Engine, prompt: Any, labels: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        engine.score(prompt, labels)
    assert caught.value.field == field


@pytest.mark.parametrize("num_speculative_tokens", one_in(2, [0, 4]))
@pytest.mark.parametrize("budget", everyday([16, 2048], 16))
def test_logprobs_do_not_depend_on_chunks_and_drafts(budget: int, num_speculative_tokens: int, engine: Engine) -> None:
    prompt = PROMPT[0]["content"] * 3
    params: dict[str, Any] = {"logprobs": 1, "prompt_logprobs": 1, "max_tokens": 30}
    expected = one(engine, prompt, **params)
    options: dict[str, Any] = {"max_num_batched_tokens": budget, "num_speculative_tokens": num_speculative_tokens}
    with Engine(EngineConfig(model="demo", max_num_seqs=4, **options)) as built:
        built.generate([prompt], SamplingParams(max_tokens=3))  # the cached prompt must be scored again
        result = one(built, prompt, **params)
    assert result.token_ids == expected.token_ids
    assert len(result.prompt_logprobs) == len(result.prompt_token_ids)
    for ours, theirs in ((result.logprobs, expected.logprobs), (result.prompt_logprobs, expected.prompt_logprobs)):
        assert [None if t is None else t.token_id for t in ours] == [None if t is None else t.token_id for t in theirs]
        for a, b in zip(ours, theirs, strict=True):
            if a is not None:
                assert a.logprob == pytest.approx(b.logprob, abs=1e-3)


@pytest.mark.parametrize("num_speculative_tokens", one_in(2, [0, 4]))
def test_a_stop_string_ends_the_text_wherever_tokens_end(num_speculative_tokens: int, engine: Engine) -> None:
    free = one(engine)
    assert "Zoë Garcia" in free.text
    with Engine(EngineConfig(model="demo", num_speculative_tokens=num_speculative_tokens)) as built:
        for start in range(0, len(free.text) - 4, 3):
            stop = free.text[start : start + 4]
            place = free.text.find(stop)
            generation = built.submit(PROMPT, SamplingParams(max_tokens=40, stop=("never", stop)))
            pieces = list(generation)
            result = generation.wait()
            assert result.text == free.text[:place] == "".join(pieces)
            assert (result.finish_reason, result.outputs[0].stop) == (FinishReason.STOP, stop)
            assert result.token_ids == free.token_ids[: len(result.token_ids)]
            assert stop in built.vocabulary.decode(list(result.token_ids)).decode(errors="replace")
            assert stop not in built.vocabulary.decode(list(result.token_ids[:-1])).decode(errors="replace")


CUT = {
    "[a-z]{2}( [a-z]{2}){0,4}": Regex("[a-z]{2}( [a-z]{2}){0,4}"),
    "[a-zA-Z]{4,14}": Regex("[a-zA-Z]{4,14}"),  # complete also where a token is cut in two
    r"\{.*\}": JsonSchema(PERSON),
}
"""Constraints, by a pattern that matches complete beginnings of an output."""


@pytest.mark.slow
@pytest.mark.parametrize("num_speculative_tokens", [0, 4])
def test_what_a_stop_string_leaves_of_a_constrained_text_is_judged(num_speculative_tokens: int) -> None:
    seen = set()
    with Engine(
        EngineConfig(model="demo", grammar=("llguidance",), num_speculative_tokens=num_speculative_tokens)
    ) as built:
        for pattern, constraint in CUT.items():
            free = one(built, constraint=constraint)
            assert free.unenforced == ()
            stops = {free.text[start : start + length] for start in range(len(free.text)) for length in (1, 3)}
            params = [SamplingParams(max_tokens=60, constraint=constraint, stop=(stop,), echo=True) for stop in stops]
            for result in built.generate([PROMPT] * len(stops), params):
                output = result.outputs[0]
                text = output.text.removeprefix(built.vocabulary.decode(list(result.prompt_token_ids)).decode())
                complete = re.fullmatch(pattern, text) is not None
                assert isinstance(output.stop, str) and free.text.startswith(text)
                assert output.unenforced == (() if complete else ("constraint",)), (text, output.stop)
                seen.add((pattern, complete))
    assert len(seen) == 5, "each kind of text for both expressions, and cut JSON"


def test_min_tokens_lets_a_stop_string_pass(engine: Engine) -> None:
    free = one(engine)
    result = one(engine, stop=('"name"',), min_tokens=len(free.token_ids))
    assert result.text.startswith(free.text)


def test_what_only_the_end_may_follow_ends_before_min_tokens(engine: Engine) -> None:
    result = one(engine, constraint=JsonSchema(PERSON), min_tokens=35, max_tokens=40)
    assert result.finish_reason is FinishReason.STOP
    assert len(result.token_ids) < 35
    assert result.unenforced == ("min_tokens",)


def test_the_stop_is_told(engine: Engine) -> None:
    free = one(engine)
    assert free.outputs[0].stop == free.token_ids[-1] == 2
    token_id = free.token_ids[3]
    assert one(engine, stop_token_ids=(token_id,)).outputs[0].stop == token_id
    assert one(engine, max_tokens=2).outputs[0].stop is None


def test_ignore_eos_goes_on(engine: Engine) -> None:
    free = one(engine)
    result = one(engine, ignore_eos=True, max_tokens=len(free.token_ids) + 6)
    assert result.token_ids[: len(free.token_ids)] == free.token_ids
    assert (len(result.token_ids), result.finish_reason) == (len(free.token_ids) + 6, FinishReason.LENGTH)


def test_echo_begins_with_the_prompt(engine: Engine) -> None:
    free = one(engine, TEXT)
    assert one(engine, TEXT, echo=True).text == TEXT + free.text
    ids = list(free.prompt_token_ids)
    assert one(engine, ids, echo=True).text == TEXT + free.text
    generation = engine.submit(TEXT, SamplingParams(max_tokens=40, echo=True))
    assert "".join(generation) == TEXT + free.text


def test_chunks_of_several_outputs_add_up(engine: Engine) -> None:
    generation = engine.submit(PROMPT, SamplingParams(max_tokens=20, n=3, temperature=4.0, seed=3))
    texts, ids, reasons = ["", "", ""], [(), (), ()], [None] * 3
    for chunk in generation.chunks():
        texts[chunk.index] += chunk.text
        ids[chunk.index] += chunk.token_ids
        reasons[chunk.index] = chunk.finish_reason
    result = generation.wait()
    assert [(o.text, o.token_ids, o.finish_reason) for o in result.outputs] == list(
        zip(texts, ids, reasons, strict=True)
    )
    with pytest.raises(UnsupportedCapability, match="chunks"):
        list(generation)


def test_one_output_may_fail_without_the_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = engine.submit(PROMPT, SamplingParams(max_tokens=10, n=3, temperature=1.0, seed=1))
    while not all(s.slots for s in generation._group.sequences):
        engine.step()
    second = generation._group.sequences[1]
    engine._scheduler._table.end(second, FinishReason.INTERNAL_ERROR, InvalidRequest("broken"))
    result = generation.wait()
    reasons = [output.finish_reason for output in result.outputs]
    assert reasons == [FinishReason.LENGTH, FinishReason.INTERNAL_ERROR, FinishReason.LENGTH]
    assert [str(output.error) for output in result.outputs] == ["None", "broken", "None"]
