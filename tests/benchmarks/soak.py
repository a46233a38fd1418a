"""Test if anything is left behind: requests of all sorts in guideway's engine, for as long as wanted.

For every strategy in hosts, this sends good requests (each must have its tokens without grammar hosts, or has a new
schema), invalid ones, hostile ones (`hostile_shapes.py`), requests that are aborted at any moment, and requests that
fork. Meanwhile it observes: memory of the serving process and of its tree, threads, descriptors, processes, blocks of
shared memory. Memory counts as flat if, among the observations after the first third of the time, its median in the
last third is at most 5 % above that in the first third, or as `--most-growth` says: in a short run large requests occur
for the first time. A table shows memory by role of process. After the engine is closed nothing may be left.

With ``--short`` answers have few tokens, and few requests are hostile or have a new schema: 100,000 take minutes.

Exits with status 1, and the reason, if a request has other tokens, fails without being hostile or invalid, or gets no
answer, if memory is not flat, or anything is left.

    python tests/benchmarks/soak.py [--requests 100000 | --seconds 180] [--short] [--seed 1]
        [--most-growth 1.05] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import random
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from guideway import AsyncEngine, SamplingParams, __version__
from guideway.api import Choice, GenerationResult, GuidewayError, InvalidRequest, JsonSchema, Regex
from guideway.plugins.limits import Limits
from kill_soak import PROMPT, STRATEGIES, expected_tokens, wanted

from tests.benchmarks.hostile_shapes import shapes
from tests.support.processes import memory_of, role_of, tree

RESULTS = Path(__file__).parent / "results" / "soak.md"
STREAMS = 16
LOOKS_EVERY = 2.0
TIMES = 6
"""Columns of the memory table."""
SERVING = "serving process"
MIB = 1 << 20
SETTLES = 15.0
"""Seconds for everything that is ending to end."""
WAITS = 120.0
"""Seconds after which a request counts as unanswered."""
SETTINGS: dict[str, Any] = {
    "grammar": STRATEGIES,
    "max_num_seqs": STREAMS,
    # small enough that a cache is full within minutes, which shows whether it is bounded
    "grammar_cache_bytes": 1 << 20,
    "limits": Limits(compile_seconds=3.0, remembered_seconds=5.0),
}
MIX = {"good": 500, "new": 120, "invalid": 120, "hostile": 20, "aborted": 120, "forked": 120}
"""Requests of each sort in a thousand."""
SHORT_MIX = {"good": 700, "new": 20, "invalid": 100, "hostile": 1, "aborted": 100, "forked": 79}
INVALID: tuple[dict[str, Any], ...] = (
    {"constraint": Regex("[a-z")},
    {"constraint": JsonSchema('{"type": "object"')},
    {"constraint": JsonSchema({"type": 7})},
    {"constraint": JsonSchema({"$ref": "#"})},
    {"constraint": Regex("a{3", strategy="xgrammar")},
    {"constraint": Regex("a", strategy="nobody")},
    {"max_tokens": 0},
    {"temperature": -1.0},
    {"n": 0},
    {"modifiers": {"nobody": {}}},
)


@dataclass
class Memory:
    """Bytes of the processes of one role, with shared memory divided among its processes."""

    num_processes: int = 0
    total: int = 0
    private: int = 0
    """Bytes of these that are not shared, including memory shared at the fork and written to since."""


@dataclass
class Look:
    """The state at one moment."""

    roles: dict[str, Memory]
    """Memory of processes, by role."""
    num_threads: int
    num_descriptors: int
    num_processes: int
    num_blocks: int
    """Blocks of memory shared with hosts."""

    @property
    def own_bytes(self) -> int:
        return self.roles[SERVING].total

    @property
    def tree_bytes(self) -> int:
        return sum(memory.total for memory in self.roles.values())


@dataclass
class Found:
    ended: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcomes of hostile requests."""
    wrong: list[str] = field(default_factory=list)
    looks: list[Look] = field(default_factory=list)
    seconds: float = 0.0


def look() -> Look:
    everybody, roles = tree(os.getpid()), defaultdict[str, Memory](Memory)
    for pid in sorted(everybody):
        role = SERVING if pid == os.getpid() else role_of(pid)
        total, private = memory_of(pid)
        if total:  # otherwise it has ended since
            had = roles[role]
            roles[role] = Memory(had.num_processes + 1, had.total + total, had.private + private)
    return Look(
        dict(roles),
        threading.active_count(),
        sum(1 for _ in Path("/proc/self/fd").iterdir()),
        len(everybody),
        Path("/proc/self/maps").read_text().count("memfd:"),
    )


@dataclass(frozen=True)
class Load:
    """The requests to send."""

    mix: dict[str, int]
    good: list[SamplingParams]
    expected: list[Any]
    """The tokens of each good request."""

    @classmethod
    def of(cls, *, short: bool) -> Load:
        good = short_ones() if short else wanted()
        return cls(SHORT_MIX if short else MIX, good, expected_tokens(good))


