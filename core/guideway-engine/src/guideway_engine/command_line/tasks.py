"""Running a task over the texts of a command line: ``guideway embed``, ``guideway rerank`` and ``guideway
classify``."""
# ruff: noqa: T201 - commands print

from __future__ import annotations

import sys
import time
from argparse import ArgumentParser, Namespace, _SubParsersAction
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from functools import partial
from pathlib import PurePath
from typing import Any, cast

from guideway.command_line.quiet import quiet_libraries
from guideway.command_line.signals import interrupted_by_sigterm, status_of
from guideway.errors import printable

from guideway_engine.command_line import config, task_inputs
from guideway_engine.command_line.digests import of_entries
from guideway_engine.command_line.lines import Lines, check_ids
from guideway_engine.command_line.opening import loading, open_engine, progress
from guideway_engine.command_line.reading import check_output
from guideway_engine.command_line.task_inputs import Entry, read_entries
from guideway_engine.command_line.task_outputs import Matrix, Result, line_of, print_results
from guideway_engine.config_sources import Configuration, Layer, Setting
from guideway_engine.task_results import Classification, Embedding, Score

__all__ = ["add"]

USED = ("model", "workflow", "device", "dtype", "executor", "max_model_len", "plugins")
"""Fields and tables of the configuration that are used here."""

MATRIX = ".npy"

RESULTS: dict[str, type[Result]] = {"embed": Embedding, "rerank": Score, "classify": Classification}

DOING = {"embed": "embedding", "rerank": "ranking", "classify": "classifying"}


def add(subparsers: _SubParsersAction[ArgumentParser], task: str, short: str, description: str) -> ArgumentParser:
    """Add the command of a task, and return its parser for further flags."""
    query = " --query TEXT" if task == "rerank" else ""
    parser = subparsers.add_parser(
        task,
        usage=f"guideway {task} --model NAME{query} (--text TEXT | --input FILE) [flags]",
        help=short,
        description=f"{description} Exit status: 0 every text has its result; 1 some were refused or failed; 2 wrong "
        "usage or an invalid flag; 130 interrupted, 143 ended by SIGTERM.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON also to a terminal")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="write to this file, which must be new, unless --resume is given"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the JSON lines of --output: keep what is done, by 'id'; an error if another text, model or "
        "setting made it",
    )
    parser.add_argument(
        "--truncate",
        choices=("refuse", "right", "left"),
        help="refuse what is longer than the context, or cut its end (right) or beginning (left) off (default: refuse)",
    )
    task_inputs.add_flags(parser, task)
    config.add_flags(parser, only=USED)
    parser.set_defaults(run=partial(_run, task))
    return parser


def _run(task: str, args: Namespace) -> int:
    matrix = args.output is not None and PurePath(args.output).suffix == MATRIX
    if wrong := _find_misuse(task, args, matrix=matrix):
        print(f"guideway {task}: error: {wrong}", file=sys.stderr)
        return 2
    check_output(args, "output")
    entries = read_entries(args, task)
    with quiet_libraries(), interrupted_by_sigterm():
        defaults: Layer = {("workflow",): Setting(f"guideway-engine/{task}", f"guideway {task}")}
        configuration = config.configuration(args, config.sources(args), defaults)
        if ("model",) not in configuration.settings:
            print(
                f"guideway {task}: error: no model is configured; give --model, GUIDEWAY_MODEL, or model in a "
                "configuration file (--config, GUIDEWAY_CONFIG)",
                file=sys.stderr,
            )
            return 2
        params = {"truncate": args.truncate, "dimensions": getattr(args, "dimensions", None)}
        digests: dict[str, str] = {}
        if args.output is not None and not matrix:
            check_ids(entries)
            digests = of_entries(entries, task, configuration, params, (args.input, args.output))
        return _compute(task, args, configuration, entries, params, digests)


def _find_misuse(task: str, args: Namespace, *, matrix: bool) -> str | None:
    if args.resume and args.output is None:
        return "--resume goes on with a file: name it with --output"
    if args.resume and matrix:
        return "--resume goes on with JSON lines, and a matrix is whole or not there; name a file that ends with .jsonl"
    if matrix and task != "embed":
        return f"a matrix (--output FILE{MATRIX}) holds vectors, and {task} makes none; write JSON lines"
    return None


