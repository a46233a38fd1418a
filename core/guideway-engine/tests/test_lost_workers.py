"""Workers that are lost during steps, and how the engine continues."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from engine_support.engines import engine, tokens
from guideway import Engine, FinishReason, Regex, SamplingParams
from guideway.api import WorkerLost
from guideway.errors import Unhealthy
from guideway_engine.executors import restarting
from guideway_engine.executors.local.executor import Done
from guideway_engine.executors.restarting import ATTEMPTS

from tests.support.stages import everyday, one_in


class Lost:
    """A call whose workers are lost."""

    def wait(self, seconds: float) -> bool:
        return True

    def result(self) -> Any:
        raise WorkerLost("worker 0 is gone")

    results = result


def lose_workers(built: Engine, monkeypatch: pytest.MonkeyPatch, times: list[int]) -> list[int]:
    """Lose the workers in the calls of ``sample`` with these numbers. Return a list that records restarts."""
    submit, restart = built._executor.submit, built._executor.restart
    count, restarts = 0, []

    def watched(method: str, *args: Any) -> Any:
        nonlocal count
        if method == "sample":
            count += 1
            if count in times:
                return Lost()
        return submit(method, *args)

    def counted() -> None:
        restarts.append(count)
        restart()

    monkeypatch.setattr(built._executor, "submit", watched)
    monkeypatch.setattr(built._executor, "restart", counted)
    return restarts


class Deaths:
    """Loses the workers of a local executor in the calls with the numbers `at`. New workers have the same model and
    empty caches."""

    def __init__(self, executor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: list[int] = []
        self.count = 0
        self._lost = False
        self._submit = executor.submit
        monkeypatch.setattr(executor, "submit", self.submit)
        monkeypatch.setattr(executor, "restart", self.restart)

    def submit(self, method: str, *args: Any) -> Any:
        self.count += 1
        self._lost = self._lost or self.count in self.at
        if self._lost:
            return Lost()
        return Done() if method == "load" else self._submit(method, *args)

    def restart(self) -> None:
        self.count += 1
        self._lost = self.count in self.at


@pytest.mark.slow
@pytest.mark.parametrize("num_runs", everyday([5, 20], 5))
def test_runs_with_two_losses_anywhere_lose_nothing(
    num_runs: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restarting, "LONGEST_PAUSE", 0.0)
    prompts = [tokens(i, 20) for i in range(4)]
    params = [
        SamplingParams(max_tokens=4, temperature=0.9, seed=1, constraint=Regex("[a-z]{2}[0-9]{9}")),
        SamplingParams(max_tokens=4, temperature=1.0, seed=2, n=2),
        SamplingParams(max_tokens=4, temperature=0.9, seed=3, repetition_penalty=1.3, logprobs=1),
        SamplingParams(max_tokens=4, prompt_logprobs=1),
    ]

    def said(results: Any) -> list[Any]:
        return [
            [(output.token_ids, [entry.token_id for entry in output.logprobs or ()]) for output in result.outputs]
            + [len(result.prompt_logprobs or ())]
            for result in results
        ]

    small: dict[str, Any] = {
        "max_num_batched_tokens": 30,
        "max_num_seqs": 8,
        "max_model_len": 64,
        "kv_cache_tokens": 1024,
    }
    with engine(grammar=("llguidance",), dtype="float64", **small) as built:
        expected = said(built.generate(prompts, params))
        deaths = Deaths(built._executor, monkeypatch)
        for run in range(num_runs):
            rng = random.Random(run)
            first = rng.randrange(1, 11)
            deaths.count, deaths.at = 0, [first, first + rng.choice([1, 2, 3, 4, 5, rng.randrange(1, 20)])]
            assert said(built.generate(prompts, params)) == expected, deaths.at
    for attempt, least in ((1, num_runs), (2, num_runs // 6)):
        assert caplog.text.count(f"worker 0 is gone; restarting the workers (attempt {attempt} of 8)") >= least


def test_who_costs_the_workers_their_lives_is_found_and_costs_nobody_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = [tokens(i, 10) for i in range(4)]
    with engine(dtype="float64") as built:
        expected = [r.token_ids for r in built.generate(prompts, SamplingParams(max_tokens=8))]
        submit = built._executor.submit
        generations = [built.submit(prompt, SamplingParams(max_tokens=8)) for prompt in prompts]
        killer = generations[2]._group.sequences[0]

        def watched(method: str, *args: Any) -> Any:
            alive = method != "sample" or args[0] is None or len(killer.output) < 3 or not killer.slots
            return submit(method, *args) if alive or killer.slots[0] not in args[0].batch.slots else Lost()

        monkeypatch.setattr(built._executor, "submit", watched)
        results = [generation.wait() for generation in generations]
        assert isinstance(results[2].error, WorkerLost)
        assert results[2].token_ids == expected[2][:3]
        assert [r.token_ids for i, r in enumerate(results) if i != 2] == [e for i, e in enumerate(expected) if i != 2]
        assert caplog.text.count("restarting the workers") == 3, "the step of all, and two of it alone"
        assert "the third such loss in a step of this request" in str(results[2].error)


@pytest.mark.parametrize("event", one_in(2, ["aborted", "preempted"]))
def test_a_suspect_that_does_not_go_on_keeps_nobody_waiting(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    with engine(max_num_seqs=2) as built:
        restarts = lose_workers(built, monkeypatch, [3])
        generations = [built.submit(tokens(i, 10), params) for i in range(2)]
        while not restarts:
            built.step()
        if event == "aborted":
            generations[0].abort()
        else:
            generations += [built.submit(tokens(i, 10), replace(params, priority=-1)) for i in range(2)]
        for _ in range(40):
            built.step()
        assert [g.result.finish_reason for g in generations if g.result] == [
            FinishReason.ABORT if event == "aborted" and i == 0 else FinishReason.LENGTH
            for i in range(len(generations))
        ]


def test_an_interrupted_restart_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as built:
        (expected,) = built.generate([tokens(1, 10)], SamplingParams(max_tokens=8))
        lose_workers(built, monkeypatch, [3])
        generation = built.submit(tokens(1, 10), SamplingParams(max_tokens=8))
        restart, calls = built._executor.restart, 0

        def interrupted() -> None:
            nonlocal calls
            calls += 1
            restart()  # the new worker has no model
            if calls == 1:
                raise KeyboardInterrupt

        monkeypatch.setattr(built._executor, "restart", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generation.wait()
        assert generation.wait().token_ids == expected.token_ids
        assert calls == 2


@pytest.mark.parametrize("num_failures", one_in(2, [ATTEMPTS - 1, ATTEMPTS]))
def test_only_after_the_last_attempt_ends_what_there_is(
    num_failures: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(restarting, "LONGEST_PAUSE", 0.0)
    with engine() as built:
        (expected,) = built.generate([tokens(1, 10)], SamplingParams(max_tokens=8, n=2, temperature=1.0, seed=1))
        lose_workers(built, monkeypatch, [2])
        restart, failures = built._executor.restart, iter(range(num_failures))

        def broken() -> None:
            if next(failures, None) is not None:
                raise RuntimeError("no memory")
            restart()

        monkeypatch.setattr(built._executor, "restart", broken)
        (result,) = built.generate([tokens(1, 10)], SamplingParams(max_tokens=8, n=2, temperature=1.0, seed=1))
        attempts = [f"attempt {i + 1} of {ATTEMPTS}" in caplog.text for i in range(ATTEMPTS)]
        if num_failures < ATTEMPTS:
            assert [output.token_ids for output in result.outputs] == [output.token_ids for output in expected.outputs]
            built.check_health()
        else:
            assert "could not be restarted in 8 attempts: RuntimeError: no memory" in str(result.error)
            assert isinstance(result.error, WorkerLost)
            with pytest.raises(Unhealthy, match="could not be restarted"):
                built.check_health()
        assert all(attempts)
        assert built.generate([tokens(1, 10)], SamplingParams(max_tokens=8))[0].error is None
        built.check_health()


@pytest.mark.slow
def test_while_workers_are_restarted_others_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as built:
        (expected,) = built.generate([tokens(1, 10)], SamplingParams(max_tokens=8))
        lose_workers(built, monkeypatch, [3])
        submit, is_up = built._executor.submit, False

        class Loading:
            def __init__(self, call: Any) -> None:
                self.result = call.result

            def wait(self, seconds: float) -> bool:
                return is_up

        monkeypatch.setattr(
            built._executor, "submit", lambda m, *a: Loading(submit(m, *a)) if m == "load" else submit(m, *a)
        )
        generations = [built.submit(tokens(1, 10), SamplingParams(max_tokens=8)) for _ in range(2)]
        while not built.is_waiting():
            built.step()
        before = list(generations[1]._group.sequences[0].output)
        generations.append(built.submit(tokens(1, 10), SamplingParams(max_tokens=8)))
        built.step(timeout=0)
        generations[1].abort()
        assert generations[1].result is not None and list(generations[1].result.token_ids) == before
        built.step(timeout=0)
        assert built.is_waiting() and built.has_work()
        is_up = True
        assert [generations[i].wait().token_ids for i in (0, 2)] == [expected.token_ids] * 2
