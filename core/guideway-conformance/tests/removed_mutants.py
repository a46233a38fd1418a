"""Run the plugins and mutants that were removed from this folder against the current suite:
``python removed_mutants.py [OPTIONS]``.

The folder `judged` had 95 plugins and 842 mutants. This restores it and its test from the last commit that has them,
and passes the options to pytest. It needs a clone with its history, and takes hours without ``-k``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
REMOVED = ("judged", "test_judged.py")


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout


def main() -> int:
    tests = HERE.relative_to(ROOT).as_posix()
    paths = [f"{tests}/{name}" for name in REMOVED]
    removal = git("log", "-1", "--format=%H", "--diff-filter=D", "--", paths[-1]).decode().strip()
    if not removal:
        sys.exit(f"no commit removes {paths[-1]}: run this in a clone with its history")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=git("archive", f"{removal}~", *paths), check=True)
        place = Path(folder) / tests
        options = ["-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "-m", ""]
        path = os.pathsep.join([str(place), str(HERE), str(ROOT)])
        command = [sys.executable, "-m", "pytest", *options, str(place / REMOVED[-1]), *sys.argv[1:]]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main())
