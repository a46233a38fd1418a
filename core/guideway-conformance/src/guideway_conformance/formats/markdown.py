"""A report as Markdown, for the summary of a CI job."""

from __future__ import annotations

import json

from guideway_conformance.formats.rules import WORDS, rule_of
from guideway_conformance.registry import TIERS
from guideway_conformance.report import Report, by_tier

__all__ = ["cell", "markdown", "rule_cell"]


def markdown(report: Report) -> str:
    """The verdict, a line per tier, and each obligation that was not met."""
    settings = f" Settings: `{json.dumps(report.settings)}`." if report.settings else ""
    lines = [
        f"## {report.plugin}{f' {report.version}' if report.version else ''}: {report.verdict}",
        "",
        f"Contract {report.contract}; {report.met} of {len(report.results)} obligations met; "
        f"levels: {', '.join(report.levels) or 'none'}.{settings}",
        "",
        "| tier | obligations | met | failed | known failures | not run | not performed | granted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    outcome = {result.obligation: result.outcome for result in report.results}
    tiers = by_tier(report.kind, report.declared, report.traits, report.contract)
    for tier in TIERS:
        of_tier = [outcome.get(obligation, "error") for obligation in tiers[tier]]
        counts = " | ".join(str(of_tier.count(o)) for o in ("pass", "fail", "known_failure", "not_run", "error"))
        if of_tier:
            lines.append(f"| {tier} | {len(of_tier)} | {counts} | {'yes' if tier in report.levels else 'no'} |")
    unmet = [result for result in report.results if result.outcome != "pass"]
    if unmet:
        lines += ["", "| check | outcome | rule | what the plugin did |", "|---|---|---|---|"]
    lines += [
        f"| `{r.obligation.check}` ({r.obligation.mode}) | {WORDS[r.outcome]} | {rule_cell(rule_of(r.obligation))} "
        f"| {cell(r.detail)} |"
        for r in unmet
    ]
    facts = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    return "\n".join([*lines, "", f"{facts}; report sha256 `{report.sha256}`", ""])


def rule_cell(rule: str) -> str:
    """A rule, which is written with backticks around code, as what a cell of a table can hold."""
    return rule.replace("|", "\\|").replace("<", "\\<")


def cell(text: str) -> str:
    """Any words as what a cell of a table can hold."""
    text = text.replace("\\", "\\\\")
    for special in "|<>*_`[":
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split())
