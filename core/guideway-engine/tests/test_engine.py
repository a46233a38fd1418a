"""The engine from prompts to results, with the demo model and real strategies."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from engine_support.models import randomized
from engine_support.prompts import BOOKING, PERSON, booking, chat, person
from guideway import (
    Choice,
    Engine,
    EngineConfig,
    FinishReason,
    GenerationResult,
    JsonObject,
    JsonSchema,
    Regex,
    SamplingParams,
    StructuralTag,
)
from guideway.api import (
    InvalidGrammar,
    InvalidRequest,
    UnsupportedCapability,
)
from guideway_demo_model import DemoModel
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel

from tests.support.stages import everyday


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(EngineConfig(model="demo", grammar=("llguidance", "xgrammar", "reference"), max_num_seqs=8)) as built:
        yield built


def test_every_answer_of_a_mixed_batch_obeys_its_schema(engine: Engine) -> None:
    prompts, params, schemas = [], [], []
    for i in range(24):
        schema, prompt = (PERSON, person(i)) if i % 3 else (BOOKING, booking(i))
        strategy = (None, "llguidance", "xgrammar", "reference")[i % 4]
        prompts.append(prompt)
        schemas.append(schema)
        params.append(SamplingParams(max_tokens=120, constraint=JsonSchema(schema, strategy=strategy)))
    results = engine.generate(prompts, params)
    for schema, wanted, result in zip(schemas, params, results, strict=True):
        assert result.finish_reason is FinishReason.STOP, result
        assert result.error is None
        assert wanted.constraint is not None
        assert result.strategy == (wanted.constraint.strategy or "llguidance")
        jsonschema.validate(json.loads(result.text), schema)
    assert json.loads(results[1].text) == {"name": "Zoë Garcia", "age": 21, "married": True}


def test_the_other_kinds_of_constraints(engine: Engine) -> None:
    tag = {
        "type": "structural_tag",
        "format": {"type": "tag", "begin": "<", "content": {"type": "json_schema", "json_schema": BOOKING}, "end": ">"},
    }
    regex, choice, any_object, tagged = engine.generate(
        [person(1)] * 4,
        [
            SamplingParams(max_tokens=30, constraint=Regex(r"\d{4}-\d{2}")),
            SamplingParams(max_tokens=30, constraint=Choice(["yes", "no"])),
            SamplingParams(max_tokens=120, constraint=JsonObject()),
            SamplingParams(max_tokens=120, constraint=StructuralTag(tag, strategy="xgrammar")),
        ],
    )
    assert len(regex.text) == 7
    assert regex.text[4] == "-"
    assert choice.text in ("yes", "no")
    assert isinstance(json.loads(any_object.text), dict)
    jsonschema.validate(json.loads(tagged.text[1:-1]), BOOKING)


def test_a_refused_prompt_never_costs_its_neighbors(engine: Engine) -> None:
    good = SamplingParams(max_tokens=80, constraint=JsonSchema(PERSON))
    (alone,) = engine.generate([person(3)], good)
    bad: list[tuple[Any, SamplingParams, str]] = [
        (person(0), SamplingParams(max_tokens=0), "max_tokens"),
        (person(0), SamplingParams(max_tokens=-1), "max_tokens"),
        (person(0), SamplingParams(min_tokens=5000), "min_tokens"),
        (person(0), SamplingParams(constraint=JsonSchema("{no json")), "constraint"),
        (person(0), SamplingParams(constraint=JsonSchema({"type": "strnig"})), "constraint.schema"),
        (person(0), SamplingParams(constraint=Regex("(")), "constraint"),
        (person(0), SamplingParams(constraint=Regex("a", strategy="nope")), "constraint.strategy"),
        (person(0), SamplingParams(modifiers={"nope": {}}), "modifiers"),
        ("word " * 3000, SamplingParams(), "prompt"),
        ("", SamplingParams(), "prompt"),
        ([5, 99_999], SamplingParams(), "prompt"),
        (17, SamplingParams(), "prompt"),
        ([{"role": "user"}], SamplingParams(), "prompt"),
        ("x \ud800 y", SamplingParams(), "prompt"),
        (person(0), "no params", "params"),
    ]
    prompts: list[Any] = [person(3)]
    params: list[Any] = [good]
    for prompt, wanted, _ in bad:
        prompts += [prompt, person(3)]
        params += [wanted, good]
    results = engine.generate(prompts, params)
    for (_, _, field), result in zip(bad, results[1::2], strict=True):
        assert result.finish_reason is FinishReason.REFUSED
        assert isinstance(result.error, InvalidRequest)
        assert (result.error.field, result.token_ids) == (field, ())
    for result in results[0::2]:
        assert (result.token_ids, result.error) == (alone.token_ids, None)


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (b"hello", "not bytes"),
        (bytearray(b"hello"), "not bytearray"),
        (memoryview(b"hello"), "not memoryview"),
        (np.array([4, 5]), "not ndarray"),
        ({4, 5}, "not set"),
        ([4, 1.5], "type float"),
        ([4, True], "type bool"),
        (["some", "words"], "type str"),
        ([{"role": "user", "content": "x"}, 5], "type dict"),
        ([], "empty"),
        ([10**5000], "not in the vocabulary"),
        (chat("x \ud800 y"), "a chat message contains a lone surrogate"),
        ("x \ud800 y", "the prompt contains a lone surrogate"),
        (chat("x")[0], "write [{'role': ..., 'content': ...}] for one prompt"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}], "a part of type 'image_url'"),
        ([{"role": "user", "content": [{"text": "x"}]}], "a part of type None"),
        ([{"role": "user", "content": ["x"]}], "a part of type 'str'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "must be a string, not None"),
        ([{"role": "user", "content": 5}], "prompt"),
    ],
)
def test_a_prompt_of_a_wrong_type_is_refused(prompt: Any, said: str, engine: Engine) -> None:
    refused, good = engine.generate([prompt, person(0)], SamplingParams(max_tokens=2))
    assert refused.finish_reason is FinishReason.REFUSED, refused
    assert isinstance(refused.error, InvalidRequest)
    assert refused.error.field == "prompt"
    assert said in str(refused.error) or said == refused.error.field
    assert good.error is None


def test_integers_of_numpy_are_token_ids(engine: Engine) -> None:
    ours, numpys = engine.generate([[4, 5, 6], list(np.array([4, 5, 6]))], SamplingParams(max_tokens=5))
    assert (numpys.prompt_token_ids, numpys.token_ids) == ((4, 5, 6), ours.token_ids)
    assert ours.error is None


def test_the_text_parts_of_a_message_are_its_text(engine: Engine) -> None:
    parts: Any = [{"type": "text", "text": "Extract name. "}, {"type": "text", "text": "Meet Peter Green."}]
    in_parts, whole = engine.generate(
        [[{"role": "user", "content": parts}], chat("Extract name. Meet Peter Green.")], SamplingParams(max_tokens=2)
    )
    assert in_parts.error is None
    assert in_parts.prompt_token_ids == whole.prompt_token_ids


@pytest.mark.parametrize("params", [{}, 0, {"max_tokens": 3}, iter(()), "greedy"])
def test_params_of_a_wrong_type_are_refused(params: Any, engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="params must be one SamplingParams for all prompts, or a list") as caught:
        engine.generate([person(0)] * 2, params)
    assert caught.value.field == "params"
    refused, good = engine.generate([person(0)] * 2, [params, SamplingParams(max_tokens=2)])
    assert isinstance(refused.error, InvalidRequest)
    assert (refused.error.field, good.error) == ("params", None)
    with pytest.raises(InvalidRequest, match="SamplingParams"):
        engine.submit(person(0), params)


def test_tenants_of_a_wrong_type_are_refused(engine: Engine) -> None:
    tenants: Any = 5
    with pytest.raises(InvalidRequest, match="tenants must be one str for all prompts, or a list") as caught:
        engine.generate([person(0)] * 2, SamplingParams(max_tokens=2), tenants=tenants)
    assert caught.value.field == "tenants"
    refused, good = engine.generate([person(0)] * 2, SamplingParams(max_tokens=2), tenants=[tenants, "a"])
    assert isinstance(refused.error, InvalidRequest)
    assert (refused.error.field, good.error) == ("tenant", None)


@pytest.mark.parametrize("prompts", [b"ab", iter(["a"]), 5, None])
def test_prompts_that_are_no_list_are_refused(prompts: Any, engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="list of prompts") as caught:
        engine.generate(prompts)
    assert caught.value.field == "prompts"


def test_chat_takes_one_conversation_or_several(engine: Engine) -> None:
    short = SamplingParams(max_tokens=3)
    one, other = chat("Meet Liam."), [*chat("Meet Zoe."), {"role": "assistant", "content": "Hi."}, *chat("Bye.")]
    results = engine.generate([one, other], short)
    assert [r.token_ids for r in engine.chat([one, tuple(other)], short)] == [r.token_ids for r in results]
    assert [r.prompt_token_ids for r in engine.chat(other, short)] == [results[1].prompt_token_ids]
    reported: list[int] = []
    several = engine.chat([one, []], [short, short], tenants=["a", "b"], on_result=lambda i, _: reported.append(i))
    assert [r.finish_reason for r in several] == [FinishReason.LENGTH, FinishReason.REFUSED]
    assert sorted(reported) == [0, 1]
    assert engine.chat([]) == []


@pytest.mark.parametrize(
    "messages", ["Meet Liam.", b"x", "", {"role": "user", "content": "x"}, ["Meet Liam."], [5, 80], [[5, 80]], None]
)
def test_what_is_no_conversation_is_refused(messages: Any, engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match=r"one conversation, a list of messages.*generate takes text") as caught:
        engine.chat(messages)
    assert caught.value.field == "messages"


@pytest.mark.slow
def test_results_come_in_order_and_each_is_reported_once(engine: Engine) -> None:
    lengths = [9, 2, 14, 1, 5, 30, 3, 4, 8, 2, 6]
    seen: list[tuple[int, GenerationResult]] = []
    results = engine.generate(
        [person(i) for i in range(len(lengths))],
        [SamplingParams(max_tokens=n) for n in lengths],
        on_result=lambda i, r: seen.append((i, r)),
    )
    for i, n in enumerate(lengths):
        (alone,) = engine.generate([person(i)], SamplingParams(max_tokens=n))
        assert (results[i].prompt_token_ids, results[i].token_ids) == (alone.prompt_token_ids, alone.token_ids)
    assert len({(r.prompt_token_ids, r.token_ids) for r in results}) == len(lengths)
    assert sorted(i for i, _ in seen) == list(range(len(lengths)))
    assert [i for i, _ in seen] != list(range(len(lengths)))  # reported as each one ends
    assert all(results[i] is result for i, result in seen)
    assert not engine.has_work()


def test_generate_wants_as_many_params_as_prompts(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="2 prompts but 1"):
        engine.generate(["a", "b"], [SamplingParams()])


@pytest.mark.slow
def test_drafts_change_speed_and_never_tokens() -> None:
    prompts = [person(i) for i in range(6)] + [chat("Repeat: one two three one two three one two three")] * 2
    constraints = [JsonSchema(PERSON), None, JsonSchema(PERSON, strategy="xgrammar"), None, JsonSchema(PERSON), None]
    params = [
        SamplingParams(max_tokens=60, temperature=t, seed=i, constraint=c)
        for i, (c, t) in enumerate(zip([*constraints, None, None], [0, 0, 0.9, 0.9, 0, 0, 0, 0.7], strict=True))
    ]
    runs, steps = [], []
    for num_speculative_tokens in (0, 4):
        with Engine(
            EngineConfig(
                model="demo", grammar=("llguidance", "xgrammar"), num_speculative_tokens=num_speculative_tokens
            )
        ) as e:
            count = 0
            step = e._scheduler.step

            def counted() -> None:
                nonlocal count
                count += 1
                step()  # noqa: B023 - called in this iteration only

            e._scheduler.step = counted  # type: ignore[method-assign]
            runs.append([r.token_ids for r in e.generate(prompts, params)])
            steps.append(count)
    assert runs[0] == runs[1]
    assert steps[1] < steps[0]


def gpt2_folder(folder: Path) -> Path:
    """Store a small GPT-2 with random weights and the demo model's tokenizer, and return the folder."""
    tokens = 1536
    config = GPT2Config(vocab_size=tokens, n_embd=128, n_layer=3, n_head=4, n_positions=256, eos_token_id=2)
    model = randomized(GPT2LMHeadModel(config), seed=1, scale=3)
    model.generation_config.eos_token_id = 2
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(DemoModel().path()).save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("architecture", everyday(["llama", "gpt2"], "gpt2"))
def test_greedy_tokens_equal_those_of_generate_with_random_joins_and_leaves(architecture: str, tmp_path: Path) -> None:
    rng = random.Random(5)
    folder = DemoModel().path() if architecture == "llama" else gpt2_folder(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(DemoModel().path())
    texts = [f"<|user|>{person(i)[0]['content']}{' Yes.' * (i % 7)}<|assistant|>" for i in range(24)]
    prompts = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    lengths = [rng.randint(5, 40) for _ in prompts]
    generations = []
    with Engine(EngineConfig(model=str(folder), max_num_seqs=12)) as e:
        while len(generations) < len(prompts) or e.has_work():
            while len(generations) < len(prompts) and rng.random() < 0.5:
                i = len(generations)
                generations.append(e.submit(prompts[i], SamplingParams(max_tokens=lengths[i])))
            e.step()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    compared = total = 0
    for prompt, length, generation in zip(prompts, lengths, generations, strict=True):
        assert generation.result is not None
        expected, leads = generate(model, prompt, length)
        clear = next((i for i, lead in enumerate(leads) if lead <= 1e-3), len(expected))
        assert list(generation.result.token_ids[:clear]) == expected[:clear]
        compared += clear
        total += len(expected)
    assert compared > 0.9 * total


def generate(model: Any, prompt: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=num_tokens,
        output_logits=True,
        return_dict_in_generate=True,
    )
    top = torch.stack(output.logits, dim=1)[0].topk(2).values
    return output.sequences[0, len(prompt) :].tolist(), (top[:, 0] - top[:, 1]).tolist()


def test_streaming_yields_whole_characters_and_the_whole_text(engine: Engine) -> None:
    wanted = SamplingParams(max_tokens=80, constraint=JsonSchema(PERSON))
    (whole,) = engine.generate([person(1)], wanted)
    generation = engine.submit(person(1), wanted)
    pieces = list(generation)
    assert "".join(pieces) == whole.text
    assert len(pieces) > 5
    assert "Zoë" in whole.text
    assert not any("\ufffd" in piece for piece in pieces)
    assert generation.result is not None
    assert generation.result.token_ids == whole.token_ids


def test_a_text_that_is_cut_inside_a_character_says_so_also_when_it_is_streamed(engine: Engine) -> None:
    half = next(i for i, token in enumerate(engine.vocabulary.tokens) if token == "é".encode()[:1])
    params = SamplingParams(max_tokens=2, logit_bias={half: 1e6})
    (whole,) = engine.generate([person(1)], params)
    assert (whole.token_ids, whole.text) == ((half, half), "\ufffd\ufffd")
    generation = engine.submit(person(1), params)
    assert "".join(generation) == whole.text


def test_a_reader_reads_what_comes_and_drives_nothing(engine: Engine) -> None:
    params = SamplingParams(max_tokens=6, temperature=1.0, n=2, seed=1, ignore_eos=True)
    generation = engine.submit(person(1), params, wait=False)
    reader = generation.reader()
    assert reader.read() == []
    chunks = []
    while engine.has_work():
        engine.step()
        chunks += reader.read()
    assert reader.read() == []
    assert generation.result is not None
    for output in generation.result.outputs:
        mine = [chunk for chunk in chunks if chunk.index == output.index]
        assert "".join(chunk.text for chunk in mine) == output.text
        assert sum((chunk.token_ids for chunk in mine), ()) == output.token_ids
        assert mine[-1].finish_reason is output.finish_reason
    best = engine.submit(person(1), SamplingParams(max_tokens=2, temperature=1.0, best_of=2))
    with pytest.raises(UnsupportedCapability, match="best_of"):
        best.reader()
    best.abort()


def test_a_request_has_the_id_it_is_given(engine: Engine) -> None:
    first = engine.submit(person(1), SamplingParams(max_tokens=2), request_id="mine", wait=False)
    with pytest.raises(InvalidRequest, match="a request with the id 'mine' is already running") as caught:
        engine.submit(person(1), request_id="mine")
    assert caught.value.field == "request_id"
    assert first.wait().request_id == "mine"
    for wrong in ("", 5, b"mine"):
        with pytest.raises(InvalidRequest, match="request_id must be a string that is not empty, or None"):
            engine.submit(person(1), request_id=wrong)  # type: ignore[arg-type]


def test_submit_raises_what_generate_would_report(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="max_tokens"):
        engine.submit("x", SamplingParams(max_tokens=0))
    with pytest.raises(InvalidGrammar):
        engine.submit("x", SamplingParams(constraint=Regex("(")))
    assert not engine.has_work()


def test_abort_ends_a_request_with_what_it_has(engine: Engine) -> None:
    generation = engine.submit(person(2), SamplingParams(max_tokens=60, constraint=JsonSchema(PERSON)))
    other = engine.submit(person(3), SamplingParams(max_tokens=60, constraint=JsonSchema(PERSON)))
    stream = iter(generation)
    first = next(stream)
    generation.abort()
    generation.abort()
    assert generation.result is not None
    assert generation.result.finish_reason is FinishReason.ABORT
    assert generation.result.text.startswith(first)
    assert other.wait().finish_reason is FinishReason.STOP
    assert not engine.has_work()


def test_a_generation_of_another_engine_is_refused(engine: Engine) -> None:
    with Engine(EngineConfig(model="demo", max_num_seqs=2)) as other:
        generation = engine.submit(person(2), SamplingParams(max_tokens=5))
        for use in (other.abort, other.fork):
            with pytest.raises(InvalidRequest, match="another engine"):
                use(generation)
        for stranger in (None, 3, generation.wait()):
            for use in (other.abort, other.fork):
                with pytest.raises(InvalidRequest, match="must be a Generation") as caught:
                    use(stranger)  # type: ignore[arg-type]
                assert caught.value.field == "generation"
        assert generation.wait().error is None


def test_an_interrupted_generate_leaves_nothing_behind(engine: Engine) -> None:
    def interrupt(index: int, result: GenerationResult) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(
            [person(i) for i in range(12)], [SamplingParams(max_tokens=i + 1) for i in range(12)], on_result=interrupt
        )
    assert not engine.has_work()
    assert engine.generate([person(0)], SamplingParams(max_tokens=3))[0].error is None


def test_limits_end_a_generation(engine: Engine) -> None:
    room = 10
    prompt = [10] * (1024 - room)
    endless, short = Regex("[0-9]{500}"), Regex("[0-9]")
    by_context, by_limit, by_grammar = engine.generate(
        [prompt] * 3,
        [
            SamplingParams(constraint=endless, close=False),
            SamplingParams(max_tokens=4, constraint=endless, close=False),
            SamplingParams(max_tokens=4, constraint=short),
        ],
    )
    assert (len(by_context.token_ids), by_context.finish_reason) == (room, FinishReason.LENGTH)
    assert (len(by_limit.token_ids), by_limit.finish_reason) == (4, FinishReason.LENGTH)
    assert (len(by_grammar.token_ids), by_grammar.finish_reason) == (2, FinishReason.STOP)
    assert by_grammar.token_ids[1] in engine.vocabulary.stop_token_ids


def test_stop_token_ids_end_a_generation_and_are_not_text(engine: Engine) -> None:
    (free,) = engine.generate([person(1)], SamplingParams(max_tokens=20))
    stop = free.token_ids[5]
    (cut,) = engine.generate([person(1)], SamplingParams(max_tokens=20, stop_token_ids=(stop,)))
    first = free.token_ids.index(stop)
    assert cut.token_ids == free.token_ids[: first + 1]
    assert cut.finish_reason is FinishReason.STOP
    assert cut.text == engine.vocabulary.decode(cut.token_ids[:-1]).decode(errors="replace")
