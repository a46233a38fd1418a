"""The pages on writing plugins, followed to the letter: what a reader gets in the end is certified."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from guideway.plugins.scaffold import KINDS_TO_WRITE, new_package

from tests.docs.blocks import ROOT, Reader, fenced, matches
from tests.support.stages import everyday

PAGES = {kind: f"docs/writing/{kind}.md" for kind in ("grammar", "device", "modifier", "worker", "hooks", "attention")}

WORKFLOW = "docs/writing/workflow.md"
"""Its contract is not settled, and `plugins new` begins none."""


def test_there_is_a_page_per_kind_that_can_be_begun() -> None:
    assert PAGES.keys() == KINDS_TO_WRITE.keys()
    there = {f"docs/writing/{path.name}" for path in (ROOT / "docs/writing").iterdir()}
    assert {*PAGES.values(), "docs/writing/porting.md", WORKFLOW} == there


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_its_blocks_are_programs_files_and_outputs(page: str) -> None:
    for before, block in itertools.pairwise(fenced(page)):
        assert block.language in {"bash", "python", "text", "toml", "mermaid"}, block
        assert block.language != "toml" or block.title, f"{page}:{block.line} is no file"
        assert block.language != "text" or (before.language in ("bash", "python") and not before.title), block


@pytest.mark.parametrize(
    "kind",
    everyday(PAGES),
)
def test_a_reader_ends_with_a_certified_plugin(kind: str, tmp_path: Path) -> None:
    page, reader, output, everything = PAGES[kind], Reader(tmp_path), "", ""
    for block in fenced(page):
        if block.language == "mermaid":
            continue
        if block.title:
            (reader.here / block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "text":
            assert matches(block.code, output), f"{page}:{block.line} shows\n{block.code}\nbut it is\n{output}"
        else:
            output = reader.run(block)
            everything += output
    certified = rf"^\S+/{kind}\.\w+: CERTIFIED, .*\nlevels: smoke, core.*\nrecorded in .*guideway\.lock$"
    assert re.search(certified, everything, re.MULTILINE)


@pytest.mark.slow
def test_a_reader_ends_with_a_workflow_that_serves(tmp_path: Path) -> None:
    reader, output, shown = Reader(tmp_path), "", 0
    for block in fenced(WORKFLOW):
        if block.title:
            (reader.here / block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "text":
            assert matches(block.code, output), f"{WORKFLOW}:{block.line} shows\n{block.code}\nbut it is\n{output}"
            shown += 1
        elif not block.unchecked:
            output = reader.run(block)
    assert shown >= 2


@pytest.mark.parametrize(("kind", "name", "most"), [("device", "jnp", 35), ("modifier", "mirostat", 40)])
def test_the_smallest_one_is_short_and_what_a_new_package_holds(
    kind: str, name: str, most: int, tmp_path: Path
) -> None:
    """That a new package is certified is for the tests of `plugins new`."""
    new_package(kind, name, tmp_path / "new")
    path = f"src/guideway_{name}/__init__.py"
    smallest = next(block for block in fenced(PAGES[kind]) if block.title == path)
    assert smallest.code == (tmp_path / "new" / path).read_text(encoding="utf-8")
    assert smallest.code.count("\n") <= most


def test_the_code_is_in_style(tmp_path: Path) -> None:
    for kind, page in PAGES.items():
        for block in fenced(page):
            if block.language == "python":
                (tmp_path / f"{kind}_{block.line}.py").write_text(block.code, encoding="utf-8")
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--no-cache", "--config", str(ROOT / "pyproject.toml"), str(tmp_path)]
    own = 'lint.isort.known-first-party = ["guideway_jnp"]'
    subprocess.run([*ruff, "check", *config, "--config", own, "--ignore", "T201,INP001"], check=True)
    subprocess.run([*ruff, "format", "--check", *config], check=True)
