"""``vllm serve`` with guideway in three processes, driven by the `openai` client."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes import hosts_of, tree, until
from tests.vllm import faulty
from tests.vllm.serving import Server, serve

REPOSITORY = Path(__file__).parents[2]
TEXT = "Give name and age as JSON. Anna Berg is 34 years old."
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
ANSWER = {"name": "Anna Berg", "age": 34}
TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<p>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</p>",
    },
}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": parameters, "strict": True}}
    for name, parameters in (("person", SCHEMA), ("weather", CITY))
]
POLICY = """
unknown = "default"
[tenants.small]
max_tokens = 8
modifiers = []
"""
UNBUILT = "unbuilt"
FAILURE = "Internal server error"
"""The message of vLLM's server for any request with the finish reason ``error``."""


@pytest.fixture(scope="module")
def server(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "policy.toml").write_text(POLICY, encoding="utf-8")
    faulty.install(folder)
    guideway = {
        "grammar": ["llguidance", "xgrammar", "faulty"],
        "modifiers": ["hello", "faulty_pre_warp", "faulty_post_warp", "faulty_compiles"],
        "refuse_within": 30,
        "worker_mixins": ["layer_timing"],
        "host_environment": [faulty.UNBUILT],
        "plugins": {"enable": ["tenant_policy", "faulty"]},
    }
    with serve(
        demo_model,
        guideway,
        folder / "log.txt",
        "--worker-extension-cls=guideway_vllm.worker.WorkerExtension",
        "--enable-auto-tool-choice",
        "--tool-call-parser=hermes",
        # the second is for ``/collective_rpc``
        environment={
            "GUIDEWAY_TENANT_POLICY": str(folder / "policy.toml"),
            "VLLM_SERVER_DEV_MODE": "1",
            faulty.UNBUILT: str(folder / UNBUILT),
        },
        python_path=[folder, REPOSITORY],
    ) as running:
        yield running


@pytest.fixture(autouse=True)
def log(server: Server) -> Iterator[None]:
    """Show the server's output during a failed test."""
    before = len(server.log())
    yield
    print(server.log()[before:])


@pytest.fixture
def ask(server: Server) -> Iterator[Ask]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield Ask(client)


class Ask:
    """The client, with this module's model, prompt and temperature."""

    def __init__(self, client: openai.OpenAI) -> None:
        self.client = client

    def chat(self, **wanted: Any) -> Any:
        given = {"model": "demo", "messages": [{"role": "user", "content": TEXT}], "temperature": 0, "max_tokens": 80}
        return self.client.chat.completions.create(**(given | body(wanted)))

    def complete(self, **wanted: Any) -> Any:
        # in the format of the chat template
        given = {"model": "demo", "prompt": f"<|user|>{TEXT}<|assistant|>", "temperature": 0, "max_tokens": 80}
        return self.client.completions.create(**(given | body(wanted)))

    def text(self, **wanted: Any) -> str:
        """Return the text generated with these structured outputs."""
        return str(self.chat(structured_outputs=wanted).choices[0].message.content)


def body(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return `wanted` with the fields that only vLLM has in ``extra_body``."""
    own = {name: wanted.pop(name) for name in ("structured_outputs", "vllm_xargs") if name in wanted}
    return {"extra_body": own, **wanted}


def modifiers(**wanted: Any) -> dict[str, str]:
    return {"guideway.modifiers": json.dumps(wanted)}


def report_of(response: Any) -> dict[str, Any]:
    """Return guideway's report in the body of a response."""
    return (response.model_extra["kv_transfer_params"] or {}).get("guideway", {})


def schema_format(**more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, **more}}


# Served requests


@pytest.mark.parametrize(
    "wanted", [schema_format(), schema_format(strict=True), {"type": "json_object"}], ids=["schema", "strict", "object"]
)
def test_response_formats(ask: Ask, wanted: dict[str, Any]) -> None:
    chat = ask.chat(response_format=wanted)
    assert json.loads(chat.choices[0].message.content) == ANSWER
    assert chat.choices[0].finish_reason == "stop"
    assert report_of(chat) == {"strategy": "llguidance"}
    completion = ask.complete(extra_body={"response_format": wanted})  # vLLM supports it in both
    assert json.loads(completion.choices[0].text) == ANSWER
    assert report_of(completion) == {"strategy": "llguidance"}


