"""guideway-layer-timing inside the engine, in this process and in a separate one."""

from __future__ import annotations

import pytest
from guideway import Engine, EngineConfig, SamplingParams

from tests.support.stages import everyday


@pytest.mark.parametrize("executor", everyday(["local", "process"], "local"))
def test_a_report_for_each_worker(executor: str) -> None:
    with Engine(EngineConfig(model="demo", worker_mixins=("layer_timing",), executor=executor)) as engine:
        engine.generate([[5, 6, 7, 8]], SamplingParams(max_tokens=10, ignore_eos=True))
        (report,) = engine.call_workers("layer_timing.report")
        assert report.startswith("10 steps, 13 tokens, processor time\n")
        calls = {line.split()[0]: line.split()[1] for line in report.splitlines()[2:]}
        assert calls["model.layers.3"] == calls["lm_head"] == "10"
        assert engine.call_workers("layer_timing.reset") == [None]
        assert engine.call_workers("layer_timing.report")[0].startswith("0 steps")
