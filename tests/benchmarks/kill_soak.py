"""Grammar hosts and workers killed and stopped at random while guideway's engine serves: the effects on requests.

Requests with constraints of every strategy arrive all the time; each must have the tokens that it has in an engine
without hosts. A process of the hosts, including the fork server, is chosen at random and killed or stopped, and the
next one within a second, once there are hosts again. The report has the number of requests, how many failed or had
other tokens, the seconds of the slowest, and whether each constraint is served at the end.

In each of `--runs` runs, a worker of the executor `process` is killed or stopped twice, at random: in a step, or while
it starts again. Meanwhile requests of one and of two outputs are streamed. The report has how many of them failed, had
other tokens, or streamed other tokens.

    python tests/benchmarks/kill_soak.py [--times 200] [--runs 20] [--seed 1] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from guideway import AsyncEngine, Engine, SamplingParams, __version__
from guideway.api import Choice, JsonSchema, Regex

from tests.support.processes import children, hosts_of

RESULTS = Path(__file__).parent / "results" / "kill_soak.md"
STRATEGIES = ("llguidance", "xgrammar", "outlines", "lmfe")
PROMPT = "Anna Berg is 34 years old."
STREAMS = 8
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}


def wanted() -> list[SamplingParams]:
    """Return the parameters of the requests, sent in turn."""
    params = []
    for i, strategy in enumerate(STRATEGIES):
        for constraint in (
            JsonSchema(SCHEMA, strategy=strategy),
            Regex("[a-z]{6,20}[0-9]", strategy=strategy),
            Choice(["perhaps", "perhaps not", "no"], strategy=strategy),
        ):
            params.append(SamplingParams(max_tokens=40, temperature=1.0, seed=i, constraint=constraint))
    return [*params, SamplingParams(max_tokens=40, temperature=1.0, seed=9, ignore_eos=True)]


@dataclass
class Found:
    """The observations of a run."""

    num_ended: int = 0
    failed: list[str] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    times: dict[str, int] = field(default_factory=dict)
    """Number of processes that were killed, or stopped."""
    refused: list[str] = field(default_factory=list)
    """Constraints that are refused at the end."""
    left: int = 0


def expected_tokens(params: list[SamplingParams]) -> list[Any]:
    with Engine("demo", grammar=STRATEGIES, grammar_host="inline") as engine:
        results = engine.generate([PROMPT] * len(params), params)
    assert not [result.error for result in results if result.error]
    return [result.outputs[0].token_ids for result in results]


async def up(rng: random.Random) -> list[int]:
    """Return processes to kill next, once there are hosts again: in one of ten cases the fork server, else
    the hosts."""
    while True:
        everybody = await asyncio.to_thread(hosts_of, os.getpid())
        hosts = {pid for pid in everybody if has_masks(pid)}
        if hosts:
            return sorted(everybody - hosts if rng.random() < 0.1 else hosts)
        await asyncio.sleep(0.05)


def has_masks(pid: int) -> bool:
    """Return whether a process is a host itself: the processes that hosts are forked from share no masks."""
    try:
        return "guideway-masks" in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


async def soak(times: int, seed: int) -> Found:
    """Kill or stop `times` processes."""
    found, rng, params = Found(), random.Random(seed), wanted()
    expected = await asyncio.to_thread(expected_tokens, params)
    async with AsyncEngine("demo", grammar=STRATEGIES, max_num_seqs=STREAMS) as engine:
        await asyncio.gather(*(engine.generate(PROMPT, one) for one in params))  # starts the hosts
        done = asyncio.Event()

        async def stream(number: int) -> None:
            turn = number
            while not done.is_set():
                turn = (turn + 1) % len(params)
                start = time.monotonic()
                result = await engine.generate(PROMPT, params[turn])
                found.seconds.append(time.monotonic() - start)
                found.num_ended += 1
                if result.error is not None:
                    found.failed.append(f"{params[turn].constraint}: {result.error}")
                elif result.outputs[0].token_ids != expected[turn]:
                    found.moved.append(str(params[turn].constraint))

        streams = [asyncio.create_task(stream(i)) for i in range(STREAMS)]
        for _ in range(times):
            victims = await up(rng)
            how = rng.choice(("SIGKILL", "SIGSTOP"))
            with suppress(ProcessLookupError):
                os.kill(rng.choice(victims), signal.Signals[how])
                found.times[how] = found.times.get(how, 0) + 1
            await asyncio.sleep(rng.uniform(0.3, 1.0))
        done.set()
        await asyncio.gather(*streams)
        for one in params:
            result = await engine.generate(PROMPT, one)
            if result.error is not None:
                found.refused.append(f"{one.constraint}: {result.error}")
    await asyncio.sleep(2)
    found.left = len(hosts_of(os.getpid()))
    return found


def streamed() -> list[SamplingParams]:
    """Return the parameters of the requests that stream while workers are killed."""
    found = [SamplingParams(max_tokens=60, temperature=1.0, seed=i, n=1 + i % 2, ignore_eos=True) for i in range(4)]
    constrained = SamplingParams(max_tokens=60, temperature=1.0, seed=5, constraint=Regex("[a-z]{20,40}[0-9]"))
    return [*found, constrained, SamplingParams(max_tokens=60, repetition_penalty=1.3, ignore_eos=True)]


def workers() -> list[int]:
    """Return the processes of the executor's workers, including those that are starting."""
    found = []
    for pid in children(os.getpid()):
        with suppress(OSError):
            if b"executors.process.child" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


