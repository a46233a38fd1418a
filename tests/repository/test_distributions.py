"""Every plugin is a complete distribution, and the development set-up installs all of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import guideway
import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from tests.repository.sources import CORE, ROOT, distributions

KINDS = {"grammar", "device", "modifier", "worker", "hooks", "workflow", "attention", "executor", "model", "runner"}

HOSTS = "guideway-hosts"
"""The distribution that offers no component."""


def project_of(folder: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def requirements(name: str) -> list[str]:
    lines = (line.strip() for line in (ROOT / name).read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def test_there_are_distributions() -> None:
    assert {"guideway-xgrammar", "guideway-llguidance", "guideway-demo-model"} <= {d.name for d in distributions()}


def test_the_development_setup_installs_every_distribution() -> None:
    editable = {line.removeprefix("-e ") for line in requirements("requirements-dev.txt") if line.startswith("-e ")}
    expected = {"."} | {f"./{folder.relative_to(ROOT).as_posix()}" for folder in distributions()}
    assert editable == expected


def test_every_folder_of_distributions_holds_one() -> None:
    places = ("core", "plugins", "contrib")
    folders = {p for place in places for p in (ROOT / place).iterdir() if any(p.glob("[!.]*.*"))}
    assert folders - {CORE} == set(distributions())


def test_those_of_core_carry_one_version() -> None:
    library = project_of(ROOT)
    version = guideway.__version__
    pins = [pin for extra in library["optional-dependencies"].values() for pin in extra if "guideway" in pin]
    parts = [folder for folder in distributions() if folder.parent == CORE.parent]
    assert {re.sub(r"\[.*]", "", pin) for pin in pins} == {f"{folder.name}=={version}" for folder in parts}
    for folder in parts:
        project = project_of(folder)
        assert project["version"] == version
        assert f"guideway=={version}" in project["dependencies"]


@pytest.mark.parametrize("folder", distributions(), ids=lambda folder: folder.name)
def test_a_distribution_is_complete(folder: Path) -> None:
    project = project_of(folder)
    package = folder / "src" / folder.name.replace("-", "_")
    assert project["name"] == folder.name
    assert project["license"] == "Apache-2.0"
    assert project["requires-python"] == ">=3.11"
    assert project["description"]
    assert any(re.match(r"guideway\b(?!-)", requirement) for requirement in project["dependencies"])
    assert (package / "py.typed").is_file()
    readme = (folder / project["readme"]).read_text("utf-8")
    assert len(readme) > 200, "the README says what it is and how to select it"
    place = re.escape(f"./{folder.relative_to(ROOT).as_posix()}")
    assert re.search(rf'pip install .*{place}[\["\s`]', readme), "the README says how to install it from a clone"
    assert list((folder / "tests").glob("test_*.py")), "a plugin has tests of its own"
    entries = project.get("entry-points", {}).get("guideway.v1", {})
    assert entries or folder.name == HOSTS
    assert {name.split(".")[0] for name in entries} <= KINDS
    assert {value.split(":")[0].split(".")[0] for value in entries.values()} <= {package.name}


@pytest.mark.parametrize("folder", [ROOT, *distributions()], ids=lambda folder: folder.name)
def test_a_wheel_holds_its_package_and_no_tests(folder: Path) -> None:
    files = [Path(file.distribution_path) for file in WheelBuilder(str(folder)).recurse_included_files()]
    assert {file.parts[0] for file in files} == {project_of(folder)["name"].replace("-", "_")}
    assert not [file for file in files if {"tests", "mistakes", "suite_support", "__pycache__"} & set(file.parts)]


@pytest.mark.slow
def test_the_source_of_the_library_holds_the_library() -> None:
    files = {Path(file.distribution_path) for file in SdistBuilder(str(ROOT)).recurse_included_files()}
    beside = {str(file) for file in files if file.parts[:2] != ("core", "guideway")}
    assert beside == {"LICENSE", "README.md"}


def test_the_library_is_typed_and_licensed() -> None:
    assert (CORE / "py.typed").is_file()
    text = (ROOT / "LICENSE").read_text("utf-8")
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_constraints_pin_exactly_and_once() -> None:
    pins = requirements("constraints.txt")
    names = []
    for pin in pins:
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==[0-9][A-Za-z0-9.]*", pin)
        assert match, f"{pin!r} is no exact pin"
        names.append(normalized(match[1]))
    assert len(set(names)) == len(names)
    assert "torch==2.13.0" in pins


LEFT_TO_TORCH = {"triton"}
"""torch built for CUDA requires one version of it."""


def test_everything_named_is_pinned() -> None:
    """All direct dependencies of core, plugins and development are pinned."""
    pinned = {normalized(pin.split("==")[0]) for pin in requirements("constraints.txt")}
    core = project_of(ROOT)
    named = [*core["dependencies"], *(r for extra in core["optional-dependencies"].values() for r in extra)]
    named += [line for line in requirements("requirements-dev.txt") if not line.startswith("-e ")]
    for folder in distributions():
        named += project_of(folder)["dependencies"]
    names = {normalized(re.split(r"[\s<>=!~;\[]", requirement)[0]) for requirement in named}
    assert {name for name in names if not name.startswith("guideway")} <= pinned | LEFT_TO_TORCH


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
