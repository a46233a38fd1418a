"""The server: standard clients, real sockets, and inputs that fail alone."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Event, Semaphore
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import openai
import pytest
from engine_support.encoders import encoder, stored, texts
from engine_support.serving import MODEL, post, served
from guideway import Engine
from guideway_engine.server.limits import Limits
from guideway_engine.server.turns import Turn, Turns
from openai import AsyncOpenAI, OpenAI

PARTS = "engine_support.workflow_parts"
HEAD = "ForSequenceClassification"

Post = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "embed": stored(encoder("Bert"), folder / "embed"),
        "rerank": stored(encoder("Bert", HEAD, num_labels=1), folder / "rerank"),
        "classify": stored(encoder("Bert", HEAD, id2label={0: "no", 1: "yes", 2: "so"}), folder / "classify"),
    }


@pytest.fixture(scope="module")
def engines(folders: dict[str, Path]) -> Iterator[dict[str, Engine]]:
    with ExitStack() as stack:
        yield {task: stack.enter_context(Engine(folder)) for task, folder in folders.items()}


@pytest.fixture(scope="module")
def addresses(engines: dict[str, Engine]) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {task: stack.enter_context(served(engine, trusts_clients=True)) for task, engine in engines.items()}


@pytest.fixture(scope="module")
def client(addresses: dict[str, str]) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{addresses['embed']}/v1", api_key="any", max_retries=0) as made:
        yield made


JSON = {"content-type": "application/json"}

TWICE = b'{"model": "m", "input": "w1", "input": "w2"}'
"""A body with a duplicate key, which would silently lose an input."""


def posted(url: str, body: Any, raw: bytes | None = None) -> tuple[int, Any]:
    data = json.dumps(body).encode() if raw is None else raw
    try:
        with urlopen(Request(url, data, JSON), timeout=60) as response:
            return response.status, json.load(response)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.parametrize("encoding_format", [openai.omit, "float", "base64"])
def test_the_stock_client_gets_the_vectors_of_the_engine(
    encoding_format: Any, client: OpenAI, engines: dict[str, Engine]
) -> None:
    inputs = texts(30)
    answer = client.embeddings.create(model=MODEL, input=inputs, encoding_format=encoding_format)
    expected = engines["embed"].embed(inputs)
    assert [item.index for item in answer.data] == list(range(30))
    for item, result in zip(answer.data, expected, strict=True):
        vector: Any = item.embedding
        if encoding_format == "base64":  # the client returns base64 unchanged if it was requested
            vector = struct.unpack("<32f", base64.b64decode(vector))
        assert np.array_equal(np.array(vector, dtype=np.float32), result.vector)
    assert answer.usage.total_tokens == sum(result.num_tokens for result in expected)
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "guideway"


def test_all_forms_of_input(client: OpenAI, engines: dict[str, Engine]) -> None:
    (one,) = client.embeddings.create(model=MODEL, input="w1 w2", dimensions=8).data
    (ids,) = client.embeddings.create(model=MODEL, input=[2, 6, 7, 3], dimensions=8, user="somebody").data
    many = client.embeddings.create(
        model=MODEL, input=[[2, 6, 7, 3], [2, 6, 3]], dimensions=8, extra_body={"priority": 1, "truncate": "left"}
    ).data
    assert one.embedding == ids.embedding == many[0].embedding
    assert len(one.embedding) == 8
    assert len(many) == 2


def test_an_input_fails_alone(client: OpenAI, addresses: dict[str, str]) -> None:
    answer: Any = client.embeddings.create(model=MODEL, input=["w1", "w2 " * 100, "w3"])
    assert [item.embedding is None for item in answer.data] == [False, True, False]
    assert answer.data[1].error["code"] == "limit_exceeded"
    assert answer.data[1].error["param"] == "input"
    assert "102 tokens" in answer.data[1].error["message"]
    status, found = posted(f"{addresses['embed']}/v1/embeddings", {"model": MODEL, "input": ["w1", "\ud800"]})
    assert status == 200
    assert "lone surrogate" in found["data"][1]["error"]["message"]


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        ({"model": "gpt"}, 404, "model_not_found", None),
        ({"input": []}, 400, "invalid_request", "input"),
        ({"input": 5}, 400, "invalid_request", "input"),
        ({"input": "w1 " * 100}, 400, "limit_exceeded", "input"),
        ({"input": [285]}, 400, "invalid_request", "input"),
        ({"input": ["w1"] * 2049}, 400, "limit_exceeded", "input"),
        ({"dimensions": 0}, 400, "invalid_request", "dimensions"),
        ({"dimensions": 33}, 400, "invalid_request", "dimensions"),
        ({"dimensions": True}, 400, "invalid_request", "dimensions"),
        ({"temperature": 1}, 400, "invalid_request", "temperature"),
        ({"\ud800": 1}, 400, "invalid_request", "\\ud800"),
        ({"encoding_format": "hex"}, 400, "invalid_request", "encoding_format"),
        ({"truncate": "both"}, 400, "invalid_request", "truncate"),
        ({"user": "u" * 257}, 400, "invalid_request", "user"),
    ],
)
def test_a_call_that_is_wrong_as_a_whole(
    body: dict[str, Any], status: int, code: str, param: str | None, addresses: dict[str, str]
) -> None:
    found = posted(f"{addresses['embed']}/v1/embeddings", {"model": MODEL, "input": "w1"} | body)
    assert found[0] == status
    error = found[1]["error"]
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", code, param)
    assert error["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b'{"model": "\x1b"}', b'{"model": NaN}', TWICE])
def test_a_body_that_is_none(raw: bytes, addresses: dict[str, str]) -> None:
    status, found = posted(f"{addresses['embed']}/v1/embeddings", None, raw)
    assert status == 400
    assert found["error"]["code"] == "invalid_request"


def test_errors_are_the_client_s_own_types(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as found:
        client.embeddings.create(model="gpt", input="w1")
    assert found.value.code == "model_not_found"
    assert found.value.request_id
    with pytest.raises(openai.NotFoundError, match="generates no text"):
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "w1"}])
    with pytest.raises(openai.NotFoundError, match="no model 'other'"):
        client.models.retrieve("other")


def test_documents_are_ranked_best_first_and_failures_come_last(
    addresses: dict[str, str], engines: dict[str, Engine]
) -> None:
    documents = texts(9, 20)
    query = "w3 w4"
    url = f"{addresses['rerank']}/v1/rerank"
    status, found = posted(url, {"model": MODEL, "query": query, "documents": [*documents, "w1 " * 100]})
    assert status == 200
    scores = engines["rerank"].rerank(query, documents)
    expected = sorted(scores, key=lambda score: score.score or 0, reverse=True)
    assert [item["index"] for item in found["results"]] == [score.index for score in expected] + [9]
    assert [item["relevance_score"] for item in found["results"]] == [score.score for score in expected] + [None]
    assert found["results"][-1]["error"]["code"] == "limit_exceeded"
    assert found["results"][0]["document"]["text"] == documents[expected[0].index]
    few = {"model": MODEL, "query": query, "documents": [{"text": text} for text in documents], "top_n": 2}
    status, found = posted(url, few | {"return_documents": False})
    assert [set(item) for item in found["results"]] == [{"index", "relevance_score"}] * 2
    assert [item["index"] for item in found["results"]] == [score.index for score in expected][:2]
    assert posted(url, few | {"query": 5})[0] == 400
    assert posted(url, few | {"documents": []})[1]["error"]["param"] == "documents"


def test_texts_and_pairs_are_labelled(addresses: dict[str, str], engines: dict[str, Engine]) -> None:
    url = f"{addresses['classify']}/v1/classify"
    status, found = posted(url, {"model": MODEL, "input": ["w1", ["w1", "w2"], [2, 6, 3], ["w1"]]})
    assert status == 200
    expected = engines["classify"].classify(["w1", ("w1", "w2"), [2, 6, 3]])
    assert found["labels"] == ["no", "yes", "so"]
    for item, result in zip(found["data"], expected, strict=False):
        assert item["label"] == result.label
        assert dict(zip(found["labels"], item["probs"], strict=True)) == result.probabilities
    assert found["data"][3]["label"] is None
    assert found["data"][3]["error"]["code"] == "invalid_request"


def test_what_the_model_is_not_for_is_refused(addresses: dict[str, str]) -> None:
    status, found = posted(f"{addresses['embed']}/v1/rerank", {"model": MODEL, "query": "w1", "documents": ["w1"]})
    assert (status, found["error"]["code"], found["error"]["param"]) == (400, "unsupported_capability", "model")
    said = found["error"]["message"]
    assert "is not for /v1/rerank" in said and "send to /v1/embeddings" in said
    assert posted(f"{addresses['embed']}/v1/none", {})[1]["error"]["code"] == "no_route"
    with urlopen(f"{addresses['embed']}/openapi.json") as response:
        paths = json.load(response)["paths"]
    assert {"/v1/embeddings", "/v1/rerank", "/v1/classify", "/v1/models", "/health"} <= set(paths)


def test_what_a_plugin_says_is_for_the_log(folders: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    options = {"workflow.embed": {"runner": f"{PARTS}:PoisonedRunner"}}
    with Engine(folders["embed"], workflow="embed", options=options) as engine, served(engine) as url:
        status, found = posted(f"{url}/v1/embeddings", {"model": MODEL, "input": ["w1", "w13", "w2"]})
        failed = posted(f"{url}/v1/embeddings", {"model": MODEL, "input": ["w13"]})
    assert status == 200
    assert [item["embedding"] is None for item in found["data"]] == [False, True, False]
    error = found["data"][1]["error"]
    assert (error["type"], error["code"]) == ("server_error", "plugin_error")
    assert "workflow.embed failed" in error["message"] and found["id"] in error["message"]
    assert "poison" not in error["message"] and "poison" in caplog.text
    assert failed[0] == 500


@pytest.mark.slow
def test_a_flood_of_mixed_calls(addresses: dict[str, str], engines: dict[str, Engine]) -> None:
    inputs = texts(200)
    expected = [result.vector for result in engines["embed"].embed(inputs)]
    wrong: list[Any] = ["w1 " * 90, [-1]]

    async def call(client: AsyncOpenAI, number: int) -> None:
        mine = range(number, 200, 40)
        given: list[Any] = [inputs[index] for index in mine]
        given.insert(number % 5, wrong[number % 2])
        answer = await client.embeddings.create(model=MODEL, input=given, user=f"user {number % 3}")
        vectors: list[Any] = [item.embedding for item in answer.data]
        assert vectors.pop(number % 5) is None
        for index, vector in zip(mine, vectors, strict=True):
            assert np.allclose(np.array(vector, dtype=np.float32), expected[index], atol=1e-5)

    async def flood() -> None:
        async with AsyncOpenAI(base_url=f"{addresses['embed']}/v1", api_key="any", max_retries=0) as client:
            await asyncio.gather(*[call(client, number) for number in range(40)])

    asyncio.run(flood())


def test_more_than_the_server_takes_is_refused_and_nothing_else(engines: dict[str, Engine]) -> None:
    limits = Limits(max_body_bytes=1000, max_requests=1, max_bytes=100)
    with served(engines["embed"], limits) as url:
        status, found = posted(f"{url}/v1/embeddings", None, b"x" * 5_000_000)
        assert (status, found["error"]["code"]) == (413, "too_large")
        status, found = posted(f"{url}/v1/embeddings", None, b"x" * 500)
        assert (status, found["error"]["code"], found["error"]["type"]) == (429, "busy", "rate_limit_error")
        for _ in range(5):  # answered requests do not count
            assert posted(f"{url}/v1/embeddings", {"model": MODEL, "input": "w1"})[0] == 200


def test_a_body_that_is_compressed_is_refused_by_its_encoding(addresses: dict[str, str]) -> None:
    body = gzip.compress(json.dumps({"model": MODEL, "input": "w1"}).encode())
    with pytest.raises(HTTPError) as refused:
        urlopen(Request(f"{addresses['embed']}/v1/embeddings", body, {"content-encoding": "gzip"} | JSON))
    error = json.load(refused.value)["error"]
    assert (refused.value.code, error["code"]) == (415, "unknown_encoding")
    assert "'gzip'" in error["message"]


def eventually(holds: Callable[[], bool]) -> bool:
    return any(holds() or time.sleep(0.02) for _ in range(500))


def test_a_client_that_leaves_gives_up_what_it_asked_for(folders: dict[str, Path]) -> None:
    from engine_support.workflow_parts import Gate

    options = {"workflow.embed": {"runner": f"{PARTS}:GatedRunner", "max_step_requests": 1, "driver": "async"}}
    Gate.tickets, Gate.reached, Gate.steps = Semaphore(0), Event(), 0
    with Engine(folders["embed"], workflow="embed", options=options) as engine, served(engine) as url:
        body = json.dumps({"model": MODEL, "input": texts(40)}).encode()
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as leaving:
            leaving.sendall(post("/v1/embeddings", body))
            assert Gate.reached.wait(60)
        time.sleep(0.2)
        Gate.tickets.release(1000)
        assert posted(f"{url}/v1/embeddings", {"model": MODEL, "input": "w1"})[0] == 200
    assert Gate.steps < 20


def test_health(folders: dict[str, Path]) -> None:
    with Engine(folders["embed"]) as engine, served(engine) as url:
        with urlopen(f"{url}/health") as response:
            assert json.load(response) == {"status": "ok"}
        with urlopen(Request(f"{url}/health", method="HEAD")) as response:  # sent by load balancers
            assert (response.status, response.read()) == (200, b"")
        engine.close()
        with pytest.raises(HTTPError) as found:
            urlopen(f"{url}/health")
        assert found.value.code == 503
        found.value.close()
        assert posted(f"{url}/v1/embeddings", {"model": MODEL, "input": "w1"})[0] == 503


def test_a_broken_part_is_no_health(folders: dict[str, Path]) -> None:
    options = {"workflow.embed": {"scheduler": f"{PARTS}:BrokenScheduler", "driver": "async"}}
    with Engine(folders["embed"], workflow="embed", options=options) as engine, served(engine) as url:
        assert posted(f"{url}/v1/embeddings", {"model": MODEL, "input": "w1"})[0] == 500
        with pytest.raises(HTTPError) as found:
            urlopen(f"{url}/health")
        assert found.value.code == 503
        assert "the scheduler is broken" in found.value.read().decode()
        found.value.close()


def test_turns_go_by_priority_and_are_shared_among_tenants() -> None:
    order: list[str] = []

    async def call(turns: Turns, name: str, turn: Turn) -> None:
        async with turns.take(turn):
            order.append(name)
            await asyncio.sleep(0)

    async def run() -> None:
        turns = Turns(1)
        async with turns.take(Turn(0, "a", 0)):
            calls = [
                asyncio.create_task(call(turns, name, Turn(priority, tenant, arrival)))
                for arrival, (name, priority, tenant) in enumerate(
                    [("late", 5, "b"), ("gone", 0, "a"), ("a1", 0, "a"), ("a2", 0, "a"), ("b1", 0, "b")], 1
                )
            ]
            await asyncio.sleep(0)
            calls[1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        async with asyncio.timeout(5), turns.take(Turn(0, "a", 9)):
            pass

    asyncio.run(run())
    assert set(order) == {"a1", "a2", "b1", "late"}
    assert order[-1] == "late"
    assert order.index("a1") < order.index("a2")
