"""The page on vLLM, followed by a reader: a server started by its command and queried as shown, its programs run as
files, and its tables compared with the code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from tests.docs.blocks import ROOT, fenced, pages
from tests.docs.follow import PROGRAMS, commands
from tests.vllm.serving import Server, serve_by

PAGE = "docs/hosts/vllm.md"
MEET = "Meet Zoë Garcia. Age: 31."
MODULE = ["python", "-m", "vllm.entrypoints.openai.api_server"]


def shell(page: str) -> list[list[str]]:
    """Return the words of every command of a page."""
    return [words for block in fenced(page) if block.language == "sh" for words in commands(block.code)]


@pytest.fixture(scope="module")
def server(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of the page's own command for the wheels of this environment, with the page's other flags."""
    (words,) = [words for words in shell(PAGE) if words[:3] == MODULE]
    config = json.loads(words[-1])
    config["guideway"]["modifiers"] = ["hello"]
    command = [
        sys.executable,
        *words[1:-1],
        json.dumps(config),
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
    ]
    command = [demo_model if word == "MODEL" else word for word in command]
    log_file = tmp_path_factory.mktemp("page") / "log.txt"
    with serve_by(command, log_file, environment={"VLLM_LOGGING_LEVEL": "INFO"}) as running:
        yield running


@pytest.fixture(scope="module")
def outputs(server: Server, demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The output of each program of the page, and of each command that queries the server."""
    folder, printed = tmp_path_factory.mktemp("reader"), []
    for block in fenced(PAGE):
        code = block.code.replace("MODEL", demo_model).replace("http://localhost:8000", server.url)
        match block.language:
            case "python":
                printed.append(_run(code, folder / f"block_{block.line}.py"))
            case "sh":
                printed += [said for words in commands(code) if (said := _command(words))]
            case _:
                raise AssertionError(f"nobody knows what to do with the {block.language} at {PAGE}:{block.line}")
    return printed


def _run(code: str, file: Path) -> str:
    """Return the output of a program, run with vLLM's default of several processes."""
    # vLLM would spend a minute compiling the model first
    file.write_text(code.replace("LLM(", "LLM(enforce_eager=True, dtype='float32', model="), encoding="utf-8")
    environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    done = subprocess.run([sys.executable, file], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{code}\n{done.stdout}\n{done.stderr[-6000:]}"
    return done.stdout


def _command(words: list[str]) -> str:
    if words[0] == "vllm" or words[:3] == MODULE:  # started by `server`; the test below checks its options
        return ""
    if words[0] != "curl":
        return PROGRAMS[words[0]](words[1:])
    _, url, header, content_type, data, body = words
    assert (header, content_type, data) == ("-H", "Content-Type: application/json", "-d")
    return httpx.post(url, content=body, headers={"Content-Type": "application/json"}, timeout=300).text


@pytest.mark.slow
def test_the_examples_run_as_written(outputs: list[str]) -> None:
    curl, online, parsed, offline, recorded = outputs
    answer = json.loads(curl)
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"name": "Zoë Garcia", "age": 31}
    assert answer["kv_transfer_params"] == {"guideway": {"strategy": "llguidance"}}

    told, refusal = online.splitlines()
    value, _, rest = told.partition("} ")
    person = json.loads(value + "}")
    assert person["age"] == 31
    assert "g" not in person["name"].lower()
    assert rest == "{'guideway': {'strategy': 'llguidance'}}"
    assert refusal.startswith("400 ")
    assert "must be one of string" in refusal

    assert parsed == "Person(name='Zoë Garcia', age=31)\n"

    # among vLLM's log lines
    assert re.search(r"^\{.*31\} stop \{'guideway': \{'strategy': 'xgrammar'\}\}$", offline, re.MULTILINE)

    (drawn,) = re.findall(r"^\[([-+.e0-9\s]+)\]$", recorded, re.MULTILINE)
    assert len(drawn.split()) == 20
    assert max(map(float, drawn.split())) <= 0


def test_records_come_over_http(server: Server, demo_model: str) -> None:
    body = {
        "model": demo_model,
        "prompt": "Is Zoë",
        "max_tokens": 12,
        "seed": 3,
        "ignore_eos": True,
        "n": 2,
        "vllm_xargs": {"guideway.records": True},
    }
    url = f"{server.url}/v1/completions"
    whole = httpx.post(url, json=body, timeout=300).json()
    reports = whole["kv_transfer_params"]["guideway"]["outputs"]
    lines = httpx.post(url, json=body | {"stream": True}, timeout=300).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    streamed = {
        chunk["choices"][0]["index"]: chunk["kv_transfer_params"]["guideway"]["records"]
        for chunk in chunks
        if chunk["choices"][0]["finish_reason"] is not None
    }
    assert set(streamed) == {0, 1}
    for index, report in enumerate(reports):
        assert len(report["records"]["drawn"]) == 12
        assert report["records"]["drawn"] == pytest.approx(streamed[index]["drawn"], abs=1e-4)


class Person(BaseModel):
    name: str = Field(max_length=40)
    age: int


class Child(Person):
    @field_validator("age")
    @classmethod
    def is_young(cls, age: int) -> int:
        assert age < 18, "too old"
        return age


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "target", "max_tokens", "error"),
    [
        (MEET, Person, 6, openai.LengthFinishReasonError),
        (MEET, Child, 60, ValidationError),
        ("x " * 4000, Person, 60, openai.BadRequestError),
    ],
    ids=["cut", "invalid", "long"],
)
def test_an_object_that_cannot_be_had_is_an_error_of_the_client(
    server: Server, demo_model: str, content: str, target: Any, max_tokens: int, error: type[Exception]
) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300)
    with client, pytest.raises(error):
        client.chat.completions.parse(
            model=demo_model,
            messages=[{"role": "user", "content": f"Extract name, age. {content}"}],
            response_format=target,
            temperature=0,
            max_tokens=max_tokens,
            extra_body={"vllm_xargs": {"guideway.close": False}},
        )


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "person"}}], ids=str)
def test_the_strategies_of_the_command_serve_tools(server: Server, demo_model: str, choice: Any) -> None:
    person = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 40}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        answer = client.chat.completions.create(
            model=demo_model,
            messages=[{"role": "user", "content": "Extract name, age. Meet Zoë Garcia. Age: 31."}],
            temperature=0,
            tools=[{"type": "function", "function": {"name": "person", "parameters": person}}],
            tool_choice=choice,
        )
    calls = answer.choices[0].message.tool_calls
    assert calls and calls[0].function.name == "person"
    assert json.loads(calls[0].function.arguments) == {"name": "Zoë Garcia", "age": 31}


