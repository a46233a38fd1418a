"""Effects of a failing plugin in vLLM, stock and with guideway: on its request, other requests, and the engine.

    python tests/benchmarks/vllm_failures.py [--only WORD] [--write]

Run it with the interpreter that has vLLM (`make setup-vllm`), in the repository's root. For every row, a server's
engine (front end, engine core and worker are three processes) gets three healthy requests and one that fails, then one
more. If an engine died, the next row has a new one. The failures in stock vLLM are a toy backend over xgrammar and a
toy logits processor (`tests/vllm/faulty_in_stock.py`), with guideway the plugins of `tests/vllm/faulty.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

HERE = Path(__file__).parent
RESULT = HERE / "results" / "vllm_failures.md"
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}
SIDES = ("stock", "guideway")
WAIT = 8.0
"""Seconds for a request that does not end, once all others have ended."""
PATIENCE = 100.0
"""Seconds for an engine to start, and for each row after that."""


@dataclass(frozen=True)
class Row:
    """One failure, described for each side; None: impossible there."""

    what: str
    stock: dict[str, Any] | None
    guideway: dict[str, Any] | None
    start: str = ""
    """A plugin that breaks the start; nothing else fails."""


def grammar(phase: str, how: str) -> dict[str, Any]:
    return {"kind": "grammar", "phase": phase, "how": how}


def modifier(phase: str, how: str) -> dict[str, Any]:
    return {"kind": "modifier", "phase": phase, "how": how}


def both(what: str, asked: dict[str, Any]) -> Row:
    return Row(what, asked, asked)


ROWS = [
    both("a constraint that is no constraint", {"kind": "bad"}),
    both("`compile` raises", grammar("compile", "raise")),
    both("`accept` refuses a token", grammar("accept", "refuse")),
    both("`accept` returns a string", grammar("accept", "type")),
    both("the mask allows no token", grammar("fill_bitmask", "empty")),
    Row("an exception at admission", {"kind": "validator"}, {"kind": "validator"}),
    both("logits become NaN", modifier("apply", "nan")),
    both("`compile` panics (no `Exception`)", grammar("compile", "panic")),
    both("`fill_bitmask` raises", grammar("fill_bitmask", "raise")),
    both("`fill_bitmask` panics", grammar("fill_bitmask", "panic")),
    both("`accept` raises", grammar("accept", "raise")),
    both("a processor's `apply` raises", modifier("apply", "raise")),
    both("its `apply` returns a string", modifier("apply", "type")),
    both("its `apply` returns another shape", modifier("apply", "shape")),
    both("its `update_state` (guideway: `prepare`) raises", modifier("prepare", "raise")),
    Row("a worker mixin's `before_step` raises", None, {"kind": "mixin"}),
    both("`compile` never ends", grammar("compile", "hang")),
    Row("a general plugin that cannot be imported", {}, {}, start="vllm.general_plugins"),
    Row("a processor's plugin that cannot be imported", {}, {}, start="vllm.logits_processors"),
    Row("a selected guideway plugin that cannot be imported", None, {}, start="guideway.v1"),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        serve(**json.loads(options.child))
        return
    rows = [i for i, row in enumerate(ROWS) if options.only in row.what]
    seen = {side: observe(side, rows) for side in SIDES}
    text = "\n".join([*header(), *table(rows, seen)]) + "\n"
    sys.stdout.write(text)
    if options.write:
        RESULT.write_text(text, encoding="utf-8")


def header() -> list[str]:
    names = ("vllm-cpu", "torch", "xgrammar", "guideway", "guideway-vllm")
    return [
        "# What a failing plugin costs in vLLM, stock and with guideway",
        "",
        f"Made by `python tests/benchmarks/vllm_failures.py --write` with Python {platform.python_version()}, "
        + ", ".join(f"{name} {version(name)}" for name in names)
        + ".",
        "Each cell is what one run showed: whether the engine served another request afterwards, how many of the "
        "three neighbors in the batch ended as they would by themselves, and how the failing request ended.",
        f"The other request has a constraint, and compilations that never end keep their threads: stock vLLM has "
        f"{(multiprocessing.cpu_count() + 1) // 2} here, guideway `compile_threads` (2 by default).",
        "",
        "| what fails | stock: engine alive | others finished | the request | guideway: engine alive | others finished "
        "| the request |",
        "|---|---|---|---|---|---|---|",
    ]


def table(rows: list[int], seen: dict[str, dict[int, dict[str, str]]]) -> Iterator[str]:
    for i in rows:
        cells = [cell for side in SIDES for cell in cells_of(seen[side].get(i))]
        yield f"| {ROWS[i].what} | {' | '.join(cells)} |"


def cells_of(found: dict[str, str] | None) -> list[str]:
    if found is None:
        return ["-"] * 3
    return [(found[name] or "-").replace("|", "\\|").replace("\n", " ") for name in ("alive", "others", "end")]


# The parent


def observe(side: str, rows: list[int]) -> dict[int, dict[str, str]]:
    """Return the observations of each row."""
    wanted = [i for i in rows if getattr(ROWS[i], side) is not None]
    found: dict[int, dict[str, str]] = {}
    for start in dict.fromkeys(ROWS[i].start for i in wanted):
        found |= run(side, [i for i in wanted if ROWS[i].start == start])
    return found


def run(side: str, rows: list[int]) -> dict[int, dict[str, str]]:
    """Return a child's observations of these rows."""
    found: dict[int, dict[str, str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), side, ROWS[rows[0]].start)
        path = [folder, str(HERE.parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | SETTINGS | {"PYTHONPATH": os.pathsep.join(path)}
        if side == "stock":
            environment["VLLM_PLUGINS"] = "toy,broken"
        asked = json.dumps({"side": side, "rows": rows})
        command = [sys.executable, str(Path(__file__).resolve()), "--child", asked]
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:  # vLLM prints as well
                if line.startswith("@ "):
                    one = json.loads(line[2:].replace(folder, "FOLDER"))
                    sys.stderr.write(f"{side}: {ROWS[one['row']].what}: {one}\n")
                    found[one.pop("row")] = one
    if process.returncode:
        raise RuntimeError(f"the child of {side} failed; its log is above")
    return found


def prepare(folder: Path, side: str, broken: str) -> None:
    """Write the metadata of additional distributions: the faulty plugins, and one that cannot be imported."""
    from tests.vllm import faulty

    faulty.install(folder)
    groups = {"vllm.general_plugins": {"toy": "tests.vllm.faulty_in_stock:register"}} if side == "stock" else {}
    if broken:
        name = "modifier.broken" if broken == "guideway.v1" else "broken"
        value = "no_such_module" if broken == "guideway.v1" else "no_such_module:Plugin"
        groups.setdefault(broken, {})[name] = value
    info = folder / "extra-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1.0\n", encoding="utf-8")
    lines: list[str] = []
    for group, entries in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


# The child


def serve(side: str, rows: list[int]) -> None:
    """Run the rows, each engine in its own process, which takes rows until its engine is dead."""
    import vllm.v1.engine.utils
    import vllm.v1.executor.multiproc_executor
    from vllm import LLM  # noqa: F401  (imported once, not in each process)

    # forked processes have imported vLLM already
    for module in (vllm.v1.engine.utils, vllm.v1.executor.multiproc_executor):
        module.get_mp_context = lambda: multiprocessing.get_context("fork")
    while rows:
        reader, writer = os.pipe()
        if not (child := os.fork()):
            os.setsid()  # so that its remaining processes can be found by their group
            with os.fdopen(writer, "w", buffering=1) as out:
                try:
                    attend(side, rows, out)
                except BaseException:
                    traceback.print_exc()
                out.write("end\n")
            os._exit(0)
        os.close(writer)
        silent = threading.Event()
        done = []
        with os.fdopen(reader) as lines:
            while line := within(PATIENCE, child, silent, lines.readline):
                if line == "end\n":
                    break
                sys.stdout.write(f"@ {line}")
                sys.stdout.flush()
                done.append(json.loads(line)["row"])
        end(child)
        os.waitpid(child, 0)
        left = [i for i in rows if i not in done]
        if silent.is_set() and left:
            found = {"alive": "no", "others": "-", "end": f"nothing is answered for {PATIENCE:.0f} s"}
            sys.stdout.write(f"@ {json.dumps({'row': left[0], **found})}\n")
            sys.stdout.flush()
            done.append(left[0])
        if not done:
            raise RuntimeError(f"{side} said nothing of {ROWS[rows[0]].what}; its log is above")
        rows = [i for i in rows if i not in done]


def within(seconds: float, child: int, silent: threading.Event, read: Callable[[], str]) -> str:
    """Return the result of `read`; after `seconds`, end the child, which makes `read` return, and set `silent`."""

    def give_up() -> None:
        silent.set()
        end(child)

    timer = threading.Timer(seconds, give_up)
    timer.start()
    try:
        return read()
    finally:
        timer.cancel()


def end(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)


def attend(side: str, rows: list[int], out: TextIO) -> None:
    """Run rows until the engine dies."""
    from guideway_demo_model import DemoModel
    from vllm import LLM

    from tests.vllm import faulty

    def answer(row: int, alive: str, others: str, how: str) -> None:
        out.write(json.dumps({"row": row, "alive": alive, "others": others, "end": how}) + "\n")

    options: dict[str, Any] = {}
    if side == "stock":
        options = {
            "structured_outputs_config": {"backend": "xgrammar"},
            "logits_processors": ["tests.vllm.faulty_in_stock:ToyProcessor"],
        }
    else:
        modifiers = [*faulty.GUIDEWAY["modifiers"], *(["broken"] if ROWS[rows[0]].start == "guideway.v1" else [])]
        options = {
            "additional_config": {"guideway": {**faulty.GUIDEWAY, "modifiers": modifiers, "worker_mixins": ["faulty"]}},
            "worker_extension_cls": "guideway_vllm.worker.WorkerExtension",
        }
    try:
        llm = LLM(
            str(DemoModel().path()),
            dtype="float32",
            enforce_eager=True,
            max_model_len=256,
            max_num_seqs=8,
            disable_log_stats=True,
            enable_prefix_caching=False,
            **options,
        )
    except Exception as error:
        if ROWS[rows[0]].start:
            answer(rows[0], f"no: it does not start ({describe(error)})", "-", "-")
            return
        raise
    calm = healthy(side)
    usual = batch(llm, calm)[0]
    for i in rows:
        asked = getattr(ROWS[i], side)
        if asked.get("kind") == "mixin":
            llm.collective_rpc("guideway", args=("faulty.fail_in", "before_step", "raise", 4))
        ends, how = batch(llm, calm, params(side, asked) if asked else None)
        alive = serves(llm, side)
        others = sum(one == other for one, other in zip(ends, usual, strict=True))
        answer(i, alive, f"{others} of {len(usual)}", how)
        if alive != "yes":
            break


def describe(error: BaseException) -> str:
    lines = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:160]}"


