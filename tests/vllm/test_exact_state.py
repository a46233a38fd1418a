"""Exact state of modifiers and constraints: whatever vLLM does to a request, its tokens are the same as when it runs
alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.vllm.conftest import USES_V2
from tests.vllm.probes_in_vllm import GUIDEWAY, check_nothing_left, core_of, installed, params, prompt

SMALL = {
    "max_model_len": 224,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 512,
    "long_prefill_token_threshold": 100,
    "block_size": 32,
    "num_gpu_blocks_override": 9,
    "scheduling_policy": "priority",
    "disable_log_stats": False,
}
"""Room for two or three requests, so that others are preempted. Long prompts are split into chunks."""
DRAFTS = {
    "method": "ngram_gpu" if USES_V2 else "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
REPEATED = "(no, never again, not (once|twice)! ){3}"
GREEN = {"green_list": {"key": 3, "delta": 4.0}}
LATE = {"second": {"label": "late"}}
DRAWN = {"temperature": 1.8, "top_k": 40}

KINDS: dict[str, dict[str, Any]] = {
    "chain": {"modifiers": {"chain": {}}, "ignore_eos": True},
    "chain under a schema": {"modifiers": {"chain": {"strength": 2.0}}, "json": SCHEMA},
    "chain, repeated": {"modifiers": {"chain": {}}, "regex": REPEATED},
    "drawn": {"modifiers": {"chain": {"strength": 2.0}, "gumbel": {}}, "seed": 5, "ignore_eos": True, **DRAWN},
    "drawn, repeated": {"modifiers": {"gumbel": {}, "chain": {}}, "seed": 6, "regex": REPEATED, **DRAWN},
    "late": {"modifiers": {**LATE, **GREEN}, "regex": "[a-z ]{60,90}"},
    "late, repeated": {"modifiers": {**LATE, "chain": {}}, "regex": REPEATED},
    "schema": {"json": SCHEMA, "strategy": "xgrammar"},
    "repeated": {"regex": REPEATED},
    "plain": {"ignore_eos": True},
}
MAX_TOKENS = 48


@dataclass(frozen=True)
class Job:
    """A request, with the steps at which it arrives and is aborted."""

    kind: str
    number: int
    """Number of its prompt."""
    at: int = 0
    """Step at which it arrives."""
    priority: int = 0
    aborted_at: int | None = None
    n: int = 1
    """Number of its sequences."""
    later_seed: int = 0

    @property
    def params(self) -> Any:
        given = {"max_tokens": MAX_TOKENS, "n": self.n, **KINDS[self.kind]}
        if self.later_seed:
            given["seed"] += self.later_seed
        return params(given.pop("modifiers", None), strategy=given.pop("strategy", None), **given)

    @property
    def prompt(self) -> list[int]:
        return prompt(self.number, padding=4 * (self.number % 4))


def run(llm: Any, jobs: Sequence[Job]) -> list[list[list[int]]]:
    """Return the tokens of each sequence of each job, also of aborted ones."""
    engine = llm.llm_engine
    found: list[list[list[int]]] = [[[] for _ in range(job.n)] for job in jobs]
    step = 0
    while step <= max(job.at for job in jobs) or engine.has_unfinished_requests():
        for i, job in enumerate(jobs):
            if job.at == step:
                engine.add_request(str(i), {"prompt_token_ids": job.prompt}, job.params, priority=job.priority)
            if job.aborted_at == step:
                engine.abort_request([str(i)])
        for output in engine.step():
            job = jobs[int(output.request_id)]
            for one in output.outputs:
                found[int(output.request_id)][one.index] = list(one.token_ids)
                assert one.finish_reason in (None, "stop", "length"), (job, one)
        step += 1
    return found


def counter_value(llm: Any, name: str) -> int:
    """Return the value of one of vLLM's counters."""
    return sum(metric.value for metric in llm.get_metrics() if metric.name == f"vllm:{name}")


