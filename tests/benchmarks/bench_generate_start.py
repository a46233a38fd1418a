"""The cost of starting `guideway generate`, compared with importing the libraries it runs on.

    python tests/benchmarks/bench_generate_start.py [--pairs 15] [--write]

Runs both programs in turns, with the demo model and one prompt. A figure is the CPU time (user and system) of a program
with all its descendants, including orphans. Bytecode is written and read regardless of PYTHONDONTWRITEBYTECODE: torch
and ``transformers`` have theirs, as does guideway if pip installed it. `--write` puts the table in
``results/generate_start.md``. Linux.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import platform
import resource
import statistics
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

RESULT = Path(__file__).parent / "results" / "generate_start.md"
LIMIT = 0.55
"""Maximum seconds in addition to the imports."""

SUBREAPER = 36
"""An option of Linux's ``prctl``: orphaned descendants become children of this process."""

IMPORTS = [sys.executable, "-c", "import torch, transformers"]
ASK = ["generate", "--model", "demo", "--prompt", "Is Zoë Garcia married?"]
PROGRAMS = {
    "no constraint": [*ASK, "--max-tokens", "20"],
    "a schema": [*ASK, "--schema", '{"enum": ["yes", "no"]}'],
}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
VERSIONS = ("torch", "transformers", "llguidance", "guideway")


def cpu_seconds(command: Sequence[str]) -> float:
    """Return the CPU seconds of a command and its descendants. Raises CalledProcessError."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=ENVIRONMENT | {"OMP_NUM_THREADS": "1"})
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    ctypes.CDLL(None).prctl(SUBREAPER, 1)
    rows = []
    for what, arguments in PROGRAMS.items():
        program = [sys.executable, "-m", "guideway", *arguments]
        cpu_seconds(program)  # warms up: bytecode is written, files are in memory
        pairs = [(cpu_seconds(program), cpu_seconds(IMPORTS)) for _ in range(args.pairs)]
        ours, imports = (statistics.median(column) for column in zip(*pairs, strict=True))
        over = statistics.median(one - other for one, other in pairs)
        rows.append(
            f"| {what} | {ours:.2f} | {imports:.2f} | {over:.2f} | {LIMIT} | {'yes' if over <= LIMIT else 'no'} |"
        )
    packages = ", ".join(f"{name} {version(name)}" for name in VERSIONS)
    text = "\n".join(
        [
            "# What starting `guideway generate` costs",
            "",
            f"`python tests/benchmarks/bench_generate_start.py --pairs {args.pairs} --write`",
            "",
            "| one prompt, demo model | CPU s | `import torch, transformers`, CPU s | more | limit | kept |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            f"Medians of {args.pairs} pairs, in turns; CPU time (user and system) with all descendants.",
            "",
            f"Python {platform.python_version()}, {packages}; {platform.system()} {platform.machine()}, "
            f"{os.cpu_count()} cores.",
            "",
        ]
    )
    print(text)
    if args.write:
        RESULT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
