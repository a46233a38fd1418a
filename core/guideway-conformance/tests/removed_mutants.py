"""Run removed plugins with mistakes against today's suite: ``python removed_mutants.py FOLDER [OPTIONS]``.

FOLDER is `judged`, which held 95 plugins and 842 mutants, or `saboteurs`, which held 864 plugins with one bug each.
The script takes it, with its test, from the last commit that has it, and gives pytest the options. It needs a clone
with its history, and takes hours without ``-k``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
FOLDERS = ("judged", "saboteurs")


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout


def main() -> int:
    if not {*FOLDERS} & {*sys.argv[1:2]}:
        sys.exit(f"the first argument must be {' or '.join(FOLDERS)}")
    tests = HERE.relative_to(ROOT).as_posix()
    paths = [f"{tests}/{sys.argv[1]}", f"{tests}/test_{sys.argv[1]}.py"]
    removal = git("log", "-1", "--format=%H", "--diff-filter=D", "--", paths[-1]).decode().strip()
    if not removal:
        sys.exit(f"no commit removes {paths[-1]}: run this in a clone with its history")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["tar", "-x", "-C", folder], input=git("archive", f"{removal}~", *paths), check=True)
        place = Path(folder) / tests
        options = ["-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "-m", ""]
        path = os.pathsep.join([str(place), str(HERE), str(ROOT)])
        command = [sys.executable, "-m", "pytest", *options, f"{folder}/{paths[-1]}", *sys.argv[2:]]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main())