@pytest.fixture(scope="module", autouse=True)
def probes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with installed(tmp_path_factory.mktemp("installed")):
        yield


ALL = [Job(kind, number) for number, kind in enumerate(KINDS)]
FORKED = Job("drawn", 2, n=4)


@pytest.fixture(scope="module")
def alone(start: Callable[..., Any], probes: None) -> dict[Job, list[list[int]]]:
    """Return the tokens of each job in an otherwise idle vLLM with enough room; each of several sequences as a request
    of its own."""
    llm = start(GUIDEWAY)
    split = [Job(FORKED.kind, FORKED.number, later_seed=i) for i in range(FORKED.n)]
    return {
        **{job: run(llm, [job])[0] for job in ALL},
        FORKED: [run(llm, [job])[0][0] for job in split],
    }


SCHEDULING = [
    pytest.param({"async_scheduling": True}, id="asynchronous"),
    pytest.param({"async_scheduling": False}, id="synchronous", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=SCHEDULING if USES_V2 else [pytest.param({}, id="synchronous")])
def small(
    request: pytest.FixtureRequest, start: Callable[..., Any], alone: dict[Job, list[list[int]]]
) -> Callable[..., Any]:
    """``small(**options)``: a vLLM with little room. Expected tokens are computed first."""
    return lambda **options: start(GUIDEWAY, **SMALL, **request.param, **options)


def expected(alone: Mapping[Job, list[list[int]]], jobs: Sequence[Job]) -> list[list[list[int]]]:
    """Return the tokens of these jobs when run alone."""
    return [alone[Job(job.kind, job.number, n=job.n)] for job in jobs]


def has_slots_for_all(llm: Any) -> bool:
    """Return whether there are slots for all sequences: with asynchronous scheduling a guest has slots for two
    steps."""
    return core_of(llm).runtime.context.max_num_sequences >= 2 * SMALL["max_num_seqs"]


@dataclass
class Watched:
    """Events of a guest's sequences."""

    num_parked: int = 0
    num_resumed: int = 0


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], Watched]:
    """Counts how often a started sequence gave its slot up, and got one again."""

    def watched(llm: Any) -> Watched:
        core, seen = core_of(llm), Watched()
        vacated, started = core._preempted_slot, core.runtime.start

        def vacate(*args: Any) -> int:
            seen.num_parked += 1
            return vacated(*args)

        def begin(*args: Any, journal: Any = None, **kwargs: Any) -> None:
            seen.num_resumed += journal is not None
            started(*args, journal=journal, **kwargs)

        monkeypatch.setattr(core, "_preempted_slot", vacate)
        monkeypatch.setattr(core.runtime, "start", begin)
        return seen

    return watched


@pytest.mark.slow
def test_preemption_and_prompts_in_chunks(small: Callable[..., Any], alone: dict[Job, list[list[int]]]) -> None:
    llm = small()
    before = counter_value(llm, "num_preemptions")
    for _ in range(3):
        assert run(llm, ALL) == expected(alone, ALL)
    assert counter_value(llm, "num_preemptions") >= before + 3
    assert sum(len(job.prompt) > SMALL["long_prefill_token_threshold"] for job in ALL) >= 3
    check_nothing_left(llm)


def test_more_begun_than_may_run(
    small: Callable[..., Any], alone: dict[Job, list[list[int]]], watch: Callable[[Any], Watched]
) -> None:
    """Later requests have priority, so that some started ones have to give up their slots."""
    llm = small()
    jobs = [Job(job.kind, job.number, at=6 * i, priority=-i) for i, job in enumerate([*ALL, *ALL])]
    assert run(llm, jobs) == expected(alone, jobs)  # requests that wait until their constraint is compiled come later
    seen = watch(llm)
    assert run(llm, jobs) == expected(alone, jobs)
    assert seen.num_parked >= 2 or has_slots_for_all(llm)
    assert seen.num_resumed == seen.num_parked
    check_nothing_left(llm)