@pytest.mark.parametrize(
    ("wanted", "pattern", "strategy"),
    [
        ({"regex": "[b-d]{4}"}, "[b-d]{4}", "llguidance"),
        ({"choice": ["maybe", "never"]}, "maybe|never", "llguidance"),
        ({"grammar": 'start: "ab" | "cd"'}, "ab|cd", "llguidance"),
        ({"grammar": 'root ::= "ab" | "cd"'}, "ab|cd", "xgrammar"),
        ({"structural_tag": json.dumps(TAG)}, '<p>{"name":"Anna Berg","age":34}</p>', "llguidance"),
    ],
    ids=["regex", "choice", "lark", "ebnf", "tag"],
)
def test_structured_outputs(ask: Ask, wanted: dict[str, Any], pattern: str, strategy: str) -> None:
    chat = ask.chat(structured_outputs=wanted)
    assert re.fullmatch(pattern, chat.choices[0].message.content)
    assert report_of(chat) == {"strategy": strategy}
    completion = ask.complete(structured_outputs=wanted)
    assert re.fullmatch(pattern, completion.choices[0].text)
    assert report_of(completion) == {"strategy": strategy}


def test_the_responses_api_has_formats_too(ask: Ask) -> None:
    wanted: Any = {"format": {"type": "json_schema", "name": "person", "schema": SCHEMA, "strict": True}}
    response = ask.client.responses.create(model="demo", input=TEXT, temperature=0, max_output_tokens=80, text=wanted)
    assert json.loads(response.output_text) == ANSWER
    assert report_of(response) == {"strategy": "llguidance"}


def test_each_of_several_prompts_is_constrained(ask: Ask) -> None:
    response = ask.complete(prompt=["one", "two", "three"], structured_outputs={"regex": "[x-z]{5}"})
    texts = [choice.text for choice in response.choices]
    assert len(texts) == 3
    assert all(re.fullmatch("[x-z]{5}", text) for text in texts)


def test_without_a_constraint_nothing_is_said(ask: Ask) -> None:
    chat = ask.chat()
    assert chat.choices[0].message.content
    assert report_of(chat) == {}


@pytest.mark.parametrize("strategy", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_tools_are_called_with_what_their_schema_allows(ask: Ask, choice: Any, strategy: str) -> None:
    wanted = {"vllm_xargs": {"guideway.strategy": strategy}, "tools": TOOLS, "tool_choice": choice, "max_tokens": 160}
    response = ask.chat(**wanted)
    calls = response.choices[0].message.tool_calls
    assert calls
    for call in calls:
        arguments = json.loads(call.function.arguments)
        if call.function.name == "weather":
            assert set(arguments) == {"city"}
            assert len(arguments["city"]) <= 9
        else:
            assert arguments == ANSWER
    if choice != "required":
        assert [call.function.name for call in calls] == ["weather"]
    assert report_of(response)["strategy"] == strategy
    deltas = [call for chunk in ask.chat(**wanted, stream=True) for call in chunk.choices[0].delta.tool_calls or ()]
    assert "".join(d.function.arguments or "" for d in deltas if d.index == 0) == calls[0].function.arguments
    assert next(d.function.name for d in deltas if d.function.name) == calls[0].function.name


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_call_is_whole_or_refused(ask: Ask, choice: Any) -> None:
    tools = [tool for tool in TOOLS if tool["function"]["name"] == "weather"]
    wanted: dict[str, Any] = {"tools": tools, "tool_choice": choice}
    with pytest.raises(openai.BadRequestError) as refused:
        ask.chat(**wanted, max_tokens=2)
    (shortest,) = re.findall("the shortest one found has ([0-9]+)", str(refused.value))
    with pytest.raises(openai.BadRequestError, match="raise max_tokens"):
        ask.chat(**wanted, max_tokens=int(shortest) - 1)
    for more in (0, 3, 9):
        answer = ask.chat(**wanted, max_tokens=int(shortest) + more)
        (call,) = answer.choices[0].message.tool_calls[:1]
        assert set(json.loads(call.function.arguments)) == {"city"}
        assert "closing" not in report_of(answer).get("unenforced", [])
    cut = ask.chat(**wanted, max_tokens=2, vllm_xargs={"guideway.short_budget": "cut"})
    assert report_of(cut)["unenforced"] == ["closing"]
    with pytest.raises(openai.BadRequestError, match=r"guideway\.short_budget must be"):
        ask.chat(**wanted, max_tokens=40, vllm_xargs={"guideway.short_budget": "perhaps"})


@pytest.mark.parametrize("strategy", ["llguidance", "xgrammar"])
def test_text_around_calls_lacks_nothing_where_its_limit_cuts_it(ask: Ask, strategy: str) -> None:
    wanted = {"vllm_xargs": {"guideway.strategy": strategy}, "tools": TOOLS, "tool_choice": "auto"}
    free = ask.chat(max_tokens=40).choices[0].message.content
    for limit in (1, 2, 3, 5, 8):
        answer = ask.chat(**wanted, max_tokens=limit)
        assert report_of(answer) == {"strategy": strategy}
        assert answer.choices[0].finish_reason == "length"
        assert free.startswith(answer.choices[0].message.content)


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}, "vllm_xargs": modifiers(hello={"letter": "a"})},
        {"vllm_xargs": modifiers(hello={"letter": "a"})},
    ],
    ids=["plain", "schema", "schema and modifier", "modifier"],
)
def test_a_stream_is_the_answer_in_pieces(ask: Ask, wanted: dict[str, Any]) -> None:
    whole = ask.chat(**wanted).choices[0]
    chunks = [chunk.choices[0] for chunk in ask.chat(stream=True, **wanted)]
    assert len(chunks) > 3
    assert "".join(chunk.delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].finish_reason == whole.finish_reason == "stop"
    pieces = [chunk.choices[0].text for chunk in ask.complete(stream=True, **wanted)]
    assert "".join(pieces) == ask.complete(**wanted).choices[0].text


