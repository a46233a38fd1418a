"""Verify that a report is complete, unchanged, and about the installed plugin."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

from guideway.errors import GuidewayError, PluginError, PluginNotFound
from guideway.files import read_file
from guideway.plugins.plan import PlannedPlugin

from guideway_conformance.isolation import CannotLoad, Host
from guideway_conformance.registry import KIND_MODULES, Obligation, plan
from guideway_conformance.report import Report, Verdict, environment
from guideway_conformance.runner import require_contract
from guideway_conformance.target import Target

__all__ = ["Verification", "verify"]


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`."""

    report: Report | None
    """None if the file does not contain one."""
    problems: list[str] = field(default_factory=list)
    """Reasons not to rely on it."""
    notes: list[str] = field(default_factory=list)
    """Notes on the comparisons, and on those that were impossible."""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, computed again from the results."""
        return self.report.verdict if self.report else None

    @property
    def summary(self) -> str:
        """The result in a line."""
        if self.report is None or self.problems:
            return "REJECTED"
        levels = f" ({', '.join(self.report.levels)})" if self.report.levels else ""
        return f"sound: {self.report.plugin} {self.report.version or ''} {self.report.verdict.upper()}{levels}"


def verify(path: str | os.PathLike[str]) -> Verification:
    """Check the report in `path`: its digest, the obligations of its contract, its verdict and levels, and, if the
    plugin is installed here, its version, its files and its declarations. Raises nothing: an unreadable report is a
    problem too."""
    try:
        report = Report.read(path)
        if report.kind not in KIND_MODULES:
            return Verification(None, [f"there are no checks of {report.kind} plugins"])
        require_contract(report.kind, report.contract)
    except GuidewayError as error:
        return Verification(None, [str(error)])
    found = Verification(report)
    found.problems.extend(_plan_problems(report))
    claimed = json.loads(read_file(path))
    for name, now in (("verdict", report.verdict), ("levels", list(report.levels))):
        if claimed.get(name) != now:
            found.problems.append(f"it claims the {name} {claimed.get(name)!r}, and its results make it {now!r}")
    _compare_with_installed(report, found)
    return found


def _plan_problems(report: Report) -> list[str]:
    owed = plan(report.kind, report.declared, report.traits, contract=report.contract, up_to=report.up_to)
    problems = []
    missing = [obligation for obligation in owed if obligation not in report.planned]
    if missing:
        problems.append(f"it lacks {_name(missing)}, which a plugin that declares what this one does has to meet")
    foreign = [obligation for obligation in report.planned if obligation not in owed]
    if foreign:
        problems.append(f"it has {_name(foreign)}, which such a plugin does not owe in this suite")
    if len(set(report.planned)) != len(report.planned):
        problems.append("it has an obligation twice")
    return problems


def _name(obligations: list[Obligation]) -> str:
    first = ", ".join(f"{obligation.check} ({obligation.mode})" for obligation in obligations[:3])
    more = f" and {len(obligations) - 3} more" if len(obligations) > 3 else ""
    return f"{len(obligations)} obligation{'s' if len(obligations) > 1 else ''}: {first}{more}"


def _compare_with_installed(report: Report, found: Verification) -> None:
    if report.digest is None:
        found.notes.append("it is about a bare class: there is no version and no digest to compare")
        return
    try:
        target = Target.installed(report.plugin)
        record = target.record()
        assert record is not None
        now = PlannedPlugin.of(record)
    except PluginNotFound:
        found.notes.append(f"{report.plugin} is not installed here: its files were not compared")
        return
    except PluginError as error:
        found.problems.append(str(error))
        return
    if now.version != report.version:
        found.problems.append(f"it is about version {report.version}, and {now.version} is installed here")
    if now.digest != report.digest:
        found.problems.append(f"it is about files {report.digest}, and here they are {now.digest}")
    try:
        with Host(target) as host:
            declared, traits = tuple(sorted(host.declared)), tuple(sorted(host.traits))
    except CannotLoad as error:
        found.problems.append(f"{report.plugin}, as it is installed here, cannot be loaded: {error}")
        return
    for what, then, today in (("declares", report.declared, declared), ("is", report.traits, traits)):
        changes = [f"no longer {name}" for name in then if name not in today]
        changes += [f"now {name}" for name in today if name not in then]
        if changes:
            found.problems.append(f"what it {what} is not the same here: {', '.join(changes)}")
    here = environment(record.requires)
    changed = [
        f"{name} {then}, here {here.get(name, 'none')}"
        for name, then in report.environment.items()
        if here.get(name) != then
    ]
    if changed:
        found.notes.append(f"it was made in another environment: {'; '.join(changed)}")
    if not found.problems:
        found.notes.append("version, files and declarations are those of what is installed here")
