"""Penalties, bans, filters and log-probabilities through runtime and pipeline, compared with loops that recompute them
from the tokens at every step."""

from __future__ import annotations

import itertools
import pickle
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from guideway.api import (
    Choice,
    DeviceBackend,
    FinishReason,
    GenerationResult,
    LogitModifier,
    LogitTransform,
    Need,
    Payload,
    Regex,
    Request,
    Sampler,
    SamplingParams,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    StepInput,
)
from guideway.api.steps import Array, StepOutput
from guideway.devices.numpy.device import NumpyDevice
from guideway.devices.torch.device import TorchDevice
from guideway.pipeline.staged import BANS
from guideway.runtime.modifiers.rows import token_logprobs
from guideway_conformance.reference.strategy import Strategy
from transformers import RepetitionPenaltyLogitsProcessor

from tests.support.devices import StaticNumpy
from tests.support.fake_host import FakeHost, model
from tests.support.probes import Gumbel
from tests.support.stages import everyday, one_in
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
STOP = next(iter(VOCABULARY.stop_token_ids))
PROMPT = encode(VOCABULARY, b"the prompt")
DEVICES: list[DeviceBackend] = [NumpyDevice(), TorchDevice(), StaticNumpy()]


def host(device: DeviceBackend = DEVICES[0], *, cls: type[FakeHost] = FakeHost, **options: Any) -> FakeHost:
    return cls(VOCABULARY, device, strategies={"reference": Strategy(VOCABULARY, {})}, **options)


class Rebuilding(FakeHost):
    """Loses every state at every step, and rebuilds it from the journal."""

    def step(self) -> None:
        super().step()
        for slot in self.tokens:
            self.runtime.rebuild(slot)


class Watching(FakeHost):
    """Keeps the inputs of the worker."""

    def step(self) -> None:
        prepare = self.runtime.prepare

        def watched(batch: StepBatch) -> StepInput:
            self.steps.append(prepare(batch))
            return self.steps[-1]

        self.runtime.prepare = watched  # type: ignore[method-assign]
        try:
            super().step()
        finally:
            self.runtime.prepare = prepare  # type: ignore[method-assign]

    steps: list[StepInput]


def drawn_params(seed: int, *, filters: bool = False) -> SamplingParams:
    """Return random penalties, biases and bans; with `filters` also filters and a temperature."""
    rng = random.Random(seed)
    tokens = range(len(VOCABULARY))
    bias = {t: rng.choice([-np.inf, -3.0, 2.5, 6.0]) for t in rng.sample(tokens, rng.choice([0, 3, 20]))}
    warped: dict[str, Any] = {
        "temperature": rng.choice([0.6, 1.0, 2.0]),
        "top_k": rng.choice([0, 4, 40]),
        "top_p": rng.choice([1.0, 0.8]),
        "min_p": rng.choice([0.0, 0.05]),
        "typical_p": rng.choice([1.0, 0.9]),
    }
    return SamplingParams(
        max_tokens=rng.choice([8, 25]),
        min_tokens=rng.choice([0, 4, 8]),
        repetition_penalty=rng.choice([1.0, 1.2, 0.8]),
        frequency_penalty=rng.choice([0.0, 0.4, -0.7]),
        presence_penalty=rng.choice([0.0, 1.5, -0.5]),
        logit_bias=bias | ({STOP: 9.0} if rng.random() < 0.5 else {}),  # so that bans of it matter
        stop_token_ids=tuple(rng.sample(tokens, rng.choice([0, 2]))),
        ignore_eos=rng.random() < 0.2,
        seed=seed,
        **(warped if filters else {}),
    )


