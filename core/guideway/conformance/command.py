"""``guideway conform``: test a plugin against its contract."""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import argparse
import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction

from guideway.api import CONTRACT
from guideway.conformance.isolation import CannotLoad
from guideway.conformance.known_failures import Preferences
from guideway.conformance.outcomes import Result
from guideway.conformance.registry import TIERS
from guideway.conformance.runner import run
from guideway.conformance.target import Target

__all__ = ["EXIT_STATUS", "add_conform"]

EXIT_STATUS = {"certified": 0, "failed": 1, "incomplete": 2, "known failures": 3}
CANNOT_LOAD = 4


def add_conform(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``conform``."""
    parser = subparsers.add_parser(
        "conform",
        help="test a plugin against its contract",
        description="Test an installed plugin against its contract, each check in a process of its own.",
        epilog="exit status: 0 certified, 1 failed, 2 incomplete, 3 only known failures, 4 the plugin cannot be loaded",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plugin", metavar="PLUGIN", help="NAME, KIND.NAME or DISTRIBUTION/KIND.NAME")
    parser.add_argument("--contract", default=CONTRACT, help="default: %(default)s")
    parser.add_argument("--up-to", choices=TIERS, default=TIERS[-1], help="the last tier to run (default: all)")
    parser.add_argument("--report", metavar="FILE", help="write the report, JSON, to this file")
    parser.add_argument("--jobs", type=int, metavar="N", help="checks at once (default: as many as processors)")
    parser.set_defaults(run=_conform)


def _conform(args: Namespace) -> int:
    preferences = Preferences.near(".")
    target = Target.installed(args.plugin)
    target = Target.installed(args.plugin, preferences.settings(target.name.rpartition("/")[2]))

    def tell(result: Result) -> None:
        if result.outcome != "pass":
            print(f"{result.outcome:13} {result.obligation.check} ({result.obligation.mode}): {result.detail}")

    try:
        report = run(
            target,
            contract=args.contract,
            up_to=args.up_to,
            preferences=preferences,
            jobs=args.jobs,
            on_result=tell,
        )
    except CannotLoad as error:
        print(f"guideway conform: {target.name} cannot be loaded: {error}", file=sys.stderr)
        return CANNOT_LOAD
    passed = sum(result.outcome == "pass" for result in report.results)
    print(f"{report.plugin}: {passed} of {len(report.results)} obligations met; {report.verdict.upper()}")
    if report.levels:
        print(f"levels: {', '.join(report.levels)}")
    if args.report:
        report.write(args.report)
    return EXIT_STATUS[report.verdict]