def short_ones() -> list[SamplingParams]:
    """Return requests like `wanted`, with answers of few tokens."""
    params = []
    for i, strategy in enumerate(STRATEGIES):
        for constraint in (
            JsonSchema({"enum": ["a", "b", 7]}, strategy=strategy),
            Regex("[a-z]{1,3}[0-9]", strategy=strategy),
            Choice(["perhaps", "no"], strategy=strategy),
        ):
            params.append(SamplingParams(max_tokens=8, temperature=1.0, seed=i, constraint=constraint))
    return [*params, SamplingParams(max_tokens=4, temperature=1.0, seed=9, ignore_eos=True)]


class Soak:
    """Sends random requests."""

    def __init__(self, engine: AsyncEngine, load: Load, seed: int) -> None:
        self._engine = engine
        self._mix = load.mix
        self._rng = random.Random(seed)
        self._known = list(zip(load.good, load.expected, strict=True))
        self._shapes = [constraint for _, constraint in shapes(seed)]
        self._numbers = itertools.count()
        self.found = Found()

    async def one(self) -> None:
        """Send a request, and wait for its answer."""
        (sort,) = self._rng.choices(list(self._mix), list(self._mix.values()))
        send: Callable[[], Awaitable[None]] = getattr(self, f"_{sort}")
        try:
            await asyncio.wait_for(send(), WAITS)
        except TimeoutError:
            self.found.wrong.append(f"{sort}: no answer in {WAITS:g} s")
        except GuidewayError as error:
            self.found.wrong.append(f"{sort}: {error!r}")
        self.found.ended[sort] += 1

    async def _good(self) -> None:
        params, token_ids = self._rng.choice(self._known)
        self._check(await self._engine.generate(PROMPT, params), params, token_ids)

    async def _new(self) -> None:
        number = next(self._numbers)
        schema = {
            "type": "object",
            "properties": {f"name {number}": {"type": "string", "maxLength": 6}, "kind": {"enum": [f"a{number}", "b"]}},
            "required": [f"name {number}", "kind"],
            "additionalProperties": False,
        }
        params = SamplingParams(
            max_tokens=30, temperature=1.0, constraint=JsonSchema(schema, strategy=self._rng.choice(STRATEGIES))
        )
        self._check(await self._engine.generate(PROMPT, params), params, None)

    async def _invalid(self) -> None:
        made = self._rng.choice(INVALID)
        error = (await self._engine.generate(PROMPT, SamplingParams(**made))).error
        if not isinstance(error, InvalidRequest):
            self.found.wrong.append(f"{made}: {error!r}")

    async def _hostile(self) -> None:
        constraint = replace(self._rng.choice(self._shapes), strategy=self._rng.choice(STRATEGIES))
        result = await self._engine.generate(PROMPT, SamplingParams(max_tokens=16, constraint=constraint))
        self.found.outcomes[type(result.error).__name__ if result.error else "answered"] += 1

    async def _aborted(self) -> None:
        """Abort a request before it is admitted, while it compiles, or after some tokens."""
        params, _ = self._rng.choice(self._known)
        if self._rng.random() < 0.3:
            params = replace(params, ignore_eos=False, constraint=Regex(f"[a-z]{{1,9}}{next(self._numbers)}"))
        generation = await self._engine.submit(PROMPT, params)
        left = self._rng.randrange(12)
        async for _ in generation.chunks():
            if left == 0:
                break
            left -= 1
        generation.abort()
        await generation.wait()

    async def _forked(self) -> None:
        params, _ = self._rng.choice(self._known)
        params = replace(params, n=self._rng.randrange(2, 4))
        self._check(await self._engine.generate(PROMPT, params), params, None)

    def _check(self, result: GenerationResult, params: SamplingParams, token_ids: Any) -> None:
        if result.error is not None:
            self.found.wrong.append(f"{params.constraint}: {result.error}")
        elif token_ids is not None and result.outputs[0].token_ids != token_ids:
            self.found.wrong.append(f"{params.constraint}: other tokens")


async def soak(num_requests: float, seconds: float, seed: int, load: Load) -> Found:
    """Send `num_requests` requests, or send requests for `seconds`."""
    async with AsyncEngine("demo", **SETTINGS) as engine:
        running = Soak(engine, load, seed)
        found, begin, sent = running.found, time.monotonic(), itertools.count()

        async def stream() -> None:
            while time.monotonic() < begin + seconds and next(sent) < num_requests:
                await running.one()

        async def looking() -> None:
            while True:
                await asyncio.sleep(LOOKS_EVERY)
                found.looks.append(await asyncio.to_thread(look))

        watcher = asyncio.create_task(looking())
        await asyncio.gather(*(stream() for _ in range(STREAMS)))
        watcher.cancel()
        engine.check_health()
    found.seconds = time.monotonic() - begin
    return found


def settled(before: Look) -> Look:
    """Return the state when everything that is ending has ended."""
    end = time.monotonic() + SETTLES
    while True:
        gc.collect()
        after = look()
        if not left(before, after) or time.monotonic() > end:
            return after
        time.sleep(0.2)


