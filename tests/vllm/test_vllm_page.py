"""The page on vLLM: its examples run, and it has every key of the configuration and of a request.

What goes over HTTP there goes to a transport that has vLLM's own request class and the engine of this process
behind it; the server itself is for `test_server`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import httpx
import pytest

from tests.docs.blocks import ROOT, code_blocks, run_block

PAGE = "docs/hosts/vllm.md"
GUIDEWAY = {"grammar": ["llguidance", "xgrammar"], "modifiers": ["hello"]}


@pytest.fixture(scope="module")
def transport(start: Callable[..., Any]) -> httpx.MockTransport:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.exceptions import VLLMValidationError

    def handle(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "http://localhost:8000/v1/chat/completions"
        asked = ChatCompletionRequest.model_validate_json(request.content)
        params = asked.to_sampling_params(200, {})
        try:
            (output,) = start(GUIDEWAY).chat(asked.messages, params)
        except VLLMValidationError as error:
            return httpx.Response(400, json={"error": {"message": str(error)}})
        (one,) = output.outputs
        message = {"role": "assistant", "content": one.text}
        choices = [{"index": 0, "message": message, "finish_reason": one.finish_reason}]
        answer = {"id": "1", "object": "chat.completion", "created": 0, "model": "MODEL", "choices": choices}
        return httpx.Response(200, json=answer | {"kv_transfer_params": output.kv_transfer_params})

    return httpx.MockTransport(handle)


@pytest.fixture(scope="module")
def printed(start: Callable[..., Any], transport: httpx.MockTransport) -> list[str]:
    """What each Python block prints, in order."""
    import openai

    def client(**options: Any) -> openai.OpenAI:
        return openai.OpenAI(http_client=httpx.Client(transport=transport), **options)

    def llm(model: str, additional_config: dict[str, Any]) -> Any:
        assert additional_config == {"guideway": GUIDEWAY}
        return start(GUIDEWAY)

    # the page's own imports of these two would lead elsewhere
    given = {"OpenAI": client, "LLM": llm}
    start(GUIDEWAY)  # which prints
    shown = []
    for source in code_blocks(PAGE, "python"):
        own = source.replace("BadRequestError, OpenAI", "BadRequestError").replace(
            "LLM, SamplingParams", "SamplingParams"
        )
        assert own != source
        shown.append(run_block(own, PAGE, given))
    return shown


def test_the_python_examples_run(printed: list[str]) -> None:
    online, offline = printed
    answer, refusal = online.splitlines()
    value, _, told = answer.partition("} ")
    person = json.loads(value + "}")
    assert person["age"] == 31
    assert "g" not in person["name"].lower()
    assert told == "{'guideway': {'strategy': 'llguidance'}}"
    assert refusal.startswith("400 ")
    assert "must be one of string" in refusal
    assert re.fullmatch(r"\{.*31\} stop \{'guideway': \{'strategy': 'xgrammar'\}\}\n", offline)


def test_the_curl_example_runs(transport: httpx.MockTransport) -> None:
    (command,) = [block for block in code_blocks(PAGE, "sh") if block.startswith("curl")]
    program, url, header, content_type, data, body = shlex.split(command)
    assert (program, header, content_type, data) == ("curl", "-H", "Content-Type: application/json", "-d")
    answer = httpx.Client(transport=transport).post(url, content=body).json()
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"name": "Zoë Garcia", "age": 31}
    assert answer["kv_transfer_params"] == {"guideway": {"strategy": "llguidance"}}


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

    told = re.findall(rf"^\| `{re.escape(PREFIX)}([a-z]+)` \|", (ROOT / PAGE).read_text("utf-8"), re.MULTILINE)
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


@pytest.mark.usefixtures("printed")
def test_the_seams_are_those_of_the_page() -> None:
    from guideway_vllm.seams import NEEDED, _found

    page = (ROOT / PAGE).read_text("utf-8").partition("## What is changed in vLLM")[2]
    told = {cell.partition(".")[0] for cell in re.findall(r"^\| `(\w[\w.]*)`", page, re.MULTILINE)}
    changed = [_found(path) for path in NEEDED]
    assert {cls.__name__ for cls, _, function in changed if getattr(function, "guideway", False)} == told


def test_every_version_that_passes_is_the_one_the_tests_run_in() -> None:
    import vllm

    table = (ROOT / "docs/hosts/vllm-compatibility.md").read_text("utf-8")
    rows = dict(re.findall(r"^\| (\d+\.\d+\.\d+)[^|]* \|[^|]*\| ([^|]*) \|", table, re.MULTILINE))
    assert rows[vllm.__version__.partition("+")[0]] == "passes"
