"""Components in an operator's own file, without a package."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from guideway import (
    AsyncEngine,
    Engine,
    EngineConfig,
    FinishReason,
    InvalidConfiguration,
    PluginSettings,
    Regex,
    SamplingParams,
)
from guideway.command_line.program import main
from guideway.errors import NotCertified, PluginError, PluginLoadError, PluginNotFound, PluginUnavailable
from guideway.plugins import PluginPlan, Plugins, bootstrap_worker
from guideway_engine.entries import read_entry

from tests.support.stages import everyday, one_in

MINE = """
from guideway_llguidance.strategy import Strategy

import numpy as np
from guideway.api import InvalidRequest, LogitModifier, LogitTransform, Payload, Stage, hookimpl


class Added(LogitTransform):
    def apply(self, logits, payload, step):
        return step.ops.add_at(logits, payload.rows, payload.arrays["token"], payload.arrays["strength"])


class Prefer(LogitModifier):
    contract = "1.0"
    name, stage, transform, derived = "prefer", Stage.PRE_WARP, Added, True

    def start(self, request, sequence, compiled):
        return request.params.modifiers.get("prefer")

    def prepare(self, batch, states):
        rows, sequences = batch.select(states)
        if not len(rows):
            return None
        tokens = np.array([states[i]["token"] for i in sequences], dtype=np.int32)
        return Payload(rows, {"token": tokens, "strength": np.full(len(rows), 1000, dtype=np.float32)})


class Mine(Strategy):
    contract = "1.0"
    name = "mine"


class Guard:
    @hookimpl
    def guideway_validate_request(self, request, context):
        if request.tenant == "nobody":
            raise InvalidRequest("the guard refuses nobody", field="tenant")
"""

PREFERRED = SamplingParams(max_tokens=3, modifiers={"prefer": {"token": 77}})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def settings() -> dict[str, Any]:
    return {
        "grammar": ("./mine.py:Mine",),
        "modifiers": ("./mine.py:Prefer",),
        "plugins": PluginSettings(enable=("./mine.py:Guard",)),
    }


def answers(engine: Engine) -> None:
    first, second, third = engine.generate(
        [[5, 80]] * 3,
        [PREFERRED, SamplingParams(constraint=Regex("[ab]{3}")), SamplingParams()],
        tenants=["", "", "nobody"],
    )
    assert first.token_ids == (77, 77, 77)
    assert (second.strategy, second.error, len(second.text)) == ("mine", None, 3)
    assert "the guard refuses nobody" in str(third.error)


INLINE = {"grammar_host": "inline"}
PROCESSES = {"modifier_host": "process", "executor": "process"}


@pytest.mark.parametrize(
    "more",
    everyday([INLINE, {"grammar_host": "process"}, {"executor": "process"}, PROCESSES], INLINE),
    ids=["inline", "grammar hosts", "process executor", "modifier hosts"],
)
def test_a_file_stands_where_a_name_may(folder: Path, more: dict[str, Any]) -> None:
    with Engine("demo", max_num_seqs=4, **settings(), **more) as engine:
        answers(engine)


@pytest.mark.slow
def test_a_path_is_relative_to_the_configuration_or_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "guideway.toml").write_text(
        """
