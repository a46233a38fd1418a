"""Docstrings begin with a verb or a noun, not with a question word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.repository.sources import ROOT, source_files

QUESTIONS = re.compile(r"(What|How|Whether|Of|Which|Where|If)\b")


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield ``(line, text)`` of each docstring in `source`: of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def questions(source: str) -> list[tuple[int, str]]:
    return [(line, text[:60]) for line, text in docstrings(source) if QUESTIONS.match(text.lstrip())]


@pytest.mark.parametrize("top", ["core", "plugins", "contrib"])
def test_docstrings_begin_with_a_verb_or_a_noun(top: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in source_files()
        if path.suffix == ".py" and path.is_relative_to(ROOT / top)
        for line, text in questions(path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


def test_those_of_templates_and_pages_too() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in source_files()
        if path.name.endswith((".py.txt", ".md"))
        for line in path.read_text("utf-8").splitlines()
        if QUESTIONS.match(line.strip().removeprefix('"""')) and line.strip().startswith('"""')
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        '"""What it is."""',
        'class A:\n    """Where it is."""',
        'def f():\n    """\n    Whether it is."""',
        'async def f():\n    """How it is."""',
        'class A:\n    x: int\n    """Of the rows."""',
        'X = 1\n"""Which one."""',
        'def f(self):\n    self.x = 1\n    """If it is."""',
    ],
)
def test_a_question_is_found(source: str) -> None:
    assert len(questions(source)) == 1


@pytest.mark.parametrize(
    "source", ['"""Whatever comes."""', 'X = "What is this?"', '"""Return what it is."""', "f = lambda: 1"]
)
def test_other_texts_are_none(source: str) -> None:
    assert not questions(source)
