"""Test a plugin against its contract.

``guideway conform``; it also compares reports and verifies them.
"""
# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guideway.api import CONTRACT
from guideway.errors import GuidewayError, InvalidConfiguration, PluginConflict, PluginError
from guideway.files import clash, write_file
from guideway.plugins.lock import DEFAULT_LOCK

from guideway_conformance.certifying import CANNOT_LOAD, EXIT_STATUS, conform
from guideway_conformance.isolation import CannotLoad
from guideway_conformance.numbers import positive, positive_int
from guideway_conformance.registry import TIERS
from guideway_conformance.report import Report
from guideway_conformance.runner import require_extra

__all__ = ["add_conform"]

EPILOG = """\
'guideway conform matrix' compares reports, 'guideway conform verify' checks
them. A plugin that is called matrix or verify is written KIND.NAME.

conformance.toml, in this folder or above it, else in the folder of an editable
install, names known failures and how to build the plugin.

With several plugins, or --config, each option that writes a report names a
folder, made if it is missing; the exit status is the gravest; and --record
passes over what is recorded already, and locks, as it is installed, what is of
a kind without checks.

exit status:
  0    certified, and recorded if that was asked for
  1    failed: the plugin broke a rule
  2    incomplete: something was not performed, a signal ended the run, it was
       one up to smoke, or there are no checks for the contract; wrong usage
  3    known failures, and no others
  4    the plugin cannot be loaded, or there is none"""


def add_conform(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``conform``, ``conform matrix`` and ``conform verify``."""
    parser = subparsers.add_parser(
        "conform",
        help="test a plugin against its contract",
        description="Test a plugin against its contract, each check in a process of its own.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "plugin",
        metavar="PLUGIN",
        nargs="*",
        help="NAME, KIND.NAME, DISTRIBUTION/KIND.NAME, or FILE.py[:NAME] of what is not installed",
    )
    parser.add_argument("--config", metavar="FILE", help="test all that this configuration of an engine selects")
    parser.add_argument("--contract", metavar="VERSION", default=CONTRACT, help="default: %(default)s")
    parser.add_argument(
        "--up-to", metavar="TIER", choices=TIERS, default=TIERS[-1], help=f"stop after {', '.join(TIERS[:-1])}"
    )
    parser.add_argument("--jobs", type=positive_int, metavar="N", help="checks at once (default: one per processor)")
    parser.add_argument(
        "--timeout-factor",
        type=positive,
        metavar="X",
        default=1.0,
        help="give each check X times its time (default: 1)",
    )
    parser.add_argument("--report", metavar="FILE", help="write the report, JSON: what matrix and verify read")
    parser.add_argument("--markdown", metavar="FILE", help='write it as Markdown, as for "$GITHUB_STEP_SUMMARY"')
    parser.add_argument("--junit", metavar="FILE", help="write it as JUnit XML, a test case per obligation")
    parser.add_argument(
        "--badge",
        metavar="FILE",
        help="write a badge: an image if FILE ends in .svg, else JSON for the endpoint of shields.io",
    )
    parser.add_argument("--record", action="store_true", help="if certified, record that in the lock file")
    parser.add_argument("--lock", metavar="FILE", help=f"with --record; default: {DEFAULT_LOCK}")
    parser.set_defaults(run=_reporting(conform))

    # argparse cannot tell a plugin from a subcommand by a positional argument, so the first word decides
    matrix = subparsers.add_parser(
        "conform matrix",
        description="Compare reports: plugins across, rules down. Without --html and --markdown, Markdown is printed.",
    )
    matrix.add_argument("reports", metavar="REPORT", nargs="+", help="what conform --report wrote")
    matrix.add_argument(
        "--html", metavar="FOLDER", help="write a site: an index, a page and a badge for each plugin, and the matrix"
    )
    matrix.add_argument("--markdown", metavar="FILE", help="write Markdown")
    matrix.set_defaults(run=_reporting(_matrix))
    verify = subparsers.add_parser(
        "conform verify",
        description="Check that reports are whole and unchanged, that they hold all that this suite asks for, and, "
        "where the plugin is installed, that they are about what is installed here. The verdict is worked out again.",
        epilog="exit status: 0 every report is sound and its verdict certified; 1 some are not",
    )
    verify.add_argument("reports", metavar="REPORT", nargs="+", help="what conform --report wrote")
    verify.set_defaults(run=_reporting(_verify))

    parse = parser.parse_known_args
    words = {"matrix": matrix, "verify": verify}

    def parse_known_args(args: Any = None, namespace: Any = None) -> Any:
        if args and args[0] in words:
            return words[args[0]].parse_known_args(args[1:], namespace)
        return parse(args, namespace)

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def _reporting(command: Callable[[Namespace], int]) -> Callable[[Namespace], int]:
    """Return `command` with the exit statuses of ``conform`` for errors: 1 would mean that a plugin broke a rule."""

    def run_command(args: Namespace) -> int:
        try:
            require_extra()
            return command(args)
        except (GuidewayError, CannotLoad, OSError) as error:
            if isinstance(error, BrokenPipeError):
                raise
            print(f"guideway conform: {error}", file=sys.stderr)
            missing = isinstance(error, PluginError | CannotLoad) and not isinstance(error, PluginConflict)
            return CANNOT_LOAD if missing else EXIT_STATUS["incomplete"]

    return run_command


def _matrix(args: Namespace) -> int:
    from guideway_conformance.formats.site import write_site
    from guideway_conformance.matrix import Matrix, markdown

    if args.html and (args.html.endswith(".html") or Path(args.html).is_file()):
        raise InvalidConfiguration(f"--html writes a site into a folder, and {args.html} names a file", field="html")
    if said := clash({"--markdown": args.markdown}, {f"REPORT {path}": path for path in args.reports}):
        raise InvalidConfiguration(said, field="markdown")
    reports = [Report.read(path) for path in args.reports]
    matrix = Matrix.of(reports)
    if args.html:
        write_site(reports, Path(args.html))
    if args.markdown:
        write_file(args.markdown, markdown(matrix), field="markdown")
    if not args.html and not args.markdown:
        print(markdown(matrix), end="")
    return 0


def _verify(args: Namespace) -> int:
    from guideway_conformance.verify import verify

    sound = True
    for path in args.reports:
        found = verify(path)
        print(f"{path}: {found.summary}")
        for line in found.problems:
            print(f"  {line}")
        for line in found.notes:
            print(f"  note: {line}")
        sound = sound and not found.problems and found.verdict == "certified"
    return 0 if sound else 1
