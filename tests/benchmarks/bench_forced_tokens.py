"""The gain of forced tokens: the demo model under a schema of compact JSON, compared with the same run without them,
and with free decoding of as many tokens.

    python tests/benchmarks/bench_forced_tokens.py [--batch 1 8 32] [--pairs 15] [--strategy llguidance]
        [--mode auto exact canonical] [--write]
    python tests/benchmarks/bench_forced_tokens.py --corpora FOLDER [--write]

CPU time of the process tree, and time by the clock, for each request admitted, compiled (its grammar is cached, and its
forced tokens are known from a first run) and decoded; runs take turns, and each ratio is the median over the pairs,
with its 95 % interval. The forced share is the share of tokens without a forward pass of their own. With ``--corpora``
this measures instead the share in ``jsonschemabench_sample.jsonl`` of FOLDER, by data set, with the tekken tokenizer:
how many tokens of each valid instance's compact text are forced, under a compact grammar.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import mistral_common
import torch
from guideway import Engine, JsonSchema, SamplingParams, __version__
from guideway.api import InvalidRequest, Matcher
from guideway.api.bitmask import num_words
from guideway.vocabulary import build_vocabulary

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.processes import seconds_of, tree  # noqa: E402

CORPUS = "jsonschemabench_sample.jsonl"
RESULTS = Path(__file__).parent / "results"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer"},
        "city": {"type": "string", "maxLength": 40},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "city", "married"],
    "additionalProperties": False,
}
CONSTRAINT = JsonSchema(SCHEMA, whitespace="compact")
PEOPLE = (("Zoe Garcia", "Bonn"), ("Liam Morris", "Oslo"), ("Emma Weber", "Lyon"), ("Noah Rossi", "Porto"))
NUM_REQUESTS = {1: 12, 16: 48}
"""Requests of one run, by batch size."""
ASKED = {1: 1.25, 8: 1.1, 32: 1.0}
"""Requirements for ``auto`` by batch size: the speed over the run without."""


def prompts(number: int) -> list[list[dict[str, str]]]:
    found = []
    for i in range(number):
        name, city = PEOPLE[i % len(PEOPLE)]
        text = f"Extract name, age, city, married. Meet {name} of {city}, married. Age: {20 + i}."
        found.append([{"role": "user", "content": text}])
    return found


@dataclass
class Run:
    """All requests, once."""

    cpu: float
    clock: float
    num_tokens: int
    num_passes: int
    """Forward passes, summed over sequences."""
    lengths: list[int]


class Subject:
    """An engine with a mode, and requests that are repeated."""

    def __init__(self, strategy: str, mode: Any, batch: int) -> None:
        self.engine = Engine(
            "demo", grammar=(strategy,), forced_tokens=mode, max_num_seqs=batch, enable_prefix_caching=False
        )
        self._prompts = prompts(NUM_REQUESTS.get(batch, 3 * batch))
        self._others: frozenset[int] | None = None
        """The other processes of its tree, once known: searching for them takes time."""
        self.num_passes = 0
        internals: Any = self.engine
        stepper = internals._scheduler._stepper
        run = stepper.run

        def counted(works: Any) -> Any:
            self.num_passes += len(works)
            return run(works)

        stepper.run = counted

    def run(self, lengths: list[int] | None = None) -> Run:
        """Run under the schema; with `lengths` freely, for that many tokens each."""
        params = [SamplingParams(max_tokens=200, constraint=CONSTRAINT)] * len(self._prompts)
        if lengths is not None:
            params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in lengths]
        self.num_passes = 0
        began, began_at = self._seconds(), time.monotonic()
        results = self.engine.chat(self._prompts, params)
        cpu, clock = self._seconds() - began, time.monotonic() - began_at
        failed = next((result for result in results if result.error is not None), None)
        if failed is not None:
            raise RuntimeError("a request failed") from failed.error
        found = [len(result.token_ids) for result in results]
        return Run(cpu, clock, sum(found), self.num_passes, found)

    def find_processes(self) -> None:
        """Find the processes that `engine` has started; it must start no others from now on."""
        self._others = frozenset(tree(os.getpid()) - {os.getpid()})

    def _seconds(self) -> float:
        return time.process_time() + seconds_of(self._others or ())


def measure(strategy: str, batch: int, mode: str, num_pairs: int) -> str:
    """Return a row of the table."""
    forcing, plain = Subject(strategy, mode, batch), Subject(strategy, "off", batch)
    with forcing.engine, plain.engine:
        lengths = forcing.run().lengths
        plain.run()
        plain.run(lengths)
        forcing.find_processes()
        plain.find_processes()
        over_plain, by_clock, over_free = [], [], []
        for i in range(num_pairs):
            order = [("forced", forcing, None), ("plain", plain, None), ("free", plain, lengths)]
            found = {name: subject.run(of) for name, subject, of in (order if i % 2 else reversed(order))}
            per_token = {name: run.cpu / run.num_tokens for name, run in found.items()}
            over_plain.append(per_token["plain"] / per_token["forced"])
            by_clock.append(found["plain"].clock / found["forced"].clock)
            over_free.append(per_token["free"] / per_token["forced"])
            sys.stderr.write(
                f"{strategy} {batch} {mode}: {over_plain[-1]:.2f} {by_clock[-1]:.2f} {over_free[-1]:.2f}\n"
            )
    run = found["forced"]
    share = 1 - run.num_passes / run.num_tokens
    asked = f"{ASKED[batch]}" if mode == "auto" and batch in ASKED else ""
    return (
        f"| {strategy} | {mode} | {batch} | {run.num_tokens} | {run.num_passes} | {100 * share:.1f} % "
        f"| {interval(over_plain)} | {interval(by_clock)} | {asked} | {1 / (1 - share):.2f} "
        f"| {statistics.median(over_free):.2f} |"
    )


def interval(ratios: Sequence[float]) -> str:
    """Return the median and its 95 % interval, by order statistics."""
    ordered, number = sorted(ratios), len(ratios)
    low = max(0, math.floor(number / 2 - 0.98 * math.sqrt(number)))
    return f"{statistics.median(ordered):.2f} ({ordered[low]:.2f} to {ordered[number - 1 - low]:.2f})"


def speeds(options: argparse.Namespace) -> Iterable[str]:
    yield "| strategy | mode | batch | tokens | passes | forced share | over `off`, CPU | by the clock | asked | 1 / (1 - share) | constrained over free, CPU |"  # noqa: E501
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for strategy in options.strategy:
        for mode in options.mode:
            for batch in options.batch:
                yield measure(strategy, batch, mode, options.pairs)


def shares(options: argparse.Namespace) -> Iterable[str]:
    """Yield the share of forced tokens by data set of the corpus, for a model that writes each instance as the
    tokenizer does: forced by the strategy alone, and including the walk along its masks."""
    from guideway.runtime.constraints.forced import Forcing
    from guideway_llguidance.strategy import Strategy
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    tekken = Tekkenizer.from_file(Path(mistral_common.__file__).parent / "data" / "tekken_240911.json")
    vocabulary = build_vocabulary(tekken)
    strategy, forcing = Strategy(vocabulary, {}), Forcing(vocabulary.tokens, num_words(vocabulary.logits_width))
    stops = vocabulary.stop_token_ids
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for line in (options.corpora / CORPUS).read_text().splitlines():
        entry = json.loads(line)
        try:
            constraint = JsonSchema(entry["schema"], whitespace="compact")
            grammar = strategy.compile(constraint)
        except (InvalidRequest, ValueError):
            continue
        for instance in entry["valid"]:
            text = json.dumps(instance, ensure_ascii=False, separators=(",", ":"))
            token_ids = vocabulary.encode(text.encode())
            if not token_ids or grammar.matcher(stops).validate(token_ids) != len(token_ids):
                continue  # perhaps refused because of the order of its keys
            told = count_saved(grammar.matcher(stops), token_ids, lambda m: m.forced_tokens())
            walked = count_saved(grammar.matcher(stops), token_ids, lambda m: forcing.run(m, stops, 16))
            for name in (entry["dataset"], "ALL"):
                for i, count in enumerate((1, len(token_ids), told, walked)):
                    counts[name][i] += count
    yield "| data set | instances | tokens | told by `forced_tokens` | with the masks: no pass of their own |"
    yield "|---|---|---|---|---|"
    for name, (num, tokens, told, walked) in sorted(counts.items(), key=lambda item: (item[0] == "ALL", item[0])):
        yield f"| {name} | {num} | {tokens} | {100 * told / tokens:.1f} % | {100 * walked / tokens:.1f} % |"


def count_saved(matcher: Matcher, token_ids: Sequence[int], forced: Callable[[Matcher], Sequence[int]]) -> int:
    """Return how many of these tokens need no forward pass: in each run, the tokens until the first that differs."""
    done = count = 0
    while done < len(token_ids):
        run = forced(matcher)
        right = next((i for i, pair in enumerate(zip(run, token_ids[done:], strict=False)) if pair[0] != pair[1]), None)
        right = min(len(run), len(token_ids) - done) if right is None else right
        count += right
        matcher.accept(tuple(token_ids[done : done + right + 1]))
        done += right + 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--strategy", nargs="+", default=["llguidance"])
    parser.add_argument("--mode", nargs="+", default=["auto"], choices=["auto", "exact", "canonical"])
    parser.add_argument("--corpora", type=Path, help="the folder of the corpus: measure the share in it instead")
    parser.add_argument("--write", action="store_true", help="write the results file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = list(speeds(options) if options.corpora is None else shares(options))
    print("\n".join(lines))
    if options.write:
        what = (
            f"--pairs {options.pairs} --mode {' '.join(options.mode)}"
            if options.corpora is None
            else "--corpora FOLDER"
        )
        name = "forced_tokens.md" if options.corpora is None else "forced_share.md"
        versions = f"guideway {__version__}, Python {platform.python_version()}, torch {torch.__version__}"
        load = os.getloadavg()[0]
        text = [
            f"# {'Forced tokens' if options.corpora is None else 'How many tokens are forced'}",
            "",
            f"`python tests/benchmarks/bench_forced_tokens.py {what} --write`, {date.today()}",
            "",
            *lines,
            "",
            f"{versions}; {os.cpu_count()} CPU cores, load average {load:.1f}.",
        ]
        (RESULTS / name).write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
