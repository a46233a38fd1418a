"""The diagrams of the pages are of a known kind, and their groups are closed. Only a browser could test their looks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, code_blocks

PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))]
DIAGRAMS = [(page, block) for page in PAGES for block in code_blocks(page, "mermaid")]
KINDS = {"flowchart", "sequenceDiagram"}
PAIRS = {")": "(", "]": "[", "}": "{"}


def mistakes(diagram: str) -> list[str]:
    """Return the mistakes in a Mermaid diagram, ignoring quoted texts and messages."""
    lines = [line.strip() for line in diagram.splitlines() if line.strip() and not line.startswith("%%")]
    found = [] if lines and lines[0].split()[0] in KINDS else ["it begins with no known kind of diagram"]
    opened = sum(line.split()[0] in ("subgraph", "par", "loop", "alt", "opt") for line in lines)
    if opened != lines.count("end"):
        found.append(f"{opened} groups begin and {lines.count('end')} end")
    for line in lines:
        rest = re.sub('"[^"]*"', "", line).partition(": ")[0]
        stack: list[str] = []
        for mark in re.findall(r"[()\[\]{}]", rest):
            if mark not in PAIRS:
                stack.append(mark)
            elif not stack or stack.pop() != PAIRS[mark]:
                stack.append(mark)
                break
        if stack or '"' in rest:
            found.append(f"not balanced: {line}")
    return found


def test_there_are_diagrams() -> None:
    assert {page for page, _ in DIAGRAMS} >= {"README.md", "docs/structure.md"}


@pytest.mark.parametrize(
    ("page", "diagram"), DIAGRAMS, ids=[f"{Path(page).stem}-{i}" for i, (page, _) in enumerate(DIAGRAMS)]
)
def test_a_diagram_is_whole(page: str, diagram: str) -> None:
    assert mistakes(diagram) == [], page


@pytest.mark.parametrize(
    "diagram",
    [
        "graf TB\n  a --> b",
        "flowchart TB\n  subgraph a\n  b --> c",
        'flowchart TB\n  a["one --> b',
        'flowchart TB\n  a(["one") --> b',
        "",
    ],
)
def test_a_broken_diagram_is_seen(diagram: str) -> None:
    assert len(mistakes(diagram)) == 1


def test_the_two_pictures_of_the_whole_are_one() -> None:
    assert code_blocks("README.md", "mermaid")[0] == code_blocks("docs/structure.md", "mermaid")[0]
