"""Tests of ``guideway vllm options``, which needs no vLLM."""

from __future__ import annotations

import dataclasses

import pytest
from guideway.command_line.program import main
from guideway.plugins import PluginSettings
from guideway.plugins.limits import Limits
from guideway_vllm.config import TABLES, GuestConfig


def test_every_option_is_listed_within_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["vllm", "options"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    first = {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "}
    own = {field.name for field in dataclasses.fields(GuestConfig)} - TABLES.keys()
    limits = {f"limits.{field.name}" for field in dataclasses.fields(Limits)}
    assert first == own | limits | {f"plugins.{field.name}" for field in dataclasses.fields(PluginSettings)}
    text = " ".join(" ".join(lines).split())
    assert "('auto' or 'inline' or 'process'; default: \"auto\")" in text
    assert "Limits" not in text and "None" not in text and "`" not in text
