"""The table of ``docs/hosts/vllm-compatibility.md``, with one row per environment, given by its Python interpreter.

    python tests/vllm/compatibility.py VENV/bin/python...

An environment has some vLLM, guideway, and the packages of ``tests/vllm/requirements.txt`` except vLLM. Its row lists
the methods that its vLLM lacks; if there are none, the core tests run there. ``--check`` skips the tests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
CORE = ("constraints", "stock_backends", "modifiers_in_vllm", "failures", "reasoning", "exact_state")
"""Test modules that start no server, to judge a version within minutes."""

PROBE = """
import json
import torch, vllm
from guideway_vllm.seams import missing_seams
print(json.dumps([vllm.__version__, torch.__version__, missing_seams()]))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, with rows in the order of the interpreters."""
    parser = argparse.ArgumentParser(description="Which versions of vLLM fit: a row of the table for each environment.")
    parser.add_argument("pythons", nargs="+", metavar="PYTHON")
    parser.add_argument("--check", action="store_true", help="the start-up check alone")
    given = parser.parse_args(arguments)
    print("| vLLM | torch | start-up check | core of the tests |\n|---|---|---|---|")
    for python in given.pythons:
        version, torch, missing = _probe(python)
        checked = "; ".join(f"refused: {line}" for line in missing) or "passes"
        ran = "not run" if given.check or missing else _run_tests(python)
        print(f"| {version} | {torch} | {checked} | {ran} |", flush=True)
    return 0


def _probe(python: str) -> tuple[str, str, list[str]]:
    """Return the versions of vLLM and torch, and the missing methods."""
    done = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{python} cannot import vLLM and guideway-vllm:\n{done.stderr}")
    version, torch, missing = json.loads(done.stdout.splitlines()[-1])
    return version, torch, missing


def _run_tests(python: str) -> str:
    """Return how many of the core tests passed, and which failed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        modules = [str(HERE / f"test_{name}.py") for name in CORE]
        command = [python, "-m", "pytest", *modules, "-m", "vllm", "-W", "default", "-q", f"--junitxml={report}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
        if not report.exists():
            sys.exit(f"the tests did not start in {python}:\n{done.stdout}{done.stderr}")
        cases = list(ET.parse(report).iter("testcase"))
    failed = [
        case.attrib["name"] for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    skipped = sum(case.find("skipped") is not None for case in cases)
    passed = f"{len(cases) - len(failed) - skipped} of {len(cases)} pass"
    return "; ".join([passed, *(f"fails: {name}" for name in failed)])


if __name__ == "__main__":
    sys.exit(main())
