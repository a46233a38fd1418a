"""A server as operators and clients use it: over HTTP, with observers and a connector for keys and values.

The tests depend on their order: the last one stops the server.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.processes import until
from tests.vllm import faulty, operating
from tests.vllm.serving import Server, serve
from tests.vllm.test_server import ANSWER, SCHEMA, TEXT, TOOLS, Ask, modifiers, report_of

JSON = {"Content-Type": "application/json"}
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("operator")
    faulty.install(folder)
    operating.install(folder)
    guideway = {
        "grammar": ["llguidance", "faulty"],
        "grammar_host": "inline",
        "modifiers": ["hello"],
        "refuse_within": 30,
        "plugins": {"enable": ["operating"]},
    }
    connector = {
        "kv_connector": "Connector",
        "kv_connector_module_path": operating.__name__,
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder / "keys")},
    }
    with serve(
        demo_model,
        guideway,
        folder / "log.txt",
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
        f"--kv-transfer-config={json.dumps(connector)}",
        "--max-num-seqs=4",
        environment={operating.NOTES: str(folder), "VLLM_LOGGING_LEVEL": "INFO"},
        python_path=[folder, REPOSITORY],
    ) as running:
        yield running


@pytest.fixture
def ask(server: Server) -> Iterator[Ask]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield Ask(client)


@pytest.fixture
def heard(server: Server) -> Callable[[], list[dict[str, Any]]]:
    """The notes written since the test began."""
    file = server.log_file.with_name("notes.jsonl")

    def notes() -> list[dict[str, Any]]:
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []

    before = len(notes())
    return lambda: notes()[before:]


def finished(heard: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the observers' note of one finished request."""
    until(lambda: any("finished" in note for note in heard()))
    (note,) = [note for note in heard() if "finished" in note]
    return note


# The log


def test_one_line_says_what_acts(server: Server) -> None:
    lines = [line for line in server.log().splitlines() if "fingerprint" in line]
    (line,) = [line for line in lines if "guideway" in line]
    for said in (
        "guideway-llguidance/grammar.llguidance 0.",
        "modifiers guideway-hello/modifier.hello",
        "hooks operating/hooks.operating 1.0",
        "device guideway-cpu/device.cpu",
        "ledger in kv_transfer_params.guideway",
    ):
        assert said in line


# Errors


@pytest.mark.parametrize("how", ["type", "raise"])
def test_a_strategy_with_an_unusable_answer_is_named(ask: Ask, how: str) -> None:
    spec = json.dumps({"bytes": 5, "phase": "supports", "how": how})
    with pytest.raises(openai.InternalServerError) as raised:
        ask.chat(structured_outputs={"grammar": spec}, vllm_xargs={"guideway.dialect": "faulty"})
    error: Any = raised.value.body
    assert "faulty failed in supports over request chatcmpl-" in error["message"]
    assert error["code"] == 500


@pytest.mark.parametrize(
    ("wanted", "field"),
    [
        ({"structured_outputs": {"regex": "[ab]{2}"}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"vllm_xargs": {"guideway.tenant": "x"}}, "vllm_xargs"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tools"),
    ],
    ids=["structured", "format", "xargs", "tools"],
)
def test_a_beam_search_refuses_what_vllm_would_drop(server: Server, wanted: dict[str, Any], field: str) -> None:
    asked = {"model": "demo", "use_beam_search": True, "n": 2, "max_tokens": 4}
    chat = {**asked, "messages": [{"role": "user", "content": TEXT}]}
    answers = [httpx.post(f"{server.url}/v1/chat/completions", json={**chat, **wanted}, timeout=120)]
    if "tools" not in wanted:
        completion = {**asked, "prompt": TEXT, **wanted}
        answers.append(httpx.post(f"{server.url}/v1/completions", json=completion, timeout=120))
    for answer in answers:
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, field)
        assert f"{field} is not heard in a beam search" in error["message"]
    free = httpx.post(f"{server.url}/v1/chat/completions", json=chat, timeout=120)
    assert len(free.json()["choices"]) == 2


# Responses


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "person"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_called_with_llguidance(ask: Ask, choice: Any, stream: bool) -> None:
    asked = {"tools": TOOLS, "tool_choice": choice, "stream": stream, "max_tokens": 200}
    answer = ask.chat(**asked)
    if stream:
        pieces = [call for chunk in answer if chunk.choices for call in chunk.choices[0].delta.tool_calls or ()]
        calls = [(piece.function.name, piece.index) for piece in pieces if piece.function.name]
        arguments = "".join(piece.function.arguments or "" for piece in pieces if piece.index == 0)
        name = calls[0][0]
    else:
        assert report_of(answer)["strategy"] == "llguidance"
        call = answer.choices[0].message.tool_calls[0]
        name, arguments = call.function.name, call.function.arguments
    assert name in ("person", "weather")
    assert set(json.loads(arguments)) == set(ANSWER if name == "person" else ("city",))


