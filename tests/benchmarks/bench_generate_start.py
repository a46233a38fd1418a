"""What starting `guideway generate` costs, beside importing the libraries it runs on.

    python tests/benchmarks/bench_generate_start.py [--pairs 15] [--write]

Runs both programs in turns, the demo model and one prompt, and takes the CPU time (user and system) of each with all
its descendants, those too that are nobody's child. Bytecode is written and read, whatever PYTHONDONTWRITEBYTECODE says:
torch and ``transformers`` have theirs, and so has guideway wherever pip installed it. `--write` puts the table in
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
LIMIT = 1.5
"""Seconds over the imports."""

SUBREAPER = 36
"""Of Linux's ``prctl``: orphans among the descendants become children of this process."""

IMPORTS = [sys.executable, "-c", "import torch, transformers"]
ASK = ["generate", "--model", "demo", "--prompt", "Is Zoë Garcia married?"]
PROGRAMS = {
    "no constraint": [*ASK, "--max-tokens", "20"],
    "a schema": [*ASK, "--schema", '{"enum": ["yes", "no"]}'],
}
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
VERSIONS = ("torch", "transformers", "llguidance", "guideway")


def cpu_seconds(command: Sequence[str]) -> float:
    """Of a command and its descendants. Raises CalledProcessError."""
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
        cpu_seconds(program)  # bytecode is written, files are in memory
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
