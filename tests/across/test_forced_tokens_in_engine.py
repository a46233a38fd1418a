"""Forced tokens reduce the number of forward passes and, unless they are ``canonical``, change nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from guideway import Choice, Engine, EngineConfig, GenerationResult, JsonSchema, Regex, SamplingParams
from guideway.api import (
    CONTINUE,
    FINISH,
    Array,
    FinishReason,
    LogitModifier,
    LogitTransform,
    Outcome,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    hookimpl,
)
from guideway.api.bitmask import allocate, allow_only
from guideway_hosts.host import Host
from guideway_hosts.matchers import NOW, MatcherHost, MatcherRoom
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.distributions import install
from tests.support.json_strategies import STRATEGIES
from tests.support.stages import everyday, examples

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer"},
        "married": {"type": "boolean"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string", "maxLength": 20}, "city": {"enum": ["Bonn", "Berlin"]}},
            "required": ["street", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "married", "address"],
    "additionalProperties": False,
}
COMPACT = JsonSchema(PERSON, whitespace="compact")
PROMPT = "Extract name, age, married, address. Zoe Garcia, 31, is married and lives in Bonn, 5 Park Lane."
LONG = Regex("(forced beginning of the text )[a-z]{2}( and a forced end)")
PARAMS = [
    SamplingParams(max_tokens=120, constraint=COMPACT, logprobs=2),
    SamplingParams(max_tokens=120, temperature=1.0, seed=3, n=2, constraint=COMPACT),
    SamplingParams(max_tokens=120, temperature=1.3, seed=4, top_p=0.9, constraint=JsonSchema(PERSON), logprobs=0),
    SamplingParams(max_tokens=46, temperature=1.0, seed=5, constraint=COMPACT),  # closed early, or refused
    SamplingParams(max_tokens=30, temperature=1.0, seed=5, constraint=COMPACT, close=False),  # cut
    SamplingParams(max_tokens=120, temperature=1.0, seed=6, constraint=COMPACT, stop=('"married', 'r"')),
    SamplingParams(max_tokens=60, temperature=1.0, seed=7, constraint=LONG, min_tokens=40, logprobs=1),
    SamplingParams(max_tokens=60, temperature=1.0, seed=7, constraint=LONG, min_tokens=40),
    SamplingParams(max_tokens=60, temperature=1.0, seed=8, constraint=Choice(["one of two", "one of three", "none"])),
    SamplingParams(max_tokens=60, temperature=1.0, seed=9, constraint=LONG, prompt_logprobs=0, stop_token_ids=(2,)),
    SamplingParams(max_tokens=20, temperature=1.0, seed=10),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "auto": {},
    "exact": {"forced_tokens": "exact"},
    "inline": {"grammar_host": "inline"},
    "drafts": {"num_speculative_tokens": 3},
    "chunks": {"max_num_seqs": 3, "max_num_batched_tokens": 7},
    "preempted": {"kv_cache_tokens": 512},
    "workers": {"executor": "process"},
}


def config(strategy: str, **settings: Any) -> EngineConfig:
    # float64, since batching could otherwise change the rounding of a row and thus its draw
    shared: dict[str, Any] = {"model": "demo", "grammar": (strategy,), "dtype": "float64", "max_model_len": 256}
    return EngineConfig(**shared | {"max_num_seqs": 8} | settings)


def passes(engine: Engine) -> list[int]:
    """Return a list to which each forward pass appends its number of sequences."""
    found: list[int] = []
    stepper: Any = engine._scheduler._stepper  # type: ignore[attr-defined]
    run = stepper.run

    def counted(works: Any) -> Any:
        found.append(len(works))
        return run(works)

    stepper.run = counted
    return found


def generate(engine: Engine, params: Sequence[SamplingParams] = PARAMS) -> list[GenerationResult]:
    return engine.generate([f"{PROMPT} {i}" for i in range(len(params))], params)


def expect_equal(results: Sequence[GenerationResult], expected: Sequence[GenerationResult]) -> None:
    for result, wanted in zip(results, expected, strict=True):
        for output, reference in zip(result.outputs, wanted.outputs, strict=True):
            for name in ("text", "token_ids", "finish_reason", "stop", "unenforced", "closed_early", "reports"):
                assert getattr(output, name) == getattr(reference, name), name
            assert str(output.error) == str(reference.error)
            assert (output.logprobs is None) is (reference.logprobs is None)
            for entry, other in zip(output.logprobs or (), reference.logprobs or (), strict=True):
                assert entry.token_id == other.token_id
                assert entry.logprob == pytest.approx(other.logprob, abs=1e-4)
                assert [i for i, _ in entry.top] == [i for i, _ in other.top]
        assert len(result.prompt_logprobs or ()) == len(wanted.prompt_logprobs or ())


@cache
def without(strategy: str) -> list[GenerationResult]:
    """Return the results of a run without forced tokens."""
    with Engine(config(strategy, forced_tokens="off")) as engine:
        return generate(engine)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("settings", [SETTINGS["auto"], SETTINGS["inline"]], ids=["process", "inline"])
def test_no_strategys_output_changes(strategy: str, settings: dict[str, Any]) -> None:
    with Engine(config(strategy, **settings)) as engine:
        expect_equal(generate(engine), without(strategy))
    assert any(result.finish_reason is FinishReason.STOP for result in without(strategy))


@pytest.mark.slow
@pytest.mark.parametrize("name", SETTINGS)
def test_no_output_changes_however_the_engine_runs(name: str) -> None:
    with Engine(config("llguidance", **SETTINGS[name])) as engine:
        expect_equal(generate(engine), without("llguidance"))


MODES = [(mode, host) for mode in ("auto", "exact") for host in ("process", "inline")]


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    """The engine without forced tokens, and one for each way to have them, which remember what was forced before."""
    with ExitStack() as stack:
        ways = [("off", "inline"), *MODES]
        yield [
            stack.enter_context(Engine(config("llguidance", forced_tokens=mode, grammar_host=host)))
            for mode, host in ways
        ]


def drawn_schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Closed objects, some of them nested, with names and values that begin alike."""
    names = st.sampled_from(["name", "names", "age", "a", "zip code", "ü"])
    words = st.lists(st.sampled_from(["red", "redder", "blue", "n", ""]), min_size=1, max_size=3, unique=True)
    leaves = st.one_of(
        st.sampled_from(
            [
                {"type": "boolean"},
                {"type": "string", "maxLength": 5},
                {"type": "integer", "minimum": 0, "maximum": 999},
                {"type": "array", "items": {"const": "again"}, "maxItems": 3},
                {"const": {"all": ["of this", 1.5], "is": None}},
            ]
        ),
        st.builds(lambda texts: {"enum": texts}, words),
    )

    def closed(properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }

    objects = st.dictionaries(names, leaves, min_size=1, max_size=3).map(closed)
    return st.dictionaries(names, st.one_of(leaves, objects), min_size=1, max_size=3).map(closed)