def greedy(prompt: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
    """Return the greedy tokens, by the formulas of OpenAI's reference and of `transformers`."""
    stops = {*params.stop_token_ids, *(() if params.ignore_eos else VOCABULARY.stop_token_ids)}
    output: list[int] = []
    assert params.max_tokens is not None
    while len(output) < params.max_tokens:
        tokens = [*prompt, *output]
        scores: Any = torch.tensor(model(tokens, VOCABULARY))[None]
        ids: Any = torch.tensor([tokens])
        if params.repetition_penalty != 1:
            scores = RepetitionPenaltyLogitsProcessor(params.repetition_penalty)(ids, scores)
        for token_id, value in params.logit_bias.items():
            scores[0, token_id] += value
        for token_id in set(output):
            count = output.count(token_id)
            scores[0, token_id] -= count * params.frequency_penalty + float(count > 0) * params.presence_penalty
        if len(output) < params.min_tokens:
            scores[0, list(stops)] = -torch.inf
        output.append(int(scores[0, : len(VOCABULARY)].argmax()))
        if output[-1] in stops:
            break
    return tuple(output)


def prompts(count: int) -> list[list[int]]:
    return [PROMPT + encode(VOCABULARY, str(i).encode()) for i in range(count)]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("num_drafts", one_in(3, [0, 3]))
@pytest.mark.parametrize("cls", everyday([FakeHost, Rebuilding], FakeHost))
def test_greedy_tokens_are_those_of_the_formulas(device: DeviceBackend, num_drafts: int, cls: type[FakeHost]) -> None:
    subject = host(device, cls=cls, num_drafts=num_drafts)
    for first in range(0, 48, 12):  # slots are reused
        wanted = [drawn_params(seed) for seed in range(first, first + 12)]
        results = subject.generate(prompts(12), wanted)
        for result, prompt, params in zip(results, prompts(12), wanted, strict=True):
            assert (result.error, result.unenforced) == (None, ())
            assert result.token_ids == greedy(prompt, params), params


@pytest.mark.parametrize("cls", one_in(2, [FakeHost, Rebuilding]))
def test_drafts_devices_and_rebuilt_states_change_no_draw(cls: type[FakeHost]) -> None:
    wanted = [drawn_params(seed, filters=True) for seed in range(12)]
    plain = [result.token_ids for result in host().generate(prompts(12), wanted)]
    assert len(set(plain)) == 12
    for device, num_drafts in itertools.product(DEVICES, (0, 3)):
        results = host(device, cls=cls, num_drafts=num_drafts).generate(prompts(12), wanted)
        assert [result.token_ids for result in results] == plain


def test_a_fork_has_the_counts_of_its_past_and_its_own_future() -> None:
    for seed in range(8):
        wanted = replace(drawn_params(seed), max_tokens=25, ignore_eos=True, stop_token_ids=())
        whole = greedy(PROMPT, wanted)
        subject = host()
        subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
        for _ in range(7):
            subject.step()
        subject.runtime.fork(0, 1, index=1)
        subject.tokens[1], subject.logprobs[1] = list(subject.tokens[0]), []
        subject.limits[1], subject.companions[1] = subject.limits[0] - 9, ()  # it ends before the other
        while subject.tokens:
            subject.step()
        assert subject.results[0].token_ids == whole
        assert subject.results[1].token_ids == whole[:16]


def test_a_journal_goes_on_elsewhere_with_the_same_counts() -> None:
    wanted = replace(drawn_params(5), max_tokens=25, ignore_eos=True, frequency_penalty=0.4, min_tokens=20)
    first, second = host(), host()
    request = Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted)
    first.join(2, request)
    for _ in range(9):
        first.step()
    journal = pickle.loads(pickle.dumps(first.runtime.journal(2)))
    second.join(4, request)
    second.runtime.release(4)
    second.runtime.start(second.runtime.admit(request), 4, journal=journal)
    second.tokens[4] = [*PROMPT, *journal.token_ids]
    while second.tokens:
        second.step()
    assert second.results[4].token_ids == greedy(PROMPT, wanted)


def test_a_rewound_journal_takes_its_counts_back() -> None:
    wanted = SamplingParams(max_tokens=9, frequency_penalty=3.0, repetition_penalty=1.5, min_tokens=9)
    subject = host()
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    for _ in range(5):
        subject.step()
    subject.runtime.prepare(StepBatch.build([0], [len(subject.tokens[0])]))
    subject.runtime.journal(0).rewind(3)
    del subject.tokens[0][len(PROMPT) + 3 :]
    while subject.tokens:
        subject.step()
    assert subject.results[0].token_ids == greedy(PROMPT, wanted)


# Inputs of the worker


