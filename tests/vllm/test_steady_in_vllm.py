"""Batches that stay the same in vLLM's own process: their tokens are accepted in one call, and are those of a request
that runs alone, whatever vLLM does to it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from guideway_hosts.host import Host
from guideway_vllm.core import Pending

from tests.vllm.conftest import USES_V2
from tests.vllm.probes_in_vllm import check_nothing_left, core_of
from tests.vllm.test_exact_state import DRAFTS, SMALL, Job, run

pytestmark = pytest.mark.skipif(USES_V2, reason="the guest is the same, and steps take 50 times as long")

INLINE = {"grammar": ["xgrammar", "llguidance"], "grammar_host": "inline"}
KINDS = ["schema", "repeated", "plain"]


@pytest.fixture(scope="module")
def alone(start: Callable[..., Any]) -> dict[tuple[str, int], list[int]]:
    llm = start(INLINE)
    return {(kind, number): run(llm, [Job(kind, number)])[0][0] for kind in KINDS for number in range(3)}


def jobs_of(seed: int) -> list[Job]:
    rng = random.Random(seed)
    return [
        Job(
            rng.choice(KINDS),
            rng.randrange(3),
            at=rng.randrange(24),
            priority=rng.randrange(-3, 4),
            aborted_at=rng.randrange(24, 60) if rng.random() < 0.2 else None,
        )
        for _ in range(16)
    ]


@pytest.mark.parametrize(("home", "drafts"), [("inline", False), ("inline", True), ("process", False)])
def test_tokens_are_those_of_a_request_alone(
    start: Callable[..., Any],
    alone: dict[tuple[str, int], list[int]],
    home: str,
    drafts: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    llm = start({**INLINE, "grammar_host": home}, **SMALL, **({"speculative_config": DRAFTS} if drafts else {}))
    core, together, dropped = core_of(llm), [0], [0]
    accept_step = core.accept_step

    def accept(pending: Pending, token_ids: Any) -> None:
        accept_step(pending, token_ids)
        together[0] += len(core._outcomes)
        if core._outcomes and together[0] % 5 == 0:  # vLLM drops a token now and then: it is accepted again, by itself
            core.take_back()
            dropped[0] += 1

    monkeypatch.setattr(core, "accept_step", accept)
    for seed in range(2):
        jobs = jobs_of(seed)
        for job, (token_ids,) in zip(jobs, run(llm, jobs), strict=True):
            expected = alone[job.kind, job.number]
            assert token_ids == (expected if job.aborted_at is None else expected[: len(token_ids)]), (seed, job)
        check_nothing_left(llm)
    if not drafts:  # else steps of one token each are rare
        assert together[0] > 50
        assert dropped[0] > 3


def test_a_request_that_starts_is_sent_to_the_host_with_the_others(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the forward pass, in the command for the next step of the batch that it joins."""
    llm, joined = start({**INLINE, "grammar_host": "process"}, max_num_seqs=2), [0]
    send = Host.send

    def record(host: Host, *command: Any, **options: Any) -> None:
        if command[:1] == ("again",) and command[4]:  # the next step
            joined[0] += len(command[3])
        send(host, *command, **options)

    run(llm, [Job("schema", 0)])  # the grammar is loaded, so that no row is late
    monkeypatch.setattr(Host, "send", record)
    run(llm, [Job("schema", 0), *[Job("schema", i % 3, at=8) for i in range(7)]])  # one of two ends, and one starts
    assert joined[0] > 0
