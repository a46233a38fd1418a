"""`guideway plugins new` writes a plugin that passes its conformance checks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from guideway.errors import InvalidConfiguration
from guideway.plugins.kinds import KINDS
from guideway.plugins.scaffold import KINDS_TO_WRITE, new_package

from tests.support.environments import BUILD, unpack
from tests.support.stages import everyday


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install a package of each kind into a folder to put on the path."""
    folder = tmp_path_factory.mktemp("scaffold")
    projects = []
    for kind in KINDS_TO_WRITE:
        projects.append(folder / kind)
        new_package(kind, f"my-{kind}", projects[-1], f"acme-{kind}")
    wheels = folder / "wheels"
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", BUILD, str(wheels), *map(str, projects)], check=True)
    for wheel in wheels.glob("*.whl"):
        unpack(wheel, folder / "site")
    return folder / "site"


def guideway(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "guideway", *arguments],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", everyday(KINDS_TO_WRITE, "hooks"))
def test_a_new_package_is_certified(site: Path, kind: str) -> None:
    done = guideway(site, "conform", f"{kind}.my-{kind}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "CERTIFIED" in done.stdout


@pytest.mark.slow
def test_doctor_finds_nothing(site: Path) -> None:
    done = guideway(site, "plugins", "doctor", "--json", "--import", *(f"my-{kind}" for kind in KINDS_TO_WRITE))
    found = json.loads(done.stdout)
    assert (found["ok"], found["problems"]) == (True, [])


@pytest.mark.slow
def test_a_new_workflow_serves(site: Path) -> None:
    program = (
        "from guideway import Engine\n"
        "with Engine('demo', workflow='my-workflow') as engine:\n"
        "    short, cat, empty = engine.run('my-workflow', ['a', 'A cat sits on the mat.', ''])\n"
        "    (asked,) = engine.run('my-workflow', ['a'], {'k': 1})\n"
        "assert 0 < short.norm != cat.norm > 0 and short.num_tokens < cat.num_tokens, (short, cat)\n"
        "print(short.error, cat.error, empty.error, asked.error, sep='\\n')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=site,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        *("None", "None", "an input is a text that is not empty"),
        "my-workflow has no parameter k",
    ]


@pytest.mark.slow
def test_its_test_file_runs(tmp_path: Path, site: Path) -> None:
    new_package("hooks", "my-hooks", tmp_path / "package", "acme-hooks")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=tmp_path / "package",
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def test_the_workflow_is_the_one_that_the_page_gives(tmp_path: Path) -> None:
    new_package("grammar", "mine", tmp_path / "new")
    workflow = (tmp_path / "new" / ".github" / "workflows" / "conformance.yml").read_text("utf-8")
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text("utf-8")
    assert f"\n{workflow}```\n" in page
    assert "guideway conform grammar.mine --report report.json" in workflow and "matrix report.json --html" in workflow


def test_style(tmp_path: Path) -> None:
    for kind in KINDS_TO_WRITE:
        new_package(kind, "mine", tmp_path / kind)
    config = str(Path(__file__).parents[2] / "pyproject.toml")
    ruff = [sys.executable, "-m", "ruff"]
    subprocess.run([*ruff, "check", "--no-cache", "--config", config, str(tmp_path)], check=True)
    subprocess.run([*ruff, "format", "--no-cache", "--check", "--config", config, str(tmp_path)], check=True)


@pytest.mark.slow
def test_types(tmp_path: Path) -> None:
    kinds = [kind for kind in KINDS_TO_WRITE if kind != "attention"]  # reading torch takes a minute
    for kind in kinds:
        new_package(kind, "mine", tmp_path / kind, f"acme-{kind}")
    config = str(Path(__file__).parents[2] / "pyproject.toml")
    mypy = [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [*mypy, *(f"{kind}/src" for kind in kinds)], cwd=tmp_path, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_names_its_files(tmp_path: Path) -> None:
    done = guideway(tmp_path, "plugins", "new", "hooks", "mine")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "guideway-mine" / "src" / "guideway_mine" / "__init__.py").is_file()
    assert "guideway conform hooks.mine" in done.stdout


def test_every_kind_with_checks_can_be_begun_and_the_help_names_it(tmp_path: Path) -> None:
    assert KINDS_TO_WRITE.keys() == {kind.name for kind in KINDS.values() if not kind.unchecked}
    said = guideway(tmp_path, "plugins", "new", "--help").stdout
    assert all(kind in said for kind in KINDS_TO_WRITE)


@pytest.mark.parametrize(
    ("kind", "name", "field"),
    [("executor", "mine", "kind"), ("gramar", "mine", "kind"), ("grammar", "My Own", "name")],
)
def test_what_cannot_be_begun_is_refused(tmp_path: Path, kind: str, name: str, field: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        new_package(kind, name, tmp_path / "new")
    assert refused.value.field == field
    assert field != "kind" or f"kinds: {', '.join(KINDS_TO_WRITE)}" in str(refused.value)
    assert not (tmp_path / "new").exists()


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(InvalidConfiguration, match="not empty"):
        new_package("hooks", "mine", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
