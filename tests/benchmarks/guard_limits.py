"""Constraints that the admission guard accepts but a grammar library cannot bear: each constraint of the abuse corpus,
and others made here, compiled and filled in a separate process with limits of memory and CPU time.

``python -m tests.benchmarks.guard_limits CORPUS [--strategy NAME] [--shapes] [--unguarded] [--only TEXT] [--time]``

CORPUS is the folder with ``abuse_corpus.jsonl`` and its expander ``expand_abuse.py``, in it or in ``tools`` next to it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from guideway.api import (
    Choice,
    Constraint,
    DeadEnd,
    Grammar,
    GrammarStrategy,
    GuidewayError,
    JsonSchema,
    Regex,
    StructuralTag,
    Vocabulary,
)
from guideway.api.bitmask import allocate
from guideway.plugins import Plugins
from guideway.plugins.building import build_strategies
from guideway.runtime.constraints.guard.guard import Guard, check_bytes
from guideway.vocabulary import build_vocabulary

import tests.vocabulary.tokenizers_under_test as samples
from tests.benchmarks.hostile_shapes import shapes

STRATEGIES = ("llguidance", "xgrammar", "outlines", "lmfe")
CPU_SECONDS = 10
MEMORY_BYTES = 4 << 30
"""Bytes of memory in addition to those that the process had before."""
MOST_TIMED = 100_000
"""Maximum size of which four times is tried: all constraints are past the limits there."""
TOKENS = 24
"""Tokens accepted after the first mask: some grammars become slow later."""


def corpus(folder: Path) -> Iterator[tuple[str, Constraint]]:
    """Yield the constraints of the abuse corpus that can be written as one, by name."""
    expand = _expander(folder)
    for row in _rows(folder):
        yield row["id"], constraint_of(row["kind"], expand(row["spec"]))


def _specs(folder: Path) -> Iterator[tuple[str, dict[str, Any], Callable[[Any], Any]]]:
    expand = _expander(folder)
    for row in _rows(folder):
        if isinstance(row["spec"], dict) and "gen" in row["spec"] and "n" in row["spec"]:
            yield row["kind"], row["spec"], expand


def _rows(folder: Path) -> list[dict[str, Any]]:
    rows = map(json.loads, (folder / "abuse_corpus.jsonl").read_text("utf-8").splitlines())
    return [row for row in rows if row["kind"] != "param"]


def _expander(folder: Path) -> Callable[[Any], Any]:
    expander = next(p for p in (folder / "expand_abuse.py", folder.parent / "tools" / "expand_abuse.py") if p.exists())
    spec = importlib.util.spec_from_file_location("expand_abuse", expander)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    expand: Callable[[Any], Any] = module.expand
    return expand


def constraint_of(kind: str, value: Any) -> Constraint:
    """Return the constraint as a caller would write it."""
    match kind:
        case "json_schema":
            return JsonSchema(value if isinstance(value, str) else json.dumps(value))
        case "regex":
            return Regex(value)
        case "choice":
            return Choice(value)
        case "structural_tag":
            return StructuralTag(value if isinstance(value, str) else json.dumps(value))
    return Grammar(value, "ebnf" if isinstance(value, str) and "::=" in value else "lark")


def refused(constraint: Constraint, strategy: GrammarStrategy) -> str | None:
    """Return why the constraint does not reach the strategy."""
    if constraint.kind not in strategy.kinds:
        return "kind"
    try:
        check_bytes(constraint, [strategy.limits])
        constraint = constraint.frozen()
        constraint.source()
        return Guard(constraint, {strategy.name: strategy.limits}).refusal(strategy.name)
    except GuidewayError as error:
        return str(error)


def outcome(constraint: Constraint, strategy: GrammarStrategy, vocabulary: Vocabulary) -> tuple[str, float, int, float]:
    """Return the outcome for the constraint, CPU seconds, additional bytes of memory, and the slowest fill in
    seconds."""
    reading, writing = os.pipe()
    began, child = time.monotonic(), os.fork()
    if child == 0:
        os.close(reading)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 2))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        said = _use(constraint, strategy, vocabulary)
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    before = most = _resident(child)
    wall = False
    while True:
        pid, status, usage = os.wait4(child, os.WNOHANG)
        if pid:
            break
        most = max(most, _resident(child))
        if most - before > MEMORY_BYTES or (wall := time.monotonic() - began > 6 * CPU_SECONDS):
            os.kill(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            break
        time.sleep(0.01)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    cpu = usage.ru_utime + usage.ru_stime
    grown = max(most, usage.ru_maxrss << 10) - before
    if os.WIFEXITED(status) and text:
        what, slowest = json.loads(text)
        return what, cpu, grown, slowest
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if most - before > MEMORY_BYTES:
        return "MEMORY", cpu, grown, 0
    if wall or (number == signal.SIGXCPU):
        return "TIME", cpu, grown, 0
    return f"CRASH {signal.Signals(number).name if number else status}", cpu, grown, 0


def timings(folder: Path) -> None:
    """Print the time of the guard alone for each generated constraint of the corpus, at its size and at four times
    that."""
    worst: dict[str, tuple[float, float, int, int]] = {}
    for kind, spec, expand in _specs(folder):
        times, sizes = [], []
        for factor in (1, 4):
            larger = {**spec, "n": min(spec.get("n", 1), MOST_TIMED) * factor}
            try:
                constraint = constraint_of(kind, expand(larger))
            except RecursionError:
                break
            spent, size = _time_guard(constraint)
            times.append(spent)
            sizes.append(size)
        if len(times) == 2 and times[1] > worst.get(spec["gen"], (0, 0))[1]:
            worst[spec["gen"]] = (*times, *sizes)
    for name, (first, second, small, large) in sorted(worst.items(), key=lambda item: -item[1][1]):
        print(f"{name:20} {first * 1e3:7.2f} ms of {small:9} bytes, {second * 1e3:7.2f} ms of {large:9}")


def _time_guard(constraint: Constraint) -> tuple[float, int]:
    """Return the seconds of the guard, the fastest of three, and the constraint's bytes; invalid JSON takes none."""
    best = 1e9
    for _ in range(3):
        began = time.perf_counter()
        try:
            check_bytes(constraint, [{}])
            spent = time.perf_counter() - began
            constraint.source()
            getattr(constraint, "parsed", None)
            began = time.perf_counter()
            Guard(constraint, {"any": {}}).refusal("any")
            best = min(best, spent + time.perf_counter() - began)
        except GuidewayError:
            best = min(best, time.perf_counter() - began)
    text = next(value for value in vars(constraint).values() if value is not None)
    return best, len(text) if isinstance(text, str) else sum(map(len, text))


