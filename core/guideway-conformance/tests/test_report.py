"""Reports: their verdicts and formats."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from guideway.errors import InvalidConfiguration
from guideway_conformance.formats.badge import badge
from guideway_conformance.formats.junit import junit
from guideway_conformance.formats.markdown import markdown
from guideway_conformance.outcomes import Outcome
from guideway_conformance.registry import TIERS, Tier
from guideway_conformance.report import Report, by_tier


def with_outcome(report: Report, tier: Tier, outcome: Outcome, detail: str = "") -> Report:
    """Return `report` with this outcome for the last obligation of `tier`."""
    obligation = by_tier(report.kind, report.declared, report.traits, report.contract)[tier][-1]
    (result,) = (result for result in report.results if result.obligation == obligation)
    return report.with_results([replace(result, outcome=outcome, detail=detail)])


def test_it_reads_what_it_wrote(core_report: Report, tmp_path: Path) -> None:
    core_report.write(tmp_path / "r.json")
    again = Report.read(tmp_path / "r.json")
    assert again.to_json() == core_report.to_json()
    assert again.sha256 == core_report.sha256
    assert (again.plugin, again.version) == ("gwt-mine/device.mine", "1.0")
    assert {"guideway", "python", "platform", "numpy"} <= again.environment.keys()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.update(declared=["x"]),
        lambda data: data["results"].pop(),
        lambda data: data["results"][0].update(detail="x"),
        lambda data: data["results"][0].update(outcome="passed"),
        lambda data: data["results"][0].update(mode="x"),
        lambda data: data.update(up_to="x"),
        lambda data: data.update(declared=[["x"]]),
        lambda data: data.update(kind=None),
        lambda data: data.update(format="x"),
        lambda data: data.pop("environment"),
        lambda data: data.clear(),
    ],
)
def test_a_changed_report_is_refused(
    core_report: Report, tmp_path: Path, change: Callable[[dict[str, object]], None]
) -> None:
    data = core_report.to_json()
    change(data)
    (tmp_path / "r.json").write_text(json.dumps(data))
    with pytest.raises(InvalidConfiguration, match="is no conformance report"):
        Report.read(tmp_path / "r.json")


@pytest.mark.parametrize("content", [None, "", "[]", "1", "{}"])
def test_what_is_no_report_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "r.json").write_text(content)
    with pytest.raises(InvalidConfiguration, match="conform PLUGIN --report"):
        Report.read(tmp_path / "r.json")


def test_the_level_core_certifies(core_report: Report) -> None:
    assert (core_report.verdict, core_report.levels) == ("certified", ("smoke", "core"))
    assert core_report.met == core_report.performed == len(core_report.results)


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [("fail", "failed"), ("error", "incomplete"), ("not_run", "incomplete"), ("known_failure", "known failures")],
)
def test_one_obligation_that_is_not_met_decides(core_report: Report, outcome: Outcome, verdict: str) -> None:
    report = with_outcome(core_report, "core", outcome)
    assert (report.verdict, report.levels) == (verdict, ("smoke",))


def test_the_worst_outcome_decides(core_report: Report) -> None:
    known = with_outcome(core_report, "core", "known_failure")
    assert with_outcome(known, "smoke", "error").verdict == "incomplete"
    assert with_outcome(with_outcome(known, "smoke", "error"), "smoke", "fail").verdict == "failed"


def test_a_level_needs_what_was_not_planned_too(core_report: Report) -> None:
    trimmed = replace(core_report, results=core_report.results[:-1])
    assert (trimmed.verdict, trimmed.levels) == ("incomplete", ("smoke",))


def test_absent_hardware_costs_its_level_only(core_report: Report) -> None:
    full = replace(core_report, results=tuple(replace(core_report.results[0], obligation=o) for o in core_report.owed))
    tiers = by_tier(full.kind, full.declared, full.traits, full.contract)
    assert full.levels == tuple(tier for tier in TIERS if tiers[tier])
    report = with_outcome(full, "extended", "not_run")
    assert (report.verdict, report.levels) == ("certified", ("smoke", "core"))


def test_results_that_were_not_planned_are_left_out(core_report: Report) -> None:
    everything = [replace(core_report.results[0], obligation=obligation) for obligation in core_report.owed]
    assert core_report.with_results(everything).planned == core_report.planned


def test_junit_has_a_case_per_obligation(core_report: Report) -> None:
    report = with_outcome(core_report, "core", "fail", "it said \x00 <&> \ud800")
    report = with_outcome(report, "smoke", "known_failure", "known")
    suite = ElementTree.fromstring(junit(report)).find("testsuite")
    assert suite is not None
    cases = suite.findall("testcase")
    assert [case.get("name") for case in cases] == [f"{o.check}-{o.mode}" for o in report.planned]
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == (str(len(cases)), "1", "1")
    (failure,) = (case.find("failure") for case in cases if case.find("failure") is not None)
    assert failure is not None and failure.get("message") == "it said \\x00 <&> \\ud800"


def test_markdown_says_what_was_not_met_and_keeps_its_tables_whole(core_report: Report) -> None:
    text = markdown(with_outcome(core_report, "core", "fail", "a | b\nc"))
    assert text.startswith("## gwt-mine/device.mine 1.0: failed\n")
    assert "a \\| b c |\n" in text
    assert "| core |" in text and "| stress |" in text
    assert "FAILED" not in markdown(core_report)


def test_a_badge_has_levels_and_no_share(core_report: Report) -> None:
    assert json.loads(badge(core_report)) == {
        "schemaVersion": 1,
        "label": "guideway 1.0",
        "message": "core",
        "color": "brightgreen",
    }
    assert json.loads(badge(with_outcome(core_report, "core", "known_failure")))["message"] == "known failures"