def test_nothing_goes_down_where_nothing_is_asked_for() -> None:
    subject = Watching(VOCABULARY, DEVICES[0])
    subject.steps = []
    plain = SamplingParams(max_tokens=9, min_tokens=9, temperature=1.0, seed=1)
    users = [
        SamplingParams(max_tokens=3, repetition_penalty=1.2),
        SamplingParams(max_tokens=3, temperature=1.0, top_k=3, top_p=0.5, min_p=0.1, typical_p=0.5),
        SamplingParams(max_tokens=3, logprobs=2),
    ]
    subject.generate(prompts(4), [replace(plain, min_tokens=0, ignore_eos=True), *users])
    early, late = subject.steps[0], subject.steps[-1]
    assert early.warp is not None
    assert early.warp.top_k is not None
    assert early.warp.top_k.tolist() == [0, 0, 3, 0]
    assert early.warp.added is None
    assert early.num_logprobs is not None
    assert early.num_logprobs.tolist() == [-1, -1, -1, 2]
    assert (late.warp, late.num_logprobs) == (None, None)
    subject.steps = []
    subject.generate(prompts(2), [SamplingParams(max_tokens=9, top_k=3, top_p=0.5, min_p=0.3), plain])
    assert subject.steps[0].warp is not None  # the bans of min_tokens
    assert subject.steps[0].warp.top_k is None  # greedy
    subject.steps = []
    subject.generate(prompts(2), [plain, replace(plain, min_tokens=2, ignore_eos=True, max_tokens=4)])
    assert subject.steps[0].warp is not None
    assert subject.steps[0].warp.added is not None
    assert subject.steps[0].warp.added[0].tolist() == [0]
    subject.steps = []
    subject.generate([PROMPT], [replace(plain, min_tokens=2, max_tokens=6)])
    assert [step.warp is None for step in subject.steps[:3]] == [False, False, True]


def test_a_token_counts_once_for_each_time_it_is_drafted() -> None:
    wanted = SamplingParams(max_tokens=9, frequency_penalty=1.0, presence_penalty=0.25, logit_bias={5: 10.0, 9: 1.0})
    subject = host()
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    start = len(PROMPT)
    subject.runtime.accept(StepBatch.build([0], [start], [[5]]), [[5, 7]])
    drafts = [7, 8, 5, 8, 8, 5]
    step = subject.runtime.prepare(StepBatch.build([0], [start + 2], [drafts]))
    assert step.warp is not None
    assert step.warp.added is not None
    rows, columns, values = step.warp.added
    for j in range(len(drafts) + 1):
        output = [5, 7, *drafts[:j]]
        right = {t: -1.0 * output.count(t) - 0.25 * (t in output) + wanted.logit_bias.get(t, 0) for t in (5, 7, 8, 9)}
        here = rows == j
        got = dict(zip(columns[here].tolist(), values[here].tolist(), strict=True))
        assert {t: got.get(t, 0.0) for t in right} == right


@pytest.mark.parametrize("num_drafts", [0, 3])
def test_no_pair_goes_down_twice(num_drafts: int) -> None:
    subject = Watching(VOCABULARY, DEVICES[0], num_drafts=num_drafts)
    subject.steps = []
    subject.generate(prompts(12), [drawn_params(seed) for seed in range(12)])
    groups = [group for step in subject.steps if step.warp for group in (step.warp.repeated, step.warp.added) if group]
    assert len(groups) > 10
    for rows, columns, values in groups:
        assert len({*zip(rows.tolist(), columns.tolist(), strict=True)}) == len(rows) == len(values)
        assert [str(array.dtype) for array in (rows, columns, values)] == ["int32", "int32", "float32"]


# Rows without tokens


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("num_drafts", [0, 2])
def test_the_grammar_wins_over_bans_and_they_are_named(device: DeviceBackend, num_drafts: int) -> None:
    x, y = encode(VOCABULARY, b"x") + encode(VOCABULARY, b"y")
    once, letters = Choice(["x"]), Regex("[xy]{4}")
    none = {t: -np.inf for t in range(len(VOCABULARY)) if t != STOP}
    wanted = [
        SamplingParams(max_tokens=9, constraint=once, min_tokens=5),
        SamplingParams(max_tokens=9, constraint=once, logit_bias=none),
        SamplingParams(max_tokens=9, constraint=once, logit_bias=none, min_tokens=5),
        SamplingParams(max_tokens=9, constraint=letters, logit_bias={x: -np.inf}, min_tokens=2),
        SamplingParams(max_tokens=9, constraint=letters, logit_bias={x: -np.inf, y: -20.0}),
        SamplingParams(max_tokens=5, logit_bias=none | {STOP: -np.inf}),
        SamplingParams(max_tokens=5, logit_bias={x: -np.inf}, min_tokens=5),
    ]
    results = host(device, num_drafts=num_drafts).generate(prompts(len(wanted)), wanted)
    assert [set(result.unenforced) for result in results] == [
        {"min_tokens"},
        {"logit_bias"},
        {"min_tokens", "logit_bias"},
        set(),
        set(),
        {"logit_bias"},
        set(),
    ]
    assert [result.text for result in results[:3]] == ["x"] * 3
    assert [result.text for result in results[3:5]] == ["yyyy"] * 2
    assert all(result.error is None for result in results)
    assert [result.finish_reason for result in results[:3]] == [FinishReason.STOP] * 3


