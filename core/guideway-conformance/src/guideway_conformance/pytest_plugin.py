"""The pytest plugin for the tests made by `guideway_conformance.conformance`: it fails skipped tests, and reports which
of a plugin's obligations were performed, with ``--conformance-report FILE`` also to a file.

pytest loads it wherever the suite is installed, so it imports only pytest before it meets such a test. The results are
collected where reports arrive: with pytest-xdist in the process that distributes the tests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from guideway_conformance.report import Report

__all__ = ["LISTED", "OPEN", "RESULT", "TEST", "TESTED"]

TESTED: set[str] = set()
"""The tested plugins, as ``kind.name``."""
LISTED: set[str] = set()
"""The plugins that have settings in a ``conformance.toml`` but are not installed."""

OPEN: list[Callable[[], None]] = []
"""Functions that each end a process that hosts a plugin."""

TEST = "guideway_conformance"
"""The property of a test's report that identifies its obligation: [plugin, planned, check, mode]."""
RESULT = "guideway_conformance_result"
"""The property with its result: [check, mode, outcome, detail, seconds]."""


class _Account:
    """The results of each plugin's obligations."""

    def __init__(self) -> None:
        self.begun: dict[str, Any] = {}
        """By plugin, the report without results, as JSON data."""
        self.found: dict[str, dict[tuple[str, str], list[Any]]] = {}

    def begin(self, reports: Mapping[str, Any]) -> None:
        for plugin, report in reports.items():
            self.begun.setdefault(plugin, report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        if TEST not in properties:
            return
        plugin, _, check, mode = properties[TEST]
        result = properties.get(RESULT)
        if report.failed and (result is None or report.when != "call"):
            result = [check, mode, "error", f"its {report.when} failed: {report.longreprtext}", 0.0]
        found = self.found.setdefault(plugin, {})
        if result is not None and found.get((check, mode), result)[2] == "pass":  # the worst result counts
            found[check, mode] = list(result)
        elif result is not None:
            found.setdefault((check, mode), list(result))

    def reports(self) -> list[Report]:
        from guideway_conformance.outcomes import Result
        from guideway_conformance.registry import Obligation
        from guideway_conformance.report import Report

        return [
            Report.from_json(self.begun[plugin]).with_results(
                Result(Obligation(check, mode), outcome, detail, seconds)
                for check, mode, outcome, detail, seconds in self.found.get(plugin, {}).values()
            )
            for plugin in sorted(self.begun)
        ]


_ACCOUNT = pytest.StashKey[_Account]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("guideway").addoption(
        "--conformance-report",
        metavar="FILE",
        help="write the report of the conformance tests, JSON; of several plugins, one each: FILE with the plugin's "
        "name before its suffix",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_ACCOUNT] = account = _Account()
    config.pluginmanager.register(account, "guideway_conformance_account")  # it receives test reports


def pytest_itemcollected(item: pytest.Item) -> None:
    report: Report | None = getattr(getattr(item, "cls", None), TEST, None)
    params = getattr(getattr(item, "callspec", None), "params", {})
    if report is None or "check" not in params:
        return
    account = item.config.stash[_ACCOUNT]
    if report.plugin not in account.begun:
        account.begin({report.plugin: report.to_json()})
    item.user_properties.append((TEST, [report.plugin, len(report.results), params["check"], params["mode"]]))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    properties: dict[str, Any] = dict(item.user_properties)
    if TEST not in properties or not report.skipped:
        return report
    if properties.get(RESULT, [""] * 3)[2] not in ("known_failure", "not_run"):
        with contextlib.suppress(AttributeError):
            del report.wasxfail
        report.outcome = "failed"
        report.longrepr = (
            "a conformance test may not be skipped, nor expected to fail: what is known to fail belongs in "
            "conformance.toml, with a reason, an issue and a date"
        )
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    if output is not None:  # in a pytest-xdist worker: send the plan to the process that collects the results
        output[TEST] = session.config.stash[_ACCOUNT].begun
    while OPEN:
        OPEN.pop()()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_ACCOUNT].begin(getattr(node, "workeroutput", {}).get(TEST, {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    account = config.stash[_ACCOUNT]
    lost = sorted(account.found.keys() - account.begun.keys())
    file = config.getoption("--conformance-report")
    if not account.begun and not lost and not file:
        return
    terminalreporter.section("conformance")
    for name in sorted(LISTED - TESTED):
        terminalreporter.line(
            f"conformance.toml: nothing reads [subjects.{name!r}]: no such plugin is tested", yellow=True
        )
    for plugin in lost:
        terminalreporter.line(
            f"conformance {plugin}: what it owes is not known, its process is gone: INCOMPLETE", red=True
        )
    reports = account.reports()
    for report in reports:
        terminalreporter.line(_summary(report), green=report.verdict == "certified", red=report.verdict == "failed")
    if file and not reports:
        terminalreporter.line(f"no report {file}: there were no conformance tests", red=True)
    for report in reports if file else ():
        path = Path(file)
        if len(reports) > 1:
            path = path.with_name(f"{path.stem}.{report.plugin.replace('/', '.')}{path.suffix}")
        report.write(path)
        terminalreporter.line(f"report: {path}")


def _summary(report: Report) -> str:
    performed, owed = report.performed, len(report.results)
    line = f"conformance {report.plugin}: {performed} of {owed} obligations performed: {report.verdict.upper()}"
    if report.verdict == "certified":
        return f"{line} ({', '.join(report.levels)})"
    if report.verdict == "incomplete" and performed == owed:
        return f"{line}, because core checks were left out with up_to={report.up_to!r}"
    return line
