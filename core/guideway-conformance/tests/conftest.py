from __future__ import annotations

from pathlib import Path

import pytest
from guideway_conformance.report import Report
from guideway_conformance.runner import run
from guideway_conformance.target import Target
from suite_support.packages import GOOD, install


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on the path with the package ``gwt-mine``; the working directory, with the lock file, is
    another."""
    folder = tmp_path / "site"
    install(folder, GOOD)
    monkeypatch.syspath_prepend(str(folder))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("GUIDEWAY_PLUGINS_LOCK", "guideway.lock")
    return folder


@pytest.fixture(scope="session")
def core_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Return a real run of ``device.mine`` up to the tier ``core``."""
    folder = tmp_path_factory.mktemp("site")
    install(folder, GOOD)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        return run(Target.installed("device.mine"), up_to="core")
