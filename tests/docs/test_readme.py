"""The README's example runs as it stands, and says what it promises."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from guideway.command_line.program import main

from tests.docs.blocks import code_blocks, run_block


def test_the_first_example_runs_and_every_answer_parses() -> None:
    example = code_blocks("README.md", "python")[0]
    assert len([line for line in example.splitlines() if line.strip()]) <= 15
    lines = run_block(example, "README.md", {"__name__": "readme"}).splitlines()
    assert len(lines) == 2
    for line in lines:
        answer, rest = line[: line.rindex("}") + 1], line[line.rindex("}") + 2 :]
        assert set(json.loads(answer)) == {"name", "age"}
        assert rest == "stop None llguidance ()"


def test_the_commands_run_from_the_clone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    (block,) = [block for block in code_blocks("README.md", "sh") if "guideway generate" in block]
    many, one = [
        shlex.split(line.partition(" > ")[0])[1:]
        for line in block.replace("\\\n", "").splitlines()
        if line.startswith("guideway generate")
    ]
    assert main(many) == 0
    assert all(json.loads(line)["error"] is None for line in capsys.readouterr().out.splitlines())
    assert main(one) == 0
    assert json.loads(json.loads(capsys.readouterr().out)["text"]) in ("yes", "no")