def _use(constraint: Constraint, strategy: GrammarStrategy, vocabulary: Vocabulary) -> tuple[str, float]:
    slowest = 0.0
    try:
        support = strategy.supports(constraint)
        if support.refused:
            return "refused", 0.0
        compiled = strategy.compile(constraint)
        matcher = compiled.matcher(vocabulary.stop_token_ids)
        mask = allocate(1, vocabulary.logits_width)
        for step in range(TOKENS):
            if matcher.is_terminated():
                break
            began = time.perf_counter()
            matcher.fill_bitmask(mask, 0)
            slowest = max(slowest, time.perf_counter() - began)
            legal = np.flatnonzero(np.unpackbits(mask[0].view(np.uint8), bitorder="little"))
            if not matcher.accept((int(legal[step * 977 % len(legal)]),)):
                return "mask refused its own token", slowest
    except DeadEnd:
        return "dead end", slowest
    except GuidewayError:
        return "refused", slowest
    except BaseException as error:
        return f"error {type(error).__name__}", slowest
    return "ok", slowest


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--strategy", action="append")
    parser.add_argument("--shapes", action="store_true", help="constraints made here instead of the corpus")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unguarded", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--time", action="store_true", help="how long the guard itself takes, and nothing else")
    given = parser.parse_args()
    if given.time:
        timings(given.folder)
        return
    vocabulary = build_vocabulary(samples.tekken())
    for name in given.strategy or STRATEGIES:
        ((_, strategy),) = build_strategies([Plugins().load("grammar", name)], vocabulary, {}).items()
        counts: Counter[str] = Counter()
        for each, constraint in shapes(given.seed) if given.shapes else corpus(given.folder):
            if given.only not in each:
                continue
            why = None if given.unguarded else refused(constraint, strategy)
            if why is not None:
                counts["no such kind" if why == "kind" else "guard"] += 1
                if given.verbose and why != "kind":
                    print(f"    {name} {each}: {why[:150]}")
                continue
            what, cpu, grown, slowest = outcome(constraint, strategy, vocabulary)
            counts[what] += 1
            slow = cpu > 2 or grown > 1 << 30 or slowest > 0.05
            if given.verbose or slow or what.split()[0] in ("CRASH", "TIME", "MEMORY", "error", "mask"):
                print(
                    f"    {name} {each}: {what}, {cpu:.1f} s, {grown >> 20} MiB, fill {slowest * 1e3:.0f} ms",
                    flush=True,
                )
        print(name, dict(counts), flush=True)


if __name__ == "__main__":
    sys.exit(main())
