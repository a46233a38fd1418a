"""The matrix as one HTML page that needs nothing else."""

from __future__ import annotations

import re
from collections import Counter
from html import escape

from guideway_conformance.formats.rules import WORDS, rule_of
from guideway_conformance.matrix import LEGEND, NOT_OWED, Matrix, Table, sign
from guideway_conformance.outcomes import Result
from guideway_conformance.registry import TIERS
from guideway_conformance.report import Report, by_tier

__all__ = ["COLORS_STYLE", "html", "rule_html"]

COLORS_STYLE = """\
:root { color-scheme: light dark; --text: #1b1f24; --back: #fff; --soft: #57606a; --line: #d0d7de; --head: #f6f8fa;
  --good: #1a7f37; --bad: #cf222e; --badback: #ffebe9; --warn: #9a6700; --warnback: #fff8c5; --link: #0969da; }
@media (prefers-color-scheme: dark) { :root { --text: #e6edf3; --back: #0d1117; --soft: #8d96a0; --line: #30363d;
  --head: #161b22; --good: #3fb950; --bad: #ff7b72; --badback: #491b1e; --warn: #d29922; --warnback: #3b2e0a;
  --link: #58a6ff; } }
"""
"""The colors of pages, light and dark."""

STYLE = (
    COLORS_STYLE
    + """\
body { font: 14px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 2rem auto;
  max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
.legend span { margin-right: 1.2em; white-space: nowrap; }
.table { overflow-x: auto; }
@media (min-width: 60rem) { .table { overflow-x: visible; } thead th { position: sticky; top: 0; z-index: 1; } }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: left; vertical-align: top; }
thead th { background: var(--head); vertical-align: bottom; }
thead small, .soft { color: var(--soft); font-weight: normal; display: block; }
tbody th[colspan] { background: var(--head); text-transform: capitalize; padding-top: .8rem; }
tbody th { font-weight: normal; } code { font-size: .85em; color: var(--soft); overflow-wrap: anywhere; }
td { text-align: center; font-weight: 600; width: 6.5rem; } thead th + th { text-align: center; }
tbody tr:hover th, tbody tr:hover td { background: var(--head); }
.pass { color: var(--good); } .none { color: var(--soft); font-weight: normal; }
.fail { color: var(--bad); background: var(--badback); }
.known_failure, .error, .not_run { color: var(--warn); background: var(--warnback); }
.certified { color: var(--good); } .failed { color: var(--bad); } .incomplete, .known { color: var(--warn); }
"""
)


def html(matrix: Matrix) -> str:
    """Plugins across, rules down, a table per kind; what a plugin did instead is behind each sign, and below."""
    legend = " ".join(f"<span>{mark} {escape(meaning)}</span>" for mark, meaning in LEGEND)
    body = "\n".join(_table(table) for table in matrix.tables)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>guideway conformance</title>\n'
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>guideway conformance</h1>\n"
        f'{_summary(matrix)}\n<p class="legend">{legend}</p>\n{body}\n</body>\n</html>\n'
    )


def _summary(matrix: Matrix) -> str:
    """A line per plugin: its verdict, and what it met of what it owes in each tier."""
    heads = "".join(f'<th scope="col">{word}</th>' for word in ("plugin", "verdict", *TIERS))
    lines = "\n".join(_line(report) for table in matrix.tables for report in table.reports)
    return f'<div class="table"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{lines}\n</tbody></table></div>'


def _line(report: Report) -> str:
    outcome = {result.obligation: result.outcome for result in report.results}
    cells = []
    for owed in by_tier(report.kind, report.declared, report.traits, report.contract).values():
        count = Counter(outcome.get(obligation, "error") for obligation in owed)
        worst = next((o for o in ("fail", "known_failure", "not_run", "error") if count[o]), "pass" if owed else "none")
        words = f"{count['pass']} of {len(owed)}" if owed else NOT_OWED
        cells.append(f'<td class="{worst}">{words}</td>')
    version = f" {report.version}" if report.version else ""
    return (
        f'<tr><th scope="row">{escape(report.plugin)}{escape(version)}</th>'
        f'<td class="{report.verdict.partition(" ")[0]}">{report.verdict}</td>{"".join(cells)}</tr>'
    )


def _table(table: Table) -> str:
    heads = "".join(map(_head, table.reports))
    parts = [
        f"<h2>{escape(table.kind)}</h2>",
        f'<div class="table"><table>\n<thead><tr><th scope="col">rule</th>{heads}</tr></thead>\n<tbody>',
    ]
    for tier, rows in table.tiers:
        parts.append(f'<tr><th colspan="{len(table.reports) + 1}" scope="rowgroup">{tier}</th></tr>')
        for row in rows:
            cells = "".join(map(_cell, row.cells))
            parts.append(
                f'<tr><th scope="row">{rule_html(row.check.rule)} <code>{escape(row.check.id)}</code></th>{cells}</tr>'
            )
    parts.append("</tbody></table></div>")
    parts += map(_unmet, table.reports)
    return "\n".join(part for part in parts if part)


def _head(report: Report) -> str:
    version = f" {report.version}" if report.version else ""
    levels = ", ".join(level for level in report.levels if level != "smoke") or "no level"
    verdict = report.verdict
    return (
        f'<th scope="col">{escape(report.plugin.rpartition("/")[2])}<small>{escape(report.plugin.rpartition("/")[0])}'
        f'{escape(version)}</small><span class="{verdict.partition(" ")[0]}">{verdict}</span>'
        f"<small>{report.met} of {len(report.results)}; {levels}; contract {escape(report.contract)}</small></th>"
    )


def _cell(result: Result | None) -> str:
    if result is None:
        return f'<td class="none">{sign(None)}</td>'
    title = f"{WORDS[result.outcome]}: {result.detail}" if result.detail else WORDS[result.outcome]
    if result.outcome == "pass" and result.obligation.mode == "refusal":
        title = "refused, as it has to be"
    return f'<td class="{result.outcome}" title="{escape(title)}">{sign(result)}</td>'


def _unmet(report: Report) -> str:
    """List what a page without a pointer cannot show in titles."""
    found = [result for result in report.results if result.outcome not in ("pass", "error")]
    if not found:
        return ""
    items = "".join(
        f"<li>{escape(WORDS[r.outcome])}: {rule_html(rule_of(r.obligation))} <code>{escape(r.obligation.check)}</code>"
        f'<span class="soft">{escape(r.detail)}</span></li>'
        for r in found
    )
    return f"<details><summary>{escape(report.plugin)}: {len(found)} not met</summary><ul>{items}</ul></details>"


def rule_html(rule: str) -> str:
    """A rule, which is written with backticks around code, as HTML."""
    return re.sub(r"(`+)(.+?)\1", r"<code>\2</code>", escape(rule))