def test_four_answers_are_four_sequences_and_a_seed_repeats_them(ask: Ask) -> None:
    def four() -> list[str]:
        response = ask.chat(n=4, temperature=2, seed=11, structured_outputs={"regex": "[a-z]{6,9}"})
        return [choice.message.content for choice in response.choices]

    texts = four()
    assert all(re.fullmatch("[a-z]{6,9}", text) for text in texts)
    assert len(set(texts)) > 1
    assert four() == texts


def test_a_request_chooses_its_strategy_and_modifiers(ask: Ask) -> None:
    response = ask.chat(structured_outputs={"json": SCHEMA}, vllm_xargs={"guideway.strategy": "xgrammar"})
    assert json.loads(response.choices[0].message.content) == ANSWER
    assert report_of(response) == {"strategy": "xgrammar"}
    response = ask.chat(structured_outputs={"json": SCHEMA}, vllm_xargs=modifiers(hello={"letter": "n"}))
    answer = json.loads(response.choices[0].message.content)
    assert set(answer) == set(ANSWER)
    assert "n" not in answer["name"].lower()
    assert "n" in ask.chat().choices[0].message.content
    response = ask.chat(vllm_xargs=modifiers(hello={"letter": "n"}))
    assert "n" not in response.choices[0].message.content.lower()


def test_what_is_not_enforced_is_told(ask: Ask) -> None:
    schema = {**SCHEMA, "properties": {**SCHEMA["properties"], "mail": {"type": "string", "format": "idn-email"}}}  # type: ignore[dict-item]
    response = ask.chat(structured_outputs={"json": schema})
    assert report_of(response)["unenforced"] == ["format:idn-email"]


def test_worker_mixins_are_in_the_worker(server: Server, ask: Ask) -> None:
    ask.text(choice=["yes"])
    call = {"method": "guideway", "args": ["layer_timing.report"]}
    (report,) = httpx.post(f"{server.url}/collective_rpc", json=call, timeout=60).json()["results"]
    steps = re.match(r"(\d+) steps", report)
    assert steps
    assert int(steps[1]) > 0
    assert "model.layers.4" in report


# Invalid requests: status 400 with guideway's message