def left(before: Look, after: Look) -> list[str]:
    """Return descriptions of what exists after but not before."""
    return [
        f"{getattr(after, name)} {what} where there were {getattr(before, name)}"
        for name, what in (
            ("num_threads", "threads"),
            ("num_descriptors", "descriptors"),
            ("num_processes", "processes"),
            ("num_blocks", "blocks of shared memory"),
        )
        if getattr(after, name) > getattr(before, name)
    ]


def growth(looks: list[Look], name: str) -> tuple[float, float]:
    """Return the medians of the first and the last third of the observations after the first third of the time."""
    values = [getattr(each, name) for each in looks[len(looks) // 3 :]]
    third = max(1, len(values) // 3)
    return statistics.median(values[:third]), statistics.median(values[-third:])


def report(found: Found, before: Look, after: Look) -> Iterator[str]:
    yield "| | |"
    yield "|---|---|"
    yield f"| requests, all answered | {found.ended.total()} in {found.seconds:.0f} s |"
    yield f"| of these | {', '.join(f'{sort}: {found.ended[sort]}' for sort in MIX)} |"
    yield f"| what became of the hostile ones | {', '.join(f'{k}: {n}' for k, n in sorted(found.outcomes.items()))} |"
    yield f"| other tokens, failed, not answered | {len(found.wrong)} |"
    for name, what in (("own_bytes", "serving process"), ("tree_bytes", "process tree")):
        first, last = growth(found.looks, name)
        grown = f"{first / MIB:.0f}, {last / MIB:.0f} MiB: {last / first - 1:+.1%}"
        yield f"| memory of the {what}: earlier, later | {grown} |"
    most = [max(getattr(each, name) for each in found.looks) for name in ("num_processes", "num_threads")]
    yield f"| most processes, threads at once | {most[0]}, {most[1]} |"
    for name in ("num_processes", "num_threads", "num_descriptors", "num_blocks"):
        yield f"| {name.removeprefix('num_')} before, afterwards | {getattr(before, name)}, {getattr(after, name)} |"


def over_time(looks: list[Look]) -> Iterator[str]:
    """Yield a table of memory: for each part of the time, the median for the processes of each role."""
    size = -(-len(looks) // TIMES)
    parts = [looks[i : i + size] for i in range(0, len(looks), size)]
    yield "| MiB (of these private), by the median of each part of the time | " + " | ".join("" for _ in parts) + " |"
    yield "|---|" + "---:|" * len(parts)
    for role in sorted({role for each in looks for role in each.roles}, key=lambda role: (role != SERVING, role)):
        cells = []
        for part in parts:
            seen = [each.roles.get(role, Memory()) for each in part]
            total, private = (statistics.median(getattr(each, name) for each in seen) for name in ("total", "private"))
            cells.append(f"{total / MIB:.0f} ({private / MIB:.0f})")
        most = max(each.roles.get(role, Memory()).num_processes for each in looks)
        yield f"| {role}{f', up to {most}' if most > 1 else ''} | {' | '.join(cells)} |"
    sums = [f"{statistics.median(each.tree_bytes for each in part) / MIB:.0f}" for part in parts]
    yield f"| all | {' | '.join(sums)} |"


def failures(found: Found, before: Look, after: Look, most_growth: float) -> list[str]:
    failed = [f"{len(found.wrong)} requests: {found.wrong[:3]}"] if found.wrong else []
    for name in ("own_bytes", "tree_bytes"):
        first, last = growth(found.looks, name)
        if last > first * most_growth:
            failed.append(f"{name} grew from {first / MIB:.0f} to {last / MIB:.0f} MiB")
    return failed + left(before, after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, help="so many, however long they take")
    parser.add_argument("--seconds", type=float, default=180.0, help="without --requests (default: %(default)s)")
    parser.add_argument("--short", action="store_true", help="answers of few tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--most-growth", type=float, default=1.05, help="of memory (default: %(default)s)")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    num_requests, seconds = (options.requests, float("inf")) if options.requests else (float("inf"), options.seconds)
    load = Load.of(short=options.short)
    asyncio.run(soak(4 * STREAMS, float("inf"), 0, load))  # loads everything that stays loaded
    gc.collect()
    before = look()
    found = asyncio.run(soak(num_requests, seconds, options.seed, load))
    after = settled(before)
    lines = [
        "# A long time of requests of all sorts",
        "",
        f"guideway {__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} processors; "
        f"`python tests/benchmarks/soak.py {' '.join(sys.argv[1:])}`",
        "",
        *report(found, before, after),
        "",
        *over_time(found.looks),
    ]
    print("\n".join(lines))
    if options.write:
        RESULTS.write_text("\n".join(lines) + "\n", "utf-8")
    if failed := failures(found, before, after, options.most_growth):
        sys.exit("\n".join(["failed:", *failed]))


if __name__ == "__main__":
    main()
