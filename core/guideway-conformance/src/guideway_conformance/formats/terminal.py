"""A run on a terminal: a line of progress, what was not met as it comes, and a table at the end."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections import Counter
from typing import TextIO

from guideway_conformance.formats.rules import WORDS, rule_of
from guideway_conformance.outcomes import Outcome, Result
from guideway_conformance.registry import TIERS, Obligation
from guideway_conformance.report import INTERRUPTED, Report, by_tier

__all__ = ["Terminal"]

COLORS = {"certified": "32", "failed": "31", "incomplete": "33", "known failures": "33"}
COLUMNS: tuple[Outcome, ...] = ("pass", "fail", "known_failure", "not_run", "error")


class Terminal:
    """Tells of one run on `out`; in color and with a line that moves only where that is a terminal."""

    def __init__(self, out: TextIO | None = None) -> None:
        self.out = out or sys.stdout
        self.is_tty = self.out.isatty() and os.environ.get("TERM") != "dumb"
        self.in_color = self.is_tty and not os.environ.get("NO_COLOR")
        self.width = min(shutil.get_terminal_size().columns, 120) if self.is_tty else 120
        self._done = 0
        self._total = 0
        self._unmet = 0
        self._tier_of: dict[Obligation, str] = {}
        self._not_run: Counter[str] = Counter()
        """By reason: how many obligations were not run."""
        self._began = time.monotonic()

    def begin(self, report: Report) -> None:
        """Say what is tested."""
        tiers = by_tier(report.kind, report.declared, report.traits, report.contract)
        self._tier_of = {obligation: tier for tier, owed in tiers.items() for obligation in owed}
        self._total = len(report.results)
        version = f" {report.version}" if report.version else ""
        self._paragraph("", f"{report.plugin}{version}, contract {report.contract}: {self._total} obligations")
        self._paragraph("", f"declares: {', '.join(report.declared) or 'no capabilities'}")
        if report.settings:
            self._print(f"settings: {json.dumps(report.settings)}")
        self._progress()

    def result(self, result: Result) -> None:
        """Tell of an obligation, in full if it was not met; of those that were not run, the first for each reason."""
        self._done += 1
        self._unmet += result.outcome != "pass"
        self._not_run[result.detail] += result.outcome == "not_run"
        if result.outcome not in ("pass", "not_run") or self._not_run[result.detail] == 1:
            self._erase()
            color = "31" if result.outcome == "fail" else "33"
            mode = " (refusal)" if result.obligation.mode == "refusal" else ""
            self._print(f"\n{self._colored(WORDS[result.outcome], color)} {result.obligation.check}{mode}")
            self._paragraph("rule: ", rule_of(result.obligation))
            self._paragraph("it did: " if result.outcome == "fail" else "why: ", result.detail)
        self._progress(result)

    def end(self, report: Report) -> None:
        """A table of the tiers, the verdict, and what it rests on."""
        self._erase()
        if again := self._not_run.total() - len(+self._not_run):
            self._print(f"\n{again} more were not run, for the same reason.")
        self._print("")
        rows = [["TIER", "OWED", "MET", "FAILED", "KNOWN", "NOT RUN", "NOT PERFORMED", "SECONDS", "LEVEL"]]
        results = {result.obligation: result for result in report.results}
        tiers = by_tier(report.kind, report.declared, report.traits, report.contract)
        for tier in TIERS:
            found = [results[obligation] for obligation in tiers[tier] if obligation in results]
            count = Counter(result.outcome for result in found)
            count["error"] += len(tiers[tier]) - len(found)
            seconds = f"{sum(result.seconds for result in found):.1f}"
            if tiers[tier]:
                level = "granted" if tier in report.levels else "-"
                rows.append([tier, str(len(tiers[tier])), *(str(count[o]) for o in COLUMNS), seconds, level])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for i, row in enumerate(rows):
            cells = [
                f"{cell:<{w}}" if j in (0, 8) else f"{cell:>{w}}"
                for j, (cell, w) in enumerate(zip(row, widths, strict=True))
            ]
            line = "  ".join(cells).rstrip()
            self._print(self._colored(line, "1") if i == 0 else line)
        self._print("")
        verdict = self._colored(report.verdict.upper(), f"1;{COLORS[report.verdict]}")
        self._print(f"{report.plugin}: {verdict}, {report.met} of {len(report.results)} obligations met")
        self._print(f"levels: {', '.join(report.levels) or 'none'}")
        if report.verdict == "incomplete":
            self._paragraph("", self._why_incomplete(report))
        if report.verdict == "known failures":
            self._print("A plugin with known failures (conformance.toml) is not certified.")

    def _why_incomplete(self, report: Report) -> str:
        tiers = by_tier(report.kind, report.declared, report.traits, report.contract)
        planned = set(report.planned)
        left_out = [tier for tier, owed in tiers.items() if not planned.issuperset(owed)]
        if left_out and report.met == len(report.results):
            return (
                f"This is no certification: --up-to {report.up_to} left out {', '.join(left_out)}, and certification "
                "needs the level core. Run it without --up-to."
            )
        if not tiers["core"]:
            return f"This is no certification: there are no core checks of {report.kind} plugins yet."
        unknown = sum(result.outcome == "error" for result in report.results)
        absent = sum(result.outcome == "not_run" for result in report.results)
        ended = any(result.detail == INTERRUPTED for result in report.results)
        reasons = ["a signal ended the run"] if ended else []
        reasons += [f"{unknown} obligations were not performed"] if unknown else []
        reasons += [f"{absent} could not be run here"] if absent else []
        return f"This is no certification: {'; '.join(reasons)}."

    def _progress(self, result: Result | None = None) -> None:
        if not self.is_tty:
            return
        self._erase()
        tier = f" {self._tier_of.get(result.obligation, '')}" if result else ""
        unmet = f", {self._unmet} not met" if self._unmet else ""
        line = f"{self._done}/{self._total}{tier}{unmet}, {time.monotonic() - self._began:.0f} s"
        self.out.write(line[: self.width - 1])
        self.out.flush()

    def _erase(self) -> None:
        if self.is_tty:
            self.out.write("\r\033[K")

    def _paragraph(self, label: str, text: str) -> None:
        for i, line in enumerate((text or "it did not say").splitlines()):
            first = f"  {label}" if label and i == 0 else "  " if label else ""
            self._print(
                textwrap.fill(
                    line,
                    self.width,
                    initial_indent=first,
                    subsequent_indent="    " if label else "",
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            )

    def _colored(self, text: str, code: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.in_color else text

    def _print(self, line: str) -> None:
        print(line, file=self.out, flush=True)
