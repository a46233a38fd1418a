"""The part of pytest for the tests `guideway_conformance.conformance` makes: a skip among them fails, and what was
performed of what the plugin owes is accounted for and, with ``--conformance-report FILE``, written down.

pytest loads this wherever the suite is installed, so that it imports nothing but pytest before it meets such a test.
The account is kept where reports arrive: with pytest-xdist in the process that hands out the tests.
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
"""The plugins that are tested, as ``kind.name``."""
LISTED: set[str] = set()
"""The plugins that are not installed, and that a ``conformance.toml`` has settings for."""

OPEN: list[Callable[[], None]] = []
"""Ends a process that holds a plugin, each."""

TEST = "guideway_conformance"
"""The property of a test's report that says whose test it is, of how many: [plugin, planned, check, mode]."""
RESULT = "guideway_conformance_result"
"""The property that says what came of it: [check, mode, outcome, detail, seconds]."""


class _Account:
    """A record of what is known of each plugin's obligations."""

    def __init__(self) -> None:
        self.begun: dict[str, Any] = {}
        """By plugin, the report in which nothing is performed, as JSON data."""
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
        if result is not None and found.get((check, mode), result)[2] == "pass":  # the worst counts
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
    config.pluginmanager.register(account, "guideway_conformance_account")  # it hears of reports


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
    if output is not None:  # this is a process of pytest-xdist: what was planned goes to the one that keeps the account
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
