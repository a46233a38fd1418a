"""The table of docs/modifiers.md is that of the installed modifiers."""

from __future__ import annotations

import re

import importlib_metadata
from guideway.api import Need, Stage

from tests.docs.blocks import ROOT

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
