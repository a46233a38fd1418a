"""The engine and modifiers on simulated accelerators: no code accesses their memory directly, reuses a consumed array,
or waits more than once per step, and the results are the same as with plain arrays."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from engine_support.prompts import PERSON, booking, chat, person
from guideway import Choice, Engine, EngineConfig, FinishReason, GenerationResult, JsonSchema, Regex, SamplingParams
from guideway.api import (
    Array,
    DeviceBackend,
    InvalidConfiguration,
    LogitModifier,
    LogitTransform,
    Need,
    Payload,
    Request,
    SequenceInfo,
    Stage,
    Step,
    StepBatch,
    WorkerContext,
    hookimpl,
)

from tests.support.devices import FusedNumpy
from tests.support.distributions import install
from tests.support.stages import everyday, one_in

HERE = "tests.across.test_sim_device_in_engine"


class Witness(LogitTransform):
    """Exposes the worker's device to tests."""

    seen: ClassVar[list[DeviceBackend]] = []

    def __init__(self, context: WorkerContext, options: Mapping[str, Any]) -> None:
        super().__init__(context, options)
        self.seen.append(context.device)

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return logits


class Reads(LogitTransform):
    """Branches on a value."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return step.ops.where_rows(logits, payload.rows, True, 1.0) if logits[0, 0] > 0 else logits


class Mixes(LogitTransform):
    """Adds an array in host memory."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        return logits + np.ones((1, self.context.logits_width), dtype=np.float32)


class Forgets(LogitTransform):
    """Returns its argument, which is only correct if an operation changes it in place."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        step.ops.where_rows(logits, payload.rows, True, 1.0)
        return logits


class Fails(LogitTransform):
    """Fails after it has consumed the logits."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        step.ops.where_rows(logits, payload.rows, True, 1.0)
        raise RuntimeError("half way")


class Hidden(LogitTransform):
    """Raises the token whose id is the index of the largest hidden state."""

    def apply(self, logits: Array, payload: Payload, step: Step) -> Array:
        largest = step.ops.argmax(step.hidden_states(payload.rows))
        raised = step.ops.asarray(np.full((1, 1), 1e4, dtype=np.float32))
        before = step.ops.gather(logits, payload.rows, largest[:, None])
        return step.ops.scatter(logits, payload.rows, largest[:, None], before * 0 + raised)


class _Selected(LogitModifier[bool]):
    contract, stage, derived = "1.0", Stage.PRE_WARP, True

    def start(self, request: Request, sequence: SequenceInfo, compiled: Any) -> bool | None:
        return True if self.name in request.params.modifiers else None

    def prepare(self, batch: StepBatch, states: Sequence[bool | None]) -> Payload | None:
        return Payload(batch.select(states)[0])


class WitnessModifier(_Selected):
    name, transform = "witness", Witness


class ReadsModifier(_Selected):
    name, transform = "reads", Reads


class MixesModifier(_Selected):
    name, transform = "mixes", Mixes


class ForgetsModifier(_Selected):
    name, transform = "forgets", Forgets


class FailsModifier(_Selected):
    name, transform = "fails", Fails


class HiddenModifier(_Selected):
    name, transform, needs = "hidden", Hidden, frozenset({Need.HIDDEN_STATES})


OWN: dict[str, type[LogitModifier[Any]]] = {
    cls.name: cls
    for cls in (WitnessModifier, ReadsModifier, MixesModifier, ForgetsModifier, FailsModifier, HiddenModifier)
}


@hookimpl
def guideway_logit_modifier(name: str) -> type[LogitModifier[Any]]:
    return OWN[name]


@hookimpl
def guideway_device_backend() -> type[DeviceBackend]:
    return FusedNumpy


PROBES = ("green_list", "gumbel", "guidance", "aligned")


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder: Path = tmp_path_factory.mktemp("installed")
    entries = {f"modifier.{name}": "tests.support.probes" for name in PROBES}
    entries |= {f"modifier.{name}": HERE for name in OWN}
    install(folder, "helpers", entries | {"device.fused": HERE})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield


def engine(backend: str, **config: Any) -> Engine:
    modifiers = (*OWN, *PROBES, "hello")
    return Engine(
        EngineConfig(
            model="demo", grammar=("llguidance",), modifiers=modifiers, device_backend=backend, max_num_seqs=8, **config
        )
    )


def device() -> Any:
    """Return the device of the engine built last."""
    from tests.across.test_sim_device_in_engine import Witness  # the module that the entry point names

    return Witness.seen[-1]


