"""Installed packages with one mistake each, through `guideway conform`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from guideway.plugins.scaffold import new_package

from tests.support.environments import BUILD


@dataclass(frozen=True)
class Bug:
    """A change to a plugin written by `guideway plugins new`."""

    kind: str
    correct: str
    wrong: str
    status: int
    """The exit status of `guideway conform`."""
    caught: str | None
    """One check that must fail."""


BUGS = {
    "forgets-a-token": Bug(
        "grammar",
        "self.accepted = self.accepted[: len(self.accepted) - num_tokens]",
        "self.accepted = self.accepted[: max(0, len(self.accepted) - num_tokens - 1)]",
        1,
        "rollback",
    ),
    "writes-everywhere": Bug(
        "modifier",
        'step.ops.scale_rows(logits, payload.rows, payload.arrays["factor"])',
        "logits + 1.0",
        1,
        "rows",
    ),
    "dies": Bug(
        "hooks", "    limit = int(", "    import os\n\n    os._exit(3)\n    limit = int(", 1, "hooks.passes_or_refuses"
    ),
    "cannot-be-imported": Bug(
        "worker", "from __future__ import annotations", "import there_is_no_such_module", 4, None
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_the_program_says_what_is_wrong(name: str, tmp_path: Path) -> None:
    bug = BUGS[name]
    project, wheels, site = tmp_path / "project", tmp_path / "wheels", tmp_path / "site"
    new_package(bug.kind, name, project, "acme-plugin")
    source = project / "src" / "acme_plugin" / "__init__.py"
    text = source.read_text("utf-8")
    assert bug.correct in text
    source.write_text(text.replace(bug.correct, bug.wrong), encoding="utf-8")
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", BUILD, str(wheels), str(project)], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*pip, "--target", str(site), *map(str, wheels.glob("*.whl"))], check=True)

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "guideway",
            "conform",
            f"{bug.kind}.{name}",
            "--up-to",
            "core",
            "--report",
            "report.json",
        ],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == bug.status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if bug.caught is None:
        assert "there_is_no_such_module" in done.stderr
        return
    results = json.loads((tmp_path / "report.json").read_text("utf-8"))["results"]
    failed = [result["check"] for result in results if result["outcome"] == "fail"]
    assert any(bug.caught in check for check in failed), failed
