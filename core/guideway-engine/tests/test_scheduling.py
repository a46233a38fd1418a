"""Order in which sequences run: chunked prompts, priorities, preemption, shared prefixes, fair shares, bounded
queues."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_support.engines import engine, tokens
from guideway import Engine, EngineConfig, FinishReason, QueueFull, Regex, SamplingParams
from guideway.api import LimitExceeded, UnsupportedCapability
from guideway_engine.generation import Generation

from tests.support.distributions import install
from tests.support.stages import everyday, one_in

GUIDED = {"guidance": {"scale": 2.0, "negative_prompt": [4, 100, 200]}}


@pytest.fixture(scope="module")
def roomy() -> Iterator[Engine]:
    with engine(enable_prefix_caching=False) as built:
        yield built


def forwards(built: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record the number of tokens that pass through the model in each step from now on."""
    seen: list[int] = []
    submit = built._executor.submit

    def watched(method: str, *args: Any) -> Any:
        if method == "forward":
            seen.append(args[0].num_tokens)
        return submit(method, *args)

    monkeypatch.setattr(built._executor, "submit", watched)
    return seen


def preemptions(built: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    seen: list[Any] = []
    preempt = built._scheduler._preempt

    def watched(sequence: Any) -> None:
        seen.append(sequence)
        preempt(sequence)

    monkeypatch.setattr(built._scheduler, "_preempt", watched)
    return seen


def test_a_long_prompt_is_computed_in_chunks_beside_others(roomy: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    long, short = tokens(1, 500), tokens(2, 9)
    params = SamplingParams(max_tokens=12)
    expected = [r.token_ids for r in roomy.generate([long, short], params)]
    with engine(max_num_batched_tokens=64) as chunked:
        seen = forwards(chunked, monkeypatch)
        first = chunked.submit(short, params)
        chunked.step()
        second = chunked.submit(long, params)
        for i in range(5):
            chunked.step()
            assert len(first._group.sequences[0].output) == 2 + i  # it never waits for the long one
        assert not second._group.sequences[0].output
        assert [first.wait().token_ids, second.wait().token_ids] == expected[::-1]
        assert max(seen) == 64


def test_a_better_priority_goes_first_and_takes_the_place_of_others(
    roomy: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [tokens(i, 20) for i in range(4)]
    params = [SamplingParams(max_tokens=15, priority=p, temperature=0.9, seed=3) for p in (5, 5, 5, 0)]
    expected = [r.token_ids for r in roomy.generate(prompts, params)]
    ended: list[int] = []
    with engine(max_num_seqs=2) as small:
        preempted = preemptions(small, monkeypatch)
        waiting = [small.submit(prompt, each) for prompt, each in zip(prompts[:3], params[:3], strict=True)]
        for _ in range(3):
            small.step()
        waiting.append(small.submit(prompts[3], params[3]))
        while small.has_work():
            small.step()
            ended += [i for i, g in enumerate(waiting) if g.result is not None and i not in ended]
        assert [g.wait().token_ids for g in waiting] == expected
    assert [s.arrival for s in preempted] == [1]  # the least important running sequence
    assert ended.index(3) < ended.index(1) < ended.index(2)


@pytest.mark.parametrize("num_speculative_tokens", everyday([0, 3], 3))
@pytest.mark.parametrize("modifiers", everyday([{}, GUIDED], {}), ids=["plain", "companions"])
def test_a_full_cache_preempts_and_changes_no_output(
    modifiers: dict[str, Any], num_speculative_tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "probes", {"modifier.guidance": "tests.support.probes"})
    monkeypatch.syspath_prepend(str(tmp_path))
    prompts = [tokens(i, 10 + 20 * i) for i in range(6)]
    params = [
        SamplingParams(max_tokens=70, temperature=0.8, seed=i, modifiers=modifiers, constraint=Regex("[a-z ]{80}"))
        for i in range(6)
    ]
    shared: dict[str, Any] = {
        "model": "demo", "modifiers": ("guidance",), "grammar": ("llguidance",), "max_model_len": 256,
        "dtype": "float64",
    }  # fmt: skip
    with Engine(EngineConfig(**shared)) as large:
        expected = [r.token_ids for r in large.generate(prompts, params)]
    with Engine(EngineConfig(**shared, kv_cache_tokens=512, num_speculative_tokens=num_speculative_tokens)) as small:
        preempted = preemptions(small, monkeypatch)
        results = small.generate(prompts, params)
        assert [r.error for r in results] == [None] * 6
        assert [r.token_ids for r in results] == expected
        assert preempted
        for sequence in preempted:  # companions are preempted with their sequence
            assert sequence.arrival > 0


def test_a_request_that_can_never_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "probes", {"modifier.guidance": "tests.support.probes"})
    monkeypatch.syspath_prepend(str(tmp_path))
    options: dict[str, Any] = {"modifiers": ("guidance",), "max_model_len": 256, "kv_cache_tokens": 256}
    with engine(**options) as small:
        grows, at_once, good = small.generate(
            [tokens(1, 20), tokens(1, 200), tokens(2, 20)],
            [SamplingParams(max_tokens=150, modifiers=GUIDED)] * 2 + [SamplingParams(max_tokens=150)],
        )
    assert (grows.finish_reason, at_once.finish_reason) == (FinishReason.INTERNAL_ERROR, FinishReason.REFUSED)
    assert grows.token_ids
    for result in (grows, at_once):
        assert isinstance(result.error, LimitExceeded)
        assert "kv_cache_tokens" in str(result.error)
    assert good.finish_reason is FinishReason.LENGTH
    with engine(modifiers=("guidance",), max_num_seqs=1) as narrow:
        (refused,) = narrow.generate([tokens(1, 20)], SamplingParams(max_tokens=5, modifiers=GUIDED))
        assert isinstance(refused.error, LimitExceeded)
        assert "only 1 sequences can run at once" in str(refused.error)


def test_a_shared_beginning_is_computed_once(roomy: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    beginning = tokens(1, 200)
    prompts = [[*beginning, *tokens(i, 5)] for i in range(2, 6)]
    params = SamplingParams(max_tokens=4)
    expected = [r.token_ids for r in roomy.generate(prompts, params)]
    with engine() as shared:
        seen = forwards(shared, monkeypatch)
        assert [shared.generate([prompt], params)[0].token_ids for prompt in prompts] == expected
        assert sum(seen) == 205 + 3 * 5 + 4 * 3
        seen.clear()
        generation = shared.submit(prompts[0], SamplingParams(max_tokens=4, n=3, temperature=1.0, seed=1))
        generation.wait()
        assert sum(seen) == 3 * (1 + 3)


@pytest.mark.parametrize(("kv_cache_tokens", "computed"), one_in(2, [(1024, 200 + 3 + 1 + 3), (256, 2 * (200 + 3))]))
def test_several_outputs_share_a_prompt_without_prefix_caching(
    kv_cache_tokens: int, computed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = SamplingParams(max_tokens=4, n=2, temperature=1.0, seed=1, ignore_eos=True)
    with engine(enable_prefix_caching=False, max_model_len=256, kv_cache_tokens=kv_cache_tokens) as built:
        seen = forwards(built, monkeypatch)
        assert built.generate([tokens(1, 200)], params)[0].error is None
        assert sum(seen) == computed
        built.generate([tokens(1, 200)], params)
        assert sum(seen) == 2 * computed, "another request computes its own"


def test_a_conversation_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as shared:
        prompt = tokens(1, 100)
        (answer,) = shared.generate([prompt], SamplingParams(max_tokens=30))
        seen = forwards(shared, monkeypatch)
        shared.generate([[*prompt, *answer.token_ids, *tokens(2, 10)]], SamplingParams(max_tokens=1))
        assert sum(seen) == 11  # the new tokens, and the last token of the answer, which was drawn but not computed


def test_tenants_share_fairly() -> None:
    with engine(max_num_seqs=2) as busy:
        prompts = [tokens(i, 20) for i in range(12)]
        ended: list[str] = []
        params = SamplingParams(max_tokens=8)
        generations = [(busy.submit(p, params, tenant="many", wait=False), "many") for p in prompts[:9]]
        busy.step()
        generations += [(busy.submit(p, params, tenant="few", wait=False), "few") for p in prompts[9:]]
        while busy.has_work():
            busy.step()
            for entry in [entry for entry in generations if entry[0].result is not None]:
                generations.remove(entry)
                ended.append(entry[1])
        assert ended.index("few") <= 3
        assert [i for i, tenant in enumerate(ended) if tenant == "few"][-1] <= 8


def test_the_queue_is_bounded() -> None:
    params = SamplingParams(max_tokens=3)
    with engine(max_num_seqs=1, max_waiting=2) as small:
        generations = [small.submit(tokens(i, 5), params, wait=False) for i in range(2)]
        with pytest.raises(QueueFull, match="max_waiting is 2"):
            small.submit(tokens(3, 5), params)
        small.step()
        generations.append(small.submit(tokens(3, 5), params))
        results = small.generate([tokens(i, 5) for i in range(7)], params)
        assert [len(r.token_ids) for r in results] == [3] * 7
        (refused,) = small.generate([tokens(1, 5)], SamplingParams(max_tokens=3, n=3, temperature=1.0))
        assert isinstance(refused.error, LimitExceeded)
        assert all(g.wait().error is None for g in generations)


def steps_until(built: Engine, generation: Generation, state: str) -> None:
    sequence = generation._group.sequences[0]
    reached = {
        "waiting": lambda: not sequence.slots,
        "computing": lambda: sequence.active and not sequence.output,
        "decoding": lambda: len(sequence.output) > 2,
        "preempted": lambda: bool(sequence.slots) and not sequence.active,
    }[state]
    for _ in range(100):
        if reached():
            return
        built.step()
    raise AssertionError(f"never {state}")


@pytest.mark.parametrize("state", one_in(2, ["waiting", "computing", "decoding", "preempted"]))
def test_a_request_may_be_aborted_at_any_moment(state: str) -> None:
    with engine(max_num_seqs=2, max_num_batched_tokens=64) as small:
        other = small.submit(tokens(1, 100), SamplingParams(max_tokens=40, ignore_eos=True))
        generation = small.submit(tokens(2, 200), SamplingParams(max_tokens=40, ignore_eos=True, priority=1))
        if state == "preempted":
            steps_until(small, generation, "decoding")
            more = small.submit(tokens(3, 30), SamplingParams(max_tokens=40, ignore_eos=True))
        steps_until(small, generation, state)
        generation.abort()
        assert generation.wait().finish_reason is FinishReason.ABORT
        assert other.wait().finish_reason is FinishReason.LENGTH
        if state == "preempted":
            assert more.wait().finish_reason is FinishReason.LENGTH


def test_a_fork_goes_on_from_where_it_was_made() -> None:
    params = SamplingParams(max_tokens=30, temperature=1.5, seed=9)
    with engine() as built:
        generation = built.submit(tokens(1, 40), params)
        steps_until(built, generation, "decoding")
        length = len(generation._group.sequences[0].output)
        assert generation.fork() == 1
        assert generation.fork(1) == 2
        first, second, third = generation.wait().outputs
        assert first.token_ids == built.generate([tokens(1, 40)], params)[0].token_ids
        assert first.token_ids[:length] == second.token_ids[:length] == third.token_ids[:length]
        assert len({first.token_ids, second.token_ids, third.token_ids}) == 3
        with pytest.raises(UnsupportedCapability, match="ended"):
            generation.fork()
        with pytest.raises(ValueError, match="no output 7"):
            generation.fork(7)


@pytest.mark.slow
def test_preempted_sequences_that_hold_all_slots_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More and more important requests arrive, until the next one needs slots that preempted ones hold."""
    install(tmp_path, "probes", {"modifier.guidance": "tests.support.probes"})
    monkeypatch.syspath_prepend(str(tmp_path))
    with engine(modifiers=("guidance",), max_num_seqs=3) as small:
        one = {"guidance": {"scale": 2.0, "negative_prompt": [4, 100, 200]}}
        generations = []
        for priority in (0, -1, -2, -3, -4):
            params = SamplingParams(max_tokens=12, priority=priority, modifiers=one, ignore_eos=True)
            generations.append(small.submit(tokens(-priority, 20), params))
            for _ in range(2):
                small.step()
        for _ in range(200):
            small.step()
        assert [g.result is not None for g in generations] == [True] * 5


@pytest.mark.slow
def test_urgent_requests_and_other_tenants_do_not_wait_for_a_long_prompt() -> None:
    with engine(max_num_batched_tokens=64) as small:
        long = small.submit(tokens(1, 900), SamplingParams(max_tokens=5), tenant="a")
        small.step()
        urgent = small.submit(tokens(2, 5), SamplingParams(max_tokens=2, priority=-5), tenant="a")
        other = small.submit(tokens(3, 5), SamplingParams(max_tokens=2), tenant="c")
        for _ in range(4):
            small.step()
        assert urgent.result is not None
        assert other.result is not None
        assert not long._group.sequences[0].output
        long.wait()


@pytest.mark.slow
def test_no_step_computes_more_than_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    repetitive = [10, 11, 12] * 10
    with engine(max_num_seqs=4, max_num_batched_tokens=12, num_speculative_tokens=8) as small:
        seen = forwards(small, monkeypatch)
        generations = [small.submit(repetitive, SamplingParams(max_tokens=40, ignore_eos=True)) for _ in range(4)]
        for generation in generations:
            generation.wait()
        assert max(seen) <= 12
        assert sum(n > 4 for n in seen) > 12  # drafts use the rest of the budget


@pytest.mark.slow
def test_a_tenant_with_a_pause_between_requests_takes_no_more_than_its_share() -> None:
    with engine(max_num_seqs=1) as small:
        backlog = [small.submit(tokens(i, 5), SamplingParams(max_tokens=5), tenant="b", wait=False) for i in range(60)]
        long = SamplingParams(max_tokens=50, ignore_eos=True)
        current, finished = small.submit(tokens(99, 5), long, tenant="a"), 0
        for _ in range(150):
            small.step()
            if current.result is not None:
                finished += 1
                current = small.submit(tokens(99, 5), long, tenant="a")
        done = sum(g.result is not None for g in backlog)
        assert finished >= 1
        assert done >= 8  # about half of the tokens
        for generation in [*backlog, current]:
            generation.abort()


def test_an_interrupted_fork_never_was(monkeypatch: pytest.MonkeyPatch) -> None:
    with engine() as built:
        for owner, name in ((built._runtime, "fork"), (built._scheduler._table, "_allocate")):
            generation = built.submit(tokens(1, 40), SamplingParams(max_tokens=12, ignore_eos=True))
            steps_until(built, generation, "decoding")
            work = getattr(owner, name)

            def interrupted(*args: Any, work: Any = work, **kwargs: Any) -> Any:
                work(*args, **kwargs)
                raise KeyboardInterrupt

            monkeypatch.setattr(owner, name, interrupted)
            with pytest.raises(KeyboardInterrupt):
                generation.fork()
            monkeypatch.setattr(owner, name, work)
            assert len(generation.wait().outputs) == 1


@pytest.mark.parametrize("enable_prefix_caching", one_in(2, [True, False]))
def test_a_fork_shares_what_is_computed(
    enable_prefix_caching: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "probes", {"modifier.guidance": "tests.support.probes"})
    monkeypatch.syspath_prepend(tmp_path)
    guided = {"guidance": {"scale": 2.0, "negative_prompt": tokens(2, 50)}}
    params = SamplingParams(max_tokens=12, ignore_eos=True, modifiers=guided)
    with engine(modifiers=("guidance",), enable_prefix_caching=enable_prefix_caching, dtype="float64") as built:
        generation = built.submit(tokens(1, 100), params)
        steps_until(built, generation, "decoding")
        seen = forwards(built, monkeypatch)
        generation.fork()
        first, second = generation.wait().outputs
        assert max(seen) == 2 * 2, "one token of each sequence and of its companion"
        assert first.token_ids == second.token_ids
        best = built.submit(tokens(1, 100), SamplingParams(max_tokens=12, temperature=1.0, best_of=2))
        with pytest.raises(UnsupportedCapability, match="best_of"):
            best.fork()
        best.wait()


@pytest.mark.parametrize("isolate_tenants", one_in(2, [False, True]))
def test_tenants_share_prefixes_and_grammars_unless_they_are_isolated(
    isolate_tenants: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = tokens(3, 100)
    params = SamplingParams(max_tokens=4, constraint=Regex("[a-z]{3}"))
    with engine(isolate_tenants=isolate_tenants, grammar=("llguidance",), grammar_host="inline") as built:
        seen = forwards(built, monkeypatch)
        first, again, other = (built.generate([prompt], params, tenants=tenant)[0] for tenant in ("a", "a", "b"))
        assert first.token_ids == again.token_ids == other.token_ids
        assert len([num_tokens for num_tokens in seen if num_tokens >= 100]) == (2 if isolate_tenants else 1)
        assert len(built._runtime._mask._compiler._work._kept) == (2 if isolate_tenants else 1)
