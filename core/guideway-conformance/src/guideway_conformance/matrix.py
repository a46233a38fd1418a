"""A comparison of several reports: plugins across, rules down."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from guideway.errors import InvalidConfiguration

from guideway_conformance.outcomes import Outcome, Result
from guideway_conformance.registry import KIND_MODULES, TIERS, Check, Tier, checks
from guideway_conformance.report import Report

__all__ = ["LEGEND", "NOT_OWED", "Matrix", "Offer", "Row", "Table", "markdown", "sign"]

SIGNS: dict[Outcome, str] = {"pass": "✓", "error": "?", "not_run": "○", "known_failure": "~", "fail": "✗"}
"""Signs by outcome, from the best to the worst."""
REFUSED = "R"
"""The sign of a refusal that was met: the plugin does not declare the capability, and refuses it as required."""
NOT_OWED = "·"
LEGEND = (
    (SIGNS["pass"], "met"),
    (REFUSED, "not declared, and refused or absent as it has to be"),
    (SIGNS["fail"], "failed"),
    (SIGNS["known_failure"], "known failure"),
    (SIGNS["not_run"], "not run: what it needs is not here"),
    (SIGNS["error"], "not performed"),
    (NOT_OWED, "does not concern this plugin"),
)


def sign(result: Result | None) -> str:
    """Return the sign for `result` in a table; None: the plugin does not owe it."""
    if result is None:
        return NOT_OWED
    if result.outcome == "pass" and result.obligation.mode == "refusal":
        return REFUSED
    return SIGNS[result.outcome]


@dataclass(frozen=True, slots=True)
class Row:
    """A rule, and its result for each plugin of the table."""

    check: Check
    cells: tuple[Result | None, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """A capability or trait of checks, and its outcome for each plugin of the table."""

    label: str
    cells: tuple[Outcome | None, ...]
    """The worst outcome among the checks of that capability or trait; None: the plugin does not have it."""


@dataclass(frozen=True, slots=True)
class Table:
    """The plugins of one kind."""

    kind: str
    reports: tuple[Report, ...]
    tiers: tuple[tuple[Tier, tuple[Row, ...]], ...]

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Capabilities, then traits, each in alphabetical order."""
        by_name: dict[tuple[bool, str], list[Row]] = {}
        for _, rows in self.tiers:
            for row in rows:
                for is_trait, name in ((False, row.check.capability), (True, row.check.trait)):
                    if name is not None:
                        by_name.setdefault((is_trait, name), []).append(row)
        return tuple(
            Offer(
                f"trait `{name}`" if is_trait else f"`{name}`",
                tuple(
                    _worst([row.cells[i] for row in of_name])
                    if name in (report.traits if is_trait else report.declared)
                    else None
                    for i, report in enumerate(self.reports)
                ),
            )
            for (is_trait, name), of_name in sorted(by_name.items())
        )


def _worst(results: Sequence[Result | None]) -> Outcome:
    return max((result.outcome for result in results if result), key=list(SIGNS).index, default="pass")


@dataclass(frozen=True, slots=True)
class Matrix:
    """A table per kind."""

    tables: tuple[Table, ...]

    @staticmethod
    def of(reports: Iterable[Report]) -> Matrix:
        """Build a matrix. Raises `InvalidConfiguration` for a report about a kind that this suite does not know."""
        by_kind: dict[str, list[Report]] = {}
        for report in reports:
            if report.kind not in KIND_MODULES:
                raise InvalidConfiguration(
                    f"the report of {report.plugin} is about a kind this suite has no checks for: {report.kind}",
                    field="report",
                )
            by_kind.setdefault(report.kind, []).append(report)
        return Matrix(tuple(_table(kind, by_kind[kind]) for kind in KIND_MODULES if kind in by_kind))


def _table(kind: str, reports: Sequence[Report]) -> Table:
    found = [{result.obligation.check: result for result in report.results} for report in reports]
    rows = {
        tier: tuple(
            Row(check, tuple(_cell(check, results, report) for results, report in zip(found, reports, strict=True)))
            for check in checks(kind)
            if check.tier == tier
        )
        for tier in TIERS
    }
    return Table(kind, tuple(reports), tuple((tier, rows[tier]) for tier in TIERS if rows[tier]))


def _cell(check: Check, results: dict[str, Result], report: Report) -> Result | None:
    if check.id in results:
        return results[check.id]
    owed = {obligation.check: obligation for obligation in report.owed}
    return Result(owed[check.id], "error", "this report does not have it") if check.id in owed else None


def markdown(matrix: Matrix) -> str:
    """Write narrow tables: a sign per cell, and the rule next to its id."""
    from guideway_conformance.formats.markdown import cell, rule_cell

    lines = ["# Conformance", "", ", ".join(f"{mark} {meaning}" for mark, meaning in LEGEND) + ".", ""]
    for table in matrix.tables:
        names = [report.plugin.rpartition("/")[2].partition(".")[2] or report.plugin for report in table.reports]
        lines += [f"## {table.kind}", "", "| plugin | version | contract | verdict | levels |", "|---|---|---|---|---|"]
        lines += [
            f"| `{r.plugin}` | {r.version or '-'} | {r.contract} | {r.verdict} | {', '.join(r.levels) or '-'} |"
            for r in table.reports
        ]
        heads = " | ".join(map(cell, names))
        if table.offers:
            lines += ["", f"### {table.kind}, what each offers", ""]
            lines += [f"| {heads} | capability or trait |", "|---" * len(names) + "|---|"]
            for offer in table.offers:
                signs = " | ".join(NOT_OWED if outcome is None else SIGNS[outcome] for outcome in offer.cells)
                lines.append(f"| {signs} | {rule_cell(offer.label)} |")
        for tier, rows in table.tiers:
            lines += ["", f"### {table.kind}, {tier}", ""]
            lines += [f"| {heads} | rule |", "|---" * len(names) + "|---|"]
            for row in rows:
                signs, name = " | ".join(map(sign, row.cells)), row.check.id.partition(".")[2]
                lines.append(f"| {signs} | `{name}` {rule_cell(row.check.rule)} |")
        lines.append("")
    return "\n".join(lines)
