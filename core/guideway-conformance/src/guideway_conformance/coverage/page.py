"""Totals of a run as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from guideway_conformance.coverage.judging import KINDS, Verdict
from guideway_conformance.coverage.results import Totals
from guideway_conformance.formats.html import COLORS_STYLE

__all__ = ["cells", "header", "page"]

MOST = 300
"""Schemas to list for each chain and kind."""

STYLE = (
    COLORS_STYLE
    + """\
body { font: 14px/1.45 system-ui, sans-serif; color: var(--text); background: var(--back); margin: 2rem auto;
  max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; } .soft, dd { color: var(--soft); }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .6rem; text-align: right; }
th:first-child { text-align: left; } thead th { background: var(--head); vertical-align: bottom; }
details { margin: .4rem 0; } li { overflow-wrap: anywhere; } dl { columns: 2; } dd { margin: 0 0 .4rem 0; }
"""
)


def header() -> list[str]:
    """Return the names of the columns of a table of totals."""
    return ["strategies", *KINDS, "p50", "p99", "max"]


def cells(totals: Totals) -> list[str]:
    """Return the row of a chain: counts of `KINDS`, then CPU seconds."""
    counts = map(str, totals.kinds.values())
    return [totals.chain.replace(",", ", "), *counts, *(f"{each:.3f} s" for each in totals.compile_seconds.values())]


def page(about: Mapping[str, Any], found: Sequence[Totals]) -> str:
    """Return the page: the table, the meaning of its columns, and the schemas that are not right."""
    heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in header())
    rows = "\n".join(_row(totals) for totals in found)
    meanings = "".join(f"<dt>{escape(kind)}</dt><dd>{escape(meaning)}</dd>" for kind, meaning in KINDS.items())
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lists = "\n".join(_lists(totals) for totals in found)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>guideway coverage</title>\n'
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{about['schemas']} schemas</h1>\n"
        f'<p class="soft">{escape(versions)}</p>\n'
        f'<div class="table"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div>\n'
        f"<dl>{meanings}<dt>p50, p99, max</dt><dd>CPU seconds for choosing a strategy and compiling</dd></dl>\n"
        f"{lists}\n</body>\n</html>\n"
    )


def _row(totals: Totals) -> str:
    name, *others = cells(totals)
    return f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in others)}</tr>'


def _lists(totals: Totals) -> str:
    parts = [f"<h2>{escape(totals.chain.replace(',', ', '))}</h2>"]
    for kind in KINDS:
        found = sorted((v for v in totals.verdicts if v.kind == kind), key=lambda v: v.name) if kind != "right" else []
        if found:
            more = f"<li>and {len(found) - MOST} more</li>" if len(found) > MOST else ""
            items = "\n".join(map(_item, found[:MOST]))
            parts.append(f"<details><summary>{escape(kind)}: {len(found)}</summary>\n<ul>{items}{more}</ul></details>")
    return "\n".join(parts)


def _item(verdict: Verdict) -> str:
    told = [verdict.served_by, ", ".join(verdict.unenforced), verdict.why]
    return f'<li>{escape(verdict.name)} <span class="soft">{escape("; ".join(filter(None, told)))}</span></li>'
