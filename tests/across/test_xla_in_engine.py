"""The engine on the XLA device, with unchanged scheduler, runtime, strategies and pipeline, and the model in jax or
torch. Everything is compiled before the first request.

Takes minutes: XLA compiles the model for each bucket, and each pipeline operation for each number of rows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jax
import jsonschema
import pytest
from guideway import Engine, EngineConfig, FinishReason, JsonSchema, Regex, SamplingParams
from guideway_engine.generation import Generation

from tests.support.distributions import install

pytestmark = pytest.mark.slow

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "married"],
    "additionalProperties": False,
}
NAMES = ["Peter Young", "Zoë Garcia", "Helsel Brown", "Maria Silva", "Haencor Green", "Liam Morris"]
NUM_STEPS = 1000
MOST_BUCKETS = 8


def person(i: int) -> list[dict[str, str]]:
    text = f"Extract name, age, married. Meet {NAMES[i % len(NAMES)]}. Age: {20 + i}. {['Single', 'Married'][i % 2]}."
    return [{"role": "user", "content": text}]


def engine_of(**changes: Any) -> Engine:
    options: dict[str, Any] = {
        "model": "demo",
        "grammar": ("llguidance",),
        "max_num_seqs": 8,
        "max_num_batched_tokens": 256,
    }
    return Engine(EngineConfig(**options | {"device_backend": "xla", "runner": "jax"} | changes))


MODIFIERS: dict[str, dict[str, Any]] = {
    "green_list": {"key": 3, "delta": 2.0},
    "gumbel": {},
    "hello": {"letter": "e", "strength": -3.0},
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder = tmp_path_factory.mktemp("probes")
    install(folder, "probes", {f"modifier.{name}": "tests.support.probes" for name in ("green_list", "gumbel")})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with engine_of(num_speculative_tokens=3, modifiers=tuple(MODIFIERS)) as built:
            yield built


@pytest.fixture(scope="module")
def compiled() -> Iterator[list[str]]:
    """Events of tracing and compilation in jax."""
    events: list[str] = []

    def listen(event: str, _: float, **__: Any) -> None:
        if event.endswith(("backend_compile_duration", "jaxpr_trace_duration")):
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


GREEDY = SamplingParams(max_tokens=80, constraint=JsonSchema(PERSON))
SAMPLED = SamplingParams(max_tokens=80, constraint=JsonSchema(PERSON), temperature=0.8, seed=11)


@pytest.fixture(scope="module")
def answers_in_torch() -> list[tuple[int, ...]]:
    with engine_of(device_backend="torch", runner="transformers") as built:
        return [result.token_ids for result in built.generate([person(i) for i in range(6)], GREEDY)]


def expect_answers(engine: Engine, greedy: list[tuple[int, ...]]) -> None:
    """Check that greedy answers are as given, that drawn ones are reproducible and different, and that all match the
    schema."""
    prompts = [person(i) for i in range(6)]
    found = engine.generate(prompts, GREEDY)
    assert [result.token_ids for result in found] == greedy
    drawn, again = (engine.generate(prompts, SAMPLED) for _ in range(2))
    assert [result.token_ids for result in drawn] == [result.token_ids for result in again]
    assert [result.token_ids for result in drawn] != greedy
    for result in found + drawn:
        assert result.finish_reason is FinishReason.STOP, result
        jsonschema.validate(json.loads(result.text), PERSON)


def test_answers_are_those_of_the_engine_in_torch(engine: Engine, answers_in_torch: list[tuple[int, ...]]) -> None:
    expect_answers(engine, answers_in_torch)


def test_a_model_in_torch_with_the_mask_and_the_draw_in_jax(answers_in_torch: list[tuple[int, ...]]) -> None:
    with engine_of(runner="transformers") as built:
        expect_answers(built, answers_in_torch)


def test_a_model_in_jax_with_the_mask_and_the_draw_in_torch(answers_in_torch: list[tuple[int, ...]]) -> None:
    with engine_of(device_backend="torch", runner="jax") as built:
        found = built.generate([person(i) for i in range(6)], GREEDY)
    assert [result.token_ids for result in found] == answers_in_torch


def random_params(rng: random.Random) -> SamplingParams:
    options: dict[str, Any] = {"max_tokens": rng.randint(1, 60), "seed": rng.randrange(2**40)}
    if rng.random() < 0.6:
        options["constraint"] = rng.choice([JsonSchema(PERSON), Regex(r"([a-z]{1,6} ?){3,9}")])
    if rng.random() < 0.5:
        options["temperature"] = rng.choice([0.5, 1.0, 1.7])
        options |= rng.choice([{}, {}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"typical_p": 0.9}])
    if rng.random() < 0.4:
        options |= rng.choice([
            {"repetition_penalty": 1.2}, {"presence_penalty": 0.5}, {"logit_bias": {40: -1.0}},
            {"min_tokens": min(3, options["max_tokens"])},
            {"logprobs": 2},
        ])  # fmt: skip
    modifiers = {name: wanted for name, wanted in MODIFIERS.items() if rng.random() < 0.3}
    if "temperature" not in options:
        modifiers.pop("gumbel", None)  # it owns the draw
    return SamplingParams(**options, modifiers=modifiers)


def test_nothing_is_compiled_in_a_thousand_random_steps(engine: Engine, compiled: list[str]) -> None:
    runner = engine._executor._worker._runner
    assert len(list(runner.dummy_steps())) <= MOST_BUCKETS
    rng = random.Random(4)
    running: list[Generation] = []
    before, num_finished, numbers, sizes, advances = len(compiled), 0, set(), set(), set()
    for _ in range(NUM_STEPS):
        while len(running) < 8 and rng.random() < 0.3:
            running.append(engine.submit(person(rng.randrange(60)), random_params(rng)))
        if running and rng.random() < 0.02:
            rng.choice(running).abort()
        lengths = [len(generation._group.sequences[0].output) for generation in running]
        engine.step()
        advances |= {
            len(generation._group.sequences[0].output) - length
            for generation, length in zip(running, lengths, strict=True)
        }
        numbers.add(len(running))
        _, logits, _ = runner._state[0]
        sizes.add(len(logits))
        num_finished += sum(generation.result is not None for generation in running)
        running = [generation for generation in running if generation.result is None]
    assert len(compiled) == before
    assert num_finished > 50
    assert len(numbers) > 5
    assert len(sizes) > 2
    assert {1, 2, 3, 4} <= advances  # drafts are accepted
