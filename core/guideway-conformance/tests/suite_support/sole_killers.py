"""Find the checks that alone catch some saboteur: ``python -m suite_support.sole_killers [KIND ...]`` in the parent
folder.

A check that never does may be redundant, or its saboteur may have more than one bug; neither is a failure. The table is
written to ``results/sole_killers.md`` there. It takes some seconds per saboteur.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from guideway_conformance.isolation import Host
from guideway_conformance.registry import KIND_MODULES, checks, plan
from guideway_conformance.target import Target
from saboteurs import Saboteur, saboteurs

RESULTS = Path(__file__).parents[1] / "results" / "sole_killers.md"


def killers(saboteur: Saboteur) -> set[str]:
    """Return all checks up to the tier ``extended`` that catch `saboteur`."""
    with Host(Target.of_class(saboteur.component)) as host:
        planned = plan(saboteur.kind, host.declared, host.traits, up_to="extended")
        return {result.obligation.check for result in host.run(planned, jobs=2) if result.outcome == saboteur.outcome}


def section(kind: str) -> str:
    """Return the lists of one kind, as Markdown."""
    alone: dict[str, list[str]] = defaultdict(list)
    shared: dict[str, list[str]] = defaultdict(list)
    for saboteur in saboteurs(kind):
        found = killers(saboteur)
        if len(found) == 1:
            alone[min(found)].append(saboteur.name)
        else:
            shared[saboteur.killer].append(f"{saboteur.name} ({len(found)})")
        print(kind, saboteur.name, len(found), flush=True)
    up_to_extended = [check.id for check in checks(kind) if check.tier in ("smoke", "core", "extended")]
    without = [check for check in up_to_extended if check not in alone]
    lines = [
        f"## {kind}: {len(up_to_extended) - len(without)} of {len(up_to_extended)} checks catch something alone",
        "",
    ]
    lines += [f"- `{check}`: only with others ({', '.join(shared[check]) or 'no saboteur'})" for check in without]
    return "\n".join([*lines, ""])


def main() -> None:
    kinds = sys.argv[1:] or list(KIND_MODULES)
    sections = [section(kind) for kind in kinds]
    RESULTS.parent.mkdir(exist_ok=True)
    text = "\n".join(
        [
            "# Checks without a saboteur of their own",
            "",
            f"`{' '.join(['python -m suite_support.sole_killers', *sys.argv[1:]])}`",
            "",
            "In brackets: how many checks caught that saboteur.",
            "",
            *sections,
        ]
    )
    RESULTS.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
