"""Real packages, built into wheels and installed by pip into throw-away virtual environments."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guideway.plugins import PluginIndex

from tests.support.environments import BUILD, ROOT, Environment, make_environment

PACKAGES = Path(__file__).parent / "plugins" / "packages"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheels of guideway and of every package below ``packages``, by the folder's name."""
    out = tmp_path_factory.mktemp("wheels")
    projects = sorted(path.parent for path in PACKAGES.glob("*/pyproject.toml"))
    subprocess.run([sys.executable, "-c", BUILD, str(out), str(ROOT), *map(str, projects)], check=True)
    built = {path.name.split("-")[0].replace("_", "-").removeprefix("gwt-"): path for path in out.glob("*.whl")}
    assert built.keys() == {"guideway", *(project.name for project in projects)}
    return built


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Environment:
    """An environment in which every package is installed, good and bad side by side."""
    return make_environment(tmp_path_factory.mktemp("zoo"), *wheels.values())


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Environment:
    """An environment with guideway alone; tests add to it with ``install(target=...)``."""
    return make_environment(tmp_path_factory.mktemp("bare"), wheels["guideway"])


@pytest.fixture
def index(zoo: Environment, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginIndex]:
    """The zoo's plugins, importable in this process for the length of a test."""
    monkeypatch.syspath_prepend(str(zoo.site))
    _forget_packages()  # those of other tests
    yield PluginIndex.scan([str(zoo.site)])
    _forget_packages()


def _forget_packages() -> None:
    for name in [name for name in sys.modules if name.startswith("gwt_")]:
        del sys.modules[name]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget which plugins were loaded or failed in this process."""
    monkeypatch.setattr("guideway.plugins.loading._OUTCOMES", {})
