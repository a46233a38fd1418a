"""`.githooks/commit-msg` accepts the subjects that docs/style.md requires, and explains why it refuses others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.repository.sources import ROOT

HOOK = ROOT / ".githooks" / "commit-msg"


def run_hook(tmp_path: Path, message: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "message"
    file.write_text(message, encoding="utf-8")
    return subprocess.run([HOOK, file], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "message",
    [
        "runtime: stop the search when it needs twice the budget",
        "runtime, vllm: lock, create and replace output files safely\n\nTwo commands may write at the same time.",
        "core/guideway-engine: embed prompts once\n# a comment of git",
        "fixup! runtime: stop the search",
    ],
)
def test_an_order_about_one_change_is_taken(tmp_path: Path, message: str) -> None:
    done = run_hook(tmp_path, message)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("Start-up and throughput in vLLM measured anew", "names no area"),
        ("runtime: " + "stop the search " * 5, "characters"),
        ("runtime: the search stops", "'the' is not a verb"),
        ("runtime: Stop the search", "'Stop' is not a verb"),
        ("runtime: stopped the search", "'stopped' is not in the imperative"),
        ("runtime: stopping the search", "'stopping' is not in the imperative"),
        ("runtime: stop", "does not say what"),
        ("runtime: stop the search; start another", "more than one change"),
        ("runtime: stop the search.", "full stop"),
        ("runtime: stop the search\nwithout a line between", "not empty"),
    ],
)
def test_other_subjects_are_refused_with_the_rule(tmp_path: Path, message: str, reason: str) -> None:
    done = run_hook(tmp_path, message)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "docs/style.md" in done.stderr
