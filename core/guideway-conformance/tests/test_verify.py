"""``conform verify``: reports that are trimmed, edited or about something else are rejected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from guideway_conformance.report import Report
from guideway_conformance.runner import run
from guideway_conformance.target import Target
from guideway_conformance.verify import verify
from suite_support.packages import BROKEN, UNLOADABLE, install

from tests.support.stages import one_in


@pytest.fixture
def report(core_report: Report, site: Path, tmp_path: Path) -> Path:
    """Return the path of a sound report of the installed plugin."""
    core_report.write(tmp_path / "r.json")
    return tmp_path / "r.json"


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the report, and update its digest."""
    data = json.loads(path.read_text())
    change(data)
    del data["sha256"]
    data["sha256"] = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(data))


def test_a_sound_report(report: Path) -> None:
    found = verify(report)
    assert found.problems == [] and found.verdict == "certified"
    assert "those of what is installed" in found.notes[0]


def remove_one(data: dict[str, Any]) -> None:
    gone = data["results"].pop()
    data["planned"].remove([gone["check"], gone["mode"]])


def add_one(data: dict[str, Any]) -> None:
    data["results"].append({**data["results"][0], "check": "device.mine"})


@pytest.mark.parametrize(
    ("change", "said"),
    one_in(
        3,
        [
            (remove_one, "it lacks 1 obligation"),
            (add_one, "does not owe"),
            (lambda data: data["results"].append(data["results"][0]), "twice"),
            (lambda data: data["results"][0].update(mode="refusal"), "it lacks 1 obligation"),
            (lambda data: data["results"][-1].update(outcome="fail"), "claims the verdict 'certified'"),
            (lambda data: data.update(levels=["smoke", "core", "stress"]), "claims the levels"),
            (lambda data: data.update(up_to="stress"), "it lacks"),
            (lambda data: data.update(contract="9.9"), "newer than"),
            (lambda data: data.update(contract="0.1"), "no checks"),
            (lambda data: data.update(kind="executor"), "no checks"),
            (lambda data: data.update(version="2.0"), "about version 2.0"),
            (lambda data: data.update(digest="sha256:0"), "about files"),
            (lambda data: data.update(declared=["flying"]), "no longer flying"),
            (lambda data: data.update(format="guideway.conformance/0"), "format"),
        ],
    ),
)
def test_a_forged_report(report: Path, change: Callable[[dict[str, Any]], object], said: str) -> None:
    forge(report, change)
    found = verify(report)
    assert any(said in problem for problem in found.problems), found.problems
    assert found.summary == "REJECTED"


def test_an_edited_report(report: Path) -> None:
    report.write_text(report.read_text().replace("gwt-mine", "gwt-ours"))
    assert "digest does not fit" in verify(report).problems[0]


def test_a_plugin_that_changed_since(report: Path, site: Path) -> None:
    install(site, BROKEN)
    assert any("about files" in problem for problem in verify(report).problems)


def test_a_plugin_that_no_longer_loads(report: Path, site: Path) -> None:
    install(site, UNLOADABLE)
    assert any("no such library" in problem for problem in verify(report).problems)


def test_a_plugin_that_is_not_here(core_report: Report, tmp_path: Path) -> None:
    core_report.write(tmp_path / "r.json")
    found = verify(tmp_path / "r.json")
    assert found.problems == [] and "not installed here" in found.notes[0]


@pytest.mark.slow
def test_an_honest_report_of_a_broken_plugin_is_sound(site: Path, tmp_path: Path) -> None:
    install(site, BROKEN)
    run(Target.installed("mine"), up_to="smoke").write(tmp_path / "r.json")
    found = verify(tmp_path / "r.json")
    assert (found.problems, found.verdict) == ([], "failed")


def test_another_environment_is_named(report: Path) -> None:
    forge(report, lambda data: data["environment"].update(numpy="0.1"))
    found = verify(report)
    assert found.problems == []
    assert any("another environment: numpy 0.1, here" in note for note in found.notes)


def test_a_bare_class(core_report: Report, tmp_path: Path) -> None:
    replace(core_report, plugin="device.Device", version=None, digest=None).write(tmp_path / "r.json")
    assert "bare class" in verify(tmp_path / "r.json").notes[0]
