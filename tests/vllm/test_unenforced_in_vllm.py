"""`on_unenforced` in vLLM: over HTTP, in streams, and offline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import copy
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from guideway.api import InvalidConfiguration

from tests.support.processes import hosts_of, role_of, tree
from tests.vllm.serving import Server, serve

pytestmark = pytest.mark.vllm

ONE = {"type": "integer", "minimum": 1, "maximum": 1}
TWICE = {"type": "array", "items": ONE, "minItems": 2, "maxItems": 2, "uniqueItems": True}
"""xgrammar does not enforce ``uniqueItems``, and without it there is only the text [1,1]."""

ONCE = {
    "type": "array",
    "prefixItems": [{"const": 1}, {"const": 2}],
    "items": False,
    "minItems": 2,
    "maxItems": 2,
    "uniqueItems": True,
}
FULL = {"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 1}
REMOTE = {"$ref": "https://example.com/a.json"}
GUIDEWAY = {"grammar": ["xgrammar"], "whitespace": "compact", "refuse_within": 30, "strict_refuses": True}
MESSAGES: Any = [{"role": "user", "content": "x"}]


@pytest.fixture(scope="module")
def server(demo_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(demo_model, GUIDEWAY, tmp_path_factory.mktemp("unenforced") / "log.txt") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=300) as client:
        yield client


def request_fields(
    schema: Any, policy: str | None = None, *, strict: bool | None = None, **more: Any
) -> dict[str, Any]:
    json_schema = {"name": "a", "schema": schema, **({} if strict is None else {"strict": strict})}
    xargs = {} if policy is None else {"vllm_xargs": {"guideway.on_unenforced": policy}}
    return {
        "model": "demo",
        "temperature": 0,
        "max_tokens": 40,
        "extra_body": {"response_format": {"type": "json_schema", "json_schema": json_schema}, **xargs},
        **more,
    }


def chat(client: openai.OpenAI, *given: Any, **more: Any) -> Any:
    return client.chat.completions.create(messages=MESSAGES, **request_fields(*given, **more))


def report_of(response: Any) -> dict[str, Any]:
    return (response.model_extra["kv_transfer_params"] or {}).get("guideway", {})


def refusal(client: openai.OpenAI, *given: Any, **more: Any) -> str:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, *given, **more)
    return str(caught.value)


def test_an_idle_server_with_one_strategy_has_at_most_five_helper_processes(
    server: Server, client: openai.OpenAI
) -> None:
    chat(client, FULL)
    roles = sorted(map(role_of, hosts_of(*tree(server.pid))))
    assert {"fork-server", "compile", "fill"} <= set(roles), "the strategy is in hosts"
    assert len(roles) <= 5, roles


def test_the_policy_of_a_request(client: openai.OpenAI) -> None:
    report = {"strategy": "xgrammar", "unenforced": ["uniqueItems"]}
    assert report_of(chat(client, TWICE)) == report_of(chat(client, TWICE, "report")) == report
    assert "xgrammar does not enforce `uniqueItems`" in refusal(client, TWICE, "refuse")
    assert report_of(chat(client, FULL, "refuse")) == {"strategy": "xgrammar"}
    checked = chat(client, TWICE, "check")
    assert checked.choices[0].message.content == "[1,1]"
    assert report_of(checked) == {**report, "valid": False}
    assert report_of(chat(client, ONCE, "check")) == {**report, "valid": True}
    assert "on_unenforced must be" in refusal(client, TWICE, "ignore")


@pytest.mark.parametrize("policy", [None, "refuse", "check"])
def test_a_schema_of_which_nothing_would_be_enforced_is_refused(client: openai.OpenAI, policy: str | None) -> None:
    assert "`$ref:remote` at #/$ref would be ignored" in refusal(client, REMOTE, policy)


def test_strict_refuses_where_the_operator_allows_and_the_request_says_nothing_else(client: openai.OpenAI) -> None:
    assert "xgrammar does not enforce `uniqueItems`" in refusal(client, TWICE, strict=True)
    assert report_of(chat(client, TWICE, strict=False))["unenforced"] == ["uniqueItems"]
    assert report_of(chat(client, TWICE, "report", strict=True))["unenforced"] == ["uniqueItems"]
    assert report_of(chat(client, FULL, strict=True)) == {"strategy": "xgrammar"}
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        client.completions.create(prompt="x", **request_fields(TWICE, strict=True))
    with pytest.raises(openai.BadRequestError, match="uniqueItems"):
        client.responses.create(
            model="demo",
            input="x",
            max_output_tokens=40,
            text={"format": {"type": "json_schema", "name": "a", "schema": TWICE, "strict": True}},
        )


@pytest.mark.parametrize("usage", [False, True])
def test_the_last_chunk_of_a_stream_tells(client: openai.OpenAI, usage: bool) -> None:
    more: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if usage else {"stream": True}
    expected = {"strategy": "xgrammar", "unenforced": ["uniqueItems"], "valid": False}
    chunks = list(chat(client, TWICE, "check", **more))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "[1,1]"
    told_in = [chunk for chunk in chunks if "kv_transfer_params" in (chunk.model_extra or {})]
    assert [report_of(chunk) for chunk in told_in] == [expected]
    assert told_in[0].choices[0].finish_reason == "stop"
    pieces = list(client.completions.create(prompt="x", **request_fields(TWICE, "check", **more)))
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == "[1,1]"
    assert [report_of(piece) for piece in pieces if "kv_transfer_params" in (piece.model_extra or {})] == [expected]


def test_a_stream_without_a_check_tells_too(client: openai.OpenAI) -> None:
    *_, last = chat(client, TWICE, stream=True)
    assert report_of(last) == {"strategy": "xgrammar", "unenforced": ["uniqueItems"]}


def test_each_choice_of_a_stream_has_its_own(client: openai.OpenAI) -> None:
    either = {"type": "array", "prefixItems": [{"enum": [1, 2]}] * 2, "minItems": 2, "maxItems": 2, "uniqueItems": True}
    texts, verdicts = {}, {}
    for chunk in chat(client, either, "check", stream=True, n=8, temperature=2.0, seed=1):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.finish_reason is not None:
                verdicts[choice.index] = report_of(chunk)["valid"]
    assert len(verdicts) == 8
    assert verdicts == {index: text in ("[1,2]", "[2,1]") for index, text in texts.items()}
    together = report_of(chat(client, either, "check", n=8, temperature=2.0, seed=1))
    assert together["valid"] is all(verdicts.values())


def test_what_gave_way_to_a_constraint_is_told_of_streams_too(client: openai.OpenAI, demo_model: str) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    ban = {
        str(i): -100
        for i, token in enumerate(tokenizer.batch_decode([[i] for i in range(len(tokenizer))]))
        if "1" in token
    }
    given = request_fields(ONCE, logit_bias=ban)
    given["extra_body"] |= {"min_tokens": 30, "bad_words": ["q"]}
    expected = {"strategy": "xgrammar", "unenforced": ["uniqueItems", "logit_bias", "min_tokens"]}
    answer = client.chat.completions.create(messages=MESSAGES, **given)
    assert answer.choices[0].message.content == "[1,2]"
    assert report_of(answer) == expected
    *_, last = chunks = list(client.chat.completions.create(messages=MESSAGES, **given, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "[1,2]"
    assert (last.choices[0].finish_reason, report_of(last)) == ("stop", expected)


def test_what_a_stop_string_cuts_is_told_and_judged_as_it_is(client: openai.OpenAI) -> None:
    cut = chat(client, ONCE, "check", stop=["1"])
    assert cut.choices[0].message.content == "["
    assert report_of(cut) == {"strategy": "xgrammar", "unenforced": ["uniqueItems", "constraint"], "valid": False}
    assert json.loads(chat(client, ONCE, "check").choices[0].message.content) == [1, 2]
    assert report_of(chat(client, FULL, stop=["1"])) == {"strategy": "xgrammar", "unenforced": ["constraint"]}
    assert report_of(chat(client, FULL, stop=["2"])) == {"strategy": "xgrammar"}


def test_a_stream_that_a_stop_string_cuts_tells_so_in_its_last_chunk(client: openai.OpenAI) -> None:
    chunks = list(chat(client, TWICE, stop=[","], stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "[1"
    told_in = [chunk for chunk in chunks if "kv_transfer_params" in (chunk.model_extra or {})]
    assert [report_of(chunk) for chunk in told_in] == [
        {"strategy": "xgrammar", "unenforced": ["uniqueItems", "constraint"]}
    ]
    assert told_in[0].choices[0].finish_reason == "stop"


@pytest.mark.parametrize(("pattern", "is_cut"), [("a(;z)?", False), ("a;z", True)])
def test_where_what_is_left_is_complete_a_stop_string_cuts_nothing(
    client: openai.OpenAI, demo_model: str, pattern: str, is_cut: bool
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(demo_model)
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
    answer = client.completions.create(
        model="demo",
        prompt="x",
        temperature=0,
        max_tokens=20,
        stop=[";"],
        logit_bias={str(i): 100 for i, text in enumerate(texts) if text.startswith(";")},
        extra_body={"structured_outputs": {"regex": pattern}},
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("a", "stop")
    assert report_of(answer) == {"strategy": "xgrammar", **({"unenforced": ["constraint"]} if is_cut else {})}


def test_where_no_verdict_can_come_back_a_check_is_refused(demo_model: str) -> None:
    from guideway_vllm.frontend import FrontEnd
    from vllm import EngineArgs, SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    config = EngineArgs(demo_model, dtype="float32", max_model_len=256).create_engine_config()
    config.structured_outputs_config.reasoning_parser = "deepseek_r1"
    config.additional_config = {"guideway": {**GUIDEWAY, "on_unenforced": "check"}}
    with pytest.raises(InvalidConfiguration, match="not checked with a reasoning parser"):
        FrontEnd.of(config)
    config.additional_config = {"guideway": GUIDEWAY}
    front_end = FrontEnd.of(config)
    assert front_end is not None
    wanted = SamplingParams(
        structured_outputs=StructuredOutputsParams(json=TWICE), extra_args={"guideway.on_unenforced": "check"}
    )
    with pytest.raises(VLLMValidationError, match="not checked with a reasoning parser"):
        front_end.admit(SimpleNamespace(sampling_params=wanted))
    front_end.close()


def test_offline_it_is_the_same(start: Callable[..., Any]) -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    wanted = [
        SamplingParams(
            temperature=0,
            max_tokens=40,
            structured_outputs=StructuredOutputsParams(json=schema),
            extra_args={} if policy is None else {"guideway.on_unenforced": policy},
        )
        for schema, policy in ((TWICE, "check"), (ONCE, "check"), (TWICE, None))
    ]
    wanted.append(copy(wanted[-1]))
    wanted[-1].stop = [","]
    outputs = start(GUIDEWAY).generate(["x"] * len(wanted), wanted, use_tqdm=False)
    reports = [output.kv_transfer_params["guideway"] for output in outputs]
    assert [
        (output.outputs[0].text, report.get("valid"), "constraint" in report["unenforced"])
        for output, report in zip(outputs, reports, strict=True)
    ] == [("[1,1]", False, False), ("[1,2]", True, False), ("[1,1]", None, False), ("[1", None, True)]
