"""The four probe modifiers on every device that runs here, through the fake host."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from guideway.api import Choice, DeviceBackend, FinishReason, InvalidRequest, Need, Regex, SamplingParams
from guideway.devices.numpy.device import NumpyDevice, NumpyOps
from guideway.devices.torch.device import TorchDevice
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_cpu.device import CpuDevice
from guideway_sim_device.sim.device import SimDevice
from guideway_xla.device.device import XlaDevice

from tests.support.devices import FusedNumpy, StaticNumpy
from tests.support.fake_host import OFFERS, FakeHost, model
from tests.support.probes import Aligned, GreenList, Guidance, Gumbel
from tests.support.stages import everyday, one_in
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
PROMPT = encode(VOCABULARY, b"the prompt")
OTHER = encode(VOCABULARY, b"another")


INTERPRETED = "TRITON_INTERPRET"
"""Environment variable that makes Triton interpret kernels; it must be set before their import."""
DEVICES: dict[str, type[DeviceBackend]] = {
    "numpy": NumpyDevice,
    "torch": TorchDevice,
    "static": StaticNumpy,
    "fused": FusedNumpy,
    "cpu": CpuDevice,
    "sim": SimDevice,
    "xla": XlaDevice,
}
if os.environ.get(INTERPRETED):
    from guideway_triton.backend import TritonDevice

    DEVICES["triton"] = TritonDevice


@pytest.fixture(
    params=everyday(DEVICES.values(), *(DEVICES[name] for name in DEVICES if name not in ("cpu", "xla"))), ids=DEVICES
)
def device(request: pytest.FixtureRequest) -> DeviceBackend:
    backend: DeviceBackend = request.param("cpu")
    return backend


def host(device: DeviceBackend, *modifiers: Any, num_drafts: int = 0, **options: Any) -> FakeHost:
    strategies = {"reference": ReferenceStrategy(VOCABULARY, {})}
    return FakeHost(VOCABULARY, device, strategies=strategies, modifiers=modifiers, num_drafts=num_drafts, **options)


def bare(tokens: list[int]) -> np.ndarray[Any, Any]:
    return model(tokens, VOCABULARY)[: len(VOCABULARY)]


def bare_greedy(prompt: list[int], num_tokens: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(bare(tokens).argmax()))
    return tokens[len(prompt) :]


def test_green_list_raises_exactly_the_keyed_half(device: DeviceBackend) -> None:
    params = SamplingParams(max_tokens=12, modifiers={"green_list": {"key": 7, "delta": 3.0}})
    plain, marked = host(device, GreenList).generate([PROMPT, PROMPT], [SamplingParams(max_tokens=12), params])
    tokens = list(PROMPT)
    for token_id in marked.token_ids:
        previous = np.array([tokens[-1]], dtype=np.int32)
        green = (
            NumpyOps().uniform(np.array([7]), previous, previous, 0, VOCABULARY.logits_width)[0, : len(VOCABULARY)]
            < 0.5
        )
        assert token_id == int((bare(tokens) + 3.0 * green).argmax())
        tokens.append(token_id)
    assert list(plain.token_ids) == bare_greedy(PROMPT, len(plain.token_ids))
    assert plain.token_ids != marked.token_ids


@pytest.mark.parametrize("modifier", one_in(3, ["green_list", "gumbel", "guidance"]))
def test_drafts_change_nothing(device: DeviceBackend, modifier: str) -> None:
    options = {
        "green_list": {"key": 3, "delta": 2.0},
        "gumbel": {},
        "guidance": {"scale": 2.0, "negative_prompt": OTHER},
    }[modifier]
    params = [
        SamplingParams(max_tokens=20, temperature=0.8, seed=5, modifiers={modifier: options}),
        SamplingParams(max_tokens=20, temperature=0.8, seed=6),
    ]
    modifiers = {"green_list": GreenList, "gumbel": Gumbel, "guidance": Guidance}[modifier]
    runs = [host(device, modifiers, num_drafts=k).generate([PROMPT, PROMPT], params) for k in (0, 3)]
    assert [r.token_ids for r in runs[0]] == [r.token_ids for r in runs[1]]
    assert len(runs[0][0].token_ids) > 5


@pytest.mark.slow
def test_gumbel_draws_from_the_distribution_it_is_given() -> None:
    """Over many seeds, the first token follows the masked distribution at the request's temperature."""
    subject = host(NumpyDevice("cpu"), Gumbel)
    constraint = Choice(["a", "b", "c", "d"])
    counts: dict[str, int] = {}
    for seed in range(0, 3000, 15):
        params = [
            SamplingParams(
                max_tokens=1, temperature=1.5, seed=s, constraint=constraint, close=False, modifiers={"gumbel": {}}
            )
            for s in range(seed, seed + 15)
        ]
        for result in subject.generate([PROMPT] * 15, params):
            counts[result.text] = counts.get(result.text, 0) + 1
    logits = model(PROMPT, VOCABULARY)[[VOCABULARY.tokens.index(c) for c in (b"a", b"b", b"c", b"d")]] / 1.5
    expected = np.exp(logits) / np.exp(logits).sum()
    for text, probability in zip("abcd", expected, strict=True):
        sigma = (probability * (1 - probability) / 3000) ** 0.5
        assert abs(counts.get(text, 0) / 3000 - probability) < 4 * sigma


