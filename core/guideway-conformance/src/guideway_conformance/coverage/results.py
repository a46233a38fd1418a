"""The verdicts of a run in a file, which an interrupted run continues, and their totals."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from guideway.errors import InvalidConfiguration
from guideway.files import claim, reason

from guideway_conformance.coverage.corpora import Case
from guideway_conformance.coverage.judging import KINDS, Verdict

__all__ = ["Journal", "Totals", "digest"]


def digest(cases: Iterable[Case]) -> str:
    """Return the SHA-256 of all cases."""
    found = hashlib.sha256()
    for case in cases:
        found.update(json.dumps(asdict(case)).encode())
    return found.hexdigest()


class Journal:
    """A file of JSON lines that only this process writes: a description of the run, then its verdicts."""

    def __init__(self, file: Path, about: Mapping[str, Any]) -> None:
        """Raises `InvalidConfiguration` if the file cannot be written, or is about another run."""
        try:
            self._number = claim(file, new=False)
        except OSError as error:
            raise InvalidConfiguration(f"cannot write {str(file)!r}: {reason(error)}", field="output") from error
        whole, newline, _ = file.read_bytes().rpartition(b"\n")
        os.ftruncate(self._number, len(whole + newline))  # a line that was cut
        self.verdicts: list[Verdict] = []
        """The verdicts of earlier runs."""
        if not whole:
            self._write(about)
            return
        try:
            first, *rows = map(json.loads, whole.splitlines())
            self.verdicts = [Verdict(**{**row, "unenforced": tuple(row["unenforced"])}) for row in rows]
        except (ValueError, TypeError, KeyError):
            first = None
        if first != about:
            self.close()
            raise InvalidConfiguration(
                f"{str(file)!r} has the verdicts of another run: its corpora, strategies, versions or limits differ; "
                "name another folder, or remove it",
                field="output",
            )

    def add(self, verdict: Verdict) -> None:
        """Append a verdict."""
        self._write(asdict(verdict))

    def close(self) -> None:
        """Close the file."""
        os.close(self._number)

    def _write(self, row: Mapping[str, Any]) -> None:
        os.write(self._number, json.dumps(row).encode() + b"\n")


@dataclass(frozen=True)
class Totals:
    """The verdicts on one chain of strategies."""

    chain: str
    verdicts: Sequence[Verdict]

    @property
    def kinds(self) -> dict[str, int]:
        """The number of schemas of each of `KINDS`."""
        counts = Counter(verdict.kind for verdict in self.verdicts)
        return {kind: counts[kind] for kind in KINDS}

    @property
    def compile_seconds(self) -> dict[str, float]:
        """CPU seconds for choosing and compiling: the median, the 99th percentile and the maximum."""
        times = sorted(verdict.seconds for verdict in self.verdicts if verdict.seconds is not None) or [0.0]
        last = len(times) - 1
        return {name: times[round(last * share)] for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}

    def to_json(self) -> dict[str, Any]:
        """Return the totals as JSON data, with the names of all schemas that are not right."""
        names: dict[str, list[str]] = {kind: [] for kind in KINDS if kind != "right"}
        for verdict in sorted(self.verdicts, key=lambda verdict: verdict.name):
            if verdict.kind != "right":
                names[verdict.kind].append(verdict.name)
        return {
            "strategies": self.chain.split(","),
            "schemas": len(self.verdicts),
            "kinds": self.kinds,
            "compile_seconds": {name: round(seconds, 4) for name, seconds in self.compile_seconds.items()},
            "names": {kind: found for kind, found in names.items() if found},
        }
