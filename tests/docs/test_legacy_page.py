"""The examples of guideway-legacy's page run, with the output that the page shows."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from guideway_legacy import LegacyModifier

from tests.across.legacy_processors import AdapterLogitsProcessor
from tests.docs.blocks import fenced, matches, run_block

PAGE = "contrib/guideway-legacy/README.md"


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Provide the page's imports from vLLM if it is not installed."""
    if find_spec("vllm") is None:
        for name in ("vllm", "vllm.v1", "vllm.v1.sample", "vllm.v1.sample.logits_processor"):
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name])["AdapterLogitsProcessor"] = AdapterLogitsProcessor


@pytest.mark.usefixtures("vllm")
def test_every_example_does_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {"__name__": "readme"}
    outputs = []
    for block in fenced(PAGE):
        if block.title:
            (tmp_path / block.title).write_text(block.code, encoding="utf-8")
        elif block.language == "text":
            assert matches(block.code, outputs[-1]), f"{PAGE}:{block.line} shows\n{block.code}but it is\n{outputs[-1]}"
        else:
            outputs.append(run_block(block.code, PAGE, names))
    assert outputs[0].endswith(" None\n")
    rules = names["guideway_logit_modifier"]()
    assert (rules.name, issubclass(rules, LegacyModifier)) == ("house_rules", True)
    sys.modules.pop("my_processors")