@pytest.mark.parametrize(
    ("wanted", "said", "field"),
    [
        ({"structured_outputs": {"json": {"type": "strin"}}}, "must be one of string, integer", "constraint.schema"),
        ({"structured_outputs": {"regex": "("}}, "unclosed group", "constraint"),
        ({"structured_outputs": {"grammar": "root ::= ("}}, "EBNF parser error", "constraint"),
        (
            {"structured_outputs": {"choice": ["a"]}, "vllm_xargs": {"guideway.stratgy": "xgrammar"}},
            "did you mean 'guideway.strategy'",
            "guideway.stratgy",
        ),
        (
            {"vllm_xargs": modifiers(helo={})},
            "is configured; did you mean 'hello'",
            "modifiers",
        ),
        ({"vllm_xargs": modifiers(hello={"letter": "?"})}, "letter must be one of a to z", "modifiers.hello"),
        ({"vllm_xargs": {"guideway.modifiers": "{"}}, "guideway.modifiers is not JSON", "guideway.modifiers"),
        ({"vllm_xargs": {"guideway.modifiers": "[" * 100_000}}, "guideway.modifiers is not JSON", "guideway.modifiers"),
        ({"vllm_xargs": {"guideway.tenant": "small"}}, "max_tokens of tenant 'small' may be at most 8", "max_tokens"),
    ],
    ids=["schema", "regex", "grammar", "key", "modifier", "options", "not JSON", "endless JSON", "policy"],
)
def test_refusals(ask: Ask, wanted: dict[str, Any], said: str, field: str) -> None:
    for create in (ask.chat, ask.complete):
        with pytest.raises(openai.BadRequestError) as caught:
            create(**wanted)
        assert said in caught.value.body["message"]  # type: ignore[index, call-overload]
        assert caught.value.param == field
        # vLLM starts a stream before it reads the request, so the error is an event
        with pytest.raises(openai.APIError) as streamed:
            list(create(stream=True, **wanted))
        assert streamed.value.body == caught.value.body


@pytest.mark.parametrize("how", ["raise", "interrupt"])
@pytest.mark.parametrize("stream", [False, True])
def test_what_a_plugin_says_is_for_the_log_alone(server: Server, ask: Ask, how: str, stream: bool) -> None:
    before = len(server.log())
    with pytest.raises(openai.APIError) as caught:
        list(ask.chat(vllm_xargs={"guideway.tenant": how}, stream=stream))
    assert caught.value.param == "request"
    message = caught.value.body["message"]  # type: ignore[index, call-overload]
    told = r"validator faulty/hooks\.faulty failed in validate_request over request (\S+), so the request is refused"
    request_id = re.match(told, message)
    assert request_id, message
    assert "asked to" not in message
    log = server.log()[before:]
    assert re.search(rf"request {re.escape(request_id[1])}: .*validate_request was asked to ", log)
    assert "Traceback" in log


def test_a_request_writes_no_control_characters_into_the_log(server: Server, ask: Ask) -> None:
    before = len(server.log())
    with pytest.raises(openai.BadRequestError):
        ask.chat(structured_outputs={"regex": "(\x1b[31m\u202e"})
    with pytest.raises(openai.BadRequestError):
        ask.chat(vllm_xargs={"guideway.\x1b[31m": "\x9b2J"})
    ours = [line for line in server.log()[before:].splitlines() if "guideway" in line]
    assert not re.search("[\x1b\x9b\u202e]", "".join(ours).replace("\x1b[0;36m", "").replace("\x1b[0m", ""))


def test_metrics_are_on_the_servers_page(server: Server, ask: Ask) -> None:
    assert json.loads(ask.text(json=SCHEMA)) == ANSWER
    page = httpx.get(f"{server.url}/metrics", timeout=60).text
    assert re.search(r'^guideway_compile_seconds_count\{strategy="\w+"\} [1-9]', page, re.M)
    assert "# HELP guideway_fill_seconds Seconds by the clock" in page
    assert "# HELP guideway_step_seconds Seconds by the clock" in page


def test_metrics_of_the_engine_core_are_on_the_servers_page(server: Server, ask: Ask) -> None:
    """They are measured in another process. A step is added when the next one begins."""

    def seen() -> dict[str, float]:
        page = httpx.get(f"{server.url}/metrics", timeout=60).text
        samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
        return {" ".join([s.name, *s.labels.values()]): s.value for s in samples if s.name.startswith("guideway_")}

    wanted = {"structured_outputs": {"regex": "([a-z]{1,4} ?){3,40}"}, "temperature": 1.5, "seed": 7, "n": 8}
    before = seen()
    told = report_of(ask.chat(**wanted, max_tokens=12))
    added = {name: value - before.get(name, 0.0) for name, value in seen().items()}
    closed = sum(each.get("closed_early", False) for each in told["outputs"])
    assert closed, "the test is of closing"
    assert added[f"guideway_closed_early_total {told['strategy']}"] == closed
    assert added[f"guideway_compile_seconds_count {told['strategy']}"] == 2, "front end and engine core"
    num_steps = added["guideway_step_seconds_count prepare"]
    assert num_steps >= 11
    assert added["guideway_step_seconds_bucket +Inf prepare"] == num_steps
    assert 0 < added["guideway_step_seconds_sum prepare"] < 60 * num_steps


