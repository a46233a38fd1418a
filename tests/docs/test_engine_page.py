"""Every example of the engine's page runs, and what it shows is so."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from guideway import FinishReason, SamplingParams

from tests.docs.blocks import code_blocks, run_block

ROOT = Path(__file__).parents[2]
PAGE = "docs/engine.md"


@pytest.fixture(scope="module")
def shown() -> tuple[list[str], dict[str, Any]]:
    """What each block printed, and the names they left."""
    namespace: dict[str, Any] = {"__name__": "engine_page"}
    return [run_block(source, PAGE, namespace) for source in code_blocks(PAGE, "python")], namespace


def said(shown: tuple[list[str], dict[str, Any]], needle: str) -> str:
    """What the one block with `needle` printed."""
    (index,) = [i for i, source in enumerate(code_blocks(PAGE, "python")) if needle in source]
    return shown[0][index]


def test_every_example_runs(shown: tuple[list[str], dict[str, Any]]) -> None:
    outputs, names = shown
    assert len(outputs) >= 13
    assert names["good"].finish_reason is FinishReason.STOP
    assert json.loads(names["good"].text) == {"name": "Zoë Garcia", "age": 31}
    assert names["refused"].error.field == "top_p"
    assert names["cut"].outputs[0].stop == "Garcia"
    assert "Garcia" not in names["cut"].text
    assert len(names["several"].outputs) == 3
    assert len(names["best"].outputs) == 1
    assert names["scored"].text.startswith("<|user|>") or "Extract name" in names["scored"].text
    assert len(names["scored"].prompt_logprobs) == len(names["scored"].prompt_token_ids)
    assert [result.error for result in names["results"]] == [None] * 3
    assert names["result"].error is None


def test_the_table_has_every_sampling_parameter() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| [^|]+ \| ", (ROOT / PAGE).read_text("utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall("[a-z_]+", row)]
    assert sorted(named) == sorted(field.name for field in fields(SamplingParams))


def test_what_is_printed_is_what_the_text_says(shown: tuple[list[str], dict[str, Any]]) -> None:
    assert said(shown, "refused.finish_reason").splitlines()[1].startswith("refused ")
    assert json.loads(said(shown, "for text in generation:\n    print").rpartition("}")[0] + "}")["age"] == 31
    assert "True" in said(shown, "urgent")
    assert said(shown, "unfinished").endswith("abort\n")
    assert "layer" in said(shown, "layer_timing.report")
    assert said(shown, "generation.fork()").count("'") >= 4
