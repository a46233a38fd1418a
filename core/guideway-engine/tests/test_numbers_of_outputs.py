"""Every number in an output equals the result of a plain forward pass of `transformers` over the same tokens.

This holds for chunked prompts, scored prompts, samples, drafts, forced tokens, companions, preempted sequences, and
steps repeated after interrupts. The tests use float64, so that the order of summation, which depends on the batch, does
not change compared numbers.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_support.models import randomized
from guideway import Engine, EngineConfig, Regex, SamplingParams
from guideway.devices.numpy.device import NumpyOps
from guideway.pipeline.view import DRAW
from guideway_demo_model import DemoModel
from guideway_engine.generation import Generation
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.support.distributions import install
from tests.support.stages import everyday

TOLERANCE = 1e-4
MAX_MODEL_LEN = 256
WIDTH = 1600
"""Width of the logits: more than the vocabulary's 1,536."""
BEGINNINGS = [[7 + i] * 40 for i in range(3)]
"""Common prefixes of prompts."""

MIXES: dict[str, dict[str, Any]] = {
    "whole": {"forced_tokens": "canonical"},
    "chunks": {"forced_tokens": "canonical", "max_num_batched_tokens": 48, "enable_prefix_caching": False},
    "drafts": {"max_num_batched_tokens": 200, "num_speculative_tokens": 4},
    "tight": {"max_num_batched_tokens": 100, "num_speculative_tokens": 3, "kv_cache_tokens": 512},
    "interrupted": {"max_num_batched_tokens": 100, "num_speculative_tokens": 3},
    "fused": {"max_num_batched_tokens": 100, "num_speculative_tokens": 3, "device_backend": "cpu"},
    "static": {"max_num_batched_tokens": 100, "num_speculative_tokens": 3, "device_backend": "sim_static"},
    "process": {"max_num_batched_tokens": 200, "num_speculative_tokens": 3, "executor": "process"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with a model, and install the modifier `witness`."""
    folder = tmp_path_factory.mktemp("model")
    shape = LlamaConfig(
        vocab_size=WIDTH,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        eos_token_id=2,
    )
    randomized(LlamaForCausalLM(shape), seed=1, scale=10).save_pretrained(folder)
    AutoTokenizer.from_pretrained(DemoModel().path()).save_pretrained(folder)
    install(folder / "plugins", "witnesses", {"modifier.witness": "engine_support.witness"})
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(folder / "plugins"))
        yield folder


class Reference:
    """Results of plain forward passes."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
        self.passed = cache(self._passed)

    def _passed(self, token_ids: tuple[int, ...]) -> tuple[Any, Any, Any]:
        """Return logits, log-probabilities and the last hidden state at each position."""
        with torch.inference_mode():
            output = self.model(torch.tensor([token_ids]), output_hidden_states=True)
        logits = output.logits[0, :, :1536]
        return logits.numpy(), torch.log_softmax(logits, 1).numpy(), output.hidden_states[-1][0].numpy()


def drawn_request(rng: random.Random, seed: int) -> tuple[list[int], SamplingParams]:
    """Return a random prompt and parameters."""
    prompt = rng.choice([[], *BEGINNINGS]) + [rng.randrange(5, 1536) for _ in range(rng.choice([1, 3, 20, 60, 120]))]
    if rng.random() < 0.3:
        prompt = (prompt[-12:] * 10)[:90]  # a repetition, so that drafts are found
    options: dict[str, Any] = {"max_tokens": rng.randint(1, 24), "priority": rng.choice([0, 0, 1, -1]), "seed": seed}
    if rng.random() < 0.5:
        options |= {"temperature": rng.choice([0.3, 1.0]), "n": rng.choice([1, 2, 3])}
    if rng.random() < 0.6:
        options["logprobs"] = rng.choice([0, 0, 3, 20])
    if rng.random() < 0.5:
        options["prompt_logprobs"] = rng.choice([0, 0, 2])
    if rng.random() < 0.3:
        options["modifiers"] = {"witness": {"companion": [rng.randrange(5, 1536) for _ in range(rng.randint(1, 50))]}}
    if rng.random() < 0.2:
        options |= {"constraint": Regex("(abcdefgh|[0-9]{3,8} ){2,4}"), "close": False}
    return prompt, SamplingParams(**options)


def check_scores(entries: Any, token_ids: Any, logprobs: Any, count: int) -> None:
    """Check that `entries` of tokens match the rows of `logprobs`."""
    assert [entry.token_id for entry in entries] == list(token_ids)
    for entry, row in zip(entries, logprobs, strict=True):
        assert entry.logprob == pytest.approx(row[entry.token_id], abs=TOLERANCE)
        assert [logprob for _, logprob in entry.top] == pytest.approx(np.sort(row)[::-1][:count], abs=TOLERANCE)
        assert [row[token_id] for token_id, _ in entry.top] == pytest.approx(
            [logprob for _, logprob in entry.top], abs=TOLERANCE
        )
        assert len({token_id for token_id, _ in entry.top}) == count


def check_draw(token_id: int, logprobs: Any, params: SamplingParams, place: tuple[int, int], *, gumbel: bool) -> None:
    """Check that `token_id` is the most probable token, or the one drawn by the random numbers of `place`, which is the
    index of the sequence and the position in it: by Gumbel noise, or as the first one where the cumulative probability
    exceeds one random number."""
    if not params.temperature:
        assert logprobs[token_id] > logprobs.max() - TOLERANCE
        return
    logits = (logprobs - logprobs.max()) / params.temperature
    seed, index, position = (np.array([number]) for number in (params.seed, *place))
    uniforms = NumpyOps().uniform(seed, index, position, DRAW, len(logits) if gumbel else 1)[0].astype(np.float64)
    if gumbel:
        noisy = logits - np.log(-np.log(uniforms))
        assert noisy[token_id] > noisy.max() - TOLERANCE
        return
    sums = np.append(0, np.cumsum(np.exp(logits) / np.exp(logits).sum()))
    assert sums[token_id] - TOLERANCE <= uniforms[0] <= sums[token_id + 1] + TOLERANCE


def check(generation: Generation, params: SamplingParams, reference: Reference, *, gumbel: bool) -> None:
    """Check all numbers of one result."""
    result = generation.result
    assert result is not None
    prompt = result.prompt_token_ids
    if params.prompt_logprobs is None:
        assert result.prompt_logprobs is None
    else:
        first, *others = result.prompt_logprobs or ()
        assert first is None
        check_scores(others, prompt[1:], reference.passed(prompt)[1][:-1], params.prompt_logprobs)
    assert [output.error for output in result.outputs] == [None] * params.n
    for output in result.outputs:
        token_ids = output.token_ids
        logits, logprobs, hidden = (rows[len(prompt) - 1 : -1] for rows in reference.passed((*prompt, *token_ids)))
        if params.logprobs is not None:
            check_scores(output.logprobs, token_ids, logprobs, params.logprobs)
        if params.constraint is None:
            for i, token_id in enumerate(token_ids):
                check_draw(token_id, logprobs[i], params, (output.index, len(prompt) + i), gumbel=gumbel)
        if wanted := params.modifiers.get("witness"):
            companion = tuple(wanted["companion"])
            beside = reference.passed((*companion, *token_ids))[0][len(companion) - 1 : -1]
            positions = range(len(prompt), len(prompt) + len(token_ids))
            previous = (*prompt, *token_ids)[len(prompt) - 1 : -1]
            expected = [logits.max(1), beside.max(1), hidden.sum(1), previous, positions]
            read = np.array(output.reports["witness"]["rows"])
            assert read == pytest.approx(np.array(expected).T, abs=TOLERANCE)


def interrupt(owner: Any, name: str, *, after: bool) -> None:
    """Let the next call of ``owner.name`` raise, before or after its work."""
    work = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> None:
        setattr(owner, name, work)
        if after:
            work(*args, **kwargs)
        signal.raise_signal(signal.SIGINT)  # like Ctrl-C: not from a `raise` statement

    setattr(owner, name, call)


@pytest.mark.parametrize(("mix", "seed"), everyday([(mix, seed) for mix in MIXES for seed in range(2)], ("tight", 0)))
def test_numbers_are_those_of_a_plain_forward_pass(mix: str, seed: int, folder: Path) -> None:
    rng = random.Random(f"{mix} {seed}")
    requests = [drawn_request(rng, i) for i in range(40)]
    config = EngineConfig(
        model=str(folder), dtype="float64", grammar=("llguidance",), modifiers=("witness",), max_num_seqs=24,
        **MIXES[mix],
    )  # fmt: skip
    seen: Counter[str] = Counter()
    with Engine(config) as engine:
        scheduler: Any = engine._scheduler
        run, preempt = scheduler._stepper.run, scheduler._preempt

        def counted(works: list[Any]) -> Any:
            seen["scored beside samples"] += any(w.samples for w in works) and sum(w.num_scored > 0 for w in works) > 1
            seen["drafts"] += any(w.drafts for w in works)
            return run(works)

        def counted_preempt(sequence: Any) -> None:
            seen["preempted"] += any(scheduler._cache.length(slot) for slot in sequence.slots)
            preempt(sequence)

        scheduler._stepper.run, scheduler._preempt = counted, counted_preempt
        moments = [
            (engine._executor, "submit"),
            (scheduler._cache, "executed"),
            (scheduler._cache, "advance"),
            (scheduler._stepper._outputs, "keep_scores"),
            (engine._runtime, "accept"),
        ]
        generations: list[Generation] = []
        while len(generations) < len(requests) or engine.has_work():
            for _ in range(rng.choice([0, 1, 5, 20])):
                if len(generations) < len(requests):
                    generations.append(engine.submit(*requests[len(generations)]))
            if mix == "interrupted" and rng.random() < 0.5:
                interrupt(*rng.choice(moments), after=rng.random() < 0.5)
            try:
                engine.step()
            except KeyboardInterrupt:
                seen["interrupted"] += 1
    assert seen["scored beside samples"]
    assert seen["drafts"]
    assert mix != "tight" or seen["preempted"]
    assert mix != "interrupted" or seen["interrupted"] > 5
    reference = Reference(folder)
    for generation, (_, params) in zip(generations, requests, strict=True):
        check(generation, params, reference, gumbel=mix == "static")
