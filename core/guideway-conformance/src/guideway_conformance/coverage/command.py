"""Count how many schemas of a corpus strategies serve, and how well.

``guideway coverage``.
"""
# ruff: noqa: T201 - a command prints

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from guideway.api.types import PROPERTIES_ORDERS
from guideway.command_line.signals import interrupted_by_sigterm
from guideway.command_line.terminal import print_table
from guideway.errors import GuidewayError, InvalidConfiguration
from guideway.files import reason, write_file
from guideway.plugins import Plugins

from guideway_conformance.coverage.corpora import Case, read_cases
from guideway_conformance.coverage.judging import Verdict
from guideway_conformance.coverage.page import cells, header, page
from guideway_conformance.coverage.processes import Chain, judge_all
from guideway_conformance.coverage.results import Journal, Totals, digest
from guideway_conformance.numbers import positive, positive_int
from guideway_conformance.report import environment
from guideway_conformance.runner import processors

__all__ = ["add_coverage"]

SECONDS = 40.0

EPILOG = """\
A schema is served as by a host: by the first strategy that enforces all of it,
perhaps rewritten. Instances are offered as they are given, and with their
properties in the schema's order. Strategies are built for a vocabulary of
bytes. Each process judges one schema at a time, and is ended for its time or
4 GiB of memory.

exit status:
  0    nothing was accepted in silence
  1    a strategy accepted an invalid instance, and `unenforced` was empty
  2    wrong usage, or a corpus or strategy that cannot be used
  130  interrupted; the same command with --output continues"""


def add_coverage(subparsers: _SubParsersAction[ArgumentParser]) -> None:
    """Add ``coverage``."""
    parser = subparsers.add_parser(
        "coverage",
        help="count how many schemas of a corpus strategies serve, and how well",
        description="Count how many schemas of a corpus strategies serve, and how well.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "corpus",
        metavar="CORPUS",
        nargs="+",
        help="JSON lines with name, schema, valid and invalid; or a folder of .json files, such as the official suite",
    )
    parser.add_argument(
        "--strategy",
        metavar="NAME[,NAME...]",
        action="append",
        help="strategies in a host's order; repeatable, a row each (default: each installed one that runs here, alone)",
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        help="write results.jsonl, which an interrupted run continues, totals.json and index.html",
    )
    parser.add_argument(
        "--properties-order",
        choices=PROPERTIES_ORDERS,
        default="declared",
        help="the order of properties that each schema asks for (default: %(default)s)",
    )
    parser.add_argument("--jobs", type=positive_int, metavar="N", help="processes at once (default: one per processor)")
    parser.add_argument(
        "--seconds",
        type=positive,
        metavar="S",
        default=SECONDS,
        help="CPU seconds for one schema and its instances (default: %(default)g)",
    )
    parser.set_defaults(run=_run)


def _run(args: Namespace) -> int:
    try:
        plugins = Plugins()
        chains = [tuple(text.split(",")) for text in dict.fromkeys(args.strategy or ())] or _each_alone(plugins)
        records = [plugins.resolve("grammar", name) for name in dict.fromkeys(name for c in chains for name in c)]
        cases = read_cases(*args.corpus)
        if not cases:
            raise InvalidConfiguration("there is no schema in these corpora", field="corpus")
        about = {
            "schemas": len(cases),
            "sha256": digest(cases),
            "strategies": [list(chain) for chain in chains],
            "properties_order": args.properties_order,
            "seconds": args.seconds,
            "versions": environment(requirement for record in records for requirement in record.requires),
        }
        return _judge_all(args, cases, chains, about)
    except GuidewayError as error:
        print(f"guideway coverage: {error}", file=sys.stderr)
        return 2


def _each_alone(plugins: Plugins) -> list[Chain]:
    records = [record for record in plugins.index.records if record.kind == "grammar"]
    names = sorted({record.name for record in records})
    return [(name,) for name in names if plugins.load("grammar", name).available() is None]


def _judge_all(args: Namespace, cases: Sequence[Case], chains: Sequence[Chain], about: dict[str, Any]) -> int:
    folder = None if args.output is None else Path(args.output)
    journal = None
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidConfiguration(f"cannot make {str(folder)!r}: {reason(error)}", field="output") from error
        journal = Journal(folder / "results.jsonl", about)
    verdicts = [] if journal is None else journal.verdicts
    known = {(verdict.chain, verdict.name) for verdict in verdicts}
    work = [(chain, case) for case in cases for chain in chains if (",".join(chain), case.name) not in known]
    jobs = min(args.jobs or processors(), max(1, len(work)))
    with contextlib.ExitStack() as stack:
        if journal is not None:
            stack.callback(journal.close)
        stack.enter_context(interrupted_by_sigterm())
        found = judge_all(work, chains, jobs=jobs, seconds=args.seconds, order=args.properties_order)
        stack.enter_context(contextlib.closing(found))
        for verdict in _told(found, len(known), len(known) + len(work)):
            verdicts.append(verdict)
            if journal is not None:
                journal.add(verdict)
    totals = [Totals(name, [v for v in verdicts if v.chain == name]) for name in map(",".join, chains)]
    if folder is not None:
        data = json.dumps({**about, "totals": [each.to_json() for each in totals]}, indent=1)
        write_file(folder / "totals.json", data + "\n", field="output")
        write_file(folder / "index.html", page(about, totals), field="output")
    print_table([name.upper() for name in header()], [cells(each) for each in totals])
    return int(any(verdict.kind == "silent" for verdict in verdicts))


def _told(verdicts: Iterator[Verdict], done: int, total: int) -> Iterator[Verdict]:
    """Yield all verdicts, and tell on standard error how many there are: at a terminal on one line, otherwise at each
    tenth."""
    moves, began, new = sys.stderr.isatty(), time.monotonic(), 0
    for verdict in verdicts:
        yield verdict
        new += 1
        left = (time.monotonic() - began) / new * (total - done - new)
        text = f"{done + new} of {total}, about {left:.0f} s left"
        if moves:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        elif (done + new) * 10 // total > (done + new - 1) * 10 // total:
            print(text, file=sys.stderr, flush=True)
    if moves and new:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
