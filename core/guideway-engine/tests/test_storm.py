"""Requests of random lengths, priorities and tenants arrive, fork and are aborted with a KV cache that is ten times too
small. Finished outputs must equal the outputs of a run alone, and nothing may be left behind.

The tests use float64, where the order of summation changes logits by less than the difference between any two tokens,
so that outputs do not depend on the batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_support.models import randomized
from guideway import Engine, EngineConfig, FinishReason, Regex, SamplingParams
from guideway_demo_model import DemoModel
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.support.distributions import install
from tests.support.planned_events import Plan
from tests.support.stages import everyday

MAX_NUM_SEQS = 32
MAX_MODEL_LEN = 128
KV_CACHE_TOKENS = MAX_NUM_SEQS * MAX_MODEL_LEN // 10
BEGINNINGS = [[7 + i] * 30 for i in range(3)]
"""Common prefixes of prompts."""


def plans(count: int, rng: random.Random) -> list[Plan]:
    found = []
    for i in range(count):
        prompt = rng.choice([[], *BEGINNINGS]) + [rng.randrange(5, 1536) for _ in range(rng.randint(1, 40))]
        num_tokens = rng.randint(1, 50)
        options: dict[str, Any] = {"max_tokens": num_tokens, "priority": rng.choice([0, 0, 0, 1, -1]), "seed": i}
        if rng.random() < 0.6:
            options |= {"temperature": rng.choice([0.5, 1.0, 2.0]), "n": rng.choice([1, 1, 1, 2, 3])}
            options |= rng.choice([{}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"typical_p": 0.9}])
        options |= rng.choice(
            [{}, {}, {"repetition_penalty": 1.2}, {"frequency_penalty": 0.7, "presence_penalty": 0.3}, {"logprobs": 2}]
        )
        if rng.random() < 0.3:
            options["constraint"] = Regex("([a-z]{1,6} ?){3,9}")
        elif rng.random() < 0.3:
            options["modifiers"] = {"gumbel": {}} if options.get("temperature") else {"green_list": GREEN}
        plan = Plan(prompt, SamplingParams(**options), rng.choice(["", "a", "b"]))
        if rng.random() < 0.1:
            plan.abort_at = rng.randint(0, num_tokens)
        elif rng.random() < 0.15 and not options.get("modifiers"):
            plan.fork_at = rng.randint(1, num_tokens)
        found.append(plan)
    return found


GREEN = {"key": 3, "delta": 2.0}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder: Path = tmp_path_factory.mktemp("model")
    shape = LlamaConfig(
        vocab_size=1536,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        eos_token_id=2,
    )
    randomized(LlamaForCausalLM(shape), seed=1, scale=10).save_pretrained(folder)
    AutoTokenizer.from_pretrained(DemoModel().path()).save_pretrained(folder)
    install(folder / "plugins", "probes", {f"modifier.{n}": "tests.support.probes" for n in ("green_list", "gumbel")})
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder / "plugins"))
        yield {
            "model": str(folder),
            "dtype": "float64",
            "grammar": ("llguidance",),
            "modifiers": ("green_list", "gumbel"),
            "max_num_seqs": MAX_NUM_SEQS,
        }


def storm(engine: Engine, todo: list[Plan], rng: random.Random) -> int:
    """Run everything, with arrivals in bursts. Return how often computed tokens were preempted."""
    waiting = list(todo)
    running: list[Plan] = []
    preempted = 0
    scheduler: Any = engine._scheduler
    preempt = scheduler._preempt

    def counted(sequence: Any) -> None:
        nonlocal preempted
        preempted += any(scheduler._cache.length(slot) for slot in sequence.slots)
        preempt(sequence)

    scheduler._preempt = counted
    while waiting or engine.has_work():
        for _ in range(rng.choice([0, 0, 1, 5, 40])):
            if waiting and scheduler.num_waiting < 400:
                plan = waiting.pop(0)
                plan.generation = engine.submit(plan.prompt, plan.params, tenant=plan.tenant)
                running.append(plan)
        engine.step()
        for plan in running:
            plan.act()
        running = [plan for plan in running if plan.generation is not None and plan.generation.result is None]
    return preempted


def alone(engine: Engine, plan: Plan) -> list[tuple[int, ...]]:
    """Return the outputs of one request in an empty engine, forked at the same lengths as in the storm."""
    generation = engine.submit(plan.prompt, plan.params)
    first = generation._group.sequences[0]
    for length in plan.forked_at:
        while len(first.output) < length:
            engine.step()
        generation.fork()
    return [output.token_ids for output in generation.wait().outputs]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "num_speculative_tokens", "forced_tokens"),
    everyday(
        [(60, 0, "off"), (60, 3, "off"), (60, 3, "exact"), (500, 0, "exact"), (500, 3, "exact")], (60, 3, "exact")
    ),
)
def test_outputs_in_a_storm_are_those_of_a_run_alone(
    count: int, num_speculative_tokens: int, forced_tokens: Any, config: dict[str, Any]
) -> None:
    rng = random.Random(count + num_speculative_tokens)
    todo = plans(count, rng)
    tight = EngineConfig(
        **config,
        kv_cache_tokens=KV_CACHE_TOKENS,
        max_num_batched_tokens=64,
        num_speculative_tokens=num_speculative_tokens,
        forced_tokens=forced_tokens,
        short_budget="cut",
    )
    with Engine(tight) as engine:
        preempted = storm(engine, todo, rng)
        scheduler, runtime = engine._scheduler, engine._runtime
        assert scheduler._cache.capacity() == scheduler._cache.num_slots
        assert not scheduler._running
        assert scheduler.num_waiting == 0
        assert not scheduler._table.served._busy
        assert not runtime._open
        assert not runtime._slots.taken()
        kept = sum(holder.region.size for holder in scheduler._cache._kept.values() if holder.region is not None)
        assert scheduler._cache._free.num_free() + kept == scheduler._cache.num_cells
    finished = 0
    # one token per step, so that outputs are forked at the same length
    one_by_one = EngineConfig(**config, enable_prefix_caching=False, short_budget="cut", forced_tokens="off")
    with Engine(one_by_one) as engine:
        for plan in todo:
            assert plan.generation is not None
            result = plan.generation.result
            assert result is not None
            assert [output.error for output in result.outputs] == [None] * len(result.outputs)
            expected = alone(engine, plan)
            assert len(result.outputs) == len(expected)
            for output, token_ids in zip(result.outputs, expected, strict=True):
                if output.finish_reason is FinishReason.ABORT:
                    assert output.token_ids == token_ids[: len(output.token_ids)]
                else:
                    finished += 1
                    assert output.token_ids == token_ids
    assert finished > 0.8 * count
    assert preempted > count // 10
    assert any(plan.forked_at for plan in todo)
