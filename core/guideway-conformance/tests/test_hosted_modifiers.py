"""Correct modifiers behave the same in hosts as inline."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from guideway.api import ModifierContext, SamplingParams
from guideway.devices.numpy.device import NumpyDevice
from guideway.devices.torch.device import TorchDevice
from guideway.plugins import Plugins
from guideway.runtime import RuntimePlan
from guideway_hosts.modifier import HostedModifier
from suite_support.hosted import CLASSES

from tests.support.distributions import install
from tests.support.fake_host import OFFERS, FakeHost
from tests.support.hostility import PROMPT, VOCABULARY
from tests.support.stages import everyday


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("installed")
    install(folder, "correct", {f"modifier.{name}": "suite_support.hosted" for name in CLASSES})
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def run_requests(name: str, where: Any, num_drafts: int, kill_at: tuple[int, ...] = ()) -> list[Any]:
    """Return all output for users of requests with each example of a modifier, and of one without it."""
    modifier = Plugins().load("modifier", name)
    plan = RuntimePlan(
        context=ModifierContext(vocabulary=VOCABULARY, max_num_sequences=16, max_model_len=256),
        strategies=[Plugins().load("grammar", "reference")],
        modifiers=[modifier],
        offers=OFFERS,
        modifier_host=where,
    )
    device = TorchDevice("cpu") if "torch" in modifier.transform.arrays else NumpyDevice("cpu")
    host = FakeHost(VOCABULARY, device, num_drafts=num_drafts, runtime=plan.build())
    step, steps = host.step, 0

    def killing() -> None:
        nonlocal steps
        steps += 1
        (used,) = host.runtime._by_name.values()
        if steps in kill_at and isinstance(used, HostedModifier) and used._room.host is not None:
            os.kill(used._room.host.pid, signal.SIGKILL)
        step()

    host.step = killing  # type: ignore[method-assign]
    wanted = [
        SamplingParams(modifiers=modifiers, temperature=temperature, seed=seed, max_tokens=12, logprobs=1)
        for modifiers in ({}, *({name: dict(example.options)} for example in modifier.examples))
        for seed, temperature in ((3, 1.0), (4, 1.0), (5, 0.0))
    ]
    try:
        outputs = [result.outputs[0] for result in host.generate([PROMPT] * len(wanted), wanted)]
    finally:
        host.runtime.close()
    return [(o.token_ids, o.logprobs, o.reports, o.unenforced, o.finish_reason, str(o.error)) for o in outputs]


@pytest.mark.parametrize("num_drafts", everyday([0, 2], 2))
@pytest.mark.parametrize("name", everyday(sorted(CLASSES), "compiling"))
def test_hosted_or_inline_the_user_is_told_the_same(name: str, num_drafts: int) -> None:
    here = run_requests(name, "inline", num_drafts)
    assert run_requests(name, "process", num_drafts) == here
    assert run_requests(name, "process", num_drafts, kill_at=(2, 3, 7)) == here
