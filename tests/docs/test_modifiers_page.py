"""The tables and the picture of docs/modifiers.md are those of the installed modifiers."""

from __future__ import annotations

import re

import importlib_metadata
import pytest
from guideway.api import Need, Stage

from tests.across.test_contributed_modifiers import DEVICES, WISHES
from tests.docs.blocks import ROOT
from tests.docs.modifier_effects import PAGE, PICTURE, SHOWN, device_rows, picture, table

WORDS = {
    Need.HISTORY: "history",
    Need.HIDDEN_STATES: "hidden states",
    Need.COMPANIONS: "companions",
    Need.EDIT_PROMPT: "edited prompts",
    Need.UNIFORM: "random numbers",
    Need.FEEDBACK: "feedback",
}


def test_the_table_lists_every_modifier_with_stage_and_needs() -> None:
    page = (ROOT / "docs" / "modifiers.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| \[([\w-]+)\].*? \| `(\w+)` \| .* \| ([\w ,]*)\|$", page, re.MULTILINE)
    found = {(name, package, stage, frozenset(needs.strip().split(", "))) for name, package, stage, needs in rows}
    expected = set()
    for entry in importlib_metadata.entry_points(group="guideway.v1"):
        kind, _, name = entry.name.partition(".")
        if kind == "modifier" and entry.value.startswith("guideway_"):
            hook = entry.load().guideway_logit_modifier
            cls = hook(name) if hook.__code__.co_argcount else hook()
            needs = frozenset(WORDS[need] for need in cls.needs) or frozenset({""})
            expected.add((name, entry.dist.name, cls.stage.value, needs))
    assert found == expected
    order = [stage.value for stage in Stage]
    assert [stage for _, _, stage, _ in rows] == sorted((stage for _, _, stage, _ in rows), key=order.index)


NUMBER = re.compile(r"\d+\.\d")


def test_the_picture_is_up_to_date() -> None:
    """It may differ by the last digit of a height, since processors round sums differently."""
    old, new = PICTURE.read_text("utf-8"), picture()
    assert NUMBER.sub("", old) == NUMBER.sub("", new), "make it: python -m tests.docs.modifier_effects"
    assert [float(x) for x in NUMBER.findall(old)] == pytest.approx([float(x) for x in NUMBER.findall(new)], abs=0.11)


def test_the_picture_shows_every_modifier_with_an_effect_of_its_own() -> None:
    rows = re.findall(r"^\| `(\w+)` \| \[guideway-", PAGE.read_text("utf-8"), re.MULTILINE)
    assert {cls.name for cls in SHOWN} == set(rows) - {"healing", "legacy"}


def test_the_table_of_devices_has_every_modifier_and_device() -> None:
    """The same tokens are a test of their own, in `tests.across.test_contributed_modifiers`."""
    header, _, *rows = table(PAGE.read_text("utf-8")).splitlines()
    assert header.strip("| ").split(" | ") == ["modifier", "numpy", *DEVICES]
    assert rows == [f"| `{cls.name}` |{' ✓ |' * (1 + len(DEVICES))}" for cls in WISHES]


@pytest.mark.slow
def test_the_table_of_devices_is_up_to_date() -> None:
    assert table(PAGE.read_text("utf-8")) == device_rows()