def test_a_response_format_that_is_wrong_is_refused(ask: Ask) -> None:
    wrong = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object", "required": "name"}}}
    with pytest.raises(openai.BadRequestError, match="required"):
        ask.chat(response_format=wrong)


# Failing requests: status 500, and no effect on others


def fails(phase: str, how: str = "raise", at: int = 2) -> dict[str, Any]:
    """Return a request whose strategy fails after `at` tokens."""
    spec = json.dumps({"bytes": 12, "phase": phase, "how": how, "at": at})
    return {"structured_outputs": {"grammar": spec}, "vllm_xargs": {"guideway.dialect": "faulty"}}


@pytest.mark.parametrize(
    ("wanted", "logged"),
    [
        (fails("fill_bitmask"), "grammar.faulty failed in fill"),
        (fails("fill_bitmask", "dead_end"), "nothing may follow"),
        (fails("accept", "panic", 1), "accept was asked to panic"),
        (fails("accept", "interrupt", 1), "accept was asked to interrupt"),
        ({"vllm_xargs": modifiers(faulty_pre_warp={"phase": "prepare", "how": "raise"})}, "prepare was asked to fail"),
        ({"vllm_xargs": modifiers(faulty_pre_warp={"phase": "apply", "how": "raise"})}, "apply was asked to fail"),
        ({"vllm_xargs": modifiers(faulty_post_warp={"phase": "apply", "how": "panic"})}, "apply was asked to panic"),
        (
            {"vllm_xargs": modifiers(faulty_pre_warp={"phase": "apply", "how": "interrupt"})},
            "apply was asked to interrupt",
        ),
        ({"vllm_xargs": modifiers(faulty_pre_warp={"phase": "accept", "how": "fail"})}, "it gives up"),
    ],
    ids=["fill", "dead end", "accept", "interrupt", "prepare", "apply", "late apply", "interrupting apply", "gives up"],
)
def test_a_plugin_that_fails_ends_its_own_request(
    server: Server, ask: Ask, wanted: dict[str, Any], logged: str
) -> None:
    """vLLM's rule is that the client gets no details; they are in the server's log."""
    before = len(server.log())
    with ThreadPoolExecutor(2) as threads:
        neighbors = [threads.submit(ask.text, json=SCHEMA) for _ in range(2)]
        with pytest.raises(openai.InternalServerError) as caught:
            ask.chat(**wanted)
    assert caught.value.status_code == 500
    message = caught.value.body.pop("message")  # type: ignore[attr-defined]
    assert caught.value.body == {"type": "InternalServerError", "param": None, "code": 500}
    request_id = re.fullmatch(rf"{FAILURE}: request (\S+) failed; the server's log says why", message)
    assert request_id, message
    assert re.search(rf"request {request_id[1]}\S* ended with an error: .*{re.escape(logged)}", server.log()[before:])
    assert [json.loads(neighbor.result()) for neighbor in neighbors] == [ANSWER] * 2
    assert server.is_healthy()
    assert logged in server.log()[before:]
    # a stream has sent its status already, so the error is an event, which the client raises
    with pytest.raises(openai.APIError, match=FAILURE):
        list(ask.chat(stream=True, **wanted))
    assert json.loads(ask.text(json=SCHEMA)) == ANSWER


