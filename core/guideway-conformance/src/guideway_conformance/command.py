"""Test a plugin against its contract.

``guideway conform``; it also compares reports and verifies them.
"""
# ruff: noqa: T201 - printing is what a command is for

from __future__ import annotations

import argparse
import math
import sys
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable
from pathlib import Path
from typing import Any

from guideway.api import CONTRACT
from guideway.errors import GuidewayError, InvalidConfiguration, PluginConflict, PluginError, PluginUnavailable
from guideway.plugins.lock import Lock, Verdict

from guideway_conformance.isolation import CannotLoad
from guideway_conformance.known_failures import Preferences
from guideway_conformance.registry import TIERS
from guideway_conformance.report import Report
from guideway_conformance.runner import require_extra, run
from guideway_conformance.target import Target

__all__ = ["CANNOT_LOAD", "EXIT_STATUS", "add_conform"]

EXIT_STATUS = {"certified": 0, "failed": 1, "incomplete": 2, "known failures": 3}
CANNOT_LOAD = 4

EPILOG = """\
'guideway conform matrix' compares reports, 'guideway conform verify' checks them.
A plugin that is called matrix or verify is written KIND.NAME. conformance.toml, in this folder or above it, else in the
folder of an editable install, names known failures and how to build the plugin.

exit status:
  0    certified, and recorded if that was asked for
  1    failed: the plugin broke a rule
  2    incomplete: something was not performed; also a run up to smoke, a contract without checks, wrong usage
  3    known failures, and no others
  4    the plugin cannot be loaded, or there is none"""


def add_conform(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``conform``, ``conform matrix`` and ``conform verify``."""
    parser = subparsers.add_parser(
        "conform",
        help="test a plugin against its contract",
        description="Test an installed plugin against its contract, each check in a process of its own.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plugin", metavar="PLUGIN", help="NAME, KIND.NAME or DISTRIBUTION/KIND.NAME")
    parser.add_argument("--contract", metavar="VERSION", default=CONTRACT, help="default: %(default)s")
    parser.add_argument(
        "--up-to", metavar="TIER", choices=TIERS, default=TIERS[-1], help=f"stop after {', '.join(TIERS[:-1])}"
    )
    parser.add_argument("--jobs", type=_positive_int, metavar="N", help="checks at once (default: one per processor)")
    parser.add_argument(
        "--timeout-factor",
        type=_positive,
        metavar="X",
        default=1.0,
        help="give each check X times its time (default: 1)",
    )
    parser.add_argument("--report", metavar="FILE", help="write the report, JSON: what matrix and verify read")
    parser.add_argument("--markdown", metavar="FILE", help='write it as Markdown, as for "$GITHUB_STEP_SUMMARY"')
    parser.add_argument("--junit", metavar="FILE", help="write it as JUnit XML, a test case per obligation")
    parser.add_argument("--badge", metavar="FILE", help="write a badge, JSON for the endpoint of shields.io")
    parser.add_argument("--record", action="store_true", help="if certified, record that in the lock file")
    parser.add_argument("--lock", metavar="FILE", default="guideway.lock", help="with --record; default: %(default)s")
    parser.set_defaults(run=_reporting(_conform))

    # a positional argument that is a plugin or a word cannot be told apart by argparse, hence by its first word
    matrix = subparsers.add_parser(
        "conform matrix",
        description="Compare reports: plugins across, rules down. Without --html and --markdown, Markdown is printed.",
    )
    matrix.add_argument("reports", metavar="REPORT", nargs="+", help="what conform --report wrote")
    matrix.add_argument("--html", metavar="FILE", help="write a page, with all that it needs in it")
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


def _positive_int(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return value


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be greater than 0, not {text}")
    return value


def _reporting(command: Callable[[Namespace], int]) -> Callable[[Namespace], int]:
    """`command`, with the exit statuses of ``conform`` where it raises: 1 would say that a plugin broke a rule."""

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


def _conform(args: Namespace) -> int:
    from guideway_conformance.formats.terminal import Terminal

    formats = _formats()
    files = [(Path(path), formats[name]) for name in formats if (path := getattr(args, name))]
    for path, _ in files:
        if not path.absolute().parent.is_dir():
            raise InvalidConfiguration(f"cannot write {path}: there is no folder {path.parent}", field="report")
    if args.record and Path(args.lock).exists():
        Lock.read(args.lock)  # an unreadable one is better known before the run than after it
    target = Target.installed(args.plugin)
    preferences = _preferences(target)
    target = Target.installed(args.plugin, preferences.settings(target.component))
    terminal = Terminal()
    try:
        report = run(
            target,
            contract=args.contract,
            up_to=args.up_to,
            preferences=preferences,
            jobs=args.jobs,
            timeout_factor=args.timeout_factor,
            on_plan=terminal.begin,
            on_result=terminal.result,
        )
    except CannotLoad as error:
        raise CannotLoad(f"{target.name} cannot be loaded: {error}") from error
    terminal.end(report)
    for path, text in files:
        path.write_text(text(report), encoding="utf-8")
    if args.record and not _record(report, target, args.lock):
        return EXIT_STATUS["incomplete"] if report.verdict == "certified" else EXIT_STATUS[report.verdict]
    return EXIT_STATUS[report.verdict]


def _preferences(target: Target) -> Preferences:
    """Read the preferences of the nearest ``conformance.toml``: from here, or else from where an editable install has
    its sources."""
    here = Preferences.find(".")
    record = target.record()
    file = here or (Preferences.find(record.editable) if record and record.editable else None)
    return Preferences.read(file) if file else Preferences()


def _formats() -> dict[str, Callable[[Report], str]]:
    """Return the functions that write a report, by the option that asks for it."""
    from guideway_conformance.formats.badge import badge
    from guideway_conformance.formats.junit import junit
    from guideway_conformance.formats.markdown import markdown

    return {"report": Report.to_text, "markdown": markdown, "junit": junit, "badge": badge}


def _record(report: Report, target: Target, path: str) -> bool:
    """Write the verdict into the lock file, if it is one that can be; otherwise say why not."""
    record = target.record()
    if report.verdict != "certified":
        print(f"not recorded in {path}: the verdict is {report.verdict}", file=sys.stderr)
        return False
    assert record is not None, "the command tests installed plugins"
    assert report.digest is not None
    verdict = Verdict(report.sha256, report.digest, report.contract, report.levels)
    earlier = Lock.read(path) if Path(path).exists() else Lock({})
    try:
        lock = earlier.certified(record, verdict)
    except PluginUnavailable as error:
        print(f"not recorded in {path}: {error}", file=sys.stderr)
        return False
    lock.write(path)
    print(f"recorded in {path}")
    return True


def _matrix(args: Namespace) -> int:
    from guideway_conformance.formats.html import html
    from guideway_conformance.matrix import Matrix, markdown

    matrix = Matrix.of([Report.read(path) for path in args.reports])
    if args.html:
        Path(args.html).write_text(html(matrix), encoding="utf-8")
    if args.markdown:
        Path(args.markdown).write_text(markdown(matrix), encoding="utf-8")
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
