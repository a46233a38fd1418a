"""The tokens of a sequence do not depend on what happens to it, in any order of events.

Requests of every stage arrive at random times, with random priorities, in a vLLM with room for two or three: they are
preempted, their prompts are chunked, their drafts are refused, some are aborted, some fork, and each takes a slot that
another has left.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.vllm.conftest import USES_V2
from tests.vllm.probes_in_vllm import GUIDEWAY, check_nothing_left, installed
from tests.vllm.test_exact_state import DRAFTS, KINDS, SMALL, Job, counter_value, run

EPISODES = {False: 2, True: 2} if USES_V2 else {False: 25, True: 8}
"""Number of episodes, without and with drafts."""
JOBS = 22 if USES_V2 else 30
"""Jobs per episode: in all more than 1,000 sequences in V1, and 100 in V2, where steps take 50 times as long."""
NUMBERS = 1 if USES_V2 else 5
"""Prompts of each kind."""
SEQUENCES = 3
"""Sequences of a request with several."""


@pytest.fixture(scope="module", autouse=True)
def probes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(tmp_path_factory.mktemp("installed")):
        yield


@pytest.fixture(scope="module")
def alone(start: Callable[..., Any], probes: None) -> dict[tuple[str, int, int], list[int]]:
    """Return the tokens of each kind, prompt and sequence in an otherwise idle vLLM."""
    llm, found = start(GUIDEWAY), {}
    for kind in KINDS:
        for number in range(NUMBERS):
            for later in range(SEQUENCES if "seed" in KINDS[kind] else 1):
                found[kind, number, later] = run(llm, [Job(kind, number, later_seed=later)])[0][0]
    return found


def episode(rng: random.Random) -> list[Job]:
    """Return jobs that arrive soon after one another, some of which are aborted."""
    jobs = []
    for _ in range(JOBS):
        kind, at = rng.choice(list(KINDS)), rng.randrange(2 * JOBS)
        aborted_at = at + rng.randrange(60) if rng.random() < 0.25 else None
        n = rng.randint(1, SEQUENCES) if "seed" in KINDS[kind] else 1
        jobs.append(Job(kind, rng.randrange(NUMBERS), at, rng.randrange(-3, 4), aborted_at, n))
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize("drafts", [False, True])
def test_tokens_are_those_of_an_undisturbed_run(
    start: Callable[..., Any], alone: dict[tuple[str, int, int], list[int]], drafts: bool
) -> None:
    llm = start(GUIDEWAY, **SMALL, **({"speculative_config": DRAFTS} if drafts else {}))
    names = ["num_preemptions", *(["spec_decode_num_draft_tokens"] if drafts else [])]
    before = [counter_value(llm, name) for name in names]
    num_whole = num_cut = 0
    for seed in range(EPISODES[drafts]):
        jobs = episode(random.Random(seed + 1000 * drafts))
        for job, sequences in zip(jobs, run(llm, jobs), strict=True):
            for index, token_ids in enumerate(sequences):
                expected = alone[job.kind, job.number, index]
                if job.aborted_at is not None:
                    expected = expected[: len(token_ids)]
                assert token_ids == expected, (seed, job, index)
                num_whole += job.aborted_at is None
                num_cut += job.aborted_at is not None
        check_nothing_left(llm)
    print(f"{num_whole} sequences whole, {num_cut} given up")
    assert num_whole >= EPISODES[drafts] * JOBS / 2
    assert num_cut >= EPISODES[drafts]
    happened = [counter_value(llm, name) - count for name, count in zip(names, before, strict=True)]
    assert min(happened) > 10, dict(zip(names, happened, strict=True))