def test_logprobs_are_those_of_what_a_constraint_leaves(ask: Ask) -> None:
    answer = ask.chat(structured_outputs={"regex": "[ab]{2}"}, logprobs=True, top_logprobs=3)
    steps = answer.choices[0].logprobs.content
    assert len(steps) == 3
    for step, letters in zip(steps, ({"a", "b"}, {"a", "b"}, {"<|end|>"}), strict=True):
        legal = {each.token for each in step.top_logprobs if each.logprob > -9999}
        assert legal <= letters and step.token in legal
        assert sum(2.718281828**each.logprob for each in step.top_logprobs if each.logprob > -9999) > 0.999


def test_the_ledger_comes_beside_what_a_connector_says(ask: Ask, heard: Callable[[], list[dict[str, Any]]]) -> None:
    answer = ask.chat(
        extra_body={
            "structured_outputs": {"json": SCHEMA},
            "vllm_xargs": {"guideway.on_unenforced": "check"},
            "kv_transfer_params": {"guideway": {"strategy": "other"}, "mine": 1},
        }
    )
    assert json.loads(answer.choices[0].message.content) == ANSWER
    assert answer.model_extra["kv_transfer_params"] == {
        "remote": 7,
        "guideway": {"strategy": "llguidance", "valid": True},
    }
    (brought,) = [note["brought"] for note in heard() if "brought" in note]
    assert brought == {"mine": 1}, "what was told of another request is for no connector"


@pytest.mark.parametrize("path", ["completions", "chat/completions/batch"])
def test_each_prompt_of_a_request_is_told_of(server: Server, path: str) -> None:
    """A stop string cuts one of the two answers."""
    a = {"properties": {"a": {"enum": ["xy", "z"]}}, "required": ["a"], "additionalProperties": False}
    schema = {"type": "object", **a}
    texts = ["Say z.", "Say xy."]
    prompts: dict[str, Any] = {"prompt": texts}
    if path != "completions":
        prompts = {"messages": [[{"role": "user", "content": text}] for text in texts]}
    body = {"model": "demo", "max_tokens": 40, "temperature": 2, "seed": 1, "stop": ["x"], **prompts}
    for seed in range(1, 30):
        form = body | {"seed": seed, "structured_outputs": {"json": schema}}
        answer = httpx.post(f"{server.url}/v1/{path}", json=form, timeout=120).json()
        found = [choice.get("text") or choice["message"]["content"] for choice in answer["choices"]]
        cut = ["z" not in text for text in found]
        field = answer["kv_transfer_params"]["guideway"]
        assert [one.get("unenforced", []) for one in field["outputs"]] == [
            ["constraint"] if is_cut else [] for is_cut in cut
        ]
        assert field.get("unenforced", []) == (["constraint"] if any(cut) else [])
        if any(cut) and not (all(cut) and path == "completions"):  # chats with the same seed are equal
            break
    else:
        pytest.fail("no seed cuts one answer alone")


# Observers


@pytest.mark.parametrize("stream", [False, True])
def test_observers_hear_of_a_request(ask: Ask, heard: Callable[[], list[dict[str, Any]]], stream: bool) -> None:
    answer = ask.chat(structured_outputs={"json": SCHEMA}, stream=stream, vllm_xargs={"guideway.tenant": "raises"})
    if stream:
        list(answer)
    note = finished(heard)
    (output,) = note["outputs"]
    assert json.loads(output["text"]) == ANSWER
    assert output["num_tokens"] > 5
    assert (output["reason"], output["strategy"]) == ("stop", "llguidance")
    started, ended = (note for note in heard() if "brought" not in note)
    assert started == {"started": ended["finished"], "tenant": "raises"}


def test_observers_hear_of_requests_without_a_constraint(ask: Ask, heard: Callable[[], list[dict[str, Any]]]) -> None:
    choices = ask.chat(n=2, temperature=1, max_tokens=5, vllm_xargs=modifiers(hello={"letter": "o"})).choices
    outputs = finished(heard)["outputs"]
    assert [output["text"] for output in outputs] == [choice.message.content for choice in choices]


def test_observers_hear_of_what_failed_and_what_was_given_up(
    ask: Ask, heard: Callable[[], list[dict[str, Any]]]
) -> None:
    spec = json.dumps({"bytes": 30, "phase": "fill_bitmask", "how": "raise", "at": 3})
    with pytest.raises(openai.InternalServerError):
        ask.chat(structured_outputs={"grammar": spec}, vllm_xargs={"guideway.dialect": "faulty"})
    assert finished(heard)["outputs"][0]["reason"] == "internal_error"
    (failure,) = [note for note in heard() if "failed" in note]
    assert "faulty" in failure["error"]
    before = len(heard())
    with ask.chat(stream=True, structured_outputs={"regex": "[a-z]{300}"}, max_tokens=310) as stream:
        next(stream)
        next(stream)
    until(lambda: any("finished" in note for note in heard()[before:]))
    (note,) = [note for note in heard()[before:] if "finished" in note]
    assert note["outputs"][0]["reason"] == "abort"


