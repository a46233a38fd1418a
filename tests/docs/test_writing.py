"""The pages on writing plugins, followed literally: the resulting plugin is certified."""

from __future__ import annotations

import inspect
import itertools
import re
import subprocess
import sys
from pathlib import Path
from pkgutil import resolve_name

import pytest
from guideway.api.workflow import PARTS
from guideway.plugins.scaffold import KINDS_TO_WRITE, new_package

from tests.docs.blocks import ROOT, Reader, fenced, matches
from tests.support.stages import everyday

PAGES = {
    kind: f"docs/writing/{kind}.md"
    for kind in ("grammar", "device", "modifier", "worker", "hooks", "workflow", "attention")
}


def test_there_is_a_page_per_kind_that_can_be_begun() -> None:
    assert PAGES.keys() == KINDS_TO_WRITE.keys()
    there = {f"docs/writing/{path.name}" for path in (ROOT / "docs/writing").iterdir()}
    assert {*PAGES.values(), "docs/writing/porting.md"} == there


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_its_blocks_are_programs_files_and_outputs(page: str) -> None:
    for before, block in itertools.pairwise(fenced(page)):
        assert block.language in {"bash", "python", "text", "toml", "mermaid"}, block
        assert block.language != "toml" or block.title or block.unchecked, f"{page}:{block.line} is no file"
        assert block.language != "text" or (before.language in ("bash", "python") and not before.title), block


@pytest.mark.parametrize(
    "kind",
    everyday(PAGES),
)
def test_a_reader_ends_with_a_certified_plugin(kind: str, tmp_path: Path) -> None:
    page, reader, output, everything = PAGES[kind], Reader(tmp_path), "", ""
    for block in fenced(page):
        if block.language == "mermaid" or block.unchecked:
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


def test_the_engine_s_parts_are_there_and_read_the_fields_that_the_page_names() -> None:
    page = (ROOT / PAGES["workflow"]).read_text("utf-8")
    rows = re.findall(r"^\| `(\w+:\w+)` \| .* \|([^|]*)\|$", page, re.MULTILINE)
    assert len(rows) == 5
    for address, fields in rows:
        cls = resolve_name(f"guideway_engine.prefill.{address}")
        assert issubclass(cls, tuple(PARTS.values()))
        read = {name for base in cls.__mro__[:-1] for name in re.findall(r"\boptions\.(\w+)", inspect.getsource(base))}
        assert read == set(re.findall(r"`(\w+)`", fields)), address


@pytest.mark.parametrize(("kind", "name", "most"), [("device", "jnp", 35), ("modifier", "mirostat", 40)])
def test_the_smallest_one_is_short_and_what_a_new_package_holds(
    kind: str, name: str, most: int, tmp_path: Path
) -> None:
    """The tests of `plugins new` test that a new package is certified."""
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