@pytest.mark.slow
def test_one_line_of_the_servers_log_says_what_acts(server: Server) -> None:
    (line,) = [line for line in server.log().splitlines() if "fingerprint" in line]
    assert " INFO " in line
    assert "strategies guideway-llguidance/grammar.llguidance " in line
    assert "modifiers guideway-hello/modifier.hello " in line
    assert "certified" not in server.log()


def test_every_command_that_serves_is_one_of_vllms() -> None:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    found = []
    for page in pages():
        for words in shell(page):
            if words[:2] == ["vllm", "serve"]:
                parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(words[2:])
                found.append((parsed.model_tag, parsed.additional_config))
            elif words[:3] == MODULE:
                parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(words[3:])
                found.append((parsed.model, parsed.additional_config))
    assert len(found) >= 4
    assert found == found[:1] * len(found)


def test_the_table_has_every_key_of_the_configuration_and_its_default() -> None:
    from guideway_vllm.config import GuestConfig

    page = (ROOT / PAGE).read_text("utf-8").partition("## Configuration")[2].partition("\n## ")[0]
    told = dict(re.findall(r"^\| `([a-z_]+)` \|([^|]*)\|", page, re.MULTILINE))
    assert told.keys() == {field.name for field in fields(GuestConfig)}
    for field in fields(GuestConfig):
        if field.default is MISSING:
            assert told[field.name].strip() == "`{}`"
        elif field.default is not None:
            default = list(field.default) if isinstance(field.default, tuple) else field.default
            assert told[field.name].strip() == f"`{json.dumps(default)}`"


def test_the_table_has_every_key_of_a_request() -> None:
    from guideway_vllm.requests import KEYS, PREFIX

    told = re.findall(rf"^\| `{re.escape(PREFIX)}([a-z_]+)` \|", (ROOT / PAGE).read_text("utf-8"), re.MULTILINE)
    assert sorted(told) == sorted(KEYS)


def test_the_page_has_every_field_a_late_modifier_refuses_and_every_need() -> None:
    from guideway.api import Need
    from guideway_vllm.frontend import NOT_BESIDE_DRAWS
    from guideway_vllm.parts import OFFERS

    page = (ROOT / PAGE).read_text("utf-8")
    assert all(f"`{name}`" in page for name in NOT_BESIDE_DRAWS)
    (offered,) = re.findall(r"A modifier can have ([^.]+)\.", page)
    assert set(re.findall("[A-Z_]+", offered)) == {need.name for need in OFFERS}
    assert all(f"`{need.name}`" in page for need in Need)


def test_the_seams_are_those_of_the_page() -> None:
    from guideway_vllm import register
    from guideway_vllm.seams import NEEDED
    from guideway_vllm.wrapping import look_up

    register()
    page = (ROOT / PAGE).read_text("utf-8").partition("## What is changed in vLLM")[2]
    told = {cell.partition(".")[0] for cell in re.findall(r"^\| `(\w[\w.]*)`", page, re.MULTILINE)}
    changed = [look_up(path) for path in NEEDED]
    assert {cls.__name__ for cls, _, function in changed if getattr(function, "guideway", False)} == told


def test_every_version_that_passes_is_the_one_the_tests_run_in() -> None:
    import vllm

    table = (ROOT / "docs/hosts/vllm-compatibility.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\d+\.\d+\.\d+)[^|]* \|[^|]*\| ([^|]*) \|", table, re.MULTILINE))
    assert rows[vllm.__version__.partition("+")[0]] == "passes"
