"""The cost of finding plugins: `guideway plugins list` against a bare scan of entry points, and `import guideway`
against importing its dependencies.

    python tests/benchmarks/bench_plugins_list.py [--repeats 40] [--write]

Builds a temporary virtual environment with guideway and 100 distributions, and runs each pair of programs in turns. The
figures are medians of CPU time of the child process (user and system), which load on the machine disturbs least.
`--write` puts the table in ``results/plugins_list.md``.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import importlib_metadata

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.environments import BUILD, ROOT, Environment, make_environment

RESULT = Path(__file__).parent / "results" / "plugins_list.md"
DISTRIBUTIONS = 100
LIMIT = 2.0
VERSIONS = ("importlib-metadata", "numpy", "pluggy", "guideway")

SCAN = "import importlib_metadata; list(importlib_metadata.entry_points(group='guideway.v1'))"
DEPENDENCIES = "import numpy, pluggy, importlib_metadata"

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "gwb-{number}"
version = "1.{number}"
readme = "README.md"
dependencies = ["guideway", "numpy>=1.26", "pluggy; extra == 'never'"]

{entry_points}
"""
PLUGIN = """\
[project.entry-points."guideway.v1"]
"grammar.bench-{number}" = "gwb_{number}"
"modifier.bench-{number}" = "gwb_{number}:plugin"
"""
OTHER = """\
[project.scripts]
gwb-{number} = "gwb_{number}:main"
"""


def build(folder: Path, num_plugins: int) -> Environment:
    """Return an environment with 100 distributions, the first `num_plugins` of them with two components each."""
    projects = []
    for number in range(DISTRIBUTIONS):
        project = folder / "projects" / str(number)
        project.mkdir(parents=True)
        entry_points = (PLUGIN if number < num_plugins else OTHER).format(number=number)
        (project / "pyproject.toml").write_text(PROJECT.format(number=number, entry_points=entry_points))
        (project / "README.md").write_text("A description of ordinary length.\n" * 100)
        (project / f"gwb_{number}.py").write_text("raise AssertionError('listing must not import this')\n")
        projects.append(project)
    wheels = folder / "wheels"
    subprocess.run([sys.executable, "-c", BUILD, str(wheels), str(ROOT), *map(str, projects)], check=True)
    return make_environment(folder / "environment", *wheels.glob("*.whl"))


def cpu_milliseconds(command: Sequence[str], environment: Environment) -> float:
    """Return the CPU time of one run of `command` in milliseconds."""
    variables = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "GUIDEWAY_"))}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=variables, cwd=environment.folder)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command} failed with status {process.returncode}")
    return 1000 * (usage.ru_utime + usage.ru_stime)


def compare(environment: Environment, ours: Sequence[str], theirs: Sequence[str], repeats: int) -> tuple[float, float]:
    """Return the median CPU milliseconds of both commands, run in turns."""
    for command in (ours, theirs) * 3:  # write the .pyc files, fill the page cache
        cpu_milliseconds(command, environment)
    pairs = [(cpu_milliseconds(ours, environment), cpu_milliseconds(theirs, environment)) for _ in range(repeats)]
    return statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for num_plugins in (10, DISTRIBUTIONS):
            environment = build(Path(folder, str(num_plugins)), num_plugins)
            python, program = str(environment.python), str(environment.folder / "bin" / "guideway")
            scan = [python, "-c", SCAN]
            of = f"{DISTRIBUTIONS} distributions, {num_plugins} of them plugins"
            for command in (["plugins", "list"], ["plugins", "list", "--json"]):
                figures = compare(environment, [program, *command], scan, args.repeats)
                rows.append((f"`guideway {' '.join(command)}`, {of}", *figures))
        light = compare(environment, [python, "-c", "import guideway"], [python, "-c", DEPENDENCIES], args.repeats)
        rows.append(("`import guideway`", *light))
    table = [
        "| program | CPU ms | compared with, CPU ms | ratio | limit |",
        "|---|---|---|---|---|",
        *(f"| {what} | {ours:.1f} | {theirs:.1f} | {ours / theirs:.2f} | {LIMIT} |" for what, ours, theirs in rows),
    ]
    versions = ", ".join(f"{name} {importlib_metadata.version(name)}" for name in VERSIONS)
    text = f"""\
# What looking at plugins costs

`python tests/benchmarks/bench_plugins_list.py --repeats {args.repeats} --write`

{chr(10).join(table)}

Medians of {args.repeats} runs each, in turns; CPU time (user and system) of the whole process, interpreter included.
`plugins list` is compared with `python -c "{SCAN}"`
in the same environment, `import guideway` with `{DEPENDENCIES}`.

Python {platform.python_version()}, {versions};
{platform.system()} {platform.machine()}, {os.cpu_count()} cores.
"""
    print(text)
    if args.write:
        RESULT.write_text(text)
    if any(ours / theirs >= LIMIT for _, ours, theirs in rows):
        raise SystemExit(f"over the limit of {LIMIT}")


if __name__ == "__main__":
    main()
