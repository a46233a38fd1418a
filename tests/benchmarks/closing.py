"""Test if constrained outputs are complete within tight budgets: schemas of a corpus, tokens drawn at random from
masks, like from a model with random weights at temperature 1, over a vocabulary of 131,072 tokens.

``python -m tests.benchmarks.closing CORPUS [--strategy NAME ...] [--more 32] [--every 1] [--write]``

CORPUS is the folder with ``jsonschemabench_sample.jsonl``. The budget of a schema is the shortest completion found for
it, and ``--more`` tokens. An output is valid if `jsonschema` accepts its text, or if the strategy names keywords that
it does not enforce.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
from guideway.api import GrammarStrategy, GuidewayError, JsonSchema
from guideway.api.bitmask import unpack
from guideway.plugins import Plugins
from guideway.runtime.constraints.closing import Budget, Closer, Lexicon, Reserve
from guideway.runtime.sequences.replay import new_matcher
from guideway.vocabulary import build_vocabulary

import tests.vocabulary.tokenizers_under_test as samples

STRATEGIES = ("llguidance", "xgrammar", "outlines", "lmfe")
RESULTS = Path(__file__).parent / "results" / "closing.md"
MOST = 4000
"""Maximum tokens of a completion in the search."""
CPU_SECONDS = 60
"""CPU seconds for one schema."""


@dataclass
class Found:
    """The outcomes of the schemas that one strategy serves."""

    outcomes: Counter[str] = field(default_factory=Counter)
    named: dict[str, list[str]] = field(default_factory=dict)
    """The schemas of each outcome that is not a success."""
    steps: list[float] = field(default_factory=list)
    """CPU milliseconds of closing, by step."""
    lengths: list[int] = field(default_factory=list)
    """Tokens of the shortest completions."""


class TooSlow(Exception):
    pass


def rows_of(folder: Path, every: int) -> Iterator[dict[str, Any]]:
    lines = (folder / "jsonschemabench_sample.jsonl").read_text("utf-8").splitlines()
    yield from (json.loads(line) for line in lines[::every])


def one(strategy: GrammarStrategy, lexicon: Lexicon, schema: Any, more: int, found: Found, seed: int) -> str:
    """Return the outcome of one schema."""
    constraint, stops = JsonSchema(schema), strategy.vocabulary.stop_token_ids
    support = strategy.supports(constraint)
    if support.refused:
        return "not served"
    grammar = strategy.compile(constraint)
    matcher = new_matcher(strategy, grammar, stops)
    reserve = Reserve.of(constraint, strategy.vocabulary)
    shortest = Closer(lexicon, stops, Budget(MOST, reserve)).shortest(matcher)
    if shortest is None:
        return "no completion found"
    found.lengths.append(shortest)
    closer = Closer(lexicon, stops, Budget(shortest + more, reserve))
    bitmask, output, rng = np.zeros((1, lexicon.words), dtype=np.int32), [], random.Random(seed)
    for _ in range(shortest + more):
        matcher.fill_bitmask(bitmask, 0)
        before = time.thread_time()
        closer.restrict(matcher, (), bitmask)
        found.steps.append(1e3 * (time.thread_time() - before))
        allowed = np.flatnonzero(unpack(bitmask, len(strategy.vocabulary))[0])
        token_id = int(allowed[rng.randrange(len(allowed))])
        if matcher.accept((token_id,)) != 1:
            return "a token of the mask was refused"
        closer.accept((token_id,))
        output.append(token_id)
        if token_id in stops:
            break
    else:
        return "cut"
    try:
        value = json.loads(strategy.vocabulary.decode(output).decode())
    except ValueError:
        return "no JSON"
    try:
        jsonschema.validators.validator_for(schema)(schema).validate(value)
    except jsonschema.ValidationError:
        return "invalid, as was named" if support.unenforced else "invalid"
    except Exception:
        return "complete; jsonschema cannot read the schema"
    return "complete and valid"


def measure(name: str, arguments: argparse.Namespace) -> Found:
    strategy = Plugins().load("grammar", name)(build_vocabulary(samples.tekken()), {})
    lexicon, found = Lexicon(strategy.vocabulary), Found()
    for i, row in enumerate(rows_of(arguments.corpus, arguments.every)):
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            outcome = one(strategy, lexicon, row["schema"], arguments.more, found, i)
        except GuidewayError as error:
            outcome = f"not served: {type(error).__name__}"
        except TooSlow:
            outcome = f"not served: over {CPU_SECONDS} s of a processor"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        found.outcomes[outcome] += 1
        if not outcome.startswith(("complete", "not served")):
            found.named.setdefault(outcome, []).append(row["name"])
    return found


def format_rows(name: str, found: Found) -> list[str]:
    """Return lines of the table."""
    steps = np.percentile(found.steps or [0.0], [50, 90, 99, 100])
    lines = [f"| {name} | {outcome} | {count} |" for outcome, count in found.outcomes.most_common()]
    spread = ", ".join(f"{value:.2f}" for value in steps)
    lengths = ", ".join(str(int(value)) for value in np.percentile(found.lengths or [0], [50, 90, 100]))
    lines.append(f"| {name} | milliseconds of a processor for a step, p50, p90, p99, most | {spread} |")
    lines.append(f"| {name} | tokens of the shortest completion, p50, p90, most | {lengths} |")
    lines += [f"| {name} | {outcome} | {', '.join(names)} |" for outcome, names in found.named.items()]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--strategy", action="append", choices=STRATEGIES)
    parser.add_argument("--more", type=int, default=32)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    signal.signal(signal.SIGPROF, _too_slow)
    lines = ["| strategy | | |", "|---|---|---|"]
    for name in arguments.strategy or STRATEGIES:
        lines += format_rows(name, measure(name, arguments))
        print("\n".join(lines), flush=True)
    if arguments.write:
        command = f"python -m tests.benchmarks.closing CORPUS --more {arguments.more} --every {arguments.every} --write"
        packages = ("guideway", "llguidance", "xgrammar", "outlines_core", "lm-format-enforcer", "jsonschema")
        made = ", ".join(f"{package} {version(package)}" for package in packages)
        made = f"Made by `{command}`; Python {platform.python_version()}, {made}."
        text = f"# Complete within the budget\n\n{made}\n\n" + "\n".join(lines) + "\n"
        RESULTS.write_text(text, encoding="utf-8")


def _too_slow(*_: object) -> None:
    raise TooSlow


if __name__ == "__main__":
    main()