def test_observers_hear_of_each_of_several_requests_with_one_id(
    server: Server, heard: Callable[[], list[dict[str, Any]]]
) -> None:
    """Clients that retry, and gateways, send the same id twice."""

    slow = {f"key {i}": {"type": "string", "pattern": f"^[a-z]{{3,{9 + i}}}$"} for i in range(60)}
    forms: list[dict[str, Any]] = [
        # enters the engine last
        {"structured_outputs": {"json": {"type": "object", "properties": slow}}, "max_tokens": 9},
        {"max_tokens": 120, "ignore_eos": True},
        {"max_tokens": 5, "ignore_eos": True},
        {"max_tokens": 5, "structured_outputs": {"json": {"type": "strin"}}},  # refused
    ]

    def ask_for(number: int) -> Any:
        xargs = {"guideway.tenant": f"tenant {number}"}
        if number == 0 or number == 3:
            xargs["guideway.close"] = 0
        else:
            xargs["guideway.modifiers"] = json.dumps({"hello": {"letter": "e"}})
        body = {"model": "demo", "prompt": TEXT, "temperature": 0, "vllm_xargs": xargs, **forms[number]}
        headers = {"X-Request-Id": "same"}
        return httpx.post(f"{server.url}/v1/completions", json=body, headers=headers, timeout=120).json()

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(ask_for, range(4)))
    assert "error" in answers[3]
    until(lambda: sum("finished" in note for note in heard()) == 3)
    ended = {note["tenant"]: note for note in heard() if "finished" in note}
    assert sorted(note["tenant"] for note in heard() if "started" in note) == sorted(ended)
    assert len({note["finished"] for note in ended.values()}) == 1
    for number, answer in enumerate(answers[:3]):
        (output,) = ended[f"tenant {number}"]["outputs"]
        assert output["text"] == answer["choices"][0]["text"]
        assert output["num_tokens"] == answer["usage"]["completion_tokens"]


def test_a_refused_request_never_started(ask: Ask, heard: Callable[[], list[dict[str, Any]]]) -> None:
    with pytest.raises(openai.BadRequestError):
        ask.text(regex="(")
    assert ask.text(regex="[ab]{2}")
    finished(heard)
    assert sum("started" in note for note in heard()) == 1


# Shutdown


ENDED = '"finish_reason":"(stop|length)"|"type":"(response.completed|message_stop)"'
LONG = {
    "output_config": {
        "format": {"type": "json_schema", "schema": {"type": "array", "items": {"const": 1}, "minItems": 230}}
    }
}


def test_requests_under_way_when_the_server_is_told_to_stop_end_with_an_error(server: Server) -> None:
    chat = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 480}
    regex = {"structured_outputs": {"regex": "[a-z]{470}"}}
    forms: list[dict[str, Any]] = [
        {"path": "chat/completions", **chat, "ignore_eos": True},
        {"path": "chat/completions", **chat, **regex},
        {"path": "chat/completions", **chat, **regex, "stream": True},
        {"path": "responses", "input": TEXT, "max_output_tokens": 480, **regex, "stream": True},
        {"path": "messages", **chat, **LONG, "stream": True},
        {"path": "completions", "prompt": TEXT, "max_tokens": 480, **regex, "stream": True},
    ]

    def outcome(form: dict[str, Any]) -> tuple[int, str] | None:
        path, body = form["path"], {name: value for name, value in form.items() if name != "path"}
        url = f"{server.url}/v1/{path}"
        try:
            with httpx.stream("POST", url, json={"model": "demo", **body}, timeout=100) as answer:
                return answer.status_code, answer.read().decode()
        except httpx.ConnectError:  # on a busy machine a request may arrive after the port was closed
            return None

    told_to_stop = threading.Event()

    def body() -> Iterator[bytes]:
        """Return the body of a request that the server reads to its end after its engine has ended."""
        yield b'{"model": "demo", '
        assert told_to_stop.wait(60)
        yield b'"prompt": "late"}'

    def outcome_of_late() -> tuple[int, str]:
        answer = httpx.post(f"{server.url}/v1/completions", content=body(), headers=JSON, timeout=100)
        return answer.status_code, answer.text

    before = len(server.log())
    with ThreadPoolExecutor(len(forms) * 8 + 1) as threads:
        late = threads.submit(outcome_of_late)
        answers = [(form, threads.submit(outcome, form)) for form in forms * 8]
        until(lambda: server.metric("vllm:num_requests_running") == 4)
        began = time.monotonic()
        os.kill(server.pid, signal.SIGTERM)
        ended = [(form, found) for form, answer in answers if (found := answer.result()) is not None]
        told_to_stop.set()
        ended.append(({}, late.result()))
    assert time.monotonic() - began < 60
    stopped = 0
    for form, (status, text) in ended:
        said = "the server is shutting down" in text
        stopped += said
        # no aborted answer looks finished, and no stream ends without an error
        ended_by_itself = re.search(ENDED, text) is not None
        assert said is not ended_by_itself, text[-300:]
        # streams that had not begun are refused like other requests
        assert status in ((200,) if ended_by_itself else (200, 503) if form.get("stream") else (503,)), text[-300:]
    assert stopped > 12
    # vLLM's route of messages logs every exception that comes before its stream begins
    lines = [line for line in server.log()[before:].splitlines() if "api_router.py" not in line]
    assert "Traceback" not in "\n".join(lines)