SCHEMA = JsonSchema(PERSON)
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy under a grammar": {"constraint": SCHEMA},
    "drawn": {"temperature": 3.0, "seed": 1},
    "drawn under a grammar": {"temperature": 1.3, "seed": 2, "constraint": SCHEMA},
    "penalties": {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.3, "constraint": SCHEMA},
    "bias": {"logit_bias": {5: 4.0, 300: -float("inf")}, "min_tokens": 5},
    "top_k": {"temperature": 2.0, "seed": 3, "top_k": 7},
    "top_p": {"temperature": 2.0, "seed": 4, "top_p": 0.8, "constraint": Regex("[a-z ]{5,30}")},
    "min_p and typical_p": {"temperature": 2.0, "seed": 5, "min_p": 0.05, "typical_p": 0.9},
    "all filters": {"temperature": 1.5, "seed": 6, "top_k": 50, "top_p": 0.9, "min_p": 0.01, "logit_bias": {9: 3.0}},
    "log-probabilities": {"temperature": 1.1, "seed": 7, "logprobs": 3, "prompt_logprobs": 2, "constraint": SCHEMA},
    "several": {"temperature": 2.0, "seed": 8, "n": 2, "constraint": Choice(["yes", "no", "maybe"])},
    "every token but one banned": {"constraint": Choice(["a"]), "logit_bias": {5: -1.0}, "logprobs": 0},
    "green_list": {"modifiers": {"green_list": {"key": 7, "delta": 3.0}}, "temperature": 1.0, "seed": 9},
    "gumbel": {"modifiers": {"gumbel": {}}, "temperature": 1.5, "seed": 10, "constraint": SCHEMA},
    "guidance": {"modifiers": {"guidance": {"scale": 1.5, "negative_prompt": [5, 6, 7]}}, "constraint": SCHEMA},
    "aligned": {"modifiers": {"aligned": {}}, "constraint": Regex("[ab]{3}(c|d)x"), "temperature": 1.0, "seed": 11},
    "hello": {"modifiers": {"hello": {"letter": "e"}}},
    "two modifiers": {"modifiers": {"hello": {"letter": "a"}, "green_list": {"key": 1, "delta": 2.0}}, "logprobs": 1},
}


def run(backend: str, leave_out: str = "", **config: Any) -> list[GenerationResult]:
    prompts = [person(i) if i % 3 else booking(i) for i in range(len(PARAMS))]
    params = [
        SamplingParams(**{"max_tokens": 40} | ({} if name == leave_out else chosen)) for name, chosen in PARAMS.items()
    ]
    with engine(backend, **config) as built:
        return built.generate(prompts, params)


def compare(found: list[GenerationResult], wanted: list[GenerationResult]) -> None:
    for name, result, other in zip(PARAMS, found, wanted, strict=True):
        assert result.error is None, (name, result.error)
        for output, expected in zip(result.outputs, other.outputs, strict=True):
            assert output.token_ids == expected.token_ids, name
            assert output.unenforced == expected.unenforced, name
            if expected.logprobs is not None:
                assert [one.token_id for one in output.logprobs] == [one.token_id for one in expected.logprobs], name
                logprobs = [one.logprob for one in expected.logprobs]
                assert [one.logprob for one in output.logprobs] == pytest.approx(logprobs, abs=1e-4), name


@pytest.fixture(scope="module")
def on_torch(installed: None) -> list[GenerationResult]:
    return run("torch")


@pytest.mark.slow
@pytest.mark.parametrize("num_speculative_tokens", everyday([0, 3], 3))
def test_everything_is_as_on_torch(num_speculative_tokens: int, on_torch: list[GenerationResult]) -> None:
    compare(run("sim", num_speculative_tokens=num_speculative_tokens), on_torch)


@pytest.mark.slow
def test_everything_is_as_with_fused_operations_elsewhere(on_torch: list[GenerationResult]) -> None:
    """The reference is a device of plain arrays that has these operations as the contract composes them from others."""
    wanted = run("fused", "guidance")
    for num_speculative_tokens in (0, 3):
        for backend in ("sim_fused", "sim_static"):
            compare(run(backend, "guidance", num_speculative_tokens=num_speculative_tokens), wanted)
    drawn = list(PARAMS).index("drawn")
    assert wanted[drawn].token_ids != on_torch[drawn].token_ids  # another formula


@pytest.mark.slow
def test_guidance_with_static_shapes() -> None:
    params = SamplingParams(max_tokens=10, **PARAMS["guidance"])
    results = []
    for backend in ("sim", "sim_static"):
        with engine(backend) as built:
            results += built.generate([person(1)], params)
    assert results[0].error is results[1].error is None
    assert results[0].token_ids == results[1].token_ids


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sim", "sim_fused", "sim_static"])
def test_a_step_waits_for_the_device_once(backend: str) -> None:
    with engine(backend) as built:
        for _ in range(3):
            params = [SamplingParams(max_tokens=30, **PARAMS[name]) for name in list(PARAMS)[:6]]
            for i, one in enumerate(params):
                built.submit(person(i), one)
            while built.has_work():
                before = device().syncs
                built.step()
                assert device().syncs - before <= 1
        assert device().syncs > 30


