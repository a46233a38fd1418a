"""Per-layer timing with the demo model, in this process and in one of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import guideway
import pytest
from guideway.api import InvalidConfiguration, UnsupportedCapability
from guideway_layer_timing import LayerTiming

README = Path(__file__).parents[1] / "README.md"
LAYERS = 4
"""Of the demo model."""


def engine(options: dict[str, Any] | None = None, **more: Any) -> guideway.Engine:
    config = guideway.EngineConfig(
        model="demo", worker_mixins=("layer_timing",), options={"worker.layer_timing": options or {}}, **more
    )
    return guideway.Engine(config)


@pytest.fixture(scope="module", params=["local", "process"])
def running(request: pytest.FixtureRequest) -> Iterator[guideway.Engine]:
    with engine(executor=request.param) as made:
        yield made


def generate(running: guideway.Engine, num_tokens: int) -> None:
    params = guideway.SamplingParams(max_tokens=num_tokens, ignore_eos=True)
    (result,) = running.generate([[5, 6, 7, 8]], params)
    assert len(result.token_ids) == num_tokens


def report(running: guideway.Engine) -> tuple[str, dict[str, list[str]]]:
    (text,) = running.call_workers("layer_timing.report")
    title, header, *lines = text.splitlines()
    assert header.split() == ["layer", "calls", "total", "ms", "mean", "ms", "share"]
    assert len({len(line) for line in [header, *lines]}) == 1, "columns are aligned"
    return title, {name: cells.split() for name, cells in (re.split(r"  +", line, maxsplit=1) for line in lines)}


def test_every_layer_is_called_once_per_step_and_shares_make_a_whole(running: guideway.Engine) -> None:
    running.call_workers("layer_timing.reset")
    generate(running, 10)
    title, rows = report(running)
    assert title == "10 steps, 13 tokens, processor time"
    layers = [f"model.layers.{i}" for i in range(LAYERS)]
    assert list(rows) == ["model.embed_tokens", *layers, "lm_head", "(all else)", "whole model"]
    assert {cells[0] for cells in rows.values()} == {"10"}
    shares = [float(cells[3].rstrip("%")) for cells in rows.values()]
    assert shares[-1] == 100.0
    assert sum(shares[:-1]) == pytest.approx(100, abs=0.5)
    assert all(float(rows[layer][1]) > 0 for layer in layers)
    assert sum(float(rows[layer][1]) for layer in layers) > float(rows["model.embed_tokens"][1])


def test_reset_begins_anew(running: guideway.Engine) -> None:
    generate(running, 3)
    running.call_workers("layer_timing.reset")
    title, rows = report(running)
    assert title.startswith("0 steps, 0 tokens")
    assert {tuple(cells[:2]) for cells in rows.values()} == {("0", "0.0")}


def test_layers_together() -> None:
    with engine({"each_layer": False}) as together:
        generate(together, 2)
        _, rows = report(together)
    assert rows["model.layers.*"][0] == str(2 * LAYERS)


def test_closing_takes_the_hooks_away() -> None:
    class TheWorker:
        def __init__(self, model: Any) -> None:
            self.model, self.device, self.rank, self.num_workers = model, "cpu", 0, 1

    from guideway_demo_model import DemoModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(DemoModel().path(), local_files_only=True)

    def num_hooks() -> int:
        return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())

    before = num_hooks()
    mixin = LayerTiming({})
    mixin.on_model_loaded(TheWorker(model))
    assert num_hooks() == before + 2 * (LAYERS + 3)
    mixin.close()
    assert num_hooks() == before


def test_what_it_cannot_measure_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="did you mean 'each_layer'"):
        engine({"each_layers": True})
    with pytest.raises(UnsupportedCapability, match="on device 'cpu' only, not on 'meta'"):

        class Elsewhere:
            model, device, rank, num_workers = None, "meta", 0, 1

        LayerTiming({}).on_model_loaded(Elsewhere())


def test_the_readmes_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    program, example = re.findall(r"```(?:python)?\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    exec(compile(program, str(README), "exec"), {})

    def shape(text: str) -> str:
        return re.sub(r" *[\d.]+(%?)", r" #\1", text).strip()

    assert shape(capsys.readouterr().out) == shape(example)
