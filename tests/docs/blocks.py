"""The code blocks of a page, and a way to run them like a reader."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import site
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import guideway

ROOT = Path(__file__).parents[2]


def code_blocks(page: str, language: str) -> list[str]:
    """Return the blocks of `language` in the page at `page`, in order."""
    return [block.code for block in fenced(page) if block.language == language]


def run_block(source: str, page: str, namespace: dict[str, Any]) -> str:
    """Run Python code in `namespace`; return its output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, page, "exec", dont_inherit=True), namespace)
    return printed.getvalue()


@dataclass(frozen=True)
class Block:
    """A fenced block. ``text`` is the output of the previous block, a block with a title is a file, and one without a
    language a picture."""

    language: str
    title: str
    unchecked: str
    """Why it is not run or not compared; empty if it is."""
    code: str
    line: int


def pages() -> list[str]:
    """Return every page of the repository that has a block."""
    found = []
    for folder, folders, files in os.walk(ROOT):
        folders[:] = sorted(name for name in folders if name[0] != "." and name not in ("build", "dist"))
        found += [Path(folder, name) for name in sorted(files) if name.endswith(".md")]
    return [str(path.relative_to(ROOT)) for path in found if "```" in path.read_text(encoding="utf-8")]


def fenced(page: str) -> list[Block]:
    """Return all blocks of the page at `page`, in order. Raises AssertionError for a fence in another format."""
    text = (ROOT / page).read_text(encoding="utf-8")
    first_line = r'^```(\w*)(?: title="([^"]+)")?(?: unchecked="([^"]+)")?\n'
    found = [
        Block(match[1], match[2] or "", match[3] or "", match[4], text[: match.start()].count("\n") + 1)
        for match in re.finditer(rf"{first_line}(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]
    assert 2 * len(found) == len(re.findall("^ *```", text, re.MULTILINE)), f"{page}: a fence is overlooked"
    return found


def matches(expected: str, output: str) -> bool:
    """Return whether `output` matches the page; ``...`` stands for anything, spaces for any number of spaces."""
    parts = [re.escape(re.sub(r"[ ]+", " ", part)) for part in expected.strip().split("...")]
    return re.fullmatch(".*".join(parts), re.sub(r"[ ]+", " ", output.strip()), re.DOTALL) is not None


class Reader:
    """Follows a page in one shell, in a virtual environment that shares everything but the reader's package with
    this."""

    def __init__(self, folder: Path) -> None:
        self._state = folder / "state"
        start = folder / "start"
        start.mkdir()
        environment = folder / "venv"
        venv.create(environment, symlinks=True)
        (target,) = environment.glob("lib/python*/site-packages")
        borrowed = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
        (target / "zz_borrowed.pth").write_text(f"{Path(guideway.__file__).parents[1]}\n{borrowed}", encoding="utf-8")
        programs = environment / "bin"
        for name in ("pip", "guideway"):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{programs}/python" -m {name} "$@"\n', encoding="utf-8")
            program.chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_", "GUIDEWAY_", "COV_"))}
        # packages are here already, without an index; in this variable, 0 means no isolation, as pip reads it
        offline = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}
        offline |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        path = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PWD": str(start)}
        subprocess.run(["bash", "-c", f"export -p > '{self._state}'"], cwd=start, env=kept | offline | path, check=True)

    @property
    def here(self) -> Path:
        """The folder that the reader is in."""
        found = re.search(r'^declare -x PWD="(.*)"$', self._state.read_text(encoding="utf-8"), re.MULTILINE)
        assert found
        return Path(found[1])

    def run(self, block: Block) -> str:
        """Return the standard output of a bash or python block, which must succeed; folder and variables are kept for
        the next block."""
        code = block.code if block.language == "bash" else f"python -c {shlex.quote(block.code)}"
        shell = f'. "{self._state}"; cd "$PWD"; trap \'export -p > "{self._state}"\' EXIT\n{code}'
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", shell], env={}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"the block at line {block.line} failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout
