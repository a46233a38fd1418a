"""Requests with random contributed modifiers arrive, fork and are aborted in an engine with too small a KV cache, with
drafts, whose worker is killed twice. Their tokens and records are those of a run that nothing disturbs.

The model runs in float64, where the order of summation changes logits by less than the difference between any two
tokens.
"""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np
import pytest
from guideway import Engine, EngineConfig, FinishReason, Records, Regex, SamplingParams

from tests.benchmarks.kill_soak import workers
from tests.support.planned_events import Plan
from tests.support.stages import everyday

MAX_MODEL_LEN = 112
MAX_NUM_SEQS = 16
PROBE = {"weight": [(-1.0) ** i for i in range(192)], "token_ids": list(range(0, 1200, 3))}
OWNERS = ("mirostat", "gumbel_max")
WISHES: dict[str, dict[str, Any]] = {
    "kgw": {"key": 5, "delta": 3.0},
    "dry": {"multiplier": 3.0, "allowed_length": 1},
    "steering": {"probe": "p", "strength": 10.0},
    "cfg": {"negative_prompt": "Meet Anna.", "scale": 1.5},
    "hello": {"letter": "e", "strength": -2.0},
    "healing": {"tokens": 2},
    "no_repeat_ngram": {"ngram_size": 2},
    "top_n_sigma": {"n": 2.0},
    "xtc": {"threshold": 0.02},
    "p_less": {"normalized": True},
    "dynamic_temperature": {"least": 0.8, "most": 2.5},
    "mirostat": {"target": 3.0},
    "gumbel_max": {"key": 5},
}
CONFIG: dict[str, Any] = {
    "model": "demo",
    "dtype": "float64",
    "grammar": ("llguidance",),
    "modifiers": tuple(WISHES),
    "options": {"modifier.steering": {"probes": {"p": PROBE}}},
    "max_num_seqs": MAX_NUM_SEQS,
    "max_model_len": MAX_MODEL_LEN,
    "short_budget": "cut",
}


def plan(number: int, rng: random.Random) -> Plan:
    beginning = rng.choice([[], [7] * 20, [9] * 20])
    prompt = [*beginning, *([rng.randrange(5, 1200) for _ in range(rng.randint(2, 12))] * rng.randint(1, 2))]
    num_tokens = rng.randint(2, 24)
    temperature = rng.choice([0.0, 1.0, 1.0, 2.0])
    names = rng.sample([name for name in WISHES if name not in OWNERS], rng.randint(0, 6))
    names += [rng.choice(OWNERS)] if temperature and rng.random() < 0.5 else []
    n = 1 if "gumbel_max" in names or not temperature else rng.choice([1, 2, 3])
    bound = "healing" not in names and rng.random() < 0.3
    params = SamplingParams(
        max_tokens=num_tokens,
        temperature=temperature,
        n=n,
        seed=number,
        priority=rng.choice([0, 0, 1, -1]),
        modifiers={name: WISHES[name] for name in names},
        constraint=Regex("([a-z]{1,6} ?){3,9}") if bound else None,
        records=rng.random() < 0.3,
        ignore_eos=not bound,
    )
    made = Plan(prompt, params)
    if rng.random() < 0.15:
        made.abort_at = rng.randint(0, num_tokens)
    elif rng.random() < 0.3:
        made.fork_at = rng.randint(1, num_tokens)
    return made


def storm(engine: Engine, plans: list[Plan], rng: random.Random) -> tuple[int, int]:
    """Run all requests, and kill the worker twice. Return the numbers of preemptions and of refused drafts."""
    waiting, running = list(plans), list[Plan]()
    kills = [len(plans) // 3, 2 * len(plans) // 3]
    preempted = num_refused = 0
    scheduler: Any = engine._scheduler
    preempt, outputs = scheduler._preempt, engine._scheduler._stepper._outputs
    final_tokens = outputs.final_tokens

    def counted(sequence: Any) -> None:
        nonlocal preempted
        preempted += any(scheduler._cache.length(slot) for slot in sequence.slots)
        preempt(sequence)

    def compared(sampled: Any, late: Any, batch: Any, token_ids: Any) -> Any:
        nonlocal num_refused
        finals = final_tokens(sampled, late, batch, token_ids)
        num_refused += batch.num_rows - sum(map(len, finals))
        return finals

    scheduler._preempt, outputs.final_tokens = counted, compared
    while waiting or engine.has_work():
        for _ in range(rng.choice([0, 0, 1, 5, 20])):
            if waiting:
                running.append(waiting.pop(0))
                running[-1].generation = engine.submit(running[-1].prompt, running[-1].params)
        engine.step()
        for each in running:
            each.act()
        running = [each for each in running if each.generation is not None and each.generation.result is None]
        num_done = len(plans) - len(waiting) - len(running)
        if kills and num_done >= kills[0] and (alive := workers()):
            kills.pop(0)
            os.kill(alive[0], signal.SIGKILL)
    assert not kills
    return preempted, num_refused


def alone(engine: Engine, asked: Plan) -> Any:
    """Return the result of one request in an empty engine, forked at the same lengths as in the storm."""
    generation = engine.submit(asked.prompt, asked.params)
    first = generation._group.sequences[0]
    for length in asked.forked_at:
        while len(first.output) < length:
            engine.step()
        generation.fork()
    return generation.wait()


def agree(records: Records | None, others: Records | None, num_tokens: int) -> None:
    assert (records is None) == (others is None)
    if records is None or others is None:
        return
    assert len(records) == num_tokens
    for name in ("model", "drawn", "pressure", "allowed"):
        np.testing.assert_allclose(getattr(records, name), getattr(others, name)[:num_tokens], atol=1e-4)
    assert [set(records.changed_by(i)) for i in range(num_tokens)] == [
        set(others.changed_by(i)) for i in range(num_tokens)
    ]


@pytest.mark.parametrize(
    ("num_requests", "num_sequences", "num_drafts"),
    everyday([(14, 15, 3), (450, 620, 0), (450, 620, 2), (450, 620, 4)], (14, 15, 3)),
)
def test_tokens_are_those_of_an_undisturbed_run(num_requests: int, num_sequences: int, num_drafts: int) -> None:
    rng = random.Random(num_requests + num_drafts)
    plans = [plan(number, rng) for number in range(num_requests)]
    tight = EngineConfig(
        **CONFIG,
        executor="process",
        kv_cache_tokens=4 * MAX_MODEL_LEN,
        max_num_batched_tokens=48,
        num_speculative_tokens=num_drafts,
    )
    with Engine(tight) as engine:
        preempted, num_refused = storm(engine, plans, rng)
        assert not engine._runtime._open and not engine._runtime._slots.taken()
    found = whole = 0
    with Engine(EngineConfig(**CONFIG, enable_prefix_caching=False, forced_tokens="off")) as engine:
        for number, asked in enumerate(plans):
            assert asked.generation is not None and asked.generation.result is not None
            result, expected = asked.generation.result, alone(engine, asked)
            assert len(result.outputs) == len(expected.outputs)
            for output, other in zip(result.outputs, expected.outputs, strict=True):
                assert output.error is None, (number, asked.params, output.error)
                cut = output.finish_reason is FinishReason.ABORT
                token_ids = other.token_ids[: len(output.token_ids)] if cut else other.token_ids
                assert output.token_ids == token_ids, (number, asked.params)
                agree(output.records, other.records, len(token_ids))
                found, whole = found + 1, whole + (not cut)
    print(f"{found} sequences, {whole} whole; {preempted} preemptions, {num_refused} drafts refused")
    assert found >= num_sequences and found > whole > 0
    assert preempted > 0
    assert any(asked.forked_at for asked in plans)
    assert num_refused > 0 or not num_drafts
