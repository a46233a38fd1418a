"""Every example of the engine's page runs, and what it shows is so."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from guideway import FinishReason, SamplingParams
from guideway.api import types
from guideway_engine.generation import Generation

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
    assert len(outputs) >= 20
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
    assert 15 <= len(names["pale"].token_ids) <= 20


def test_the_table_has_every_sampling_parameter() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| [^|]+ \| ", (ROOT / PAGE).read_text("utf-8"), re.MULTILINE)
    named = [name for row in rows for name in re.findall("[a-z_]+", row)]
    assert sorted(named) == sorted(field.name for field in fields(SamplingParams))


def test_what_is_printed_is_what_the_text_says(shown: tuple[list[str], dict[str, Any]]) -> None:
    assert said(shown, "refused.finish_reason").splitlines()[1].startswith("refused ")
    assert json.loads(said(shown, "for text in generation:\n    print").rpartition("}")[0] + "}")["age"] == 31
    assert "True" in said(shown, "tight.submit")
    assert said(shown, "unfinished").endswith("abort\n")
    assert "layer" in said(shown, "layer_timing.report")
    assert said(shown, "generation.fork()").count("'") >= 4
    assert [line.split()[0] for line in said(shown, "on_result").splitlines()] == ["1", "0"]
    assert said(shown, "without_e").endswith(" False\n")
    assert said(shown, "generation.abort()") == "abort True\n"
    full, room, still = said(shown, "QueueFull").splitlines()
    assert "max_waiting is 2" in full
    assert (room, still) == ("False True", "[True, True]")
    assert said(shown, "AutoConfig") in ("yes stop\n", "no stop\n")


def test_every_constraint_is_obeyed(shown: tuple[list[str], dict[str, Any]]) -> None:
    expected = (
        r"stop llguidance (yes|no)",
        r"stop llguidance [A-Z][a-z]{2,9}, \d{1,3} years",
        r"stop llguidance age \d{1,3}",
        r"(stop xgrammar \{.*\}|length xgrammar \{.*)",  # which object is the model's own affair
        r"(stop llguidance <answer>\{.*\}</answer>|length llguidance <answer>.*)",
    )
    assert re.fullmatch("\n".join(expected) + "\n", said(shown, "StructuralTag"), re.DOTALL)


def test_chunks_are_those_of_both_outputs(shown: tuple[list[str], dict[str, Any]]) -> None:
    lines = said(shown, "chunks()").splitlines()
    assert {line[0] for line in lines} == {"0", "1"}
    assert len([line for line in lines if line.endswith(("stop", "length"))]) == 2


def test_every_name_for_a_user_is_in_a_block() -> None:
    blocks = "\n".join(code_blocks(PAGE, "python"))
    names = {field.name for field in fields(SamplingParams)} - {"stop_token_ids", "modifiers"}
    public = {name: getattr(types, name) for name in types.__all__}
    names |= {name for name, kind in public.items() if issubclass(kind, types.Constraint)} - {"Constraint"}
    names |= {name for name in vars(Generation) if not name.startswith("_")} - {"result"}
    assert {name for name in names if not re.search(rf"\b{name}\b", blocks)} == set()