def _compute(
    task: str,
    args: Namespace,
    configuration: Configuration,
    entries: list[Entry],
    params: dict[str, Any],
    digests: dict[str, str],
) -> int:
    in_table = args.output is None and not args.json and sys.stdout.isatty()
    shown: list[tuple[Entry, Result]] = []
    counts = {"done": 0, "not": 0}
    began = time.monotonic()
    interrupt: KeyboardInterrupt | None = None
    with ExitStack() as stack:
        lines, write = _writer(args, stack, len(entries), digests, shown if in_table else None)
        done = set() if lines is None else lines.done
        bar = lines is None or not lines.may_be_seen
        places = [place for place, entry in enumerate(entries) if entry.id not in done]
        asked = [entries[place] for place in places]
        try:
            began, results = _results(task, configuration, asked, params, stack, bar=bar)
            for place, entry, result in zip(places, asked, results, strict=True):
                write(place, entry, result)
                counts["not" if result.error else "done"] += 1
                if result.error is not None and not in_table:
                    print(printable(f"guideway: text {entry.id}: {result.error}"), file=sys.stderr)
        except KeyboardInterrupt as error:
            if args.output is not None and PurePath(args.output).suffix == MATRIX:
                raise
            interrupt = error
    if shown:
        print_results(shown)
        for entry, result in shown:
            if result.error is not None:
                print(printable(f"guideway: text {entry.id}: {result.error}"), file=sys.stderr)
    if args.text is None or interrupt:
        seconds = time.monotonic() - began
        print(_summary(counts, len(done), len(asked), seconds, interrupted=interrupt is not None), file=sys.stderr)
    return status_of(interrupt) if interrupt else int(counts["not"] > 0)


def _results(
    task: str,
    configuration: Configuration,
    asked: list[Entry],
    params: dict[str, Any],
    stack: ExitStack,
    *,
    bar: bool,
) -> tuple[float, Iterator[Result]]:
    """Return the time at which the model was loaded, and an iterator over the result of each entry."""
    if not asked:
        return time.monotonic(), iter(())
    with loading():
        engine = stack.enter_context(open_engine(configuration))
    given = {name: value for name, value in params.items() if value is not None}
    results = engine.run(task, (entry.value for entry in asked if entry.error is None), given)
    advance = stack.enter_context(progress(len(asked) if bar else 0, DOING[task]))

    def each() -> Iterator[Result]:
        for entry in asked:
            yield (
                _as(RESULTS[task], next(results))
                if entry.error is None
                else RESULTS[task](request_id=entry.id, error=entry.error)
            )
            advance()

    return time.monotonic(), each()


def _as(cls: type[Result], result: Any) -> Result:
    """Return a result of another distribution's workflow as `cls`, with the fields that it has."""
    if isinstance(result, cls):
        return result
    return cls(**{each.name: getattr(result, each.name) for each in fields(cls) if hasattr(result, each.name)})


def _writer(
    args: Namespace, stack: ExitStack, num_rows: int, digests: dict[str, str], shown: list[tuple[Entry, Result]] | None
) -> tuple[Lines | None, Callable[[int, Entry, Result], None]]:
    """Return a function that writes each result to the chosen output, and the lines that it writes, if any."""
    if shown is not None:
        return None, lambda _, entry, result: shown.append((entry, result))
    if args.output is not None and PurePath(args.output).suffix == MATRIX:
        matrix = stack.enter_context(Matrix(args.output, num_rows))
        return None, lambda index, _, result: matrix.write(index, cast("Embedding", result))
    lines = stack.enter_context(Lines(args.output, resume=args.resume, digests=digests))
    return lines, lambda index, entry, result: lines.write(line_of(index, entry, result), entry.id)


def _summary(counts: dict[str, int], num_done: int, total: int, seconds: float, *, interrupted: bool) -> str:
    said = [f"{counts['done']} done"]
    if counts["not"]:
        said.append(f"{counts['not']} refused or failed")
    if num_done:
        said.append(f"{num_done} done before")
    if counts["done"]:
        said.append(f"{seconds:.1f} s, {counts['done'] / max(seconds, 1e-9):.0f} a second")
    head = f"{total + num_done} texts" if total + num_done != 1 else "1 text"
    return f"guideway: {'interrupted; ' if interrupted else ''}{head}: {'; '.join(said)}"