@pytest.mark.parametrize(
    ("wanted", "said", "kind", "code", "param"),
    [
        ({"vllm_xargs": {"guideway.modifiers": "{"}}, "is not JSON", "BadRequestError", "400", "guideway.modifiers"),
        (
            {"vllm_xargs": modifiers(faulty_pre_warp={"phase": "apply", "how": "raise"})},
            FAILURE,
            "InternalServerError",
            "500",
            None,
        ),
    ],
    ids=["refused", "failed"],
)
def test_streams_of_responses_and_messages_say_why_they_end(
    server: Server, wanted: dict[str, Any], said: str, kind: str, code: str, param: str | None
) -> None:
    """Without guideway, vLLM drops the first connection, and reports the second's error as an invalid chunk of a
    chat."""
    response = {"model": "demo", "input": TEXT, "max_output_tokens": 20, "stream": True, **wanted}
    events = events_of(httpx.post(f"{server.url}/v1/responses", json=response, timeout=300).text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert said in events[-1]["message"]
    assert {name: events[-1][name] for name in ("type", "code", "param")} == {
        "type": "error",
        "code": code,
        "param": param,
    }
    chat = [{"role": "user", "content": TEXT}]
    message = {"model": "demo", "messages": chat, "max_tokens": 20, "stream": True, **wanted}
    *_, last = events_of(httpx.post(f"{server.url}/v1/messages", json=message, timeout=300).text)
    assert said in last["error"]["message"]
    assert (last["type"], last["error"]["type"]) == ("error", kind)


def events_of(stream: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line.startswith("data: ")]


@pytest.mark.parametrize("how", ["raise", "interrupt", "leave"])
def test_a_plugin_that_fails_at_admission_is_named_in_the_response(server: Server, ask: Ask, how: str) -> None:
    """The event loop handles Ctrl-C, so an interrupt comes from the plugin."""
    with pytest.raises(openai.InternalServerError) as caught:
        ask.chat(vllm_xargs=modifiers(faulty_pre_warp={"phase": "start", "how": how, "at": 0}))
    message = caught.value.body["message"]  # type: ignore[index, call-overload]
    assert re.match(r"modifier\.faulty_pre_warp failed in start over request \S+; the server's log says why", message)
    assert server.is_healthy()


# Hostile requests, which cost others only time

REFUSED = (400, 500)
"""If compiling takes longer than `refuse_within`, as it can under load, the engine core ends the request."""


def chain(length: int) -> dict[str, Any]:
    """Return a schema with a chain of references to 7."""
    links = {f"r{i}": {"$ref": f"#/$defs/r{i + 1}"} for i in range(length)}
    return {"$defs": links | {f"r{length}": {"enum": [7]}}, "$ref": "#/$defs/r0"}


HOSTILE: dict[str, tuple[dict[str, Any], tuple[int, ...], str]] = {
    "deep JSON": ({"json": '{"items":' * 5000 + "{}" + "}" * 5000}, REFUSED, ""),
    "endless reference": ({"json": {"$ref": "#"}}, REFUSED, ""),
    "cycle of references": (
        {"json": {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}},
        REFUSED,
        "",
    ),
    "deep expression": ({"regex": "(" * 5000 + "a" + ")*" * 5000}, REFUSED, ""),
    "rule of itself": ({"grammar": "root ::= root"}, REFUSED, ""),
    "no text": ({"regex": r"[^\s\S]"}, REFUSED, ""),
    "chain of references": ({"json": chain(250)}, (200,), "7"),
    "endless chain of references": ({"json": chain(4_000)}, REFUSED, "chain"),
    "huge enumeration": (
        {"json": {"enum": [f"value {i}" for i in range(10_000)]}},
        (200,),
        r'"value \d{1,4}"',
    ),
    "many ways": ({"regex": "(a*)*" * 20 + "b{1,3}"}, (200,), "a*b{1,3}"),
    "too many states": ({"regex": "a{40}((a{1,300}){1,300}){1,300}"}, REFUSED, ""),
}


def test_hostile_constraints_leave_others_alone(server: Server, ask: Ask) -> None:
    def outcome(wanted: dict[str, Any]) -> tuple[int, str]:
        try:
            return 200, ask.text(**wanted)
        except openai.APIStatusError as error:
            return error.status_code, str(error.body)

    hostile, neighbors = {}, []
    with ThreadPoolExecutor(4) as threads:  # most are refused at once
        for name, (wanted, *_) in HOSTILE.items():
            neighbors.append(threads.submit(ask.text, json=SCHEMA))
            hostile[name] = threads.submit(outcome, wanted)
    assert all(json.loads(neighbor.result()) == ANSWER for neighbor in neighbors)
    outcomes = {name: future.result() for name, future in hostile.items()}
    for name, (_, statuses, pattern) in HOSTILE.items():
        assert outcomes[name][0] in statuses, (name, outcomes[name])
        assert re.search(pattern, outcomes[name][1]), (name, outcomes[name])
    assert server.is_healthy()


def test_a_constraint_that_compiles_slowly_is_served_in_the_end(ask: Ask) -> None:
    slow = {"grammar": json.dumps({"bytes": 5, "slow": True})}
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask.chat, structured_outputs=slow, vllm_xargs={"guideway.dialect": "faulty"})
        assert json.loads(ask.text(json=SCHEMA)) == ANSWER
        assert re.fullmatch("[a-z]{5}", answer.result().choices[0].message.content)


