"""Build real packages into wheels, and install them with pip into temporary virtual environments."""

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
    """Build the wheels of guideway and of every package in ``packages``, by folder name."""
    out = tmp_path_factory.mktemp("wheels")
    projects = sorted(path.parent for path in PACKAGES.glob("*/pyproject.toml"))
    subprocess.run([sys.executable, "-c", BUILD, str(out), str(ROOT), *map(str, projects)], check=True)
    built = {path.name.split("-")[0].replace("_", "-").removeprefix("gwt-"): path for path in out.glob("*.whl")}
    assert built.keys() == {"guideway", *(project.name for project in projects)}
    return built


@pytest.fixture(scope="session")
def zoo(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Environment:
    """Create an environment with every package installed, good and bad."""
    return make_environment(tmp_path_factory.mktemp("zoo"), *wheels.values())


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory, wheels: dict[str, Path]) -> Environment:
    """Create an environment with only guideway; tests add packages with ``install(target=...)``."""
    return make_environment(tmp_path_factory.mktemp("bare"), wheels["guideway"])


@pytest.fixture
def index(zoo: Environment, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginIndex]:
    """Make the zoo's plugins importable in this process during a test."""
    monkeypatch.syspath_prepend(str(zoo.site))
    _forget_packages()  # loaded by other tests
    yield PluginIndex.scan([str(zoo.site)])
    _forget_packages()


def _forget_packages() -> None:
    for name in [name for name in sys.modules if name.startswith("gwt_")]:
        del sys.modules[name]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the plugins that were loaded or failed in this process."""
    monkeypatch.setattr("guideway.plugins.loading._OUTCOMES", {})
