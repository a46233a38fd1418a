"""Per-layer timing of the demo model; tests/contrib runs it inside the engine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from guideway.api import InvalidConfiguration, UnsupportedCapability, WorkerMixin
from guideway_demo_model import DemoModel
from guideway_layer_timing import LayerTiming, guideway_worker_mixin
from transformers import AutoModelForCausalLM

README = Path(__file__).parents[1] / "README.md"
NUM_LAYERS = 6
"""Layers of the demo model."""


class TheWorker:
    """The attributes of a worker that a mixin may use."""

    def __init__(self, model: Any, device: str = "cpu") -> None:
        self.model = model
        self.device = device
        self.rank = 0
        self.num_workers = 1


class TheStep:
    num_sequences, num_tokens, num_rows = 1, 5, 1


@pytest.fixture(scope="module")
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(DemoModel().path(), local_files_only=True)


@pytest.fixture
def timing(model: Any) -> Iterator[LayerTiming]:
    mixin = LayerTiming({})
    mixin.on_model_loaded(TheWorker(model))
    yield mixin
    mixin.close()


def run(mixin: LayerTiming, model: Any, num_steps: int) -> None:
    for _ in range(num_steps):
        mixin.before_step(TheStep())
        with torch.inference_mode():
            model(torch.arange(TheStep.num_tokens)[None])
        mixin.after_step(TheStep())


def rows(report: str) -> dict[str, list[str]]:
    """Return calls, total, mean and share by the layer's name."""
    _, header, *lines = report.splitlines()
    assert header.split() == ["layer", "calls", "total", "ms", "mean", "ms", "share"]
    assert len({len(line) for line in [header, *lines]}) == 1, "columns are aligned"
    return {name: cells.split() for name, cells in (re.split(r"  +", line, maxsplit=1) for line in lines)}


def test_it_is_a_worker_mixin() -> None:
    assert issubclass(guideway_worker_mixin(), WorkerMixin)


def test_a_model_that_does_not_name_its_ends_has_its_layers_measured(model: Any) -> None:
    class Bare(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.model

        def forward(self, token_ids: Any) -> Any:
            return self.model(token_ids)

    bare, mixin = Bare(), LayerTiming({})
    mixin.on_model_loaded(TheWorker(bare))
    run(mixin, bare, 2)
    mixin.close()
    found = rows(mixin.report())
    assert list(found) == [*(f"model.layers.{i}" for i in range(NUM_LAYERS)), "(all else)", "whole model"]
    assert {cells[0] for cells in found.values()} == {"2"}


def test_every_layer_is_called_once_per_step_and_shares_make_a_whole(timing: LayerTiming, model: Any) -> None:
    run(timing, model, 10)
    report = timing.report()
    assert report.splitlines()[0] == "10 steps, 50 tokens, processor time"
    found = rows(report)
    layers = [f"model.layers.{i}" for i in range(NUM_LAYERS)]
    assert list(found) == ["model.embed_tokens", *layers, "lm_head", "(all else)", "whole model"]
    assert {cells[0] for cells in found.values()} == {"10"}
    shares = [float(cells[3].rstrip("%")) for cells in found.values()]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.5)
    for layer in layers:
        calls, total, mean, _ = found[layer]
        assert float(total) > 0
        assert float(mean) == pytest.approx(float(total) / int(calls), abs=0.01)


def test_reset_begins_anew(timing: LayerTiming, model: Any) -> None:
    run(timing, model, 2)
    timing.reset()
    assert timing.report().startswith("0 steps, 0 tokens")
    assert {tuple(cells[:2]) for cells in rows(timing.report()).values()} == {("0", "0.0")}
    run(timing, model, 1)
    assert rows(timing.report())["lm_head"][0] == "1"


def test_layers_together(model: Any) -> None:
    mixin = LayerTiming({"each_layer": False})
    mixin.on_model_loaded(TheWorker(model))
    run(mixin, model, 2)
    mixin.close()
    assert rows(mixin.report())["model.layers.*"][0] == str(2 * NUM_LAYERS)


def test_closing_takes_the_hooks_away(model: Any) -> None:
    def num_hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    before = num_hooks()
    mixin = LayerTiming({})
    mixin.close()  # the engine also closes mixins that never had a model
    mixin.on_model_loaded(TheWorker(model))
    assert num_hooks() == before + 2 * (NUM_LAYERS + 3)
    mixin.close()
    assert num_hooks() == before


def test_what_it_cannot_measure_is_refused(model: Any) -> None:
    with pytest.raises(InvalidConfiguration, match="did you mean 'each_layer'"):
        LayerTiming({"each_layers": True})
    with pytest.raises(UnsupportedCapability, match="on device 'cpu' only, not on 'meta'"):
        LayerTiming({}).on_model_loaded(TheWorker(model, "meta"))


@pytest.mark.slow
def test_the_readmes_example_runs() -> None:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    program, example = (text for language, text in blocks if language != "sh")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)

    def shape(text: str) -> str:
        return re.sub(r" *[\d.]+(%?)", r" #\1", text).strip()

    assert shape(done.stdout) == shape(example)
