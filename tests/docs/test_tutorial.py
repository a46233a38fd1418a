"""The tutorial, followed literally: its files written, its commands and programs run, its outputs compared."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, Reader, fenced, matches

PAGE = "docs/tutorial.md"
HELLO = ROOT / "contrib" / "guideway-hello"


def test_its_blocks_are_programs_files_and_outputs() -> None:
    found = fenced(PAGE)
    assert {block.language for block in found} == {"bash", "python", "text", "toml"}
    for before, block in itertools.pairwise(found):
        assert block.language != "text" or (before.language in ("bash", "python") and not before.title)


def test_the_finished_files_are_those_of_the_package() -> None:
    finished = {block.title: block.code for block in fenced(PAGE) if block.title}
    assert finished.keys() == {"pyproject.toml", "src/guideway_hello/__init__.py", "tests/test_hello.py"}
    for title, code in finished.items():
        assert code == (HELLO / title).read_text("utf-8"), f"the tutorial's last {title} is not the package's"


@pytest.mark.slow
def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    reader, output = Reader(tmp_path), ""
    for block in fenced(PAGE):
        if block.title:
            (reader.here / block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "text":
            assert matches(block.code, output), f"{PAGE}:{block.line} shows\n{block.code}\nbut it is\n{output}"
        else:
            output = reader.run(block)
            if 'letter": "e"}\'' in block.code:  # the only claim without a fixed output
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
