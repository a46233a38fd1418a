"""The tables of ``docs/which-strategy.md``, generated from each strategy's ``support.json``, which its probe measured.

``python -m tests.docs.keyword_table`` writes them to the page; with ``--check`` it reports whether they are up to date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from packaging.version import Version

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "which-strategy.md"

TABLES = {
    "llguidance": "guideway-llguidance/src/guideway_llguidance",
    "xgrammar": "guideway-xgrammar/src/guideway_xgrammar",
    "outlines": "guideway-outlines/src/guideway_outlines",
    "lmfe": "guideway-lmfe/src/guideway_lmfe",
    "vllm_guidance": "guideway-vllm/src/guideway_vllm/stock/guidance",
    "vllm_xgrammar": "guideway-vllm/src/guideway_vllm/stock/xgrammar",
}
"""By name of a strategy: the package in ``plugins`` that contains its table."""

WORDS = {"enforced": "✓", "narrow": "strict", "unenforced": "named", "refused": "refused"}

FEW = 6
"""Longer lists of neighbors are cut, with the number of the rest."""


def tables() -> dict[str, tuple[str, Mapping[str, str]]]:
    """Return, by name of a strategy, the newest probed version of its library, and the status by keyword."""
    found = {}
    for name, package in TABLES.items():
        versions = json.loads((ROOT / "plugins" / package / "support.json").read_text("utf-8"))
        newest = max(versions, key=Version)
        found[name] = newest, versions[newest]
    return found


def keyword_rows() -> str:
    """Return a row for each keyword, with a column for each strategy."""
    found = tables()
    lines = [f"| keyword | {' | '.join(name.replace('_', ' ') for name in found)} |", "|---" * (len(found) + 1) + "|"]
    names = {name for _, table in found.values() for name in table if "+" not in name}
    for name in sorted(names):
        cells = [WORDS[table[name]] for _, table in found.values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    versions = ", ".join(f"`{name}` {version}" for name, (version, _) in found.items())
    return "\n".join([*lines, "", f"Versions of the libraries: {versions}."])


def neighbor_rows() -> str:
    """Return, for each strategy, the keywords that it loses next to another one, although it enforces either alone."""
    lines = []
    for name, (_, table) in tables().items():
        beside: dict[str, list[str]] = {}
        for pair in sorted(table):
            first, plus, second = pair.partition("+")
            if plus:
                beside.setdefault(first, []).append(f"`{second}`")
        lines += ["", f"**{name}**" if beside else f"**{name}**: none.", ""]
        alike: dict[tuple[str, ...], list[str]] = {}
        for first, others in beside.items():
            alike.setdefault(tuple(others), []).append(f"`{first}`")
        for neighbors, firsts in alike.items():
            more = f", and {len(neighbors) - FEW} more" if len(neighbors) > FEW else ""
            lines.append(f"- {', '.join(firsts)} with {', '.join(neighbors[:FEW])}{more}")
    return "\n".join(lines).replace("\n\n\n", "\n\n").strip("\n")


def written(page: str) -> str:
    """Return the text of the page with its current tables."""
    for name, rows in (("keywords", keyword_rows()), ("neighbors", neighbor_rows())):
        begin, end = f"<!-- {name}: made by make keywords -->\n", f"<!-- end of {name} -->\n"
        before, found, rest = page.partition(begin)
        _, ended, after = rest.partition(end)
        if not (found and ended):
            raise SystemExit(f"{PAGE.name} has no place for {name}: a line {begin!r}, and later {end!r}")
        page = f"{before}{begin}\n{rows}\n\n{end}{after}"
    return page


def main(arguments: list[str]) -> int:
    """Write the page, or check it with ``--check``; return 1 if it is outdated."""
    old = PAGE.read_text("utf-8")
    new = written(old)
    if arguments == ["--check"]:
        if old != new:
            print(f"{PAGE.name} is not up to date: make keywords")
        return int(old != new)
    if arguments:
        raise SystemExit(f"no such arguments: {arguments}; there is --check")
    PAGE.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