@pytest.mark.slow
def test_nothing_is_compiled_for_a_request() -> None:
    """Log-probabilities of prompts are excluded, because they have as many rows as the prompt has tokens."""
    rng = random.Random(3)
    with engine("sim_static") as built:
        compiled, steps = device().compiled, 0
        assert len(compiled) > 20
        for _ in range(40):
            params = {key: value for key, value in PARAMS[rng.choice(list(PARAMS))].items() if key != "prompt_logprobs"}
            built.submit(
                chat("Meet Liam. " * rng.randint(1, 9)), SamplingParams(max_tokens=rng.randint(5, 20), **params)
            )
            for _ in range(rng.randint(0, 12)):
                built.step()
                steps += 1
        while built.has_work():
            built.step()
        assert steps > 100
        late = "\n".join(sorted(map(str, device().compiled - compiled)))
        assert not late, late


@pytest.mark.parametrize("backend", everyday(["sim", "sim_fused", "sim_static"], "sim"))
def test_hidden_states_come_from_the_runner_to_the_device(backend: str) -> None:
    params = [SamplingParams(max_tokens=8, modifiers=m) for m in ({}, {"hidden": {}}, {})]
    found = []
    for where in ("torch", backend):
        with engine(where) as built:
            found.append([result.token_ids for result in built.generate([person(i) for i in range(3)], params)])
    assert found[0] == found[1]
    assert all(token_id < 192 for token_id in found[0][1])  # indices of a hidden state
    assert found[0][1] != found[0][0]


OPERATIONS = ("apply_bitmask", "apply_token_lists", "warp_masked", "masked_argmax")


@pytest.mark.parametrize("operation", everyday(OPERATIONS, "apply_bitmask", "masked_argmax"))
def test_a_device_that_fails_once_costs_no_more_than_its_step(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails after it has consumed its argument."""
    constraint = Regex("[a-z ]{9}") if operation == "apply_bitmask" else SCHEMA
    options = {
        "apply_bitmask": {"repetition_penalty": 1.1},
        "apply_token_lists": {"repetition_penalty": 1.1},
        "warp_masked": {"logit_bias": {9: 1.0}},
        "masked_argmax": {},
    }[operation]
    # so that masks are as wide as possible
    params = SamplingParams(max_tokens=8, constraint=constraint, close=False, **options)
    with engine("sim_fused") as built:
        prompts = [person(0), person(1)]
        wanted = [result.token_ids for result in built.generate(prompts, params)]
        works, calls = getattr(type(device()), operation), []

        def fails_once(self: Any, *args: Any) -> Any:
            result = works(self, *args)
            calls.append(operation)
            if len(calls) == 1:
                raise RuntimeError("out of order")
            return result

        monkeypatch.setattr(type(device()), operation, fails_once)
        first, second = (built.generate(prompts, params) for _ in range(2))
        assert len(calls) > 2
    assert [result.token_ids for result in second] == wanted
    if operation == "warp_masked":
        errors = {str(result.error) for result in first}
        assert errors == {"device.sim_fused failed in warp_masked: RuntimeError: out of order"}
    else:  # each row was retried
        assert [result.token_ids for result in first] == wanted


@pytest.mark.parametrize("backend", one_in(2, ["sim", "sim_static"]))
def test_a_modifier_that_needs_torch_is_refused(backend: str) -> None:
    processor = {"kind": "transformers", "target": "transformers:NoRepeatNGramLogitsProcessor"}
    options = {"modifier.legacy": {"processors": [processor | {"kwargs": {"ngram_size": 2}}]}}
    config = EngineConfig(model="demo", modifiers=("legacy",), options=options, device_backend=backend)
    with pytest.raises(InvalidConfiguration, match=r"'legacy' works on arrays of torch only.*holds logits as sim"):
        Engine(config)


MISTAKES = {
    "reads": "HostAccess: bool() or a branch on it reads SimArray(bool[]) from the host",
    "mixes": "HostAccess: the operator add was given an array of the device and one of NumPy",
    "forgets": "after where_rows had it as its argument: that array is dead",
    "fails": "RuntimeError: half way",
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", everyday(["sim", "sim_static"], "sim"))
@pytest.mark.parametrize(
    "mistake",
    ["reads", "mixes", "forgets", "fails"],
)
def test_a_mistake_of_a_modifier_ends_its_request_alone(mistake: str, backend: str) -> None:
    wrong = SamplingParams(max_tokens=10, modifiers={mistake: {}})
    good = SamplingParams(max_tokens=10, constraint=SCHEMA, close=False)
    with engine(backend) as built:
        first, failed, last = built.generate([person(0)] * 3, [good, wrong, good])
        (alone,) = built.generate([person(0)], good)
    assert failed.finish_reason is FinishReason.INTERNAL_ERROR
    assert MISTAKES[mistake] in str(failed.error)
    assert f"modifier.{mistake}" in str(failed.error)
    assert first.error is last.error is None
    assert first.token_ids == last.token_ids == alone.token_ids
