"""Examine one schema after another for one strategy, in a process that is replaced when a schema takes too long."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from random import Random
from typing import Any, get_args

from guideway.api.types import Whitespace
from guideway.json_schema import keywords

from tests.fuzz.coverage import Coverage, Pair, supported
from tests.fuzz.examining import Case, Examiner, Outcome
from tests.fuzz.keyword_writers import WRITERS
from tests.fuzz.minimizing import shrink
from tests.fuzz.schemas import SchemaWriter

__all__ = ["Finding", "Found", "run"]

CPU_SECONDS = 10
"""CPU seconds for one schema and its texts, including the search for a smaller finding."""
TRIES = (False, False, True, True, True)
"""Tries to write a schema for which the strategy names nothing; True: a plain one."""
MOST_MINIMIZED = 40
"""Findings of a strategy that are minimized; more would show nothing new."""


@dataclass(frozen=True)
class Finding:
    """A minimized case with an error, and the schema's number."""

    number: int
    case: Case

    @property
    def keywords(self) -> tuple[str, ...]:
        return tuple(sorted(keywords(self.case.schema)))


@dataclass
class Found:
    """The findings for one strategy."""

    strategy: str
    counts: Counter[str] = field(default_factory=Counter)
    """``schemas``, some of which are ``refused``, ``named``, ``judged`` or had a ``timeout``; ``texts``, ``taken``,
    ``unjudged``, ``silent``, ``over-strict``, ``broken``; ``pairs``, ``in reach``, ``often``, ``least``."""
    silent: list[Finding] = field(default_factory=list)
    over_strict: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """Counts by the keywords of the schema."""
    broken: list[str] = field(default_factory=list)
    rare: list[str] = field(default_factory=list)
    """Pairs of keywords that were judged too rarely."""


@dataclass(frozen=True)
class _Written:
    """A schema with its number, its pair of keywords, its outcome, and a minimized finding."""

    number: int
    pair: Pair
    schema: Any
    outcome: Outcome
    smaller: Case | None
    seconds: float


def run(
    strategy: str,
    seed: str,
    seconds: float,
    tell: Callable[[str], None],
    most_schemas: int = sys.maxsize,
    *,
    chains: bool = False,
) -> Found:
    """Fuzz a strategy for `seconds` CPU seconds, or until `most_schemas`; `tell` is called with each finding at
    once. With `chains`, schemas have all keywords, and each form of them is examined that hosts would compile."""
    examiner = Examiner(strategy, chains=chains)
    found, coverage = Found(strategy), Coverage(_names(examiner))
    context = multiprocessing.get_context("fork")  # imported modules and built objects exist at once
    number, spent = 0, 0.0
    start, parent = time.process_time(), os.getppid()

    def goes_on() -> bool:
        is_wanted = os.getppid() == parent  # otherwise the parent was killed
        return is_wanted and number < most_schemas and spent + time.process_time() - start < seconds

    while goes_on():
        ours, theirs = context.Pipe(duplex=False)
        minimize = len(found.silent) < MOST_MINIMIZED
        process = context.Process(
            target=_write_and_examine, args=(ours, theirs, examiner, coverage, seed, number, minimize)
        )
        process.start()
        theirs.close()
        try:
            while goes_on():
                written: _Written = ours.recv()
                number, spent = written.number + 1, spent + written.seconds
                _count(found, coverage, written, tell)
        except EOFError:
            number, spent = number + 1, spent + CPU_SECONDS
            found.counts["schemas"] += 1
            found.counts["timeout"] += 1
        process.kill()
        process.join()
        ours.close()
    found.counts.update(coverage.summary())
    found.rare = coverage.rare()
    return found


def _count(found: Found, coverage: Coverage, written: _Written, tell: Callable[[str], None]) -> None:
    outcome = written.outcome
    coverage.add(written.pair, written.schema, judged=outcome.status == "judged")
    found.counts.update({"schemas": 1, outcome.status: 1, "texts": outcome.num_texts, "taken": outcome.num_taken})
    found.counts.update({"unjudged": outcome.num_unjudged, "silent": len(outcome.silent)})
    found.counts.update({"over-strict": len(outcome.over_strict), "broken": len(outcome.broken)})
    if outcome.over_strict:
        found.over_strict[tuple(sorted(keywords(written.schema)))] += 1
    for message in outcome.broken:
        found.broken.append(message)
        tell(f"broken: {found.strategy}, schema {written.number}: {message}")
    if written.smaller is not None:
        finding = Finding(written.number, written.smaller)
        found.silent.append(finding)
        tell(f"silent: {' '.join(finding.keywords)}, schema {finding.number}\n  {finding.case.to_json()}")


def _write_and_examine(
    others: Connection,
    connection: Connection,
    examiner: Examiner,
    coverage: Coverage,
    seed: str,
    number: int,
    minimize: bool,
) -> None:
    others.close()  # so that sending fails once the reader is gone
    names = _names(examiner)
    while True:
        # CPU time of all threads; it ends the process, because a Python handler would not run during native code
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        start = time.process_time()
        random = Random(f"{seed} {examiner.name} {number}")
        pair = coverage.next(random)
        drafts = WRITERS[pair.first].drafts & WRITERS[pair.second].drafts
        draft = "2020-12" if "2020-12" in drafts and random.random() < 0.7 else random.choice(sorted(drafts))
        for plain in TRIES:
            writer = SchemaWriter(random, names, draft, plain=plain)
            schema = writer.write(*pair[:2], inside=pair.inside)
            if examiner.names_nothing(schema):
                break
        outcome = examiner.examine(schema, random.choice(get_args(Whitespace)), random)
        coverage.add(pair, schema, judged=outcome.status == "judged")
        smaller = None
        if outcome.silent:
            smaller = min(outcome.silent, key=lambda case: case.size)
            if minimize:
                smaller = shrink(smaller, lambda case: _is_silent(examiner, case))
        connection.send(_Written(number, pair, schema, outcome, smaller, time.process_time() - start))
        number += 1


def _names(examiner: Examiner) -> list[str]:
    return sorted([*WRITERS, "false"]) if examiner.chains else supported(examiner.name)


def _is_silent(examiner: Examiner, case: Case) -> bool:
    try:
        return examiner.verdict(case) == "silent"
    except Exception:  # of a library, or of the judge, for a schema that is invalid in its draft
        return False
