"""``conformance.toml``: an author's known failures, and the settings of a plugin."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path

import pytest
from guideway.errors import InvalidConfiguration
from guideway_conformance.known_failures import KnownFailure, Preferences
from guideway_conformance.outcomes import Outcome, Result
from guideway_conformance.registry import Obligation

CHECK = "device.zero_bits_forbid"
ENTRY = 'reason = "slow", issue = "https://x/1", until = 2027-01-31'
TODAY = datetime.date(2027, 1, 31)


def known(until: str = "2027-01-31") -> str:
    """Return a file with `CHECK` as a known failure."""
    return f'[known_failures]\n"{CHECK}" = {{ {ENTRY.replace("2027-01-31", until)} }}\n'


FAILED = Result(Obligation(CHECK), "fail", "token 3 stayed")


def read(folder: Path, text: str) -> Preferences:
    path = folder / "conformance.toml"
    path.write_text(text)
    return Preferences.read(path)


def test_a_failure_that_is_known_is_marked(tmp_path: Path) -> None:
    preferences = read(tmp_path, known())
    assert preferences.known_failures == {CHECK: KnownFailure("slow", "https://x/1", TODAY)}
    (marked,) = preferences.applied([FAILED], TODAY)
    assert marked.outcome == "known_failure"
    assert "slow" in marked.detail and "https://x/1" in marked.detail


def test_it_is_a_failure_again_when_its_time_is_over(tmp_path: Path) -> None:
    preferences = read(tmp_path, known("'2027-01-30'"))
    (late,) = preferences.applied([FAILED], TODAY)
    assert late.outcome == "fail" and late.detail.startswith("token 3 stayed")


def test_a_known_failure_that_passes_is_a_failure(tmp_path: Path) -> None:
    preferences = read(tmp_path, known())
    (passed,) = preferences.applied([replace(FAILED, outcome="pass", detail="")], TODAY)
    assert passed.outcome == "fail" and "remove that entry" in passed.detail


def test_an_entry_may_be_about_one_plugin_of_a_package(tmp_path: Path) -> None:
    about_one = known().replace(" }", ', plugins = ["device.mine"] }')
    preferences = read(tmp_path, about_one)
    assert CHECK in preferences.concerning("device.mine").known_failures
    assert preferences.concerning("device.other").known_failures == {}
    assert read(tmp_path, known()).concerning("grammar.mine").known_failures == {}


def test_an_entry_for_a_check_the_plugin_does_not_owe_is_an_error(tmp_path: Path) -> None:
    preferences = read(tmp_path, known()).concerning("device.mine")
    preferences.require_owed([FAILED.obligation])
    with pytest.raises(InvalidConfiguration, match="does not concern this plugin"):
        preferences.require_owed([Obligation("device.other")])


@pytest.mark.parametrize("outcome", ["error", "not_run"])
def test_nothing_else_is_excused(tmp_path: Path, outcome: Outcome) -> None:
    preferences = read(tmp_path, known())
    result = replace(FAILED, outcome=outcome)
    assert preferences.applied([result], TODAY) == (result,)
    other = Result(Obligation("device.other"), "fail", "x")
    assert preferences.applied([other], TODAY) == (other,)


@pytest.mark.parametrize(
    "text",
    [
        "[known]",
        f'[known_failures]\n"device.no_such_check" = {{ {ENTRY} }}',
        f'[known_failures]\n"device.zero_bits*" = {{ {ENTRY} }}',
        f'[known_failures]\n"{CHECK}" = "because"',
        f'[known_failures]\n"{CHECK}" = {{ reason = "slow", until = 2027-01-31 }}',
        f'[known_failures]\n"{CHECK}" = {{ {ENTRY}, more = 1 }}',
        f'[known_failures]\n"{CHECK}" = {{ {ENTRY.replace("slow", "")} }}',
        known("1"),
        known("'soon'"),
        '[subjects."device.mine"]\ncolor = "red"',
        '[subjects."mine"]\ndevice = "cpu"',
        '[subjects."device.mine"]\ndevice = 1',
        '[subjects]\n"device.mine" = 1',
        "x =",
    ],
)
def test_what_has_no_meaning_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"conformance\.toml"):
        read(tmp_path, text)


def test_settings_of_a_plugin(tmp_path: Path) -> None:
    preferences = read(
        tmp_path, '[subjects."device.mine"]\ndevice = "cuda"\noptions = { a = 1 }\nrequests = [{ b = 2 }]\n'
    )
    settings = preferences.settings("device.mine")
    assert (settings.device, settings.options, settings.requests) == ("cuda", {"a": 1}, ({"b": 2},))
    assert preferences.settings("device.other").device is None


class NameOfItsOwn:
    name = "its_name"


def test_settings_of_nobody_are_told_of(tmp_path: Path) -> None:
    preferences = read(tmp_path, '[subjects."worker.its_name"]\noptions = {}\n[subjects."device.numpy"]\n')
    assert preferences.strangers() == ["worker.its_name"]
    assert preferences.strangers("worker.its_name") == []
    with pytest.raises(InvalidConfiguration, match=r"worker\.NameOfItsOwn"):
        preferences.require_class_name(NameOfItsOwn, "worker.NameOfItsOwn")
    preferences.require_class_name(NameOfItsOwn, "device.NameOfItsOwn")


def test_it_lies_in_the_folder_or_above_it_within_the_project(tmp_path: Path) -> None:
    read(tmp_path, '[subjects."device.mine"]\ndevice = "cuda"\n')
    (tmp_path / "project" / "tests").mkdir(parents=True)
    assert Preferences.near(tmp_path / "project" / "tests").settings("device.mine").device == "cuda"
    (tmp_path / "project" / "pyproject.toml").touch()
    assert Preferences.near(tmp_path / "project" / "tests").settings("device.mine").device is None