def test_guidance_combines_the_two_sequences(device: DeviceBackend) -> None:
    params = SamplingParams(max_tokens=8, modifiers={"guidance": {"scale": 3.0, "negative_prompt": OTHER}})
    (result,) = host(device, Guidance).generate([PROMPT], [params])
    tokens: list[int] = []
    for token_id in result.token_ids:
        cond, uncond = (log_softmax(model([*p, *tokens], VOCABULARY)) for p in (PROMPT, OTHER))
        assert token_id == int((uncond + 3.0 * (cond - uncond))[: len(VOCABULARY)].argmax())
        tokens.append(token_id)
    assert tokens


def test_a_companion_does_not_disturb_its_neighbors(device: DeviceBackend) -> None:
    guided = SamplingParams(max_tokens=8, modifiers={"guidance": {"scale": 3.0, "negative_prompt": OTHER}})
    plain = SamplingParams(max_tokens=8)
    together = host(device, Guidance, num_drafts=2).generate([PROMPT, OTHER, PROMPT], [guided, plain, guided])
    assert list(together[1].token_ids) == bare_greedy(OTHER, len(together[1].token_ids))
    assert together[0].token_ids == together[2].token_ids


def test_aligned_hears_the_mass_and_uses_it_the_next_time(device: DeviceBackend) -> None:
    subject = host(device, Aligned, num_drafts=2)
    params = SamplingParams(max_tokens=6, constraint=Regex("[ab]{3}(c|d)x"), modifiers={"aligned": {}})
    (first,) = subject.generate([PROMPT], [params])
    aligned = next(m for m in subject.runtime._modifiers.all if isinstance(m, Aligned))
    known = aligned.stores[tuple(PROMPT)]
    path: tuple[int, ...] = ()
    for token_id in first.token_ids:
        probability = np.exp(log_softmax(model([*PROMPT, *path], VOCABULARY)))
        assert known[path] == pytest.approx(probability[legal(path)].sum(), rel=1e-4)
        path += (token_id,)
    assert first.finish_reason is FinishReason.STOP
    assert len(known) == len(first.token_ids)
    child = first.token_ids[:1]
    state = aligned.start(subject_request(PROMPT, params), None, None)  # type: ignore[arg-type]
    assert aligned.corrections(state, []) == {child[0]: pytest.approx(np.log(known[child]))}
    known[child] = 1e-9  # as if almost nothing grammatical followed, so that the second run must avoid it
    (second,) = subject.generate([PROMPT], [params])
    assert second.token_ids[0] != first.token_ids[0]


@pytest.mark.parametrize(
    ("modifier", "need"),
    [(GreenList, Need.HISTORY), (Gumbel, Need.UNIFORM), (Guidance, Need.COMPANIONS), (Aligned, Need.FEEDBACK)],
)
def test_a_host_without_the_need_refuses_at_admission(modifier: Any, need: Need) -> None:
    subject = host(NumpyDevice("cpu"), modifier, offers=OFFERS - {need})
    params = [SamplingParams(max_tokens=4, modifiers={modifier.name: {}}), SamplingParams(max_tokens=4)]
    refused, served = subject.generate([PROMPT, PROMPT], params)
    assert refused.finish_reason is FinishReason.REFUSED
    assert isinstance(refused.error, InvalidRequest)
    assert need.value in str(refused.error)
    assert refused.error.field == "modifiers"
    assert served.finish_reason is not FinishReason.REFUSED


def log_softmax(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    shifted = x.astype(np.float64) - x.max()
    result: np.ndarray[Any, Any] = shifted - np.log(np.exp(shifted).sum())
    return result


def legal(path: tuple[int, ...]) -> list[int]:
    matcher = ReferenceStrategy(VOCABULARY, {}).compile(Regex("[ab]{3}(c|d)x")).matcher(VOCABULARY.stop_token_ids)
    matcher.accept(path)
    return [t for t in range(len(VOCABULARY)) if matcher.validate([t])]


def subject_request(prompt: list[int], params: SamplingParams) -> Any:
    from guideway.api import Request

    return Request(request_id="x", prompt_token_ids=tuple(prompt), params=params)


@pytest.mark.slow
def test_all_of_these_in_the_interpreter() -> None:
    """Run the tests above with the interpreter, in a new process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "triton"]
    ran = subprocess.run(command, env=os.environ | {INTERPRETED: "1"}, capture_output=True, text=True, timeout=900)
    assert ran.returncode == 0, ran.stdout[-3000:]