def healthy(side: str) -> list[Any]:
    """Return parameters: one under a grammar, one that uses nothing, one with a processor or modifier."""
    return [params(side, one) for one in (grammar("", ""), {"kind": ""}, modifier("", ""))]


def params(side: str, asked: dict[str, Any]) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    kind = asked.get("kind")
    plan = {name: value for name, value in asked.items() if name in ("phase", "how") and value}
    outputs, extra = None, None
    if kind == "bad":
        outputs = StructuredOutputsParams(grammar="root ::= (")
    elif kind == "grammar" and side == "stock":
        schema = {"type": "string", "pattern": "^[a-z]{10}$", "description": json.dumps(plan)}
        outputs = StructuredOutputsParams(json=schema)
    elif kind == "grammar":
        slow = {"slow": True} if plan.get("phase") == "compile" else {}
        outputs = StructuredOutputsParams(grammar=json.dumps({"bytes": 12, **plan, **slow}))
        extra = {"guideway.dialect": "faulty"}
    elif kind == "modifier":
        extra = {"toy": json.dumps(plan)} if side == "stock" else {"guideway.modifiers": {"faulty_pre_warp": plan}}
    elif kind == "validator":
        extra = {"toy.validate": 1} if side == "stock" else {"guideway.tenant": "raise"}
    sampling = {"temperature": 1.0, "seed": 5, "max_tokens": 16, "ignore_eos": outputs is None}
    return SamplingParams(structured_outputs=outputs, extra_args=extra, **sampling)


