"""Every example of the engine's page runs, with the output that the page shows."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest
from guideway import FinishReason, SamplingParams
from guideway.api import types
from guideway_engine.generation import Generation

from tests.docs.blocks import code_blocks
from tests.docs.follow import Followed, follow

ROOT = Path(__file__).parents[2]
PAGE = "docs/engine.md"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    return follow(PAGE, tmp_path_factory.mktemp("engine"))


@pytest.mark.slow
def test_every_example_runs(shown: Followed) -> None:
    assert len(shown.outputs) >= 20
    names = shown.names
    assert names["good"].finish_reason is FinishReason.STOP
    assert json.loads(names["good"].text) == {"name": "Zoë Garcia", "age": 31}
    assert names["refused"].error.field == "top_p"
    assert names["too_short"].error.field == "max_tokens"
    assert names["unknown"].error.field == "tools"
    assert names["person_found"] == names["Person"](name="Zoë Garcia", age=31)
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


@pytest.mark.slow
def test_what_is_printed_is_what_the_text_says(shown: Followed) -> None:
    assert shown.said("refused.finish_reason").splitlines()[1].startswith("refused ")
    assert json.loads(shown.said("for text in generation:\n    print(text").rpartition("}")[0] + "}")["age"] == 31
    assert "True" in shown.said("tight.submit")
    assert shown.said("unfinished").endswith("abort\n")
    assert "layer" in shown.said("layer_timing.report")
    assert shown.said("generation.fork()").count("'") >= 4
    assert [line.split()[0] for line in shown.said("on_result").splitlines()] == ["1", "0"]
    assert shown.said("without_e").endswith(" False\n")
    partial = shown.said("repr(text), generation.partial()").splitlines()
    assert "{'name': 'Zoë Garcia'}" in partial[-3]
    assert partial[-1] == "True"
    assert shown.said("generation.abort()") == "abort True\n"
    full, room, still = shown.said("QueueFull").splitlines()
    assert "max_waiting is 2" in full
    assert (room, still) == ("False True", "[True, True]")
    assert shown.said("AutoConfig") in ("yes stop\n", "no stop\n")


@pytest.mark.slow
def test_every_constraint_is_obeyed(shown: Followed) -> None:
    expected = (
        r"stop llguidance (yes|no)",
        r"stop llguidance [A-Z][a-z]{2,9}, \d{1,3} years",
        r"stop llguidance age \d{1,3}",
        r"(stop xgrammar \{.*\}|length xgrammar \{.*)",  # which object is the model's own affair
        r"(stop llguidance <answer>\{.*\}</answer>|length llguidance <answer>.*)",
    )
    assert re.fullmatch("\n".join(expected) + "\n", shown.said("StructuralTag"), re.DOTALL)


@pytest.mark.slow
def test_chunks_are_those_of_both_outputs(shown: Followed) -> None:
    lines = shown.said("chunks()").splitlines()
    assert {line[0] for line in lines} == {"0", "1"}
    assert len([line for line in lines if line.endswith(("stop", "length"))]) == 2


def test_every_name_for_a_user_is_in_a_block() -> None:
    blocks = "\n".join(code_blocks(PAGE, "python"))
    names = {field.name for field in fields(SamplingParams)} - {"stop_token_ids", "modifiers"}
    public = {name: getattr(types, name) for name in types.__all__}
    names |= {
        name for name, kind in public.items() if isinstance(kind, type) and issubclass(kind, types.Constraint)
    } - {"Constraint"}
    names |= {name for name in vars(Generation) if not name.startswith("_")} - {"result"}
    assert {name for name in names if not re.search(rf"\b{name}\b", blocks)} == set()
