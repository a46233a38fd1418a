"""Test if answers that fit into their budget keep all their tokens: valid instances of a corpus of schemas as the
answers of a model, with a budget of their own tokens, a stop token and a few more, over 131,072 tokens.

``python -m tests.benchmarks.closing_naturals CORPUS [--strategy NAME ...] [--every 2] [--write]``

CORPUS is the folder with ``jsonschemabench_sample.jsonl``. Each instance of at most 120 tokens is written compactly and
with spaces. Times are processor time of closing in all steps of these answers, far from the end and near it.
"""

from __future__ import annotations

import argparse
import json
import platform
import signal
import time
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from guideway.api import CompiledGrammar, GrammarStrategy, GuidewayError, JsonSchema
from guideway.api.bitmask import is_allowed
from guideway.plugins import Plugins
from guideway.runtime.constraints.closing import Budget, Closer, Lexicon, Reserve
from guideway.runtime.sequences.replay import new_matcher
from guideway.vocabulary import build_vocabulary

import tests.vocabulary.tokenizers_under_test as samples
from tests.benchmarks.closing import TooSlow, rows_of

STRATEGIES = ("llguidance", "xgrammar")
RESULTS = Path(__file__).parent / "results" / "closing_naturals.md"
MORE = (0, 8)
MOST_TOKENS = 120
CPU_SECONDS = 20
"""CPU seconds for one schema, or one answer."""


def texts_of(row: dict[str, Any]) -> Iterator[str]:
    for instance in row["valid"][:1]:
        value = json.loads(instance) if isinstance(instance, str) and instance[:1] in "[{" else instance
        yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        yield json.dumps(value, ensure_ascii=False)


def replay(
    strategy: GrammarStrategy,
    grammar: CompiledGrammar,
    lexicon: Lexicon,
    token_ids: list[int],
    budget: Budget,
    steps: list[tuple[float, bool]],
) -> str:
    """Return the outcome of one answer, and append the CPU milliseconds of each step and whether it lost a token."""
    stops = strategy.vocabulary.stop_token_ids
    matcher, closer = new_matcher(strategy, grammar, stops), Closer(lexicon, stops, budget)
    row = np.zeros((1, lexicon.words), dtype=np.int32)
    for token_id in token_ids:
        matcher.fill_bitmask(row, 0)
        before = time.thread_time()
        first = None if closer.is_far(1) else closer.restrict(matcher, (), row)
        steps.append((1e3 * (time.thread_time() - before), first is not None))
        if not is_allowed(row, 0, token_id):
            return "a token was excluded"
        matcher.accept((token_id,))
        closer.accept((token_id,))
    return "all tokens kept"


def limited(seconds: float, call: Any) -> Any:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return call()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def measure(name: str, arguments: argparse.Namespace) -> list[str]:
    strategy = Plugins().load("grammar", name)(build_vocabulary(samples.tekken()), {})
    lexicon, found, steps = Lexicon(strategy.vocabulary), Counter[tuple[int, str]](), list[tuple[float, bool]]()
    stop = min(strategy.vocabulary.stop_token_ids)
    for row in rows_of(arguments.corpus, arguments.every):
        constraint = JsonSchema(row["schema"])
        try:
            if strategy.supports(constraint).refused:
                continue
            grammar = limited(CPU_SECONDS, lambda constraint=constraint: strategy.compile(constraint))
        except (GuidewayError, TooSlow):
            continue
        reserve = Reserve.of(constraint, strategy.vocabulary)
        for text in texts_of(row):
            token_ids = [*(strategy.vocabulary.encode(text.encode()) or ()), stop]
            matcher = new_matcher(strategy, grammar, strategy.vocabulary.stop_token_ids)
            if len(token_ids) > MOST_TOKENS or matcher.validate(tuple(token_ids)) != len(token_ids):
                continue
            for more in MORE:
                budget = Budget(len(token_ids) + more, reserve)
                given = strategy, grammar, lexicon, token_ids, budget, steps
                try:
                    found[more, limited(CPU_SECONDS, lambda given=given: replay(*given))] += 1
                except TooSlow:
                    found[more, f"over {CPU_SECONDS} s"] += 1
    spread = ", ".join(f"{value:.2f}" for value in np.percentile([step for step, _ in steps], [50, 90, 99, 100]))
    share = sum(restricted for _, restricted in steps) / len(steps)
    lines = [f"| {name} | + {more} | {outcome} | {count} |" for (more, outcome), count in sorted(found.items())]
    return [
        *lines,
        f"| {name} | | ms of a step, p50, p90, p99, most; share of steps restricted | {spread}; {share:.2f} |",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--strategy", action="append", choices=STRATEGIES)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGPROF, _too_slow)
    lines = ["| strategy | budget | | |", "|---|---|---|---|"]
    for name in arguments.strategy or STRATEGIES:
        lines += measure(name, arguments)
    print("\n".join(lines), flush=True)
    if arguments.write:
        command = f"python -m tests.benchmarks.closing_naturals CORPUS --every {arguments.every} --write"
        made = ", ".join(f"{package} {version(package)}" for package in ("guideway", "llguidance", "xgrammar"))
        made = f"Made by `{command}`; Python {platform.python_version()}, {made}. 2 shared cores."
        text = "# Answers that fit keep their tokens\n\n" + made + "\n\n" + "\n".join(lines) + "\n"
        RESULTS.write_text(text, encoding="utf-8")


def _too_slow(*_: object) -> None:
    raise TooSlow


if __name__ == "__main__":
    main()
