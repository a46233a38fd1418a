"""Run the plugins, mutants and saboteurs that left this folder against today's suite: ``python removed_mutants.py
{judged,saboteurs} [OPTIONS]``.

The folder `judged` held 95 plugins and 842 mutants, and `saboteurs` 864 classes with one bug each. This takes each file
of the folder, and the test that ran it, from the last commit that has the file, and gives pytest the options. It needs
a clone with its history, and takes hours without ``-k``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
REMOVED = {"judged": ("judged", "test_judged.py"), "saboteurs": ("saboteurs", "test_saboteurs.py")}


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True).stdout


def extract(paths: list[str], folder: str) -> None:
    """Write each file below `paths` that a commit removed to `folder`, as it was before its last removal."""
    removed: dict[str, list[str]] = defaultdict(list)
    known: set[str] = set()
    commit = ""
    log = git("log", "--format=commit %H", "--name-only", "--no-renames", "--diff-filter=D", "--", *paths)
    for line in log.decode().splitlines():
        if line.startswith("commit "):
            commit = line.removeprefix("commit ")
        elif line and line not in known:
            known.add(line)
            removed[commit].append(line)
    if paths[-1] not in known:
        sys.exit(f"no commit removes {paths[-1]}: run this in a clone with its history")
    for commit, files in removed.items():
        subprocess.run(["tar", "-x", "-C", folder], input=git("archive", f"{commit}~", *files), check=True)


def main() -> int:
    if not REMOVED.keys() & set(sys.argv[1:2]):
        sys.exit(f"the first argument must be {' or '.join(REMOVED)}")
    tests = HERE.relative_to(ROOT).as_posix()
    paths = [f"{tests}/{name}" for name in REMOVED[sys.argv[1]]]
    with tempfile.TemporaryDirectory() as folder:
        extract(paths, folder)
        place = Path(folder) / tests
        options = ["-p", "no:cacheprovider", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), "-m", ""]
        path = os.pathsep.join([str(place), str(HERE), str(ROOT)])
        command = [sys.executable, "-m", "pytest", *options, f"{folder}/{paths[-1]}", *sys.argv[2:]]
        return subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main())