def test_several_sequences_of_one_request(small: Callable[..., Any], alone: dict[Job, list[list[int]]]) -> None:
    llm = small()
    jobs = [FORKED, *ALL[:2]]
    assert run(llm, jobs) == expected(alone, jobs)
    assert len({tuple(tokens) for tokens in alone[FORKED]}) == 4
    check_nothing_left(llm)


def test_a_prompt_that_is_cached(small: Callable[..., Any], alone: dict[Job, list[list[int]]]) -> None:
    llm = small()
    job = next(job for job in ALL if len(job.prompt) > 64)
    llm.llm_engine.reset_prefix_cache()
    before = counter_value(llm, "prefix_cache_hits")
    assert run(llm, [job]) + run(llm, [job]) == expected(alone, [job, job])
    assert counter_value(llm, "prefix_cache_hits") >= before + 16
    check_nothing_left(llm)


@pytest.mark.slow
def test_aborted_in_the_middle(
    small: Callable[..., Any], alone: dict[Job, list[list[int]]], watch: Callable[[Any], Watched]
) -> None:
    """Aborted before they start, while they run, and while they are preempted or have no slot."""
    llm = small()
    seen = watch(llm)
    for delay in (0, 4, 25, 50):
        jobs = [Job(job.kind, job.number, at=6 * i, priority=-i, n=job.n) for i, job in enumerate([*ALL, FORKED])]
        jobs[::2] = [replace(job, aborted_at=job.at + delay) for job in jobs[::2]]
        tokens, whole = run(llm, jobs), expected(alone, jobs)
        assert tokens[1::2] == whole[1::2]
        for some, every in zip(tokens[::2], whole[::2], strict=True):
            assert all(one == other[: len(one)] for one, other in zip(some, every, strict=True))
        check_nothing_left(llm)
    # some were aborted while they had no slot
    assert seen.num_parked > seen.num_resumed or has_slots_for_all(llm)


ONE_BY_ONE = pytest.param(False, marks=[pytest.mark.slow] if USES_V2 else [])


@pytest.mark.parametrize("together", [ONE_BY_ONE, True])
def test_drafts(
    small: Callable[..., Any],
    alone: dict[Job, list[list[int]]],
    watch: Callable[[Any], Watched],
    together: bool,
) -> None:
    """One by one, and all together in the small vLLM."""
    llm = small(speculative_config=DRAFTS)
    names = ("spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens", "num_preemptions")
    before = [counter_value(llm, name) for name in names]
    if together:
        late = [Job(job.kind, job.number, at=2 * i, priority=-i) for i, job in enumerate(ALL)]
        assert run(llm, late) == expected(alone, ALL)
    else:
        assert [run(llm, [job])[0] for job in ALL] == expected(alone, ALL)
    drafted, accepted, preempted = (counter_value(llm, name) - count for name, count in zip(names, before, strict=True))
    assert 20 < accepted < drafted - 20
    assert preempted > 0 or not together
    check_nothing_left(llm)


def test_what_a_constraint_forces_is_drafted(small: Callable[..., Any]) -> None:
    """The constraint provides drafts that n-grams cannot, which saves steps; not in V2, where drafts never leave the
    device."""
    llm = small(speculative_config=DRAFTS)
    said = "Yours sincerely, without any doubt, the undersigned."
    asked = params(regex=f"[a-c]{re.escape(said)}[d-f]", max_tokens=64)
    taken = counter_value(llm, "spec_decode_num_accepted_tokens")
    (output,) = llm.generate([{"prompt_token_ids": prompt(0)}], asked, use_tqdm=False)
    assert said in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"
    # the model may spell in other tokens, and a host under load proposes nothing
    assert counter_value(llm, "spec_decode_num_accepted_tokens") - taken >= (0 if USES_V2 else 4)
    check_nothing_left(llm)
