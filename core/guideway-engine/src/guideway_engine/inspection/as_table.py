"""Printing of an inspection to a terminal."""

from __future__ import annotations

import sys

from guideway.errors import printable
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from guideway_engine.inspection.inspecting import FEW, Inspection
from guideway_engine.inspection.verdict import (
    allowed_words,
    costs_line,
    forced_line,
    judge_lines,
    pressure_words,
    step_token,
    step_words,
    unenforced_lines,
    verdict,
)
from guideway_engine.inspection.words import costs, share, token_text

__all__ = ["print_inspection"]

STYLES = {"forced": "cyan", "spelled": "cyan", "few": "yellow", "many": "default", "none": "red"}
PRESSURE = "[pressure: the probability that the model gave to all allowed tokens together]"
WIDEST = 120
"""Columns of the widest table of tokens; rows of wider tables are hard to follow."""
OUTCOMES = {"chosen": "bold green", "possible": "default", "failed": "red", "refused": "dim"}


def print_inspection(inspection: Inspection, model: str) -> None:
    """Print an inspection to standard output, in color if that is a terminal, and in its width."""
    console = Console(highlight=False, emoji=False, markup=False)
    size = f"{len(inspection.vocabulary):,} tokens"
    with console.capture() as captured:
        for line in _verdict(inspection):
            console.print(line)
        console.print()
        console.print(_facts(inspection, f"{inspection.constraint.kind}; model {printable(model)}, {size}"))
        console.print(_steps(inspection, min(console.width, WIDEST)))
        console.print(
            f"[forced: one token; spelled: one text, cut into tokens in several ways; few: at most {FEW} tokens; many: "
            "more, of which what they begin with is shown]",
            style="dim",
        )
        if inspection.pressure:
            console.print(PRESSURE, style="dim")
        if inspection.text is not None:
            console.print(forced_line(inspection))
    # without the trailing spaces that rich adds
    sys.stdout.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def _facts(inspection: Inspection, constraint: str) -> Table:
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("constraint", constraint)
    reports = Table.grid(padding=(0, 2))
    reports.add_column(no_wrap=True)
    reports.add_column(overflow="fold")
    for report in inspection.strategies:
        reason = f"{report.outcome}: {report.reason}" if report.outcome != "possible" else report.reason
        reports.add_row(report.name, Text(printable(reason)), style=OUTCOMES[report.outcome])
    facts.add_row("strategies", reports)
    facts.add_row("not enforced", Text(printable("\n".join(unenforced_lines(inspection)))))
    facts.add_row("costs", costs_line(inspection))
    return facts


def _steps(inspection: Inspection, width: int) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, width=width)
    table.add_column("byte", justify="right", no_wrap=True)
    table.add_column("token", overflow="fold", max_width=24, min_width=6)
    table.add_column("allowed", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("what may come", overflow="ellipsis", no_wrap=True, ratio=1)
    if inspection.pressure:
        table.add_column("pressure", no_wrap=True)
    table.add_column("mask", justify="right", no_wrap=True)
    table.add_column("accept", justify="right", no_wrap=True)
    total = len(inspection.vocabulary)
    for index, step in enumerate(inspection.steps):
        refused = inspection.refusal is not None and inspection.refusal.step == index
        table.add_row(
            f"{step.offset:,}",
            Text(step_token(inspection, step), style="bold red" if refused else STYLES[step.choice]),
            Text(step_words(step), style=STYLES[step.choice]),
            share(step.allowed.count, total),
            allowed_words(inspection, step.allowed, in_tokens=step.choice != "many"),
            *(() if not inspection.pressure else (pressure_words(inspection, index),)),
            costs(step.fill_seconds),
            costs(step.accept_seconds),
        )
    return table


def _verdict(inspection: Inspection) -> list[Text]:
    refusal = inspection.refusal
    color = "default" if inspection.text is None else "green" if inspection.passes else "red"
    lines = [Text(printable(verdict(inspection)), style=f"bold {color}")]
    if refusal is not None:
        lines.append(Text(f"allowed there: {allowed_words(inspection, refusal.allowed, in_tokens=False)}"))
        if inspection.rest:
            rest = "".join(token_text(inspection.vocabulary, token_id) for token_id in inspection.rest)
            lines.append(Text(f"not looked at: {rest if len(rest) <= 200 else rest[:199] + '…'}"))
    return lines + [Text(printable(line)) for line in judge_lines(inspection)]
