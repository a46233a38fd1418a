"""``guideway config show``, and the configuration's flags."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from guideway.command_line.program import main
from guideway_engine.config_sources import KEYS

from tests.support.distributions import install

FILE = """\
model = "demo"
grammar = ["one", "two"]
modifiers = ["kgw"]
max_num_seqs = 8

[plugins]
enable = ["policy"]

[options."grammar.one"]
whitespace = "compact"
depth = 3
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("prod.toml").write_text(FILE, encoding="utf-8")
    return "prod.toml"


def show(capsys: pytest.CaptureFixture[str], *arguments: str, before: tuple[str, ...] = ()) -> dict[str, Any]:
    assert main([*before, "config", "show", "--json", *arguments]) == 0
    shown = json.loads(capsys.readouterr().out)
    return {name: (entry["value"], entry["source"]) for name, entry in shown.items()}


def test_it_shows_what_wins(config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUIDEWAY_MAX_NUM_SEQS", "9")
    monkeypatch.setenv("GUIDEWAY_MAX_WAITING", "90")
    flags = (
        "--max-waiting",
        "91",
        "--no-enable-prefix-caching",
        "--option",
        "grammar.one.depth=4",
        "--plugins-deny",
        "a/*,b/*",
    )
    shown = show(capsys, "--config", config, *flags)
    assert list(shown) == [".".join(key) for key in KEYS] + [
        "options.grammar.one.depth",
        "options.grammar.one.whitespace",
    ]
    assert shown["model"] == ("demo", "prod.toml")
    assert shown["max_num_seqs"] == (9, "GUIDEWAY_MAX_NUM_SEQS")
    assert shown["max_waiting"] == (91, "--max-waiting")
    assert shown["enable_prefix_caching"] == (False, "--no-enable-prefix-caching")
    assert shown["compile_threads"] == (2, "default")
    assert shown["max_model_len"] == (None, "default")
    assert shown["plugins.enable"] == (["policy"], "prod.toml")
    assert shown["plugins.deny"] == (["a/*", "b/*"], "--plugins-deny")
    assert shown["options.grammar.one.depth"] == (4, "--option")
    assert shown["options.grammar.one.whitespace"] == ("compact", 'prod.toml, [options."grammar.one"]')


def test_strategy_and_grammar_are_one_flag_and_replace(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = show(capsys, "--config", config, "--strategy", "three,four", "--grammar", "two")
    assert shown["grammar"] == (["three", "four", "two"], "--strategy, --grammar")
    value, source = shown["options.grammar.one.depth"]
    assert (value, source.partition(" (")[2]) == (3, "not used: the component was replaced)")


def test_modifier_and_enable_plugin_add(
    config: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "installed", "house", {"hooks.rules": "house", "hooks.more": "house"})
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    before = ("--enable-plugin", "rules")
    shown = show(capsys, "--config", config, "--modifier", 'cfg={"a": 1}', "--modifier", "kgw", before=before)
    assert shown["modifiers"] == (["kgw", "cfg"], "prod.toml, --modifier")
    assert shown["plugins.enable"] == (["policy", "house/hooks.rules"], "prod.toml, --enable-plugin")
    assert show(capsys, before=before)["plugins.enable"] == (["house/hooks.rules"], "--enable-plugin")
    monkeypatch.setenv("GUIDEWAY_PLUGINS_ENABLE", "more")
    assert show(capsys, "--config", config)["plugins.enable"] == (["more"], "GUIDEWAY_PLUGINS_ENABLE")
    shown = show(capsys, "--config", config, before=before)
    assert shown["plugins.enable"] == (["more", "house/hooks.rules"], "GUIDEWAY_PLUGINS_ENABLE, --enable-plugin")


def test_a_person_gets_a_table(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--config", config]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "FROM"]
    assert lines[1].split() == ["model", "demo", "prod.toml"]
    assert ["max_model_len", "-", "default"] in [line.split() for line in lines]
    assert main(["config", "show"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["model", "-", "not", "set"]


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--max-num-seq", "3"], 2, "unrecognized arguments: --max-num-seq 3; did you mean '--max-num-seqs'?"),
        (["--max-num-seqs", "x"], 2, "argument --max-num-seqs: must be a whole number of at least 1, not 'x'"),
        (["--plugins-require", "x"], 2, "argument --plugins-require: must be 'installed' or 'certified', not 'x'"),
        (["--option", "depth=3"], 2, "argument --option: must be KIND.NAME.OPTION=VALUE, not 'depth=3'"),
        (["--modifier", "={}"], 2, "argument --modifier: must be NAME or NAME={...}"),
        (["--max-num-seqs", "0"], 2, "--max-num-seqs: max_num_seqs must be a whole number of at least 1, not 0"),
        (["--option", "modifier.on.depth=3"], 2, "--option: options are given for 'modifier.on', which this"),
        (["--modifier", "kgw", "--modifier", "a/kgw"], 2, "--modifier: modifiers has modifier 'kgw' twice"),
        (
            ["--dtype", "float23"],
            2,
            "--dtype: dtype must be auto, float32, float16, bfloat16 or float64, not 'float23'",
        ),
        (["--executor", "nope"], 1, "no executor named 'nope' is installed"),
        (["--executor", "nope"], 1, "It comes from --executor."),
        (["--device-backend", "nope"], 1, "no device named 'nope' is installed"),
        (["--grammar", '["one", "two"]'], 2, "is a list, whose items are separated by commas: write 'one,two', not"),
        (["--config", "absent.toml"], 1, "the configuration file 'absent.toml' cannot be read: No such file"),
    ],
)
def test_a_mistake_is_explained(
    arguments: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", *arguments]) == status
    out, err = capsys.readouterr()
    assert said in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("arguments", "key", "said"),
    [
        (["--strategy", "a"], "grammar", "--strategy"),
        (["--grammar=a"], "grammar", "--grammar"),
        (["--strategy", "a", "--grammar", "b"], "grammar", "--strategy, --grammar"),
        (["--strict"], "on_unenforced", "--strict"),
        (["--on-unenforced", "refuse"], "on_unenforced", "--on-unenforced"),
        (["--no-enable-prefix-caching"], "enable_prefix_caching", "--no-enable-prefix-caching"),
        (["--plugins-require", "certified"], "plugins.require", "--plugins-require"),
    ],
)
def test_a_value_comes_from_the_flag_that_was_typed(
    arguments: list[str], key: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)[key]["source"] == said


def test_without_a_subcommand_it_says_which_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 2
    out, err = capsys.readouterr()
    assert (out, "show the configuration" in err) == ("", True)