def test_a_row_without_its_bans_keeps_its_penalties() -> None:
    """The whole choice is banned, so the bans are not applied; the repetition penalty, which forbids nothing, is."""
    allowed = encode(VOCABULARY, b"wxyz")
    bans = dict.fromkeys(allowed, -np.inf)
    wanted = SamplingParams(max_tokens=9, constraint=Regex("[w-z]{8}"), logit_bias=bans)
    plain = host().generate(prompts(4), [wanted] * 4)
    penalized = host().generate(prompts(4), [replace(wanted, repetition_penalty=1000.0)] * 4)
    for prompt, result in zip(prompts(4), penalized, strict=True):
        assert result.unenforced == ("logit_bias",)
        for i, token_id in enumerate(result.token_ids[:8]):
            logits = model([*prompt, *result.token_ids[:i]], VOCABULARY)[allowed]
            seen = np.isin(allowed, result.token_ids[:i])
            logits = np.where(seen, np.where(logits > 0, logits / 1000, logits * 1000), logits)
            assert token_id == allowed[int(logits.argmax())]
    assert [result.token_ids for result in plain] != [result.token_ids for result in penalized]


class ForbidTransform(LogitTransform):
    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        columns = np.full((len(payload.rows), 1), encode(VOCABULARY, b"b")[0], dtype=np.int32)
        banned = step.ops.asarray(np.full((len(columns), 1), -np.inf, dtype=np.float32))
        return step.ops.scatter(logits, payload.rows, step.ops.asarray(columns), banned)


class ForbidB(LogitModifier[bool]):
    """Forbids one letter."""

    name, stage, transform, derived = "forbid_b", Stage.MASK, ForbidTransform, True

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        return Payload(batch.select(states)[0])


def test_modifiers_and_bans_are_told_apart() -> None:
    (a,), (b,) = (encode(VOCABULARY, text) for text in (b"a", b"b"))
    modifiers: Any = {"forbid_b": {}}
    wanted = [
        SamplingParams(max_tokens=9, constraint=Choice(["b"]), modifiers=modifiers),
        SamplingParams(max_tokens=9, constraint=Choice(["a", "b"]), modifiers=modifiers, logit_bias={a: -np.inf}),
        SamplingParams(max_tokens=9, constraint=Choice(["a", "b"]), modifiers=modifiers, logit_bias={b: -np.inf}),
        SamplingParams(max_tokens=9, constraint=Choice(["b"]), modifiers=modifiers, logit_bias={b: -np.inf}),
    ]
    results = host(modifiers=[ForbidB]).generate(prompts(4), wanted)
    assert [result.text for result in results] == ["b", "a", "a", "b"]
    assert [result.unenforced for result in results] == [
        ("modifier.forbid_b",),
        ("logit_bias",),
        (),
        ("modifier.forbid_b", "logit_bias"),
    ]


def test_what_was_overruled_is_in_the_journal_of_forks_and_rebuilt_states() -> None:
    wanted = SamplingParams(max_tokens=9, constraint=Regex("xy?"), logit_bias={encode(VOCABULARY, b"x")[0]: -np.inf})
    subject = host()
    subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
    while not subject.runtime.unenforced(0):
        subject.step()
    subject.runtime.fork(0, 1, index=1)
    subject.runtime.rebuild(0)
    for slot in (0, 1):
        assert subject.runtime.unenforced(slot) == ("logit_bias",)
        assert list(subject.runtime.journal(slot).overruled) == ["logit_bias"]


def test_bans_of_a_row_are_blamed_on_what_bans_there() -> None:
    """`min_tokens` is reached with the first of two final tokens."""
    wanted = SamplingParams(max_tokens=9, min_tokens=1, logit_bias={5: -np.inf})
    for row, names in ((0, {"min_tokens", "logit_bias"}), (1, {"logit_bias"}), (2, set())):
        subject = host()
        subject.join(0, Request(request_id="r", prompt_token_ids=tuple(PROMPT), params=wanted))
        batch = StepBatch.build([0], [len(PROMPT)], [[6, 7]])
        output = StepOutput(np.array([6, 8, 9], dtype=np.int32), overruled={row: BANS})
        subject.runtime.accept(batch, [[6, 8]], output)
        assert set(subject.runtime.unenforced(0)) == names


