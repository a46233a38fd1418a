"""The verdicts of a grammar strategy on every schema and instance of a corpus, with a limit of CPU time per schema.

``python -m tests.corpora.judge FOLDER STRATEGY`` prints a strategy's entry in `expectations.json`.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from guideway.api import CompiledGrammar, GrammarStrategy, InvalidGrammar, JsonSchema, UnsupportedGrammar, Vocabulary
from guideway.plugins import Plugins
from guideway.vocabulary import build_vocabulary

import tests.vocabulary.tokenizers_under_test as samples

CORPUS = "jsonschemabench_sample.jsonl"
CPU_SECONDS = 40
"""CPU seconds for one schema and its instances; the slowest that finish take about a third."""


@dataclass(frozen=True)
class Verdict:
    """The verdict on a schema; an instance is True if the grammar accepted it to the end."""

    name: str
    outcome: str
    """``compiled``, ``timeout``, ``unsupported`` (`supports` refused it, so no host would compile it), or the class of
    the exception that `compile` raised."""
    message: str = ""
    unenforced: tuple[str, ...] = ()
    valid: tuple[bool, ...] = ()
    invalid: tuple[bool, ...] = ()


def read_corpus(folder: Path, name: str = CORPUS) -> list[dict[str, Any]]:
    """Return rows with ``name``, ``schema``, and instances under ``valid`` and ``invalid``."""
    return [json.loads(line) for line in (folder / name).read_text("utf-8").splitlines()]


def judge(strategy: str, rows: list[dict[str, Any]]) -> Iterator[Verdict]:
    """Yield a verdict for each row, from a process that is replaced when it runs out of CPU time or dies."""
    context = multiprocessing.get_context("spawn")
    process = None
    for row in rows:
        if process is None:
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, strategy), daemon=True)
            process.start()
            theirs.close()
        try:
            ours.send(row)
            yield ours.recv()
        except (EOFError, ConnectionError):
            process.join()
            limit = process.exitcode == -signal.SIGPROF
            yield Verdict(row["name"], "timeout" if limit else f"died with exit code {process.exitcode}")
            process = None
    if process is not None:
        ours.close()
        process.join()


def _serve(connection: Connection, strategy_name: str) -> None:
    vocabulary = build_vocabulary(samples.tekken())
    strategy = Plugins().load("grammar", strategy_name)(vocabulary, {})
    while True:
        try:
            row = connection.recv()
        except EOFError:
            return
        # counts the CPU time of all threads, and ends the process: a Python handler would not run during native code
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        verdict = _judge(strategy, vocabulary, row)
        signal.setitimer(signal.ITIMER_PROF, 0)
        connection.send(verdict)


def _judge(strategy: GrammarStrategy, vocabulary: Vocabulary, row: dict[str, Any]) -> Verdict:
    constraint = JsonSchema(row["schema"])
    support = strategy.supports(constraint)
    if support.reason is not None:
        return Verdict(row["name"], "unsupported", support.reason)
    try:
        compiled = strategy.compile(constraint)
    except Exception as error:  # the test decides which errors are allowed
        return Verdict(row["name"], type(error).__name__, str(error))
    valid, invalid = (tuple(accepts(compiled, vocabulary, i) for i in row[kind]) for kind in ("valid", "invalid"))
    return Verdict(row["name"], "compiled", "", tuple(sorted(support.unenforced)), valid, invalid)


def accepts(compiled: CompiledGrammar, vocabulary: Vocabulary, instance: Any) -> bool:
    """Return whether a grammar accepts an instance to the end, as `json.dumps` writes it."""
    token_ids = vocabulary.encode(json.dumps(instance, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    if token_ids is None:  # a lone surrogate, which no output can contain
        return False
    matcher = compiled.matcher(vocabulary.stop_token_ids)
    return matcher.accept(token_ids) == len(token_ids) and matcher.accept(sorted(vocabulary.stop_token_ids)[:1]) == 1


def summarize(verdicts: list[Verdict]) -> dict[str, Any]:
    """Return the table of one strategy: counts, and by name each schema that needs an explanation."""
    refusals = (InvalidGrammar.__name__, UnsupportedGrammar.__name__)
    counts = Counter(v.outcome for v in verdicts)
    leaks = [v for v in verdicts if any(v.invalid)]
    return {
        "schemas": len(verdicts),
        "compiled": counts["compiled"],
        "unsupported": counts["unsupported"],
        **{name: counts[name] for name in refusals},
        "timeout": sorted(v.name for v in verdicts if v.outcome == "timeout"),
        "valid instances taken": sum(sum(v.valid) for v in verdicts),
        "valid instances refused": sum(v.valid.count(False) for v in verdicts),
        "invalid instances refused": sum(v.invalid.count(False) for v in verdicts),
        "invalid instances taken, a keyword is named as unenforced": sum(sum(v.invalid) for v in leaks if v.unenforced),
        "invalid instances taken though nothing is named": {
            v.name: sum(v.invalid) for v in sorted(leaks, key=lambda v: v.name) if not v.unenforced
        },
    }


if __name__ == "__main__":
    found = list(judge(sys.argv[2], read_corpus(Path(sys.argv[1]))))
    print(json.dumps({sys.argv[2]: summarize(found)}, indent=2))
