"""The contributed modifiers together: the same tokens on every device, with and without drafts, alone and combined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from guideway.api import DeviceBackend, LogitModifier, ModifierContext, Payload, Regex, SamplingParams, Step
from guideway.devices.numpy.device import NumpyDevice
from guideway.devices.torch.device import TorchDevice
from guideway.runtime.runtime import Runtime
from guideway_cfg import Cfg
from guideway_conformance.reference.strategy import Strategy as ReferenceStrategy
from guideway_cpu.device import CpuDevice
from guideway_healing import Healing
from guideway_hello import Hello
from guideway_repetition import Dry, NoRepeatNgram
from guideway_sampling import DynamicTemperature, Mirostat, PLess, TopNSigma, Xtc
from guideway_sim_device.sim.device import SimDevice
from guideway_steering import Steering
from guideway_watermark import GumbelMax, Kgw
from guideway_xla.device.device import XlaDevice

from tests.support.fake_host import OFFERS, FakeHost
from tests.support.stages import everyday
from tests.support.vocabularies import encode, tiny

VOCABULARY = tiny(width=128)
PROMPT = encode(VOCABULARY, b"abc the prompt abc")
PROBE = {"weight": np.linspace(-0.5, 0.5, 128).tolist(), "token_ids": list(range(0, 100, 3))}
OPTIONS: Mapping[str, Mapping[str, Any]] = {"steering": {"probes": {"p": PROBE}}}
WISHES: dict[type[LogitModifier[Any]], dict[str, Any]] = {
    Dry: {"multiplier": 3.0, "allowed_length": 1},
    Kgw: {"key": 5, "delta": 1.0},
    Steering: {"probe": "p", "strength": 3.0},
    Cfg: {"negative_prompt": [1, 2], "scale": 1.5},
    Hello: {"letter": "a", "strength": 2.0},
    Healing: {"tokens": 3},
    NoRepeatNgram: {"ngram_size": 2},
    TopNSigma: {"n": 2.5},
    Xtc: {"threshold": 0.05},
    PLess: {"normalized": True},
    DynamicTemperature: {"most": 2.0},
    Mirostat: {"target": 4.0},
    GumbelMax: {"key": 5},
}
DEVICES: dict[str, type[DeviceBackend]] = {"torch": TorchDevice, "cpu": CpuDevice, "sim": SimDevice, "xla": XlaDevice}


def generate(
    device: DeviceBackend, classes: Sequence[type[LogitModifier[Any]]], num_drafts: int = 0, **given: Any
) -> Any:
    """Return the result of one request that selects all of `classes`, with a bias if they are many."""
    context = ModifierContext(vocabulary=VOCABULARY, max_num_sequences=16, max_model_len=256)
    modifiers = [cls(OPTIONS.get(cls.name, {}), context) for cls in classes]
    strategies = {"reference": ReferenceStrategy(VOCABULARY, {})}
    runtime = Runtime(context, strategies=strategies, modifiers=modifiers, offers=OFFERS)
    host = FakeHost(VOCABULARY, device, runtime=runtime, num_drafts=num_drafts)
    wishes = {cls.name: WISHES[cls] for cls in classes}
    params = SamplingParams(
        **{
            "max_tokens": 24,
            "temperature": 1.0,
            "seed": 3,
            "ignore_eos": True,
            "logit_bias": {98: 1.0, 102: -1.0} if len(classes) > 2 else {},
            "modifiers": wishes,
            **given,
        }
    )
    (result,) = host.generate([PROMPT], [params])
    return result


@cache
def on_numpy(*classes: type[LogitModifier[Any]]) -> Any:
    """Return the result of `generate` with NumPy."""
    return generate(NumpyDevice("cpu"), classes)


def combined(owner: type[LogitModifier[Any]]) -> list[type[LogitModifier[Any]]]:
    """Return all modifiers that do not own the draw, and `owner`."""
    return [cls for cls in WISHES if cls not in (Mirostat, GumbelMax)] + [owner]


@pytest.mark.parametrize("backend", everyday(DEVICES.values(), TorchDevice, CpuDevice), ids=list(DEVICES))
def test_tokens_are_the_same_on_every_device(backend: type[DeviceBackend]) -> None:
    device = backend("cpu")
    # with an owner, because a device may draw by a method of its own
    alone = ([cls] if cls in (Mirostat, GumbelMax) else [cls, GumbelMax] for cls in WISHES)
    for classes in (*alone, combined(GumbelMax)):
        expected, found = on_numpy(*classes), generate(device, classes)
        assert found.token_ids == expected.token_ids, classes
        assert expected.error is None
        assert len(expected.token_ids) == 24


def test_each_changes_the_tokens_and_drafts_do_not() -> None:
    device = NumpyDevice("cpu")
    for cls in WISHES:
        result = on_numpy(cls)
        assert result.token_ids != on_numpy().token_ids, cls
        if cls is not Mirostat:  # it lets no draft pass, which this host does not ask
            assert generate(device, [cls], num_drafts=3).token_ids == result.token_ids, cls


@pytest.mark.parametrize("owner", [Mirostat, GumbelMax])
def test_all_act_on_one_request(owner: type[LogitModifier[Any]]) -> None:
    device = NumpyDevice("cpu")
    result = on_numpy(*combined(owner))
    assert result.error is None
    if owner is not Mirostat:
        assert generate(device, combined(owner), num_drafts=2).token_ids == result.token_ids
    able = [cls for cls in combined(owner) if cls is not Healing]  # which needs a request without a constraint
    constrained = generate(device, able, ignore_eos=False, constraint=Regex("[a-f]{6}x"))
    assert VOCABULARY.decode(constrained.token_ids).decode()[-1] == "x"
    assert constrained.error is None


def test_they_act_by_stage_and_in_the_operators_order(monkeypatch: pytest.MonkeyPatch) -> None:
    acted: list[str] = []
    for cls in combined(GumbelMax):
        verb = "sample" if cls is GumbelMax else "apply"

        def recorded(self: Any, logits: Any, payload: Payload, step: Step, *, act: Any, name: str) -> Any:
            acted.append(name)
            return act(self, logits, payload, step)

        act = getattr(cls.transform, verb)
        named = type(cls.transform.__name__, (cls.transform,), {})
        setattr(named, verb, lambda self, x, p, s, act=act, name=cls.name: recorded(self, x, p, s, act=act, name=name))
        monkeypatch.setattr(cls, "transform", named)
    for order in (combined(GumbelMax), combined(GumbelMax)[::-1]):
        acted.clear()
        generate(NumpyDevice("cpu"), order, max_tokens=1)
        stages = ("pre_warp", "mask", "post_warp", "sample")
        by_stage = [cls for stage in stages for cls in order if cls.stage.value == stage]
        assert acted == [cls.name for cls in by_stage if cls is not Healing]  # it acts before prefill


def test_two_owners_of_the_draw_are_refused() -> None:
    result = generate(NumpyDevice("cpu"), [Mirostat, Dry, GumbelMax])
    assert "'mirostat' and 'gumbel_max' both own the draw" in str(result.error)
