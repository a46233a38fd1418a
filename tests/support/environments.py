"""Temporary virtual environments with guideway and some packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import importlib_metadata
from guideway.plugins.kinds import normalize

ROOT = Path(__file__).parents[2]
BUILD = """\
import os, sys
from hatchling.build import build_wheel
out, *projects = sys.argv[1:]
for project in projects:
    os.chdir(project)
    build_wheel(out)
"""
"""A program that builds the wheels of many projects in one process: ``OUT PROJECT...``."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with guideway and some of the packages."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site(self) -> Path:
        (site,) = (self.folder / "lib").glob("python*/site-packages")
        return site

    def guideway(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run the installed program."""
        return self.run(str(self.folder / "bin" / "guideway"), *arguments, **variables)

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GUIDEWAY_", "COV_"))}
        return subprocess.run(
            command, env={**clean, **variables}, cwd=self.folder, capture_output=True, text=True, timeout=120
        )

    def install(self, *wheels: Path, target: Path | None = None, compiled: bool = False) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "install"]
        options = ["--quiet", "--no-index", "--no-deps", "--compile" if compiled else "--no-compile"]
        options += ["--target", str(target)] if target else []
        subprocess.run([*pip, *options, *map(str, wheels)], check=True)


def unpack(wheel: Path, target: Path) -> None:
    """Install a wheel of modules to a folder, without pip, whose start takes longer than most tests."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)


def make_environment(folder: Path, *wheels: Path) -> Environment:
    venv.create(folder, symlinks=True)
    environment = Environment(folder)
    # guideway's own requirements are borrowed from this environment; nothing else of it is visible
    borrowed = folder / "borrowed"
    borrowed.mkdir()
    for dist in needed_by("guideway"):
        for top in {file.parts[0] for file in dist.files or () if file.parts[0] not in ("..", "__pycache__")}:
            (borrowed / top).symlink_to(str(dist.locate_file(top)))
    (environment.site / "borrowed.pth").write_text(f"{borrowed}\n")
    environment.install(*wheels)
    return environment


def needed_by(name: str) -> Iterator[Any]:
    """Yield the installed distributions that `name` requires without extras, and those that they require in turn."""
    names, seen = [name], {name}
    while names:
        for requirement in importlib_metadata.requires(names.pop()) or ():
            found = re.match(r"[\w.-]+", requirement)
            if found is None or "extra ==" in requirement or normalize(found[0]) in seen:
                continue
            seen.add(normalize(found[0]))
            for dist in importlib_metadata.distributions(name=found[0]):  # none, if a marker rules it out here
                names.append(found[0])
                yield dist
