"""Generate the pages of ``docs/contracts/`` from the checks, so that they have exactly the rules that the suite tests::

python -m guideway_conformance.contract_pages [--check] FOLDER
"""
# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from guideway.api import CONTRACT
from guideway.files import write_file

from guideway_conformance.formats.markdown import rule_cell
from guideway_conformance.registry import KIND_MODULES, TIERS, Check, checks

__all__ = ["main", "page"]

WHAT = {
    "grammar": (
        "Grammar strategies",
        "`GrammarStrategy`, `CompiledGrammar` and `Matcher`",
        "core/guideway/api/grammar.py",
    ),
    "device": ("Device backends", "`DeviceBackend` and `ArrayOps`", "core/guideway/api/device.py"),
    "modifier": ("Logit modifiers", "`LogitModifier`, `LogitTransform` and `Sampler`", "core/guideway/api/modifier.py"),
    "worker": ("Worker mixins", "`WorkerMixin`", "core/guideway/api/worker.py"),
    "hooks": ("Hooks", "the validation hooks and observers", "core/guideway/api/hookspecs.py"),
    "attention": ("Attention backends", "`AttentionBackend`", "core/guideway/api/attention.py"),
    "workflow": ("Workflows", "`Workflow` and its six parts", "core/guideway/api/workflow.py"),
}
REFUSED = (
    "Where a rule needs a capability, a plugin that does not declare it has to refuse its use with",
    "`UnsupportedCapability`. Where it is for plugins of a trait, others are not asked.",
)
UNDECLARED = {
    "device": (
        "Where a rule needs a capability, that is one of the operations in `fused`; a plugin that does not declare it",
        "must not override it. Where it is for plugins of a trait, others are not asked.",
    )
}
"""By kind: the rule for an undeclared capability, for kinds where it cannot be used and refused."""
TIER_WORDS = {
    "smoke": "Whether it is alive. What fails here is not tested further.",
    "core": "What certification needs.",
    "extended": "Unusual vocabularies, types and buffers.",
    "stateful": "Random sequences of calls against an oracle, the same in every run.",
    "stress": "Threads, processes and sizes.",
}


def page(kind: str) -> str:
    """Return the page with the rules of `kind`, by tier."""
    title, classes, module = WHAT[kind]
    lines = [
        f"# {title}: the rules of the contract",
        "",
        f"Contract {CONTRACT}. What each rule is about is documented with {classes}",
        f"in [{Path(module).name}](../../{module}).",
        f"`guideway conform {kind}.NAME` tests a plugin against all of them: [Conformance](../conformance.md).",
        "",
        *UNDECLARED.get(kind, REFUSED),
        "",
        "This page is generated from the checks: `make contracts` writes it anew.",
    ]
    for tier in TIERS:
        of_tier = [check for check in checks(kind) if check.tier == tier]
        if of_tier:
            lines += ["", f"## {tier}", "", TIER_WORDS[tier], "", "| rule | id | needs | since |", "|---|---|---|---|"]
            lines += map(_row, of_tier)
    if not checks(kind):
        lines += ["", "There are no checks for this kind yet."]
    return "\n".join(lines) + "\n"


def _row(check: Check) -> str:
    needs = [f"capability `{check.capability}`"] if check.capability else []
    needs += [f"trait `{check.trait}`"] if check.trait else []
    return f"| {rule_cell(check.rule)} | `{check.id}` | {', '.join(needs)} | {check.since} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the pages, or with ``--check`` list the outdated ones. Return the exit status."""
    parser = argparse.ArgumentParser(prog="guideway_conformance.contract_pages")
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is not up to date")
    args = parser.parse_args(argv)
    stale = []
    for kind in KIND_MODULES:
        path, text = args.folder / f"{kind}.md", page(kind)
        if args.check and (not path.exists() or path.read_text(encoding="utf-8") != text):
            stale.append(path)
        elif not args.check:
            args.folder.mkdir(parents=True, exist_ok=True)
            write_file(path, text, field="folder")
    for path in stale:
        print(f"{path} is not up to date; python -m guideway_conformance.contract_pages {args.folder} writes it anew")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
