"""The engine gives the same tokens on the CPU device as on the torch device."""

from __future__ import annotations

from typing import Any

import pytest
from guideway import Engine, EngineConfig, JsonObject, JsonSchema, SamplingParams
from guideway_cpu.device import CpuDevice

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer", "maximum": 130}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPTS = [f"Extract name, age. Meet {name}. Age: {age}." for name, age in (("Peter Young", 49), ("Maria Silva", 7))]
PARAMS = [
    SamplingParams(max_tokens=60, constraint=JsonSchema(SCHEMA)),
    SamplingParams(max_tokens=60, constraint=JsonSchema(SCHEMA), temperature=0.9, seed=3),
    SamplingParams(max_tokens=25, constraint=JsonObject(), temperature=1.2, top_p=0.9, seed=4),
    SamplingParams(max_tokens=12),
]


def answers(device_backend: str) -> list[tuple[int, ...]]:
    config = EngineConfig(model="demo", grammar=("llguidance",), device_backend=device_backend, max_num_seqs=8)
    greedy = [params for params in PARAMS if not params.temperature]  # alone, because steps with a draw take no argmax
    results = []
    with Engine(config) as engine:
        for batch in (greedy, PARAMS):
            prompts = [[{"role": "user", "content": prompt}] for prompt in PROMPTS for _ in batch]
            results += engine.generate(prompts, batch * len(PROMPTS))
    assert all(result.error is None for result in results)
    return [tuple(result.token_ids) for result in results]


@pytest.mark.slow
def test_the_cpu_device_gives_the_tokens_of_the_torch_device(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = answers("torch")
    used: set[str] = set()
    _record(monkeypatch, "apply_bitmask", used)
    _record(monkeypatch, "masked_argmax", used)
    assert answers("cpu") == wanted
    assert used == {"apply_bitmask", "masked_argmax"}


def _record(monkeypatch: pytest.MonkeyPatch, name: str, used: set[str]) -> None:
    real = getattr(CpuDevice, name)

    def recorded(self: CpuDevice, *arguments: Any) -> Any:
        used.add(name)
        return real(self, *arguments)

    monkeypatch.setattr(CpuDevice, name, recorded)
