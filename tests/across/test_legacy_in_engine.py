"""Legacy processors in guideway's own engine: the same tokens as `model.generate` gives with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from guideway import Engine, EngineConfig, FinishReason, Regex, SamplingParams
from guideway.api import InvalidConfiguration, InvalidRequest, UnsupportedCapability
from guideway_demo_model import DemoModel
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessorList
from transformers import generation as hf

from tests.across.legacy_processors import BatchLevel, Countdown, favored_token
from tests.support.stages import everyday, one_in

HERE = "tests.across.legacy_processors"
PROMPTS = ["Extract name, age. Meet Zoë Garcia. Age: 31.", "Liam Morris, 52 years old.", "one one one two two two"]


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(DemoModel().path(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(DemoModel().path())


def engine(*processors: dict[str, Any], **config: Any) -> Engine:
    options = {"modifier.legacy": {"processors": list(processors)}}
    return Engine(EngineConfig(model="demo", modifiers=("legacy",), options=options, **config))


def params(max_tokens: int = 24, **options: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, modifiers={"legacy": options})


def processor_options(name: str, **kwargs: Any) -> dict[str, Any]:
    return {"kind": "transformers", "target": f"transformers:{name}", "kwargs": kwargs}


def own(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "target": f"{HERE}:{name}", **more}


CASES: list[list[tuple[str, dict[str, Any]]]] = [
    [("NoRepeatNGramLogitsProcessor", {"ngram_size": 2})],
    [("MinLengthLogitsProcessor", {"min_length": 60, "eos_token_id": 2, "device": "cpu"})],
    [("RepetitionPenaltyLogitsProcessor", {"penalty": 1.7})],
    [("SuppressTokensLogitsProcessor", {"suppress_tokens": list(range(200, 700)), "device": "cpu"})],
    [("SequenceBiasLogitsProcessor", {"sequence_bias": [[[273], -30.0], [[24, 24], -30.0]]})],
    [
        ("RepetitionPenaltyLogitsProcessor", {"penalty": 1.3}),
        ("NoRepeatNGramLogitsProcessor", {"ngram_size": 3}),
        ("MinLengthLogitsProcessor", {"min_length": 50, "eos_token_id": 2, "device": "cpu"}),
        ("ForcedEOSTokenLogitsProcessor", {"max_length": 55, "eos_token_id": 2, "device": "cpu"}),
    ],
]


@pytest.mark.parametrize(
    ("case", "num_speculative_tokens"),
    everyday([*((case, 0) for case in CASES), (CASES[0], 4), (CASES[-1], 4)], (CASES[-1], 4)),
    ids=lambda value: str(value) if isinstance(value, int) else "+".join(name[:12] for name, _ in value),
)
def test_transformers_processors_give_what_generate_gives(
    case: list[tuple[str, dict[str, Any]]], num_speculative_tokens: int, model: Any, tokenizer: Any
) -> None:
    prompts = [tokenizer(text)["input_ids"] for text in PROMPTS]
    expected = []
    for ids in prompts:
        processors = LogitsProcessorList([getattr(hf, name)(**kwargs) for name, kwargs in case])
        out = model.generate(
            torch.tensor([ids]), logits_processor=processors, do_sample=False, max_new_tokens=40, pad_token_id=0
        )
        expected.append(tuple(out[0, len(ids) :].tolist()))
    with engine(
        *(processor_options(name, **kwargs) for name, kwargs in case), num_speculative_tokens=num_speculative_tokens
    ) as e:
        results = e.generate(prompts, params(40))
        plain = e.generate(prompts, SamplingParams(max_tokens=40))
    assert [result.error for result in results] == [None] * 3
    assert [result.token_ids for result in results] == expected
    assert [result.token_ids for result in plain] != expected, "the processors changed nothing"


def test_callables_factories_and_processors_are_mixed_in_the_order_written() -> None:
    first = [own("callable", "Countdown", per_sequence=True), own("callable", "favor")]
    with engine(*first) as e:
        (forced,) = e.generate([[20, 21, 22]], params(4))
    assert forced.token_ids == (10, 11, 12, 13), "all but the forced one is -inf before `favor` adds to it"
    with engine(own("callable", "forbid", kwargs={"token_id": 10}), first[0]) as e:
        (revived,) = e.generate([[20, 21, 22]], params(4))
    assert revived.error is None, "what the list itself forbids it may allow again, as in transformers"
    with engine(first[0], own("callable", "forbid", kwargs={"token_id": 11})) as e:
        (emptied,) = e.generate([[20, 21, 22]], params(4))
    assert emptied.token_ids[0] == 10
    assert emptied.token_ids[1] != 11
    assert emptied.unenforced == ("modifier.legacy",)


@pytest.mark.slow
def test_a_callable_sees_the_prompt_unless_it_is_told_not_to() -> None:
    ids = [30, 31, 32]
    with engine(own("callable", "favor")) as e:
        (whole,) = e.generate([ids], params(3))
    with engine(own("callable", "favor", prompt=False)) as e:
        (alone,) = e.generate([ids], params(3))
    for found, past in ((whole.token_ids, list(ids)), (alone.token_ids, [])):
        for token_id in found:
            assert token_id == favored_token(past)
            past.append(token_id)


@pytest.mark.slow
@pytest.mark.parametrize("per_sequence", everyday([False, True], False))
def test_drafts_change_nothing(per_sequence: bool, tokenizer: Any) -> None:
    """Shared processors get a call per row; stateful ones get no drafts."""
    case = {**processor_options("NoRepeatNGramLogitsProcessor", ngram_size=4), "per_sequence": per_sequence}
    prompt = tokenizer(" ".join(["one two three"] * 8))["input_ids"]
    found = []
    for num_speculative_tokens in (0, 1, 5):
        with engine(case, num_speculative_tokens=num_speculative_tokens) as e:
            (result,) = e.generate([prompt], params(40))
        assert result.error is None
        found.append(result.token_ids)
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_concurrent_requests_share_no_state() -> None:
    with engine(own("callable", "Countdown", per_sequence=True, kwargs={"first": 40})) as e:
        results = e.generate([[20, 21]] * 3 + [[22]], [params(5), params(3), params(4), SamplingParams(max_tokens=2)])
        again = e.generate([[20, 21]], params(2))
    assert [result.token_ids for result in results[:3]] == [tuple(range(40, 40 + n)) for n in (5, 3, 4)]
    assert results[3].token_ids != (40, 41)
    assert again[0].token_ids == (40, 41)


@pytest.mark.parametrize("name", one_in(2, ["Twice", "Seen"]))
def test_a_shared_processor_that_keeps_state_is_found_out(name: str) -> None:
    with engine(own("transformers", name)) as e:
        results = e.generate([[20, 21], [22, 23]], params(4))
        (later,) = e.generate([[20, 21]], params(4))
    for result in (*results, later):
        assert result.finish_reason is FinishReason.INTERNAL_ERROR
        assert f"{HERE}:{name} keeps state between calls" in str(result.error)
        assert "per_sequence" in str(result.error)
    with engine(own("transformers", name, per_sequence=True)) as e:
        good = e.generate([[20, 21], [22, 23]], params(4))
    assert [result.error for result in good] == [None, None]
    if name == "Twice":
        assert [result.token_ids for result in good] == [(5, 6, 5, 6)] * 2


@pytest.mark.slow
def test_a_list_of_processors_is_one_target() -> None:
    with engine(own("transformers", "MEMBERS")) as e:
        (listed,) = e.generate([PROMPTS[0]], params(30))
    parts = [("NoRepeatNGramLogitsProcessor", {"ngram_size": 2})]
    parts += [("MinLengthLogitsProcessor", {"min_length": 30, "eos_token_id": 2, "device": "cpu"})]
    with engine(*(processor_options(part, **kwargs) for part, kwargs in parts)) as e:
        (single,) = e.generate([PROMPTS[0]], params(30))
    assert listed.error is None
    assert listed.token_ids == single.token_ids


@pytest.mark.parametrize("remembers", one_in(2, [False, True]))
def test_a_callable_that_raises_costs_its_request_and_is_not_called_twice_for_a_token(remembers: bool) -> None:
    """The pipeline applies the step again, row by row; stateful processors must not be called twice."""
    processors = [own("callable", "explode_after")]
    if remembers:
        processors.append(own("callable", "Countdown", per_sequence=True))
    prompts = [[20, 21, 22], [7, 21, 22], [23, 24, 25]]
    Countdown.calls = 0
    with engine(*processors) as e:
        good, bad, also_good = e.generate(prompts, params(6))
        alone = [e.generate([prompts[i]], params(6))[0] for i in (0, 2)]
    assert [r.token_ids for r in alone] == [good.token_ids, also_good.token_ids]
    assert len(good.token_ids) == 6
    assert bad.finish_reason is FinishReason.INTERNAL_ERROR
    assert f"modifier.legacy failed in apply: ProcessorFailed: {HERE}:explode_after raised RuntimeError: seven" in str(
        bad.error
    )
    assert len(bad.token_ids) == 3
    if remembers:
        assert good.token_ids == also_good.token_ids == (10, 11, 12, 13, 14, 15)
        assert Countdown.calls == 6 + 3 + 6 + 6 + 6


@pytest.mark.parametrize(
    ("name", "message"),
    one_in(
        2,
        [
            ("narrow", "must return logits, a Tensor of torch.float32 and shape [1536]; it returned a Tensor of"),
            ("wide", "it returned a Tensor of torch.float64 and shape [1536]"),
            ("nothing", "it returned a NoneType"),
            ("not_numbers", "returned NaN or +inf"),
        ],
    ),
)
def test_what_is_no_row_of_logits_is_refused(name: str, message: str) -> None:
    with engine(own("callable", name)) as e:
        bad, good = e.generate([[20, 21]] * 2, [params(4), SamplingParams(max_tokens=4)])
    assert bad.finish_reason is FinishReason.INTERNAL_ERROR
    assert f"ConformanceError: {HERE}:{name} " in str(bad.error)
    assert message in str(bad.error)
    assert (good.error, len(good.token_ids)) == (None, 4)


def test_processors_see_logits_before_the_grammar_and_the_grammar_wins() -> None:
    with engine(own("callable", "favor"), grammar=("llguidance",)) as e:
        wanted = SamplingParams(max_tokens=8, constraint=Regex("[0-9]{3}"), modifiers={"legacy": {}})
        (result,) = e.generate(["x"], wanted)
    assert result.error is None
    assert len(result.text) == 3
    assert result.text.isdigit()


def vllm(extra: Sequence[dict[str, Any]]) -> list[Any]:
    with engine(own("vllm", "PerRequest")) as e:
        return e.generate([[20, 21, 22]] * len(extra), [params(5, extra_args=args) for args in extra])


def test_vllm_per_request_processors_run_with_two_and_three_arguments() -> None:
    forced, limited, echoed, untouched = vllm([{"target_token": 50, "limit": 9}, {"target_token": 51}, {"echo": 1}, {}])
    with engine(own("vllm", "PerRequest")) as e:
        plain, after = e.generate([[20, 21, 22], [20, 21, 22, 51, 51, 51]], SamplingParams(max_tokens=5))
    assert forced.token_ids == (50,) * 5
    assert limited.token_ids[:3] == (51,) * 3
    assert limited.token_ids[3:] == after.token_ids[:2]
    assert echoed.token_ids[:3] == (20, 21, 22)
    assert (untouched.error, untouched.token_ids) == (None, plain.token_ids)


def test_what_vllm_processors_refuse_is_refused_at_admission() -> None:
    good, bad, unserializable = vllm([{"target_token": 50}, {"target_token": "x"}, {"target_token": object()}])
    assert good.error is None
    for result in (bad, unserializable):
        assert result.finish_reason is FinishReason.REFUSED
        assert isinstance(result.error, InvalidRequest)
        assert result.error.field == "modifiers.legacy.extra_args"
    assert "target_token value x is not int" in str(bad.error)
    with engine(own("callable", "favor")) as e:
        (ignored,) = e.generate([[20]], params(2, extra_args={"a": 1}))
        (typo,) = e.generate([[20]], params(2, extra_arg={}))
    assert "no processor of 'legacy' reads extra_args" in str(ignored.error)
    assert "did you mean 'extra_args'" in str(typo.error)
    assert ignored.finish_reason is typo.finish_reason is FinishReason.REFUSED


def test_a_vllm_processor_that_wants_more_than_there_is_costs_its_request() -> None:
    with engine(own("vllm", "Curious")) as e:
        bad, good = e.generate([[20, 21]] * 2, [params(3), SamplingParams(max_tokens=3)])
    assert bad.finish_reason is FinishReason.REFUSED
    assert "Curious reads params.n_beams, which guideway does not know of this request" in str(bad.error)
    assert good.error is None


def test_devices_without_tensors_are_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="works on arrays of torch only"):
        engine(own("callable", "favor"), device_backend="numpy")


@pytest.mark.slow
@pytest.mark.parametrize("executor", everyday(["local", "process"], "local"))
def test_several_outputs_of_a_request_keep_their_own_state_wherever_the_worker_is(executor: str) -> None:
    processors = [own("callable", "Countdown", per_sequence=True), own("vllm", "PerRequest")]
    with engine(*processors, executor=executor) as e:
        wanted = SamplingParams(n=2, temperature=1.0, max_tokens=4, modifiers={"legacy": {}})
        first, second = e.generate([[20, 21], [22]], wanted)
    outputs = [*first.outputs, *second.outputs]
    assert [output.error for output in outputs] == [None] * 4
    assert [output.token_ids for output in outputs] == [(10, 11, 12, 13)] * 4


@pytest.mark.slow
def test_preemption_is_nothing_a_processor_hears_of(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine(own("callable", "Countdown", per_sequence=True), max_model_len=128, kv_cache_tokens=128) as e:
        preempted = []
        preempt = e._scheduler._preempt
        monkeypatch.setattr(e._scheduler, "_preempt", lambda sequence: (preempted.append(sequence), preempt(sequence)))
        results = e.generate([[20 + i, 21, 22] for i in range(4)], params(40))
    assert preempted
    assert [(r.error, r.token_ids) for r in results] == [(None, tuple(range(10, 50)))] * 4


@pytest.mark.slow
def test_a_running_request_is_forked_if_nothing_remembers() -> None:
    for processor, forks in (
        (own("callable", "favor"), True),
        (own("callable", "Countdown", per_sequence=True), False),
    ):
        with engine(processor) as e:
            generation = e.submit([20, 21, 22], params(6))
            e.step()
            e.step()
            if forks:
                generation.fork()
            else:
                with pytest.raises(UnsupportedCapability, match="refuses to fork"):
                    generation.fork()
            outputs = generation.wait().outputs
        assert len({output.token_ids for output in outputs}) == 1
        assert [output.error for output in outputs] == [None] * (2 if forks else 1)


@pytest.mark.slow
def test_a_batch_level_processor_of_vllm_has_each_sequence_alone() -> None:
    wanted = [params(12, extra_args={"step": step}) for step in (1, 5, -1)]
    with engine(own("vllm", "BatchLevel")) as running:
        *right, failed, free = running.generate([*PROMPTS, PROMPTS[0]], [*wanted, params(12)])
        (refused,) = running.generate(PROMPTS[:1], params(12, extra_args={"step": 0}))
        alone = running.generate(PROMPTS[:1], SamplingParams(max_tokens=12))[0]
    for step, result in zip((1, 5), right, strict=True):
        for i, token_id in enumerate(result.token_ids):
            assert token_id == BatchLevel.next(step, result.prompt_token_ids, result.token_ids[:i])
        assert len(result.token_ids) == 12
    assert failed.finish_reason is FinishReason.INTERNAL_ERROR
    assert "BatchLevel raised RuntimeError: it was asked to fail" in str(failed.error)
    assert "step 0 leads nowhere" in str(refused.error)
    assert free.token_ids == alone.token_ids
