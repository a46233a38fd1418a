"""Merging of four sources by precedence, and errors that name the place of a mistake."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from guideway import EngineConfig, Limits, PluginSettings, ReasoningConfig
from guideway.errors import InvalidConfiguration
from guideway_engine.config_sources import KEYS, VARIABLES

from tests.support.distributions import install

FILE = """\
model = "demo"
grammar = ["one", "two"]
max_num_seqs = 8
enable_prefix_caching = false

[plugins]
enable = ["policy"]
require = "installed"

[options."grammar.one"]
whitespace = "compact"
depth = 3
"""


def load(tmp_path: Path, text: str = FILE, environ: dict[str, str] | None = None, **arguments: Any) -> EngineConfig:
    path = tmp_path / "guideway.toml"
    path.write_text(text, encoding="utf-8")
    return EngineConfig.load(path, environ=environ or {}, **arguments)


def refusal(tmp_path: Path, text: str = FILE, environ: dict[str, str] | None = None, **arguments: Any) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        load(tmp_path, text, environ, **arguments)
    return str(caught.value).replace(str(tmp_path / "guideway.toml"), "FILE")


def test_arguments_over_environment_over_file_over_defaults(tmp_path: Path) -> None:
    environ = {"GUIDEWAY_MAX_NUM_SEQS": "9", "GUIDEWAY_MAX_WAITING": "90", "GUIDEWAY_PLUGINS_ENABLE": "a, b"}
    assert load(tmp_path).max_num_seqs == 8
    config = load(tmp_path, environ=environ, max_waiting=91)
    assert (config.model, config.grammar, config.enable_prefix_caching) == ("demo", ("one", "two"), False)
    assert (config.max_num_seqs, config.max_waiting, config.compile_threads) == (9, 91, 2)
    assert config.plugins == PluginSettings(enable=("a", "b"))


def test_every_field_can_be_set_by_every_source(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "model": "demo",
        "grammar": ["g"],
        "modifiers": ["m"],
        "worker_mixins": ["w"],
        "device_backend": "numpy",
        "device": "cpu:1",
        "dtype": "auto",
        "load_format": "auto",
        "runner": "transformers",
        "workflow": "decode",
        "executor": "process",
        "max_num_seqs": 3,
        "max_model_len": 4,
        "kv_cache_tokens": 5,
        "max_num_batched_tokens": 6,
        "enable_prefix_caching": False,
        "max_waiting": 7,
        "num_speculative_tokens": 8,
        "forced_tokens": "canonical",
        "split_special_tokens": False,
        "grammar_host": "inline",
        "modifier_host": "process",
        "host_environment": ["MINE_*"],
        "isolate_tenants": True,
        "compile_threads": 9,
        "grammar_cache_bytes": 10,
        "whitespace": "compact",
        "short_budget": "cut",
        "on_unenforced": "refuse",
    }
    plugins: dict[str, Any] = {"enable": ["a"], "allow": ["*/*"], "deny": ["x/*"], "require": "certified", "lock": "/l"}
    limits: dict[str, Any] = {
        "admission_seconds": 1.5,
        "compile_seconds": 2,
        "start_seconds": 3.5,
        "step_seconds": 4,
        "fill_seconds": 4.5,
        "late_seconds": 0.25,
        "late_fills": 6,
        "request_seconds": 60.5,
        "wall_factor": 7.5,
        "memory_bytes": 8_000_000,
        "total_memory_bytes": 9_000_000,
        "remembered_seconds": 9.5,
    }
    reasoning: dict[str, Any] = {"start_str": "<think>", "end_str": "</think>"}
    reasoning |= {"start_token_ids": [], "end_token_ids": [], "excluded_token_ids": []}
    options: dict[str, Any] = {"grammar.g": {"deep": [1, {"a": True}]}, "worker.w": {"seconds": 0.5}}
    tables = {"reasoning": reasoning, "limits": limits, "plugins": plugins}
    assert {(name,) for name in values} | {(table, name) for table in tables for name in tables[table]} == KEYS.keys()
    made: dict[str, Any] = {
        "reasoning": ReasoningConfig(**reasoning),
        "limits": Limits(**limits),
        "plugins": PluginSettings(**plugins),
    }
    expected = EngineConfig(**values, options=options, **made)

    assert load(tmp_path, "", **values, options=options, **tables) == expected
    assert load(tmp_path, "", **values, options=options, **made) == expected
    lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
    for table, fields in tables.items():
        lines += [f"[{table}]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
    lines += ['[options."grammar.g"]', "deep = [1, {a = true}]", '[options."worker.w"]', "seconds = 0.5"]
    assert load(tmp_path, "\n".join(lines)) == expected

    def text(value: Any) -> str:
        return ",".join(value) if isinstance(value, list) else str(value)

    environ = {
        name: text(values[key[0]] if len(key) == 1 else tables[key[0]][key[1]]) for name, key in VARIABLES.items()
    }
    assert load(tmp_path, "", {**environ, "GUIDEWAY_OPTIONS": json.dumps(options)}) == expected


def test_the_file_may_be_named_by_the_environment_and_an_argument_wins(tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('model = "other"', encoding="utf-8")
    environ = {"GUIDEWAY_CONFIG": str(other)}
    assert EngineConfig.load(environ=environ).model == "other"
    assert load(tmp_path, environ=environ).model == "demo"


def test_it_reads_this_process_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUIDEWAY_MODEL", "mine")
    assert EngineConfig.load().model == "mine"


def test_options_are_merged_one_by_one(tmp_path: Path) -> None:
    environ = {"GUIDEWAY_OPTIONS": '{"grammar.one": {"depth": 4}, "grammar.two": {"x": 1}}'}
    config = load(tmp_path, environ=environ, options={"grammar.two": {"x": 2}})
    assert config.options == {"grammar.one": {"whitespace": "compact", "depth": 4}, "grammar.two": {"x": 2}}


def test_options_of_a_component_that_was_replaced_go_with_it(tmp_path: Path) -> None:
    assert load(tmp_path, environ={"GUIDEWAY_GRAMMAR": "two"}).options == {}
    assert load(tmp_path, environ={"GUIDEWAY_GRAMMAR": ","}).grammar == ()
    said = refusal(tmp_path, FILE.replace('"grammar.one"', '"grammar.oen"'), {"GUIDEWAY_GRAMMAR": "two"})
    assert said.startswith("FILE, [options.\"grammar.oen\"]: options are given for 'grammar.oen', which")
    assert "argument options: " in refusal(tmp_path, grammar=["two"], options={"grammar.one": {"depth": 1}})


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    names = ("MODEL", "CONFIG", "OPTIONS", "MAX_NUM_SEQS", "PLUGINS_ENABLE", "NO_SUCH_THING")
    assert load(tmp_path, environ={f"GUIDEWAY_{name}": "" for name in names}) == load(tmp_path)


@pytest.mark.parametrize("word", ["false", "No", "off", "0"])
def test_words_for_false(word: str, tmp_path: Path) -> None:
    assert load(tmp_path, environ={"GUIDEWAY_ENABLE_PREFIX_CACHING": word}).enable_prefix_caching is False
    assert load(tmp_path, environ={"GUIDEWAY_MAX_MODEL_LEN": "none"}).max_model_len is None


def test_paths_in_a_file_are_relative_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "models" / "llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path.parent)
    for model, expected in (
        ("./llama", tmp_path / "llama"),
        ("../llama", tmp_path / "../llama"),
        ("models/llama", tmp_path / "models/llama"),
        ("/llama", Path("/llama")),
        ("~/llama", Path("~/llama").expanduser()),
        ("acme/demo", "acme/demo"),
        ("demo", "demo"),
    ):
        assert load(tmp_path, f'model = "{model}"').model == str(expected)
    assert load(tmp_path, 'model = "x"\nplugins = {lock = "my.lock"}').plugins.lock == str(tmp_path / "my.lock")
    assert load(tmp_path, 'model = "x"').plugins.lock is None
    relative = Path(tmp_path.name, "guideway.toml")
    relative.write_text('model = "./llama"', encoding="utf-8")
    assert EngineConfig.load(relative, environ={}).model == str(tmp_path / "llama")
    assert load(tmp_path, environ={"GUIDEWAY_MODEL": "./llama"}).model == "./llama"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_num_seq = 3", "FILE: unknown key 'max_num_seq'; did you mean 'max_num_seqs'? known: model, "),
        ("max-num-seqs = 3", "FILE: unknown key 'max-num-seqs'; did you mean 'max_num_seqs'? "),
        ("[plugin]", "FILE: unknown key 'plugin'; did you mean 'plugins'? "),
        ("[plugins]\nenabel = []", "FILE, [plugins]: unknown key 'enabel'; did you mean 'enable'? known: enable, "),
        ("plugins = 3", "FILE: plugins must be a table, not 3"),
        (
            'max_num_seqs = "8"',
            "FILE: max_num_seqs must be a whole number of at least 1, not the text '8'; write max_num_seqs = 8",
        ),
        ('enable_prefix_caching = "no"', "not the text 'no'; write enable_prefix_caching = false"),
        (
            'grammar = "one"',
            "FILE: grammar must be a list of names, or None, not the text 'one'; write grammar = [\"one\"]",
        ),
        ('plugins = {deny = "a/*"}', 'write deny = ["a/*"]'),
        (
            'max_model_len = "none"',
            "FILE: max_model_len must be a whole number of at least 2, or None, not the text 'none'; leave it",
        ),
        ("model = 'm'\nmax_num_seqs = true", "FILE: max_num_seqs must be a whole number of at least 1, not True"),
        ("model = 'm'\nmax_num_seqs = 0", "FILE: max_num_seqs must be a whole number of at least 1, not 0"),
        ("model = 3", "FILE: model must be a string that is not empty, not 3"),
        ("model = ''", "FILE: model must be a string that is not empty, not ''"),
        ("model = 'm'\ngrammar = [3]", "FILE: grammar must be a list of names, or None, not [3]"),
        ("model = 'm'\nplugins = {require = 'x'}", "FILE: [plugins] require must be 'installed' or 'certified'"),
        ("model = 'm'\nplugins = {enable = 3}", "FILE: [plugins] enable must be a list of strings, not 3"),
        ("model = 'm'\nplugins = {lock = 3}", "FILE: [plugins] lock must be the path of a lock file, or None, not 3"),
        ("options = 3", "FILE, [options]: options must map 'kind.name'"),
        ('[options]\n"grammar.one" = 3', "FILE, [options]: the options of 'grammar.one' must map names to values"),
        ("[options.grammar.one]\nx = 1", 'quotes kind and name together; write [options."grammar.one"]'),
        ('[options."gramar.one"]', "'gramar.one' is not a component with options; did you mean 'grammar'? "),
        ('[options."one"]', "'one' is not a component with options; "),
        (
            "model = 'm'\ngrammar = []\n[options.\"grammar.one\"]",
            'FILE, [options."grammar.one"]: options are given for',
        ),
        ("a = 1\nb = [", "FILE is not TOML: Invalid value (at line 2, column 6, its end)"),
        ("a = 1\na = 2", "(at line 2, column 6"),
        ("a = " + "[" * 100_000, "FILE is nested too deeply"),
        ("a = 1" + "0" * 5000, "FILE is not TOML: "),
        ("", "no model is configured; give --model, GUIDEWAY_MODEL, or model in a configuration file"),
    ],
)
def test_a_mistake_in_the_file_is_explained(text: str, said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path, text).replace("the configuration file 'FILE'", "FILE")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    absent = tmp_path / "absent.toml"
    with pytest.raises(InvalidConfiguration, match=r"absent\.toml' cannot be read: No such file"):
        EngineConfig.load(absent, environ={})
    with pytest.raises(InvalidConfiguration, match=r"absent\.toml' \(GUIDEWAY_CONFIG\) cannot be read"):
        EngineConfig.load(environ={"GUIDEWAY_CONFIG": str(absent)})
    absent.write_bytes(b'model = "demo"\ndtype = "\xff"\n')
    with pytest.raises(InvalidConfiguration, match=r"is not UTF-8 \(at line 2, column 10\)"):
        EngineConfig.load(absent, environ={})
    absent.write_bytes(b'\xef\xbb\xbfmodel = "demo"\r\n')  # as written by editors on Windows
    assert EngineConfig.load(absent, environ={}).model == "demo"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"GUIDEWAY_MAX_NUM_SEQ": "3"}, "variable GUIDEWAY_MAX_NUM_SEQ; did you mean 'GUIDEWAY_MAX_NUM_SEQS'? "),
        ({"GUIDEWAY_PLUGIN_ENABLE": "a"}, "did you mean 'GUIDEWAY_PLUGINS_ENABLE'? "),
        ({"GUIDEWAY_TENANT": "3"}, "variable GUIDEWAY_TENANT; a plugin's own variables begin with GUIDEWAY_ and"),
        ({"GUIDEWAY_MAX_NUM_SEQS": "many"}, "GUIDEWAY_MAX_NUM_SEQS must be a whole number of at least 1, not 'many'"),
        ({"GUIDEWAY_MAX_NUM_SEQS": "0"}, "GUIDEWAY_MAX_NUM_SEQS: max_num_seqs must be a whole number of at least 1"),
        (
            {"GUIDEWAY_GRAMMAR": '["one", "two"]'},
            "GUIDEWAY_GRAMMAR is a list, whose items are separated by commas: write",
        ),
        ({"GUIDEWAY_PLUGINS_DENY": "[]"}, "separated by commas: write ',', not '[]'"),
        ({"GUIDEWAY_ENABLE_PREFIX_CACHING": "si"}, "GUIDEWAY_ENABLE_PREFIX_CACHING must be true or false, not 'si'"),
        ({"GUIDEWAY_PLUGINS_REQUIRE": "x"}, "GUIDEWAY_PLUGINS_REQUIRE must be 'installed' or 'certified', not 'x'"),
        ({"GUIDEWAY_PLUGINS_DENY": "x"}, "GUIDEWAY_PLUGINS_DENY: [plugins] deny: 'x' can match nothing"),
        ({"GUIDEWAY_OPTIONS": "{"}, "GUIDEWAY_OPTIONS must be JSON, such as"),
        ({"GUIDEWAY_OPTIONS": "[]"}, "GUIDEWAY_OPTIONS: options must map 'kind.name'"),
        (
            {"GUIDEWAY_OPTIONS": '{"grammar.three": {"a": 1}}'},
            "GUIDEWAY_OPTIONS: options are given for 'grammar.three'",
        ),
    ],
)
def test_a_mistake_in_the_environment_is_explained(environ: dict[str, str], said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path, environ=environ)


def test_a_variable_of_an_installed_plugin_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"GUIDEWAY_HOUSE_RULES": "a", "GUIDEWAY_HOUSE_RULES_FILE": "b", "OTHER": "c"}
    assert "unknown environment variable GUIDEWAY_HOUSE_RULES;" in refusal(tmp_path, environ=environ)
    install(tmp_path / "installed", "house", {"hooks.house-rules": "house"})
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    assert load(tmp_path, environ=environ) == load(tmp_path)
    assert "GUIDEWAY_HOUSE_RULESX" in refusal(tmp_path, environ={**environ, "GUIDEWAY_HOUSE_RULESX": "1"})


@pytest.mark.parametrize(
    ("variable", "component"),
    [
        ("GUIDEWAY_PROCESS_TIMOUT", "executor.process"),
        ("GUIDEWAY_LOCAL_RANKS", "executor.local"),
        ("GUIDEWAY_TORCH_DEVICE", "device.torch"),
        ("GUIDEWAY_REFERENCE", "grammar.reference"),
    ],
)
def test_a_variable_named_for_a_component_that_takes_options_is_refused(
    variable: str, component: str, tmp_path: Path
) -> None:
    said = refusal(tmp_path, environ={variable: "1"})
    assert f"unknown environment variable {variable}; " in said
    assert f"{component} would take options from GUIDEWAY_OPTIONS" in said


def test_a_variable_named_for_a_model_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path / "installed", "mine", {"model.mine": "mine"})
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    said = refusal(tmp_path, environ={"GUIDEWAY_MINE_X": "1"})
    assert "unknown environment variable GUIDEWAY_MINE_X; a plugin's own variables begin with" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"max_seqs": 3}, "argument max_seqs: unknown key 'max_seqs'; did you mean 'max_num_seqs'? "),
        ({"max_num_seqs": "3"}, "argument max_num_seqs: max_num_seqs must be a whole number of at least 1, not '3'"),
        ({"plugins": {"enabel": []}}, "argument plugins, [plugins]: unknown key 'enabel'; did you mean 'enable'? "),
        ({"plugins": 3}, "argument plugins: plugins must be a table, not 3"),
        ({"options": {"grammar.three": {}}}, "argument options: options are given for 'grammar.three', which"),
        ({"options": {3: {}}}, "argument options: 3 is not a component with options"),
    ],
)
def test_a_mistake_in_an_argument_is_explained(arguments: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in refusal(tmp_path, **arguments)


def test_every_key_has_help() -> None:
    """Flags show the docstrings of fields."""
    assert all(field.help for field in KEYS.values())
    assert len({field.name for field in dataclasses.fields(EngineConfig)}) == len([k for k in KEYS if len(k) == 1]) + 4


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "large"])
@pytest.mark.parametrize("named_by", ["flag", "variable"])
def test_the_file_is_a_regular_one_of_at_most_a_mebibyte(kind: str, named_by: str, tmp_path: Path) -> None:
    path, said = tmp_path / "guideway.toml", "it is a named pipe, not a regular file"
    if kind == "pipe":
        os.mkfifo(path)  # without a writer
    elif kind == "folder":
        path.mkdir()
        said = "Is a directory"
    elif kind == "device":
        path, said = Path("/dev/zero"), "it is a device, not a regular file"
    else:
        path.write_bytes(b"#" * (1 << 20) + b"\n")
        said = "it is larger than 1 MiB"
    by_flag = named_by == "flag"
    with pytest.raises(InvalidConfiguration) as caught:
        EngineConfig.load(path if by_flag else None, environ={} if by_flag else {"GUIDEWAY_CONFIG": str(path)})
    assert str(caught.value).startswith(f"the configuration file {str(path)!r}")
    assert str(caught.value).endswith(said) and caught.value.field == "config"
    if kind == "large":
        path.write_bytes(b'model = "demo"\n' + b"#" * ((1 << 20) - 16) + b"\n")
        assert EngineConfig.load(path, environ={}).model == "demo"