def batch(llm: Any, calm: list[Any], failing: Any = None) -> tuple[list[Any], str]:
    """Return how each of the healthy requests ended, None if it did not, and the outcome of the failing one."""
    engine, prompt = llm.llm_engine, "Anna Berg is 34 years old."
    ends: dict[str, Any] = {}
    names = [str(time.monotonic()) for _ in calm]
    try:
        for name, one in zip(names, calm, strict=True):
            engine.add_request(name, prompt, one)
        waited, how = [], ""
        if failing is not None:
            waited = [str(time.monotonic())]
            try:
                engine.add_request(waited[0], prompt, failing)
            except Exception as error:
                waited, how = [], f"refused: {describe(error)}"
        deadline = None
        while missing := [name for name in [*names, *waited] if name not in ends]:
            if missing == waited:  # a step would wait for it for ever; another request makes it return
                deadline = deadline or time.monotonic() + WAIT
                if time.monotonic() > deadline:
                    how = f"not ended {WAIT:.0f} s after the others"
                    engine.abort_request(waited)
                    break
                time.sleep(0.2)
                engine.add_request(str(time.monotonic()), prompt, tick())
            for output in engine.step():
                if output.finished:
                    ends[output.request_id] = output
    except Exception as error:
        how = f"{describe(error)}"
    if failing is not None and waited and waited[0] in ends:
        how = ending(ends[waited[0]])
    kept = [None if name not in ends else tuple(ends[name].outputs[0].token_ids) for name in names]
    return kept, how


def tick() -> Any:
    from vllm import SamplingParams

    return SamplingParams(max_tokens=1)


def ending(output: Any) -> str:
    one = output.outputs[0]
    told = ((output.kv_transfer_params or {}).get("guideway") or {}).get("error")
    return f"`{one.finish_reason}` after {len(one.token_ids)} tokens" + (f": {told[:160]}" if told else "")


def serves(llm: Any, side: str) -> str:
    """Return whether one more request, under a grammar, is served."""
    try:
        ends, _ = batch(llm, [params(side, grammar("", ""))])
    except Exception as error:
        return f"no: {describe(error)}"
    return "yes" if ends[0] else "no"


if __name__ == "__main__":
    main()
