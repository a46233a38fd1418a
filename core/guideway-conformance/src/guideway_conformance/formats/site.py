"""Several reports as a small static site: an index, a page and a badge for each plugin, and the matrix."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from guideway.errors import InvalidConfiguration
from guideway.files import write_file

from guideway_conformance.formats.badge import svg
from guideway_conformance.formats.html import COLORS_STYLE, html, rule_html
from guideway_conformance.formats.rules import WORDS, rule_of
from guideway_conformance.matrix import LEGEND, Matrix, Table, sign
from guideway_conformance.outcomes import Result
from guideway_conformance.report import Report, by_tier

__all__ = ["site", "write_site"]

MATRIX = "matrix.html"
KINDS = {
    "grammar": "Grammar strategies",
    "device": "Device backends",
    "modifier": "Logit modifiers",
    "worker": "Worker mixins",
    "hooks": "Hooks",
}
"""The heading of each kind."""

STYLE = (
    COLORS_STYLE
    + """\
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 0 auto;
  max-width: 62rem; padding: 1.5rem 1rem 4rem; }
a { color: var(--link); } h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 .25rem; } p { margin: .5rem 0; } .soft { color: var(--soft); }
code, pre { font: .875em/1.5 ui-monospace, monospace; } code { overflow-wrap: anywhere; }
pre { background: var(--head); border: 1px solid var(--line); border-radius: 6px; padding: .75rem 1rem;
  white-space: pre-wrap; overflow-wrap: anywhere; } img { vertical-align: middle; max-width: 100%; }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .5rem .75rem .5rem 0; text-align: left; vertical-align: top; }
thead th { color: var(--soft); font-size: .875rem; font-weight: 600; } tbody th { font-weight: 600; }
tbody th span { display: block; font-weight: normal; font-size: .875rem; color: var(--soft); }
.plugins { table-layout: fixed; } .plugins th:first-child { width: 36%; overflow-wrap: anywhere; }
.facts th { width: 9rem; font-weight: normal; color: var(--soft); } .facts td { overflow-wrap: anywhere; }
.verdict { border: 1px solid currentColor; border-radius: 1em; font-size: .875rem; font-weight: 600;
  padding: .1em .7em; white-space: nowrap; }
.certified, .pass { color: var(--good); } .failed, .fail { color: var(--bad); }
.incomplete, .known, .known_failure, .error, .not_run { color: var(--warn); }
ul.rules { list-style: none; padding: 0; margin: 0; }
ul.rules li { border-bottom: 1px solid var(--line); display: grid; grid-template-columns: 1.75rem 1fr;
  padding: .4rem 0; }
ul.rules code { color: var(--soft); } .mark { font-weight: 700; } .did { grid-column: 2; overflow-wrap: anywhere; }
.did.fail { background: var(--badback); padding: .25rem .5rem; }
.legend span { margin-right: 1.2em; white-space: nowrap; font-size: .875rem; }
@media (max-width: 40rem) {
  .plugins thead { display: none; } .plugins tr { display: grid; border-bottom: 1px solid var(--line);
  gap: .1rem .75rem; grid-template-columns: auto 1fr; padding: .6rem 0; }
  .plugins th, .plugins td { border: 0; padding: 0; } .plugins tbody th { grid-column: 1 / -1; }
  .plugins td[data-head]::before { content: attr(data-head) " "; color: var(--soft); }
  .plugins td.levels { grid-column: 1 / -1; } .legend span { white-space: normal; }
  .facts tr { display: block; padding: .4rem 0; border-bottom: 1px solid var(--line); }
  .facts th, .facts td { border: 0; display: block; padding: 0; width: auto; } }
