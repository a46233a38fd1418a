"""The page on porting: old code is refused with the very errors shown, new code loads, and the table is complete."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guideway.errors import PluginLoadError
from guideway.plugins import PluginRecord, moved
from guideway.plugins.loading import Loaded, load

from tests.docs.blocks import ROOT, Block, fenced, matches

PAGE = "docs/writing/porting.md"
BLOCKS = fenced(PAGE)
PORTED = dict(zip(("modifier", "grammar", "device", "worker", "hooks"), BLOCKS[::2], strict=True))
ERRORS = dict(zip(PORTED, BLOCKS[1::2], strict=True))


def table() -> str:
    """Return all of `moved` as the page has it: a row for each hint."""
    all_moved = [
        *moved.NAMES.items(),
        *((f"{name}({keyword}=...)", now) for (name, keyword), now in moved.KEYWORDS.items()),
        *((f"hook {hook}", now) for hook, now in moved.HOOKS.items()),
        *((f"{kind} {attribute}", now) for (kind, attribute), now in moved.ATTRIBUTES.items()),
        *((f"{kind} {method} without {name}", now) for (kind, method, name), now in moved.PARAMETERS.items()),
    ]
    rows: dict[str, list[str]] = {}
    for before, now in all_moved:
        rows.setdefault(now, []).append(f"`{before}`")
    return "".join(f"| {', '.join(before)} | {now} |\n" for now, before in rows.items())


def side(block: Block, sign: str) -> str:
    """Return the unchanged lines of a diff, and those with this sign."""
    assert all(line[:1] in ("", " ", "+", "-") for line in block.code.splitlines())
    return "".join(f"{line[1:]}\n" for line in block.code.splitlines() if line[:1] in ("", " ", sign))


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("ported_"):
            del sys.modules[name]


def try_to_load(kind: str, code: str, folder: Path, side: str) -> Loaded:
    module = f"ported_{kind}_{side}_{folder.name}"
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    name = re.search(r'name.* = "(\w+)"', code) or re.search(r'add_parser\("(\w+)"', code)
    assert name
    return load(PluginRecord(kind, name[1], module, "yours", "1", str(folder), requires=("guideway",)))


def test_the_table_has_all_that_moved() -> None:
    section = (ROOT / PAGE).read_text("utf-8").split("## What moved")[1].split("## ")[0]
    assert section.split("|---|---|\n")[1].strip() == table().strip(), f"it has to be\n{table()}"


def test_a_picture_of_each_kind_has_its_error() -> None:
    assert [block.language for block in BLOCKS] == ["diff", "text"] * len(PORTED)


@pytest.mark.parametrize("kind", PORTED)
def test_before_it_is_refused_as_shown_and_after_it_loads(kind: str, loaded: Path) -> None:
    before, after = (side(PORTED[kind], sign) for sign in "-+")
    with pytest.raises(PluginLoadError) as caught:
        try_to_load(kind, before, loaded, "before")
    error, _, last = str(caught.value).rpartition("\n")
    assert last.startswith("  hint: guideway plugins doctor --import ")
    assert matches(ERRORS[kind].code, error), f"it is\n{error}"
    try_to_load(kind, after, loaded, "after")
