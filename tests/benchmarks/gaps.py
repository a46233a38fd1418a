"""Helpers of the benchmarks of admission: runs in pairs, and their tables.

In each pair a neighbor streams twice: in a quiet run alone, and in a loud run while requests of one kind arrive. The
report has the 99th percentile and the largest of the gaps between two pieces of its stream, and the ratio to the quiet
run of the same pair: the median and, in brackets, its 96.5 % confidence interval (order statistics). In separate pairs,
threads that others wait for are watched (`watchdog.py`).
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping, Sequence

from watchdog import LATE, LONG, Span

__all__ = ["HEAD_OF_GAPS", "HEAD_OF_SPANS", "add_arguments", "in_turn", "row_of_gaps", "rows_of_spans"]

HEAD_OF_GAPS = [
    "| requests | p99 quiet, ms | p99 loud, ms | largest quiet, ms | largest loud, ms | ratio of p99 (interval) |",
    "|---|---|---|---|---|---|",
]
HEAD_OF_SPANS = [
    "",
    "## What was waited for",
    "",
    "How often a thread that others wait for, while the neighbor streamed, waited or computed for over 2 ms in one "
    "span of guideway's code or a slow plugin's, which is neither the forward pass nor waiting for work; in brackets "
    "the longest, in milliseconds. `sampler`: how often it came late itself.",
    "",
    "| requests | thread | waited quiet | waited loud | computed quiet | computed loud | longest wait, loud |",
    "|---|---|---|---|---|---|---|",
]

Of = Mapping[bool, Sequence[Sequence[float]]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pairs", type=int, default=15, help="(default: %(default)s)")
    parser.add_argument("--traced", type=int, default=3, help="pairs with the watchdog (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=200, help="in each loud run (default: %(default)s)")
    parser.add_argument("--only", default="", help="kinds of requests with this in their name; writes no table")


def in_turn(num_pairs: int) -> Iterator[bool]:
    """Yield for each run whether it is loud."""
    for i in range(num_pairs):
        yield from (False, True) if i % 2 else (True, False)


def percentile(gaps: Sequence[float]) -> float:
    return sorted(gaps)[int(0.99 * (len(gaps) - 1))]


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median, and the ends of its interval for 15 values or more."""
    ordered, n = sorted(values), len(values)
    rank = max(0, n // 2 - 4 * (n + 14) // 29) if n >= 15 else 0
    return statistics.median(ordered), ordered[rank], ordered[n - 1 - rank]


def row_of_gaps(kind: str, runs: Of) -> str:
    """Return a row. `runs`: the gaps of each run in milliseconds, by whether it was loud, in order of the pairs."""
    ratios = [percentile(loud) / percentile(quiet) for quiet, loud in zip(runs[False], runs[True], strict=True)]
    median, low, high = interval(ratios)
    cells = [statistics.median(map(of, runs[loud])) for of in (percentile, max) for loud in (False, True)]
    return f"| {kind} | {' | '.join(f'{cell:.2f}' for cell in cells)} | {median:.2f} ({low:.2f} to {high:.2f}) |"


def rows_of_spans(kind: str, runs: Mapping[bool, Sequence[Span]]) -> list[str]:
    """Return a row for each thread with a long span, and for each sampler."""
    rows = []
    for thread in sorted({span.thread for loud in runs for span in runs[loud]}):
        spans = {loud: [s for s in runs[loud] if s.thread == thread and not s.num_samples] for loud in (False, True)}
        cells = [_long([span.waited for span in spans[loud]]) for loud in (False, True)]
        if thread.endswith(LATE):
            cells += ["", "", ""]
        else:
            cells += [_long([span.computed for span in spans[loud]]) for loud in (False, True)]
            worst = max(spans[True], key=lambda span: span.waited, default=None)
            cells.append("" if worst is None else ", in ".join(f"`{frame}`" for frame in worst.stack[:4]))
        rows.append(f"| {kind} | {thread} | {' | '.join(cells)} |")
    return rows


def _long(seconds: Sequence[float]) -> str:
    long = [each for each in seconds if each > LONG]
    return f"{len(long)} ({1000 * max(long):.1f})" if long else "0"