# Log-probabilities


def raw(tokens: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the log-probabilities of the model's own logits over the vocabulary."""
    logits = model(tokens, VOCABULARY)[: len(VOCABULARY)].astype(np.float64)
    return np.asarray(logits - np.log(np.exp(logits).sum()))


def check_logprobs(result: GenerationResult, prompt: Sequence[int], count: int) -> None:
    assert result.logprobs is not None
    assert [one.token_id for one in result.logprobs] == list(result.token_ids)
    for i, one in enumerate(result.logprobs):
        right = raw([*prompt, *result.token_ids[:i]])
        assert one.logprob == pytest.approx(right[one.token_id], abs=1e-5)
        order = np.argsort(-right, kind="stable")[:count].tolist()
        assert [token_id for token_id, _ in one.top] == order
        assert [value for _, value in one.top] == pytest.approx(right[order].tolist(), abs=1e-5)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
@pytest.mark.parametrize("num_drafts", [0, 3])
def test_logprobs_are_those_of_the_models_own_logits(device: DeviceBackend, num_drafts: int) -> None:
    """Greedy, drawn and owned rows, with changed logits, in a batch with rows that want none."""
    wanted = [
        SamplingParams(max_tokens=8, logprobs=3),
        SamplingParams(max_tokens=8),
        SamplingParams(max_tokens=8, temperature=1.5, top_k=9, seed=2, logprobs=0, min_tokens=8),
        SamplingParams(max_tokens=8, temperature=1.5, seed=3, logprobs=1, modifiers={"gumbel": {}}),
        SamplingParams(max_tokens=8, constraint=Regex("[a-c]{6}"), logprobs=len(VOCABULARY)),
        SamplingParams(max_tokens=8, logit_bias={5: 40.0}, repetition_penalty=3.0, logprobs=2),
    ]
    subject = host(device, num_drafts=num_drafts, modifiers=[Gumbel], offers=frozenset(Need) - {Need.SCHEDULER_DRAW})
    results = subject.generate(prompts(len(wanted)), wanted)
    for result, prompt, params in zip(results, prompts(len(wanted)), wanted, strict=True):
        assert len(result.token_ids) > 3
        if params.logprobs is None:
            assert result.logprobs is None
        else:
            check_logprobs(result, prompt, params.logprobs)
    assert results[5].token_ids[0] == 5


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_given_tokens_are_scored(device: DeviceBackend) -> None:
    tokens = prompts(1)[0]
    logits = np.stack([model(tokens[: i + 1], VOCABULARY) for i in range(len(tokens) - 1)])
    following = np.array(tokens[1:], dtype=np.int32)
    rows = np.arange(len(following), dtype=np.int32)
    pipeline = host(device).pipeline
    for count in (0, 4):
        scored = pipeline.score(device.ops.asarray(logits.copy()), rows, following, count)
        assert scored.top_ids.shape == scored.top.shape == (len(following), count)
        found = token_logprobs(scored, 0, tokens[1:], count, VOCABULARY)
        result = GenerationResult(request_id="r")
        output = replace(result.outputs[0], token_ids=tuple(tokens[1:]), logprobs=tuple(found))
        check_logprobs(replace(result, outputs=(output,)), tokens[:1], count)
    assert len(pipeline.score(device.ops.asarray(logits), rows[:0], following[:0], 3).chosen) == 0


class AstraySampler(Sampler):
    def sample(self, logprobs: Array, payload: Payload, step: Step) -> Array:
        return step.ops.argmax(step.ops.gather(logprobs, payload.rows)) * 0 + 10**6


class Astray(Gumbel):
    """Draws a token outside the vocabulary."""

    name, transform = "astray", AstraySampler  # type: ignore[assignment]


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_a_sampler_that_goes_astray_costs_nobody_elses_logprobs(device: DeviceBackend) -> None:
    wanted = SamplingParams(max_tokens=6, logprobs=2)
    bad = replace(wanted, temperature=1.0, modifiers={"astray": {}})
    before, broken, after = host(device, modifiers=[Astray]).generate(prompts(3), [wanted, bad, wanted])
    assert "astray" in str(broken.error)
    for result, prompt in ((before, prompts(3)[0]), (after, prompts(3)[2])):
        assert result.error is None
        check_logprobs(result, prompt, 2)
