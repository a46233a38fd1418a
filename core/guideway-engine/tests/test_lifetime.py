"""Every part of an engine that was built is closed once, after its last use."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from guideway import Choice, Engine, EngineConfig, GuidewayError, SamplingParams

from tests.support.distributions import install

ENTRIES = ("grammar.lived", "device.lived", "modifier.lived", "modifier.second", "worker.lived", "worker.second")


class Life:
    """The events that parts have recorded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def events(self) -> list[tuple[str, str]]:
        lines = self.path.read_text("utf-8").splitlines() if self.path.exists() else []
        return [(what, event) for what, event in map(str.split, lines)]

    def check(self, *, unbuilt: str | None = None) -> None:
        """Check that each part that was built was closed once, and did nothing after that; `unbuilt` names a part that
        failed to build."""
        counts = Counter(self.events)
        built = {what for what, event in self.events if event == "built"} - {unbuilt}
        assert built and {what: counts[what, "closed"] for what in built} == dict.fromkeys(built, 1)
        for what in built:
            assert [event for who, event in self.events if who == what][-1] == "closed", what


@pytest.fixture
def life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Life:
    install(tmp_path, "lifetimes", dict.fromkeys(ENTRIES, "tests.support.lifetimes"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[3]}")
    monkeypatch.setenv("GWT_LIFETIME", str(tmp_path / "events"))
    return Life(tmp_path / "events")


def config(executor: str, **fields: Any) -> EngineConfig:
    chosen: dict[str, Any] = {
        "grammar": ("lived",),
        "grammar_host": "inline",
        "modifiers": ("lived", "second"),
        "worker_mixins": ("lived", "second"),
        "device_backend": "lived",
        "max_num_seqs": 2,
    }
    return EngineConfig(model="demo", executor=executor, **{**chosen, **fields})


@pytest.mark.parametrize("executor", ["local", pytest.param("process", marks=pytest.mark.slow)])
def test_closing_an_engine_closes_every_part_once(executor: str, life: Life) -> None:
    made = Engine(config(executor))
    done, _ = made.generate([[5, 6, 7]] * 2, SamplingParams(max_tokens=2, constraint=Choice(["a", "b"])))
    assert done.error is None
    left = made.submit([5, 6, 7], SamplingParams(max_tokens=50), wait=False)
    made.step()
    assert not [event for event in life.events if event[1] == "closed"]
    made.close()
    made.close()
    assert left.result is not None
    assert {what for what, event in life.events if event == "used"} >= {"strategy", "device", "transform", "modifier"}
    assert len({what for what, _ in life.events}) == 8
    life.check()
    closed = [what for what, event in life.events if event == "closed"]
    order = ["strategy", "modifier", "second-modifier"]
    order += ["second-mixin", "mixin", "second-transform", "transform", "device"]
    assert closed == order


FAILURES = [
    ("second-mixin", "built"),
    ("mixin", "used"),
    ("strategy", "built"),
    ("second-modifier", "built"),
    ("second-transform", "built"),
]


@pytest.mark.parametrize("where", FAILURES, ids="-".join)
@pytest.mark.parametrize("executor", ["local", pytest.param("process", marks=pytest.mark.slow)])
def test_what_was_built_is_closed_where_a_later_part_fails(
    executor: str, where: tuple[str, str], life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GWT_FAILS", " ".join(where))
    with pytest.raises(GuidewayError, match=" ".join(where)):
        Engine(config(executor))
    life.check(unbuilt=where[0] if where[1] == "built" else None)


def test_a_configuration_that_cannot_be_had_closes_what_was_built(life: Life) -> None:
    with pytest.raises(GuidewayError, match="kv_cache_tokens"):
        Engine(config("local", kv_cache_tokens=10))
    life.check()
    assert ("device", "closed") in life.events


def test_no_close_keeps_another_from_closing(
    life: Life, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    parts = ("strategy", "modifier", "second-mixin", "mixin", "second-transform", "transform", "device")
    monkeypatch.setenv("GWT_FAILS", ",".join(f"{part} closed" for part in parts))
    Engine(config("local")).close()
    life.check()
    for plugin in (
        "grammar.lived",
        "modifier.lived",
        "worker.second",
        "worker.lived",
        "modifier.second",
        "device.lived",
    ):
        assert f"{plugin} failed in close" in caplog.text