"""
)


def write_site(reports: Sequence[Report], folder: Path) -> None:
    """Write the site into `folder`, which is made if it is missing. Raises what `site` raises, before it writes."""
    files = site(reports)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        write_file(folder / name, text, field="html")


def site(reports: Sequence[Report]) -> Mapping[str, str]:
    """Return the files by name: ``index.html``, ``matrix.html``, and for each plugin its page, badge and report. They
    need nothing but each other. Raises `InvalidConfiguration` for two reports about one plugin."""
    seen: set[str] = set()
    for report in reports:
        if report.stem in seen:
            raise InvalidConfiguration(
                f"two reports are about {report.plugin}, and the site has one page for it; leave one out",
                field="reports",
            )
        seen.add(report.stem)
    matrix = Matrix.of(reports)
    files = {"index.html": _index(matrix), MATRIX: html(matrix)}
    for report in reports:
        files[f"{report.stem}.html"] = _plugin(report)
        files[f"{report.stem}.svg"] = svg(report)
        files[f"{report.stem}.json"] = report.to_text()
    return files


def _page(title: str, body: str) -> str:
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _index(matrix: Matrix) -> str:
    reports = [report for table in matrix.tables for report in table.reports]
    certified = sum(report.verdict == "certified" for report in reports)
    return _page(
        "guideway conformance",
        "<main>\n<h1>Conformance of guideway plugins</h1>\n"
        f"<p>Certified: {certified} of {len(reports)}. For a certified plugin each rule of its contract that concerns "
        "it was tested, and it broke none. "
        f'<a href="{MATRIX}">All rules beside all plugins</a>.</p>\n'
        + "\n".join(map(_kind, matrix.tables))
        + "\n</main>",
    )


def _kind(table: Table) -> str:
    heads = "".join(f'<th scope="col">{word}</th>' for word in ("Plugin", "Verdict", "Version", "Met", "Levels"))
    rows = "\n".join(map(_row, table.reports))
    return (
        f"<h2>{KINDS.get(table.kind, escape(table.kind))}</h2>\n"
        f'<table class="plugins">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>'
    )


def _row(report: Report) -> str:
    distribution, _, component = report.plugin.rpartition("/")
    return (
        f'<tr><th scope="row"><a href="{_link(report, "html")}">{escape(component)}</a>'
        f"<span>{escape(distribution)}</span></th>"
        f"<td>{_verdict(report)}</td>"
        f'<td data-head="version">{escape(report.version or "-")}</td>'
        f'<td data-head="met">{report.met} of {len(report.results)}</td>'
        f'<td class="levels" data-head="levels">{_levels(report)}</td></tr>'
    )


def _plugin(report: Report) -> str:
    version = f" {report.version}" if report.version else ""
    legend = " ".join(f"<span>{mark} {escape(meaning)}</span>" for mark, meaning in LEGEND[:-1])
    results = {result.obligation: result for result in report.results}
    tiers = by_tier(report.kind, report.declared, report.traits, report.contract)
    parts = [
        f'<nav><a href="index.html">All plugins</a> · <a href="{MATRIX}">All rules</a></nav>\n<main>',
        f"<h1>{escape(report.plugin)}{escape(version)}</h1>",
        f"<p>{_verdict(report)} {report.met} of {len(report.results)} obligations met "
        f'<img src="{_link(report, "svg")}" alt="guideway {escape(report.contract)}: {report.verdict}"></p>',
        *_not_met(report),
        "<h2>How to run it</h2>",
        f"<pre>{escape(_how_to_run(report))}</pre>",
        f'<p>The <a href="{_link(report, "json")}">report</a> can be checked with <code>guideway conform verify '
        f"{escape(report.stem)}.json</code>. Who writes a report can invent it: where that matters, run the suite.</p>",
        "<h2>What was tested</h2>",
        _facts(report),
        "<h2>Obligations</h2>",
        f'<p class="legend">{legend}</p>',
    ]
    for tier, owed in tiers.items():
        if owed:
            items = "\n".join(_item(results.get(o) or Result(o, "error", "not part of this run")) for o in owed)
            met = sum(o in results and results[o].outcome == "pass" for o in owed)
            parts.append(f'<h3>{tier}: {met} of {len(owed)}</h3>\n<ul class="rules">\n{items}\n</ul>')
    return _page(f"{report.plugin}: {report.verdict}", "\n".join([*parts, "</main>"]))


def _how_to_run(report: Report) -> str:
    distribution = report.plugin.rpartition("/")[0]
    if not distribution:
        return f"# {report.plugin} was tested as a class, without a package"
    version = f"=={report.version}" if report.version else ""
    return f"pip install '{distribution}{version}' 'guideway[conformance]'\nguideway conform {report.plugin}"


def _facts(report: Report) -> str:
    facts = {
        "contract": report.contract,
        "levels": _levels(report),
        "declares": ", ".join(report.declared) or "no capabilities",
        **({"settings": json.dumps(report.settings)} if report.settings else {}),
        "versions": ", ".join(f"{name} {value}" for name, value in report.environment.items()),
        "its files": report.digest or "not known",
        "report": f"sha256:{report.sha256}",
    }
    rows = "\n".join(f'<tr><th scope="row">{name}</th><td>{escape(value)}</td></tr>' for name, value in facts.items())
    return f'<table class="facts"><tbody>\n{rows}\n</tbody></table>'


def _not_met(report: Report) -> list[str]:
    """Say first what a reader came for, but for what one cause left unperformed."""
    unmet = [result for result in report.results if result.outcome not in ("pass", "error")]
    left = sum(result.outcome == "error" for result in report.results)
    parts = ["<h2>Not met</h2>"] if unmet or left else []
    if unmet:
        items = "\n".join(_item(result, told=True) for result in unmet)
        parts.append(f'<ul class="rules">\n{items}\n</ul>')
    if left:
        parts.append(f"<p>Not performed: {left}.</p>")
    return parts


def _item(result: Result, *, told: bool = False) -> str:
    """A rule, and, where it is `told`, what the plugin did instead."""
    words = "refused, as it has to be" if sign(result) == "R" else WORDS[result.outcome]
    did = f'<span class="did {result.outcome}">{escape(words)}: {escape(result.detail)}</span>' if told else ""
    return (
        f'<li><span class="mark {result.outcome}" role="img" aria-label="{escape(words)}">{sign(result)}</span>'
        f"<span>{rule_html(rule_of(result.obligation))} <code>{escape(result.obligation.check)}</code></span>{did}</li>"
    )


def _verdict(report: Report) -> str:
    return f'<span class="verdict {report.verdict.partition(" ")[0]}">{report.verdict}</span>'


def _levels(report: Report) -> str:
    return ", ".join(level for level in report.levels if level != "smoke") or "none"


def _link(report: Report, suffix: str) -> str:
    return escape(f"{report.stem}.{suffix}")