async def kill_worker(found: Found, rng: random.Random) -> None:
    """Kill, or sometimes stop, a living worker."""
    while not (alive := await asyncio.to_thread(workers)):
        await asyncio.sleep(0.01)
    how = rng.choice(("SIGKILL", "SIGKILL", "SIGKILL", "SIGSTOP"))
    with suppress(ProcessLookupError):
        os.kill(rng.choice(alive), signal.Signals[how])
        found.times[how] = found.times.get(how, 0) + 1


async def soak_workers(runs: int, seed: int) -> Found:
    """Lose a worker twice in each run."""
    found, rng, params = Found(), random.Random(seed), streamed()
    common: dict[str, Any] = {"grammar": ("llguidance",), "dtype": "float64", "max_model_len": 256}
    with Engine("demo", **common) as alone:
        results = await asyncio.to_thread(alone.generate, [PROMPT] * len(params), params)
    expected = [[output.token_ids for output in result.outputs] for result in results]
    # a step of this model takes milliseconds, but a busy machine may delay a worker for seconds
    options = {"executor.process": {"timeout": 10.0}}
    async with AsyncEngine("demo", executor="process", options=options, **common) as engine:

        async def stream(which: int, first: asyncio.Event) -> None:
            start = time.monotonic()
            tokens: dict[int, list[int]] = {}
            generation = await engine.submit(PROMPT, params[which])
            async for chunk in generation.chunks():
                first.set()
                tokens.setdefault(chunk.index, []).extend(chunk.token_ids)
            result = await generation.wait()
            found.seconds.append(time.monotonic() - start)
            found.num_ended += 1
            if result.error is not None:
                found.failed.append(f"{params[which]}: {result.error}")
                return
            read, whole = [tuple(tokens[i]) for i in sorted(tokens)], [output.token_ids for output in result.outputs]
            if not read == whole == expected[which]:
                found.moved.append(str(params[which]))

        for _ in range(runs):
            first = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for i in range(len(params)):
                    group.create_task(stream(i, first))
                await first.wait()
                await kill_worker(found, rng)
                # meanwhile its successor imports, loads, starts or computes
                await asyncio.sleep(rng.choice((0.05, rng.uniform(0.0, 3.0), rng.uniform(3.0, 6.0))))
                await kill_worker(found, rng)
    found.left = len(workers())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=200)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    command = f"`python tests/benchmarks/kill_soak.py {' '.join(sys.argv[1:])}`"
    lines = [f"guideway {__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} processors; {command}"]
    failed = False
    for number, soaked, title in (
        (arguments.times, soak, "Grammar hosts killed and stopped at random"),
        (arguments.runs, soak_workers, "A worker killed and stopped at random, twice in each run"),
    ):
        if number:
            found = asyncio.run(soaked(number, arguments.seed))
            failed = failed or bool(found.failed or found.moved or found.refused or found.left)
            lines += ["", f"# {title}", "", *told(found)]
    print("\n".join(lines))
    if arguments.write:
        RESULTS.write_text("\n".join(lines).rstrip() + "\n", "utf-8")
    if failed:
        sys.exit(1)


def told(found: Found) -> list[str]:
    """Return the lines of the report."""
    return [
        "| | |",
        "|---|---|",
        f"| processes killed, stopped | {found.times.get('SIGKILL', 0)}, {found.times.get('SIGSTOP', 0)} |",
        f"| requests that ended, that failed, with other tokens | {found.num_ended}, {len(found.failed)}, "
        f"{len(found.moved)} |",
        f"| seconds of a request: median, slowest | {statistics.median(found.seconds):.2f}, {max(found.seconds):.2f} |",
        f"| constraints refused afterwards | {len(found.refused)} |",
        f"| processes left | {found.left} |",
        "",
        *sorted(set(found.failed + found.moved + found.refused)),
    ]


if __name__ == "__main__":
    main()
