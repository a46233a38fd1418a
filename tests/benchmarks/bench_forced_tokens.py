"""The gain of forced tokens: the demo model under a schema of compact JSON, compared with the same run without them,
and with free decoding of as many tokens.

    python tests/benchmarks/bench_forced_tokens.py [--batch 1 16] [--pairs 15] [--strategy llguidance]
        [--mode exact canonical] [--write]
    python tests/benchmarks/bench_forced_tokens.py --corpora FOLDER [--write]

CPU time of the process tree for each request admitted, compiled (its grammar is cached) and decoded; runs take turns,
and each ratio is the median over the pairs. The forced share is the share of tokens without a forward pass of their
own. With ``--corpora`` this measures instead the share in ``jsonschemabench_sample.jsonl`` of FOLDER, by data set, with
the tekken tokenizer: how many tokens of each valid instance's compact text are forced, under a compact grammar.
"""

from __future__ import annotations

import argparse
import json
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
ASKED = {1: (0.9, 1.2), 16: (1.10, 1.0)}
"""Requirements by batch size: for 1 the part of 1 / (1 - share), else the speed over the run without; and constrained
over free."""


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
        began = self._seconds()
        results = self.engine.chat(self._prompts, params)
        cpu = self._seconds() - began
        failed = next((result for result in results if result.error is not None), None)
        if failed is not None:
            raise RuntimeError("a request failed") from failed.error
        found = [len(result.token_ids) for result in results]
        return Run(cpu, sum(found), self.num_passes, found)

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
        over_plain, over_free = [], []
        for i in range(num_pairs):
            order = [("forced", forcing, None), ("plain", plain, None), ("free", plain, lengths)]
            found = {name: subject.run(of) for name, subject, of in (order if i % 2 else reversed(order))}
            per_token = {name: run.cpu / run.num_tokens for name, run in found.items()}
            over_plain.append(per_token["plain"] / per_token["forced"])
            over_free.append(per_token["free"] / per_token["forced"])
            sys.stderr.write(f"{strategy} {batch} {mode}: {over_plain[-1]:.2f} {over_free[-1]:.2f}\n")
    run = found["forced"]
    share = 1 - run.num_passes / run.num_tokens
    speed, least = statistics.median(over_plain), f"{1 / (1 - share):.2f}"
    part = speed * (1 - share)
    asked, asked_free = ASKED.get(batch, ("", ""))
    said = f"{part:.2f} ({asked})" if batch == 1 else f"{part:.2f}"
    said_speed = f"{speed:.2f}" if batch == 1 else f"{speed:.2f} ({asked})"
    return (
        f"| {strategy} | {mode} | {batch} | {run.num_tokens} | {run.num_passes} | {100 * share:.1f} % | {said_speed} "
        f"| {least} | {said} | {statistics.median(over_free):.2f} ({asked_free}) |"
    )


def speeds(options: argparse.Namespace) -> Iterable[str]:
    yield "| strategy | mode | batch | tokens | passes | forced share | over without (asked) | 1 / (1 - share) | part of it (asked) | constrained over free (asked) |"  # noqa: E501
    yield "|---|---|---|---|---|---|---|---|---|---|"
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
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--strategy", nargs="+", default=["llguidance"])
    parser.add_argument("--mode", nargs="+", default=["exact", "canonical"], choices=["exact", "canonical"])
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
