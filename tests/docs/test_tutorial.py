"""The tutorial, followed to the letter: its files written, its commands and programs run, its outputs compared."""

from __future__ import annotations

import itertools
import os
import re
import site
import subprocess
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import guideway
import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial.md"
HELLO = ROOT / "contrib" / "guideway-hello"


@dataclass(frozen=True)
class Block:
    """A fenced block: ``text`` is the output of the one before it, one with a title is a file."""

    language: str
    title: str
    code: str
    line: int


def blocks() -> Iterator[Block]:
    text = TUTORIAL.read_text("utf-8")
    for found in re.finditer(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', text, re.MULTILINE | re.DOTALL):
        yield Block(found[1], found[2] or "", found[3], text[: found.start()].count("\n") + 1)


def test_no_fence_is_overlooked() -> None:
    found = list(blocks())
    assert 2 * len(found) == len(re.findall("^```", TUTORIAL.read_text("utf-8"), re.MULTILINE))
    assert {block.language for block in found} == {"bash", "python", "text", "toml"}
    for before, block in itertools.pairwise(found):
        assert block.language != "text" or (before.language in ("bash", "python") and not before.title)


def test_the_finished_files_are_those_of_the_package() -> None:
    finished = {block.title: block.code for block in blocks() if block.title}
    assert finished.keys() == {"pyproject.toml", "src/guideway_hello/__init__.py", "tests/test_hello.py"}
    for title, code in finished.items():
        assert code == (HELLO / title).read_text("utf-8"), f"the tutorial's last {title} is not the package's"


class Machine:
    """A virtual environment that borrows everything but the tutorial's package from this one."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "hello"
        self.project.mkdir()
        environment = folder / "venv"
        venv.create(environment, symlinks=True)
        (target,) = environment.glob("lib/python*/site-packages")
        borrowed = "".join(f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages())
        (target / "zz_borrowed.pth").write_text(f"{Path(guideway.__file__).parents[1]}\n{borrowed}", encoding="utf-8")
        self.programs = environment / "bin"
        for name in ("pip", "guideway"):
            program = self.programs / name
            program.write_text(f'#!/bin/sh\nexec "{self.programs}/python" -m {name} "$@"\n', encoding="utf-8")
            program.chmod(0o755)

    def run(self, block: Block) -> str:
        """The standard output of a block that must succeed."""
        command = ["bash", "-euo", "pipefail", "-c"] if block.language == "bash" else ["python", "-c"]
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PIP_", "GUIDEWAY_", "COV_"))}
        # what an index would give is here already; 0 in this variable means no isolation, as pip has it
        offline = {"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1"}
        offline |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        path = {"PATH": f"{self.programs}{os.pathsep}{os.environ['PATH']}"}
        environment = kept | offline | path
        done = subprocess.run(
            [*command, block.code], cwd=self.project, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{TUTORIAL.name}:{block.line} failed:\n{done.stdout}\n{done.stderr}"
        return done.stdout


def matches(expected: str, output: str) -> bool:
    """Whether `output` is what the tutorial shows; ``...`` stands for anything, spaces for any number of spaces."""
    parts = [re.escape(re.sub(r"[ ]+", " ", part)) for part in expected.strip().split("...")]
    return re.fullmatch(".*".join(parts), re.sub(r"[ ]+", " ", output.strip()), re.DOTALL) is not None


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    output = ""
    for block in blocks():
        if block.title:
            (machine.project / block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "text":
            assert matches(block.code, output), f"{TUTORIAL.name}:{block.line} shows\n{block.code}\nbut it is\n{output}"
        else:
            output = machine.run(block)
            if 'letter": "e"}\'' in block.code:  # the claim that has no fixed output
                assert "e" not in re.findall('"text": "(.*?)", "finish', output)[0].lower()


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a\n", "a\n", True),
        ("a  b\n", "a b", True),
        ("a\n...\nz", "a\nb\nc\nz\n", True),
        ("a", "a\nb", False),
        ("a...", "ba", False),
        ("a.", "ab", False),
    ],
)
def test_outputs_are_compared(expected: str, output: str, same: bool) -> None:
    assert matches(expected, output) is same