def drawn_params(schema: dict[str, Any]) -> st.SearchStrategy[SamplingParams]:
    whitespace: st.SearchStrategy[Any] = st.sampled_from(["compact", "bounded", "spaced"])
    return st.builds(
        lambda seed, temperature, max_tokens, whitespace, stop_token_ids: SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop_token_ids=stop_token_ids,
            constraint=JsonSchema(schema, whitespace=whitespace),
        ),
        st.integers(0, 99),
        st.sampled_from([0.0, 1.0, 1.5]),
        st.sampled_from([12, 40]),
        whitespace,
        st.sampled_from([(), (), (100,), (263, 264)]),
    )


BATCHES = drawn_schemas().flatmap(lambda schema: st.lists(drawn_params(schema), min_size=1, max_size=5))


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(BATCHES)
def test_the_modes_draw_the_same_tokens(engines: list[Engine], params: list[SamplingParams]) -> None:
    off, *others = engines
    expected = generate(off, params)
    for engine in others:
        expect_equal(generate(engine, params), expected)


class Trace:
    """The events of an engine's steps, in order."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch, *, late: bool) -> None:
        self.events: list[str] = []
        scheduler: Any = engine._scheduler  # type: ignore[attr-defined]
        self.note(monkeypatch, scheduler._runtime, "accept")
        self.note(monkeypatch, scheduler._stepper._executor, "submit")
        self.note(monkeypatch, MatcherHost, "fill")
        self.note(monkeypatch, MatcherRoom, "begin", "ask")
        self.note(monkeypatch, Host, "answer")
        if late:  # as a host that has not answered when the next step is planned
            end = MatcherRoom.end
            monkeypatch.setattr(
                MatcherRoom, "end", lambda room, patience=None: patience is not NOW and end(room, patience)
            )

    def note(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, event: str = "") -> None:
        method = getattr(owner, name)

        def noting(*arguments: Any, **options: Any) -> Any:
            self.events.append(arguments[0] if name == "submit" else event or name)
            return method(*arguments, **options)

        monkeypatch.setattr(owner, name, noting)


@pytest.mark.parametrize("late", [False, True])
def test_no_step_waits_for_forced_tokens(monkeypatch: pytest.MonkeyPatch, late: bool) -> None:
    """From the accepted tokens on, the host works for the next step, which waits for nothing before the forward pass
    and for its masks after it began. What the host finds too late are drafts of the step after that."""
    params = [SamplingParams(max_tokens=60, constraint=COMPACT)]
    with Engine(config("llguidance")) as engine:
        counted = passes(engine)
        (expected,) = generate(engine, params)  # loads the grammar, and is as other sequences after it
        counted.clear()
        trace = Trace(engine, monkeypatch, late=late)
        other = JsonSchema({**PERSON, "title": "another grammar, of which nothing is known"}, whitespace="compact")
        (result,) = generate(engine, [SamplingParams(max_tokens=60, constraint=other)])
    assert result.token_ids == expected.token_ids
    assert len(counted) <= len(result.token_ids) - 5
    steps = " ".join(trace.events).split("accept")[1:-1]
    assert len(steps) > 10
    for step in steps:
        events = step.split()
        before, after = events[: events.index("forward")], events[events.index("forward") + 1 :]
        assert "ask" in before and "fill" not in before
        assert not late or "answer" not in before
        assert after[0] == "fill" and after[-1] == "sample"


@pytest.mark.slow
def test_forced_tokens_take_fewer_passes() -> None:
    params = [SamplingParams(max_tokens=120, constraint=COMPACT)]
    found = {}
    for mode in ("off", "auto", "exact", "canonical"):
        with Engine(config("llguidance", forced_tokens=mode, **SETTINGS["inline"])) as engine:  # no rows are late
            counted = passes(engine)
            (result,) = generate(engine, params)
            found[mode] = len(counted)
            assert mode != "off" or len(counted) == len(result.token_ids)
    # each of five keys has at least two forced tokens
    assert found["exact"] <= found["off"] - 2 * 5
    assert found["canonical"] <= found["exact"] == found["auto"]


@pytest.mark.parametrize(
    "asked", everyday([{"logprobs": 0}, {"min_tokens": 50}, {"logit_bias": {1: -math.inf}}], {"logprobs": 0}), ids=str
)
def test_an_end_that_is_the_only_choice_takes_no_pass_unless_somebody_looks_at_it(asked: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=60, constraint=Choice(["a", "b"]))
    with Engine(config("llguidance", **SETTINGS["inline"])) as engine:  # no rows are late
        counted = passes(engine)
        (unseen,) = generate(engine, [params])
        without_a_pass = len(counted)
        (seen,) = generate(engine, [SamplingParams(max_tokens=60, constraint=Choice(["a", "b"]), **asked)])
        assert len(counted) - without_a_pass == without_a_pass + 1
    assert unseen.token_ids == seen.token_ids
    assert unseen.finish_reason is seen.finish_reason is FinishReason.STOP


@pytest.mark.slow
def test_canonical_tokens_are_the_tokenizers_and_their_logprobs_the_models() -> None:
    key = "zyx qua vwk"  # none of its words is a token
    schema = {"type": "object", "properties": {key: {"enum": [1]}}, "required": [key], "additionalProperties": False}
    constraint = JsonSchema(schema, whitespace="compact")
    params = [
        SamplingParams(max_tokens=60, temperature=4.0, seed=seed, constraint=constraint, logprobs=0)
        for seed in range(6)
    ]
    with Engine(config("llguidance", forced_tokens="canonical")) as engine:
        counted = passes(engine)
        results = generate(engine, params)
        num_passes = len(counted)
        text = json.dumps({key: 1}, separators=(",", ":"))
        wanted = engine.vocabulary.encode(text.encode())
        assert wanted is not None
        for result in results:
            assert result.text == text
            assert list(result.token_ids[:-1]) == wanted
        assert num_passes < len(wanted)
        scored = engine.generate(
            [[*result.prompt_token_ids, *result.token_ids] for result in results],
            SamplingParams(max_tokens=1, prompt_logprobs=0),
        )
    for result, of_prompt in zip(results, scored, strict=True):
        assert result.logprobs is not None and of_prompt.prompt_logprobs is not None
        given = of_prompt.prompt_logprobs[-len(result.token_ids) :]
        assert [e.logprob for e in result.logprobs] == pytest.approx([e.logprob for e in given if e], abs=1e-4)
    with Engine(config("llguidance", forced_tokens="exact")) as engine:
        drawn = generate(engine, params)
    assert any(list(result.token_ids[:-1]) != wanted for result in drawn)  # the difference that canonical mode makes


class OnlyTransform(LogitTransform):
    bitmask = "allowed"

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return self.context.device.apply_bitmask(logits, payload.arrays["allowed"], payload.rows)


class Dictation(LogitModifier[list[int]]):
    """Allows only the tokens of its option; then it ends the output."""

    contract = "1.0"
    name, stage, transform = "dictation", Stage.MASK, OnlyTransform

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> list[int] | None:
        wanted = request.params.modifiers.get(self.name)
        return None if wanted is None else list(wanted["tokens"])

    def prepare(self, batch: StepBatch, states: Sequence[list[int] | None]) -> Payload | None:
        rows, sequences = batch.select(states)
        allowed = allocate(len(rows), self.context.vocabulary.logits_width)
        for place, (row, i) in enumerate(zip(rows.tolist(), sequences.tolist(), strict=True)):
            left, at = states[i] or [], row - int(batch.row_start[i])
            allow_only(allowed, place, left[at : at + 1] or left[-1:])
        return Payload(rows, {"allowed": allowed})

    def accept(self, state: list[int], token_ids: Sequence[int], feedback: Any) -> Outcome:
        del state[: len(token_ids)]
        return CONTINUE if state else FINISH

    def forced(self, state: list[int], limit: int) -> Sequence[int]:
        return state[:-1][:limit]


class Countdown(Dictation):
    """Ends the output after as many tokens as its option has, without announcing it."""

    name = "countdown"

    def prepare(self, batch: StepBatch, states: Sequence[list[int] | None]) -> None:
        return None

    def forced(self, state: list[int], limit: int) -> Sequence[int]:
        return ()


@hookimpl
def guideway_logit_modifier(name: str) -> type[LogitModifier[Any]]:
    return {"dictation": Dictation, "countdown": Countdown}[name]


@pytest.fixture
def own_modifiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of an engine that has these modifiers."""
    install(tmp_path, "own", {f"modifier.{name}": __name__ for name in ("dictation", "countdown")})
    monkeypatch.syspath_prepend(str(tmp_path))
    return {"modifiers": ("dictation", "countdown")}


def test_a_modifier_forces_tokens(own_modifiers: dict[str, Any]) -> None:
    ids = np.random.default_rng(1).integers(100, 1000, 40).tolist()
    params = [SamplingParams(max_tokens=60, temperature=1.0, modifiers={"dictation": {"tokens": ids}}, logprobs=0)]
    found = {}
    for mode in ("off", "exact"):
        with Engine(config("llguidance", forced_tokens=mode, **own_modifiers)) as engine:
            counted = passes(engine)
            found[mode] = generate(engine, params)
            assert found[mode][0].token_ids == tuple(ids)
            assert len(counted) == 40 if mode == "off" else len(counted) <= 5
    expect_equal(found["exact"], found["off"])


@pytest.mark.slow
def test_nothing_is_forced_past_where_a_modifier_may_end_the_output(own_modifiers: dict[str, Any]) -> None:
    params = [
        SamplingParams(max_tokens=60, constraint=constraint, modifiers={"countdown": {"tokens": [0] * num_tokens}})
        for constraint in (COMPACT, LONG)
        for num_tokens in (2, 5, 9)
    ]
    with Engine(config("llguidance", forced_tokens="exact", **own_modifiers)) as engine:
        results = generate(engine, params)
    assert [len(result.token_ids) for result in results] == [2, 5, 9] * 2
