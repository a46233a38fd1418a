"""The examples of the page on configuration run, and it lists every key with its default."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest
from guideway import EngineConfig
from guideway.command_line.program import main
from guideway.errors import InvalidConfiguration
from guideway_engine.config_sources import KEYS

from tests.docs.blocks import ROOT, code_blocks, run_block

PAGE = "docs/configuration.md"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder with the page's file and a policy for its validator."""
    monkeypatch.chdir(tmp_path)
    (file,) = code_blocks(PAGE, "toml")
    Path("guideway.toml").write_text(file, encoding="utf-8")
    Path("policy.toml").write_text("[tenants.acme]\nmax_tokens = 20", encoding="utf-8")
    monkeypatch.setenv("GUIDEWAY_TENANT_POLICY", "policy.toml")


def commands(block: str, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The arguments of each `guideway` in it; what it exports is exported."""
    found = []
    for line in block.splitlines():
        program, *arguments = shlex.split(line)
        if program == "export":
            monkeypatch.setenv(*arguments[0].split("=", 1))
        else:
            assert program == "guideway"
            found.append(arguments)
    return found


def test_the_file_sets_every_key() -> None:
    config = EngineConfig.load("guideway.toml", environ={})
    assert config.max_num_seqs == 16
    (file,) = code_blocks(PAGE, "toml")
    assert set(re.findall(r"^(\w+) = ", file, re.MULTILINE)) == {key[-1] for key in KEYS} | {"whitespace"}


def test_what_wins_is_shown_as_the_page_has_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (command,) = commands(code_blocks(PAGE, "sh")[0], monkeypatch)
    assert main(command) == 0
    shown = code_blocks(PAGE, "text")[0].splitlines()
    assert capsys.readouterr().out.splitlines()[: len(shown)] == shown


def test_the_table_has_every_key_and_its_default() -> None:
    page = (ROOT / PAGE).read_text("utf-8")
    defaults = dict(re.findall(r"^\| `([a-z_.]+)` \|([^|]*)\|", page, re.MULTILINE))
    for key, field in KEYS.items():
        default: Any = None if field.default is MISSING else field.default
        written = "" if field.default is MISSING else "none" if default is None else json.dumps(default)
        assert defaults.pop(".".join(key)).strip(" `") == written
    assert not defaults


def test_generate_runs_as_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    (command,) = commands(code_blocks(PAGE, "sh")[1], monkeypatch)
    assert main(command) == 0
    line = json.loads(capsys.readouterr().out)
    assert line["error"] is None
    assert 0 < line["num_tokens"] <= 20
    assert "e" not in line["text"]
    Path("policy.toml").write_text("", encoding="utf-8")
    assert main(command) == 1


def test_the_python_example_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    (example,) = code_blocks(PAGE, "python")
    first, second = run_block(example, PAGE, {"__name__": "page"}).splitlines()
    assert first == "16 64 ('tenant_policy',)"
    assert second in ("stop None", "length None")


@pytest.mark.parametrize(
    ("file", "environ"),
    [
        ("max_num_seq = 8", {}),
        ("max_num_seqs = '8'", {}),
        ("", {"GUIDEWAY_MAX_NUM_SEQS": "many"}),
        ("[plugins]\nenabel = []", {}),
        ("model 'demo'", {}),
    ],
)
def test_mistakes_are_told_as_the_page_has_it(file: str, environ: dict[str, str]) -> None:
    Path("guideway.toml").write_text(file, encoding="utf-8")
    with pytest.raises(InvalidConfiguration) as caught:
        EngineConfig.load("guideway.toml", environ=environ)
    assert any(str(caught.value).startswith(line) for line in code_blocks(PAGE, "text")[1].splitlines()), caught.value