def test_no_constraint_reaches_native_code_of_the_server(server: Server, ask: Ask) -> None:
    """vLLM calls xgrammar with them while it reads a request, and a long chain of references overflows its stack."""
    endless = chain(20_000)
    form = {"type": "json_schema", "json_schema": endless}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<p>", "content": form, "end": "</p>"}}
    legacy = {"triggers": ["<p"], "structures": [{"begin": "<p>", "schema": endless, "end": "</p>"}]}
    attacks: list[dict[str, Any]] = [
        {"structured_outputs": {"structural_tag": json.dumps(tag)}},
        {"structured_outputs": {"structural_tag": json.dumps(legacy)}},
        {"response_format": tag},
        {"structured_outputs": {"json": endless}, "tools": TOOLS, "tool_choice": "auto"},
    ]
    for attack in attacks:
        with pytest.raises(openai.BadRequestError, match="too large"):
            ask.chat(**attack)
    with pytest.raises(openai.BadRequestError, match="structural"):
        ask.text(structural_tag="{")
    assert server.is_healthy()


def test_a_probe_hears_of_an_engine_core_that_has_no_hosts(server: Server, ask: Ask) -> None:
    assert json.loads(ask.text(json=SCHEMA)) == ANSWER
    assert server.is_healthy()
    (core,) = (pid for pid in tree(server.pid) if b"EngineCore" in Path(f"/proc/{pid}/cmdline").read_bytes())
    unbuilt = server.log_file.with_name(UNBUILT)
    unbuilt.touch()
    try:
        for pid in hosts_of(core):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(openai.InternalServerError):
            ask.text(regex="[a-z]{3}[0-9]")
        assert not server.is_healthy()
        assert "unhealthy: in the engine core no host can be started" in server.log()
        assert ask.chat().choices[0].message.content
    finally:
        unbuilt.unlink()
    until(server.is_healthy)
    assert re.fullmatch("[a-z]{4}[0-9]", ask.text(regex="[a-z]{4}[0-9]"))


@pytest.mark.parametrize("where", ["supports", "validate_request", "modifier's compile"])
def test_a_server_answers_others_while_it_looks_at_a_request(
    server: Server, ask: Ask, tmp_path: Path, where: str
) -> None:
    gate = tmp_path / "gate"
    slow: dict[str, Any] = {
        "supports": {
            "structured_outputs": {"grammar": json.dumps({"bytes": 5, "gate": str(gate)})},
            "vllm_xargs": {"guideway.dialect": "faulty"},
        },
        "validate_request": {"vllm_xargs": {"guideway.tenant": f"gate:{gate}"}},
        "modifier's compile": {"vllm_xargs": modifiers(faulty_compiles={"gate": str(gate)})},
    }[where]
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(ask.chat, **slow)
        while not gate.with_suffix(".reached").exists():
            assert not answer.done(), answer.result()
            time.sleep(0.05)
        assert server.is_healthy()
        assert json.loads(ask.text(json=SCHEMA)) == ANSWER
        assert not answer.done()
        gate.with_suffix(".open").touch()
        assert answer.result().choices[0].message.content


