"""The verdicts of a chain of strategies, as a host serves it, on every schema and instance of a corpus: with schemas as
they are only, and with their rewritings.

``python -m tests.corpora.chain FOLDER [STRATEGY ...]`` prints a table. The default are llguidance and xgrammar.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from guideway.api import GrammarStrategy, InvalidGrammar, JsonSchema, LimitExceeded, UnsupportedGrammar, Vocabulary
from guideway.plugins import Plugins
from guideway.plugins.building import build_strategies
from guideway.runtime.candidates import Candidate, choose
from guideway.vocabulary import build_vocabulary

import tests.vocabulary.tokenizers_under_test as samples
from tests.corpora.judge import accepts, read_corpus

KINDS = ("right", "valid rejected", "wrong, named", "silent", "refused", "time out")
CPU_SECONDS = 40

Outcome: TypeAlias = str


def judge(
    row: dict[str, Any], strategies: Mapping[str, GrammarStrategy], vocabulary: Vocabulary, *, rewrites: bool
) -> tuple[Outcome, Candidate | None]:
    """Return what becomes of a schema of a corpus, one of `KINDS`, and the candidate that serves it."""
    constraint = JsonSchema(row["schema"])
    try:
        candidates = choose(constraint, strategies).candidates
    except (InvalidGrammar, LimitExceeded, UnsupportedGrammar):
        return "refused", None
    for candidate in candidates:
        if candidate.rewritten is not None and not rewrites:
            continue
        try:
            compiled = candidate.strategy.compile(candidate.served(constraint))
        except UnsupportedGrammar:
            continue
        except InvalidGrammar:
            return "refused", None
        if any(accepts(compiled, vocabulary, instance) for instance in row["invalid"]):
            return "wrong, named" if candidate.unenforced else "silent", candidate
        is_right = all(accepts(compiled, vocabulary, instance) for instance in row["valid"])
        return "right" if is_right else "valid rejected", candidate
    return "refused", None


class TimeOut(Exception):
    """A schema took more than `CPU_SECONDS`."""


def stop(*_: object) -> None:
    raise TimeOut


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:] or ["llguidance", "xgrammar"]
    vocabulary = build_vocabulary(samples.tekken())
    strategies = build_strategies([Plugins().load("grammar", name) for name in names], vocabulary, {})
    signal.signal(signal.SIGPROF, stop)
    counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    rows = read_corpus(folder)
    for row in rows:
        outcomes = []
        for rewrites, count in counts.items():
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            try:
                outcome, candidate = judge(row, strategies, vocabulary, rewrites=rewrites)
            except TimeOut:
                outcome, candidate = "time out", None
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            count[outcome] += 1
            by = "" if candidate is None else f" ({candidate.title}: {', '.join(candidate.unenforced)})"
            outcomes.append(outcome + by)
        if outcomes[0] != outcomes[1]:
            print(f"{row['name']}: {' -> '.join(outcomes)}", file=sys.stderr, flush=True)
    print(f"| {len(rows)} schemas, {', '.join(names)} | {' | '.join(KINDS)} |")
    print(f"|---|{'---:|' * len(KINDS)}")
    for rewrites, title in ((False, "as they are"), (True, "and rewritten")):
        print(f"| {title} | {' | '.join(str(counts[rewrites][kind]) for kind in KINDS)} |")


if __name__ == "__main__":
    main()