model = "demo"
grammar = ["./mine.py:Mine"]
modifiers = ["./mine.py:Prefer"]
[plugins]
enable = ["./mine.py:Guard"]
""",
        encoding="utf-8",
    )
    here = EngineConfig(model="demo", **settings())
    monkeypatch.chdir(folder / "below")
    with pytest.raises(InvalidConfiguration, match=r"below/mine.py' cannot be read: No such file"):
        EngineConfig(model="demo", modifiers=("./mine.py:Prefer",))
    loaded = EngineConfig.load("../guideway.toml", environ={})
    assert loaded == here
    assert loaded.modifiers == (f"{folder}/mine.py:Prefer",)
    assert loaded.components() == EngineConfig.load("../guideway.toml", environ={}).components()
    assert {"grammar.mine", "modifier.prefer"} <= set(loaded.components())
    with Engine(loaded) as engine:
        answers(engine)


def plan(config: EngineConfig) -> PluginPlan:
    plugins = Plugins(settings=config.plugins)
    return plugins.plan(config.selection(plugins.index), {})


def test_the_digest_is_in_the_fingerprint_and_the_folder_is_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = plan(EngineConfig(model="demo", **settings()))
    shutil.copy("mine.py", "below/mine.py")
    monkeypatch.chdir("below")
    moved = plan(EngineConfig(model="demo", **settings()))
    assert moved.fingerprint == before.fingerprint
    (folder / "below/mine.py").write_text(f"{MINE}# changed", encoding="utf-8")
    changed = plan(EngineConfig(model="demo", **settings()))
    assert changed.fingerprint != before.fingerprint
    assert {row.split(":")[0] for row in before.differences(changed)} == {
        f"file-mine-py/{each} {fact}"
        for each in ("grammar.mine", "modifier.prefer", "hooks.guard")
        for fact in ("version", "digest")
    }


@pytest.mark.slow
def test_a_changed_file_is_another_plugin_and_is_not_mixed_up(folder: Path) -> None:
    with Engine("demo", grammar=(), modifiers=("./mine.py:Prefer",)) as engine:
        assert engine.generate([[5]], PREFERRED)[0].token_ids == (77, 77, 77)
    (folder / "mine.py").write_text(MINE.replace("1000", "-1e9"), encoding="utf-8")
    with Engine("demo", grammar=(), modifiers=("./mine.py:Prefer",)) as engine:
        assert 77 not in engine.generate([[5]], PREFERRED)[0].token_ids
    (folder / "mine.py").write_text(f"{MINE}# not loaded", encoding="utf-8")
    plugins = Plugins()
    record = plugins.resolve("modifier", "./mine.py:Prefer")
    (folder / "mine.py").write_text(f"{MINE}# later", encoding="utf-8")
    with pytest.raises(PluginLoadError, match="was changed after the plugins were planned"):
        plugins.load("modifier", "./mine.py:Prefer")
    assert record.is_file


def test_a_worker_with_another_file_is_refused(folder: Path) -> None:
    planned = plan(EngineConfig(model="demo", **settings()))
    (folder / "mine.py").write_text(f"{MINE}# changed", encoding="utf-8")
    with pytest.raises(PluginError, match=r"file-mine-py/grammar.mine digest: want sha256:\w+, have sha256:"):
        bootstrap_worker(PluginPlan(planned.plugins, planned.settings, "other", planned.files))


def test_two_classes_of_one_name_are_refused(folder: Path) -> None:
    shutil.copy("mine.py", "below/mine.py")
    both = ("./mine.py:Prefer", "./below/mine.py:Prefer")
    with pytest.raises(
        InvalidConfiguration, match=r"modifier 'prefer' twice: '.*/mine.py:Prefer' and '.*/below/mine.py"
    ):
        EngineConfig(model="demo", modifiers=both)
    with pytest.raises(InvalidConfiguration, match="grammar 'mine' twice"):
        EngineConfig(model="demo", grammar=("mine", "./mine.py:Mine"))
    with pytest.raises(
        InvalidConfiguration, match=r"hooks 'guard' twice: '.*/mine.py:Guard' and '.*/below/mine.py:Guard'"
    ):
        PluginSettings(enable=("./mine.py:Guard", "./below/mine.py:Guard"))


def test_certified_means_a_package(folder: Path) -> None:
    config = EngineConfig(
        model="demo", grammar=(), modifiers=("./mine.py:Prefer",), plugins=PluginSettings(require="certified")
    )
    with pytest.raises(NotCertified, match=r"file-mine-py/modifier.prefer \w+: it is a file, and only"):
        Engine(config)


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        ({"modifiers": ("./no.py:Prefer",)}, InvalidConfiguration, "cannot be read: No such file"),
        (
            {"modifiers": ("./mine.py:Prefers",)},
            InvalidConfiguration,
            "defines no class 'Prefers'; it has Added, Prefer,",
        ),
        ({"modifiers": ("./broken.py:Prefer",)}, InvalidConfiguration, r"it is not Python: .*\(broken.py, line 1\)"),
        ({"modifiers": ("./mine.py",)}, PluginNotFound, r"a slash in its path .* such as '\./mine\.py:Mine'"),
        ({"grammar": ("mine.py:Mine",)}, PluginNotFound, r"a slash in its path .* such as '\./mine\.py:Mine'"),
        ({"modifiers": ("./mine.py:Mine",)}, PluginLoadError, "must return a subclass of guideway.api.LogitModifier"),
        ({"worker_mixins": ("./mine.py:Mine",)}, PluginNotFound, "a worker cannot be in a file"),
        (
            {"plugins": PluginSettings(deny=("file-*/*",)), "modifiers": ("./mine.py:Prefer",)},
            PluginUnavailable,
            "deny",
        ),
        ({"modifiers": ("./raises.py:Mine",)}, PluginLoadError, "failed while importing: ZeroDivisionError"),
    ],
    ids=["missing", "no class", "no Python", "no class named", "no slash", "kind", "mixin", "denied", "raises"],
)
def test_a_mistake_is_named(folder: Path, wrong: dict[str, Any], error: type[Exception], said: str) -> None:
    (folder / "broken.py").write_text("class Prefer(", encoding="utf-8")
    (folder / "raises.py").write_text("class Mine: ...\n1 / 0", encoding="utf-8")
    with pytest.raises(error, match=said):
        Engine("demo", **({"grammar": ()} | wrong))


@pytest.fixture
def trap(folder: Path) -> Iterator[str]:
    """Yield the address of a file that must not run."""
    (folder / "trap.py").write_text(
        "from pathlib import Path\nPath(__file__ + '.ran').touch()\n" + MINE, encoding="utf-8"
    )
    yield f"{folder}/trap.py:Prefer"
    assert not (folder / "trap.py.ran").exists()


def test_no_request_and_no_line_names_a_file(trap: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = SamplingParams(max_tokens=2, modifiers={trap: {}})
    by_strategy = SamplingParams(max_tokens=2, constraint=Regex("a", strategy=trap))

    async def served() -> Any:
        async with AsyncEngine("demo", grammar="llguidance") as engine:
            return await engine.generate([5], wanted)

    with Engine("demo", grammar="llguidance") as engine:
        prompts = [[5], [5], {"prompt": [5], "modifiers": {trap: {}}}]
        results = engine.generate(prompts, [wanted, by_strategy, SamplingParams()])
    for result in [*results, asyncio.run(served())]:
        assert result.finish_reason is FinishReason.REFUSED
        assert "is configured" in str(result.error)
    assert read_entry(prompts[2], None, "", "0").params.modifiers == {trap: {}}
    lines = [{"prompt": "x", "modifiers": {trap: {}}, "max_tokens": 2}, {"prompt": "x", "max_tokens": 2}]
    Path("lines").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert main(["generate", "--model", "demo", "--input", "lines", "--json"]) == 1
    refused, fine = map(json.loads, capsys.readouterr().out.splitlines())
    assert (refused["finish_reason"], fine["error"]) == ("refused", None)
    assert "no logit modifier" in refused["error"]["message"]


def test_the_command_line_takes_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--model", "demo", "--prompt", "x", "--json", "--max-tokens", "3"]
    assert main(["generate", *common, "--modifier", './mine.py:Prefer={"token": 77}', "--record"]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == [77, 77, 77]
    assert main(["generate", *common, "--regex", "[ab]", "--strategy", "./mine.py:Mine"]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"] == "mine"
    guard = ["--enable-plugin", "./mine.py:Guard", "generate", *common, "--tenant", "nobody"]
    assert main(guard) == 1
    assert "the guard refuses nobody" in capsys.readouterr().out
    assert main(["config", "show", "--json", "--model", "demo", "--grammar", "./mine.py:Mine"]) == 0
    assert json.loads(capsys.readouterr().out)["grammar"]["value"] == ["./mine.py:Mine"]


@pytest.mark.parametrize("flag", one_in(3, ["prefer", "modifier.prefer", "./mine.py:Prefer"]))
def test_a_flag_selects_a_file_of_the_configuration(
    folder: Path, flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("guideway.toml").write_text('model = "demo"\nmodifiers = ["./mine.py:Prefer"]\n', encoding="utf-8")
    common = ["generate", "--config", "guideway.toml", "--prompt", "x", "--json", "--max-tokens", "3", "--record"]
    assert main([*common, "--modifier", f'{flag}={{"token": 77}}']) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == [77, 77, 77]


@pytest.mark.slow
def test_a_run_is_not_resumed_with_another_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("lines").write_text('{"prompt": "x"}\n{"prompt": "y"}\n', encoding="utf-8")
    common = ["generate", "--model", "demo", "--input", "lines", "--max-tokens", "2", "--output", "out"]
    common += ["--modifier", './mine.py:Prefer={"token": 77}']
    assert main(common) == 0
    assert main([*common, "--resume"]) == 0
    (folder / "mine.py").write_text(f"{MINE}# changed", encoding="utf-8")
    assert main([*common, "--resume"]) != 0
    assert "settings were others" in capsys.readouterr().err


@pytest.mark.slow
def test_a_script_without_a_package_works(folder: Path) -> None:
    program = """
from guideway import Engine, Regex, SamplingParams
with Engine("demo", grammar="./mine.py:Mine", modifiers="./mine.py:Prefer", executor="process") as engine:
    preferred = SamplingParams(max_tokens=3, modifiers={"prefer": {"token": 77}})
    first, second = engine.generate([[5]] * 2, [SamplingParams(constraint=Regex("[ab]{3}")), preferred])
    print(first.strategy, second.token_ids)
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "mine (77, 77, 77)"
