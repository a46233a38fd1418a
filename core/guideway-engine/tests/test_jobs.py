"""Conversion of arguments and input lines to prompts and sampling parameters."""

from __future__ import annotations

import json
import math
import shlex
from argparse import ArgumentParser
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from guideway import Choice, Grammar, InvalidRequest, JsonSchema, Regex, SamplingParams
from guideway_engine.command_line.jobs import Job, add_flags, read_jobs
from guideway_engine.entries import CONSTRAINTS, LINE_KEYS

FLAGS = shlex.split(
    """
    --max-tokens 9 --min-tokens 2 --temperature 0.5 --top-k 3 --top-p 0.9 --min-p 0.1 --typical-p 0.8
    --repetition-penalty 1.1 --frequency-penalty 0.2 --presence-penalty -0.3 --logit-bias 5=1.5 --logit-bias 6=-inf
    --seed 7 --stop-token-ids 3,4 --stop-token-ids 5 --ignore-eos --n 2 --best-of 3 --logprobs 1 --prompt-logprobs 0
    --echo --priority -4
    """
)
PARAMS = SamplingParams(
    max_tokens=9,
    min_tokens=2,
    temperature=0.5,
    top_k=3,
    top_p=0.9,
    min_p=0.1,
    typical_p=0.8,
    repetition_penalty=1.1,
    frequency_penalty=0.2,
    presence_penalty=-0.3,
    logit_bias={5: 1.5, 6: -math.inf},
    seed=7,
    stop=("a, b", "c"),
    stop_token_ids=(3, 4, 5),
    ignore_eos=True,
    n=2,
    best_of=3,
    logprobs=1,
    prompt_logprobs=0,
    echo=True,
    priority=-4,
)


def jobs(*arguments: str, modifiers: list[tuple[str, Any]] | None = None) -> list[Job]:
    parser = ArgumentParser()
    add_flags(parser)
    parser.set_defaults(modifier=modifiers or [])
    return read_jobs(parser.parse_args(arguments))


def of_line(tmp_path: Path, line: dict[str, Any], *arguments: str) -> Job:
    path = tmp_path / "prompts.jsonl"
    path.write_text(json.dumps({"prompt": "x"} | line), encoding="utf-8")
    (job,) = jobs("--input", str(path), *arguments)
    return job


def test_every_sampling_parameter_has_a_flag() -> None:
    (job,) = jobs("--prompt", "x", "--stop", "a, b", "--stop", "c", *FLAGS)
    assert job.params == PARAMS
    assert {field.name for field in fields(SamplingParams)} == {*LINE_KEYS, "constraint"} - {
        "prompt",
        "id",
        "tenant",
        *CONSTRAINTS,
    }


def test_every_sampling_parameter_is_a_key_of_a_line(tmp_path: Path) -> None:
    line: dict[str, Any] = {field.name: getattr(PARAMS, field.name) for field in fields(SamplingParams)}
    del line["constraint"]
    assert of_line(tmp_path, line).params == PARAMS
    assert of_line(tmp_path, {}, *FLAGS, "--stop", "a, b", "--stop", "c").params == PARAMS
    (tmp_path / "schema.json").write_text("{}", encoding="utf-8")
    flags = ("--schema", str(tmp_path / "schema.json"), "--max-tokens", "3", "--tenant", "acme")
    job = of_line(tmp_path, {"regex": "a", "top_k": 2, "tenant": "other"}, *flags)
    assert job.params == SamplingParams(max_tokens=3, top_k=2, constraint=Regex("a"))
    assert job.tenant == "other"
    job = of_line(tmp_path, {}, *flags)
    assert job.params == SamplingParams(max_tokens=3, constraint=JsonSchema("{}"))
    assert job.tenant == "acme"


