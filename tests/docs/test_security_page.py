"""The page on security has a row for every module that reads or writes bytes, and its tests exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs/security.md").read_text("utf-8")

MODULES = {"socket", "pickle", "marshal", "shelve", "mmap", "tempfile", "subprocess", "multiprocessing", "tomllib"}
"""Modules that move bytes across the border of a process."""
CALLS = {
    *("environ", "getenv", "pipe", "memfd_create", "mkfifo", "forkpty"),
    *("write_text", "write_bytes", "read_text", "read_bytes", "unlink"),
    *("from_pretrained", "load_file", "create_server", "TCPStore", "init_process_group"),
}
"""Attributes that do."""
NAMES = {"open", "eval", "exec", "environ"}
"""Functions that do, by the names in calls."""


def sources() -> Iterator[Path]:
    for top in ("core/guideway", "core/*/src", "plugins/*/src", "contrib/*/src"):
        for folder in ROOT.glob(top):
            yield from (path for path in folder.rglob("*.py") if "training" not in path.parts)


def borders(source: str) -> set[str]:
    """Return the modules, attributes and functions by which a module's code reads or writes bytes."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module.partition(".")[0]} & MODULES
        elif isinstance(node, ast.Attribute) and node.attr in CALLS:
            found.add(node.attr)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMES:
            found.add(node.func.id)
    return found


def named(path: Path) -> bool:
    """Return whether the page names a module, or a folder that contains it."""
    parts = path.relative_to(ROOT)
    return any(f"`{each.as_posix()}{end}`" in PAGE for each in (parts, *parts.parents) for end in ("", "/"))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import socket", {"socket"}),
        ("from multiprocessing.connection import Listener", {"multiprocessing"}),
        ("import os\nos.environ['A']", {"environ"}),
        ("open('a')", {"open"}),
        ("import json\njson.loads('1')", set()),
    ],
)
def test_borders_are_seen(source: str, found: set[str]) -> None:
    assert borders(source) == found


def test_every_module_with_a_border_has_a_row() -> None:
    missing = {
        path.relative_to(ROOT).as_posix(): sorted(found)
        for path in sources()
        if (found := borders(path.read_text("utf-8"))) and not named(path)
    }
    assert not missing


def test_its_modules_and_tests_are_there() -> None:
    paths = re.findall(r"`((?:core|plugins|contrib|tests)/[\w./-]+)`", PAGE)
    assert [path for path in paths if not (ROOT / path).exists()] == []
