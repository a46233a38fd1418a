"""`.ci/all` (make test-all) stops at the first part that fails, continues with it, and reports which have passed.

A copy of the folder `.ci` runs with a `make` that only fails where the test says so.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.repository.sources import ROOT

PARTS = re.findall(r'^part "([^"]+)"', (ROOT / ".ci" / "all").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    shutil.copytree(ROOT / ".ci", tmp_path / ".ci")
    for name in (".ci/wheels", ".venv/bin/python", "bin/make"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('#!/bin/sh\ncase "$*" in *$FAILING*) exit 3;; esac\n', encoding="utf-8")
        path.chmod(0o755)
    for command in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a", "commit", "-q", "--allow-empty", "-m", "a"],
    ):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


def run_parts(checkout: Path, *, part: str = "", failing: str = "no such part") -> tuple[int, str]:
    environment = {
        **os.environ,
        "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}",
        "CORPORA": "x",
        "PART": part,
        "FAILING": failing,
    }
    done = subprocess.run([".ci/all"], cwd=checkout, env=environment, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def listed(printed: str) -> list[tuple[int, str]]:
    """Return the number and the name of each part in the table at the end."""
    return [
        (int(number), name) for number, name in re.findall(r"^==== +(\d+) +\d+  \w{8}  (.+)$", printed, re.MULTILINE)
    ]


def test_it_continues_with_the_part_that_failed(checkout: Path) -> None:
    code, printed = run_parts(checkout, failing="core/guideway-conformance")
    assert code == 1
    assert "continue with make test-all PART=4" in printed
    assert listed(printed) == list(enumerate(PARTS[:3], 1))
    code, printed = run_parts(checkout, part="4")
    assert code == 0 and "all passed" in printed
    assert listed(printed) == list(enumerate(PARTS, 1))


def test_parts_that_never_passed_are_no_success(checkout: Path) -> None:
    code, printed = run_parts(checkout, part=str(len(PARTS)))
    assert code == 1 and f"only 1 of {len(PARTS)} parts have passed" in printed


@pytest.mark.parametrize("part", ["0", "x", "-1"])
def test_a_part_is_a_number(checkout: Path, part: str) -> None:
    code, printed = run_parts(checkout, part=part)
    assert code == 2 and f"not '{part}'" in printed


def test_each_part_belongs_to_a_folder() -> None:
    """CONTRIBUTING.md says which folders each part checks."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = text.partition("| folder | parts of `make test-all` |\n")[2].partition("\n\n")[0].splitlines()
    found = {int(number) for row in rows for number in re.findall(r"\b\d+\b", row.split("|")[2].replace("---", ""))}
    assert found == set(range(1, len(PARTS) + 1))