def test_every_constraint_of_a_line_has_a_flag(tmp_path: Path) -> None:
    path = tmp_path / "a.lark"
    path.write_text('start: "a=b"\n', encoding="utf-8")
    for flags, line, constraint in (
        (["--schema", '{"enum": [1]}'], {"schema": {"enum": [1]}}, JsonSchema({"enum": [1]})),
        (["--regex", "a"], {"regex": "a"}, Regex("a")),
        (["--choice", "a, b", "--choice", "c"], {"choice": ["a, b", "c"]}, Choice(["a, b", "c"])),
        (
            ["--grammar-file", f"lark={path}"],
            {"grammar": {"dialect": "lark", "text": 'start: "a=b"\n'}},
            Grammar('start: "a=b"\n', "lark"),
        ),
    ):
        (job,) = jobs("--prompt", "x", *flags)
        same = of_line(tmp_path, line, "--regex", "z").params.constraint
        for found in (job.params.constraint, same):
            assert found is not None
            assert (found.kind, found.source()) == (constraint.kind, constraint.source())
    with pytest.raises(InvalidRequest, match=r"cannot read the grammar 'absent\.lark'"):
        jobs("--prompt", "x", "--grammar-file", "lark=absent.lark")


def test_null_is_none_of_what_the_flags_give(tmp_path: Path) -> None:
    flags = ("--stop", "a", "--stop-token-ids", "3", "--logit-bias", "5=1")
    line = dict.fromkeys(("stop", "stop_token_ids", "logit_bias", "modifiers"))
    params = of_line(tmp_path, line, *flags).params
    assert (params.stop, params.stop_token_ids, params.logit_bias, params.modifiers) == (None,) * 4, (
        "admission takes it"
    )


def test_defaults() -> None:
    (job,) = jobs("--prompt", "x", modifiers=[("kgw", {"key": 1}), ("other", {})])
    assert job.params == SamplingParams(max_tokens=256, modifiers={"kgw": {"key": 1}, "other": {}})
    assert job.tenant == ""
    (job,) = jobs("--prompt", "x", "--max-tokens", "none", "--seed", "none")
    assert job.params == SamplingParams()


def test_values_of_the_wrong_shape_are_left_to_admission(tmp_path: Path) -> None:
    line = {
        "n": "two",
        "stop": "x",
        "stop_token_ids": {"a": 1},
        "logit_bias": {"x": 1, "9" * 30: 2, "7": "z"},
        "seed": [],
    }
    params: Any = of_line(tmp_path, line).params
    assert (params.n, params.stop, params.stop_token_ids, params.seed) == ("two", "x", {"a": 1}, [])
    assert params.logit_bias == {"x": 1, "9" * 30: 2, 7: "z"}


def test_a_line_that_is_wrong_keeps_its_id(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    lines = ['{"prompt": "x"}', '{"id": "a", "prompt": "x", "temprature": 1}', '{"id": "b"', '{"id": "\\ud800"}', "[1]"]
    path.write_text("\n".join(lines))
    assert [job.id for job in jobs("--input", str(path))] == ["0", "a", "2", "3", "4"]


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    job = of_line(tmp_path, {"top-k": 3})
    assert "prompts.jsonl, line 1 has the unknown key 'top-k'; did you mean 'top_k'?" in str(job.error)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--top-k", "many"], "argument --top-k: must be a whole number, not 'many'"),
        (["--top-p", "x"], "argument --top-p: must be a number, not 'x'"),
        (["--seed", "x"], "argument --seed: must be a whole number, or None, not 'x'"),
        (["--stop-token-ids", "1,x"], "argument --stop-token-ids: must be a list of whole numbers, not '1,x'"),
        (["--logit-bias", "1"], "argument --logit-bias: must be ID=VALUE, a token id and a number, not '1'"),
        (["--logit-bias", "a=1"], "argument --logit-bias: must be ID=VALUE"),
        (["--grammar-file", "a.lark"], "argument --grammar-file: must be DIALECT=FILE, such as lark=answer.lark, not"),
        (["--choice", "a", "--regex", "b"], "not allowed with argument --choice"),
    ],
)
def test_a_flag_says_what_it_takes(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        jobs("--prompt", "x", *arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