def test_nobody_waits_while_the_engine_core_compiles(server: Server, ask: Ask, tmp_path: Path) -> None:
    """A stream continues, and another request is served; a request that the core is compiling is aborted meanwhile."""
    gates = [tmp_path / "served", tmp_path / "given up"]

    def held(gate: Path) -> dict[str, Any]:
        spec = json.dumps({"bytes": 5, "gate in the core": str(gate)})
        return {"structured_outputs": {"grammar": spec}, "vllm_xargs": {"guideway.dialect": "faulty"}}

    # compiled first, because both compile threads are blocked from here on
    assert json.loads(ask.text(json=SCHEMA)) == ANSWER
    with ask.complete(stream=True, max_tokens=400, extra_body={"ignore_eos": True}) as stream:
        next(stream)
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(ask.chat, **held(gates[0]))
            given_up = ask.chat(stream=True, **held(gates[1]))
            try:
                until(lambda: all(gate.with_suffix(".reached").exists() for gate in gates))
                assert (
                    json.loads(ask.complete(structured_outputs={"json": SCHEMA}, timeout=60).choices[0].text) == ANSWER
                )
                assert list(stream)[-1].choices[0].finish_reason == "length"
                given_up.close()
                until(lambda: server.metric("vllm:num_requests_waiting") == 1)
                assert not answer.done()
            finally:
                for gate in gates:
                    gate.with_suffix(".open").touch()
            assert re.fullmatch("[a-z]{5}", answer.result().choices[0].message.content)
    assert json.loads(ask.text(json=SCHEMA)) == ANSWER


# Mixed load


@pytest.mark.slow
def test_a_mixed_load_ends_with_every_answer_right_and_nothing_running(server: Server, ask: Ask) -> None:
    def abort(ask: Ask) -> None:
        with ask.chat(stream=True, structured_outputs={"regex": "[a-z]{300}"}, max_tokens=300) as stream:
            next(stream)
            next(stream)

    def give_up(ask: Ask) -> None:
        """Abort a request while its constraint compiles."""
        slow = {"grammar": json.dumps({"bytes": 5, "slow": True, "of": next(numbers)})}
        with pytest.raises(openai.APITimeoutError):
            ask.chat(
                structured_outputs=slow, vllm_xargs={"guideway.dialect": "faulty"}, timeout=faulty.COMPILES_FOR / 4
            )

    def person(ask: Ask, **wanted: Any) -> None:
        answer = json.loads(ask.chat(structured_outputs={"json": SCHEMA}, **wanted).choices[0].message.content)
        assert set(answer) == set(ANSWER)
        assert len(answer["name"]) <= 12
        assert answer["age"] <= 120

    def matching(ask: Ask, pattern: str, **wanted: Any) -> None:
        for choice in ask.chat(**wanted).choices:
            assert re.fullmatch(pattern, choice.message.content)

    def streamed(ask: Ask) -> None:
        chunks = ask.complete(stream=True, structured_outputs={"json": SCHEMA})
        assert json.loads("".join(chunk.choices[0].text for chunk in chunks)) == ANSWER

    def refused(ask: Ask) -> None:
        with pytest.raises(openai.BadRequestError, match="unclosed group"):
            ask.text(regex="(")

    def failing(ask: Ask) -> None:
        with pytest.raises(openai.InternalServerError, match=FAILURE):
            ask.chat(**fails("fill_bitmask"))

    kinds: list[Callable[[Ask], object]] = [
        lambda ask: ask.chat(temperature=1),
        person,
        lambda ask: person(ask, vllm_xargs={"guideway.strategy": "xgrammar"}),
        lambda ask: person(ask, temperature=1, vllm_xargs=modifiers(hello={"letter": "o"})),
        lambda ask: matching(ask, "[b-d]{9}", structured_outputs={"regex": "[b-d]{9}"}, temperature=1, n=2),
        lambda ask: matching(ask, "ab|cd", structured_outputs={"grammar": 'root ::= "ab" | "cd"'}),
        lambda ask: matching(ask, "[^n]*", vllm_xargs=modifiers(hello={"letter": "n"})),
        streamed,
        abort,
        give_up,
        refused,
        failing,
        lambda ask: ask.chat(vllm_xargs=modifiers(faulty_post_warp={}), temperature=1),
    ]
    numbers = itertools.count()
    with ThreadPoolExecutor(20) as threads:
        for result in [threads.submit(kinds[i % len(kinds)], ask) for i in range(5 * len(kinds))]:
            result.result()
    assert server.is_healthy()
    for _ in range(60):  # the server notices closed connections with a delay
        left = {name: server.metric(f"vllm:num_requests_{name}") for name in ("running", "waiting")}
        if not any(left.values()):
            break
        time.sleep(0.5)
    assert left == {"running": 0, "waiting": 0}
    assert json.loads(ask.text(json=SCHEMA)) == ANSWER
