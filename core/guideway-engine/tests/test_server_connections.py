"""Slow, hostile and unusual clients of every route. Each test waits at most `GUARD` seconds for the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from engine_support.encoders import encoder, stored
from engine_support.serving import MODEL, Raw, post, served
from fastapi.routing import APIRoute
from guideway import Engine
from guideway_engine.server.app import make_app
from guideway_engine.server.framing import MAX_HEAD_BYTES, MAX_HEADERS, MAX_SMALL_CHUNKS
from guideway_engine.server.gate import default_hosts
from guideway_engine.server.limits import Limits
from openai import OpenAI
from prometheus_client import REGISTRY

APP = make_app(cast("Engine", None), MODEL, Limits())

ROUTES = [
    *((method, route.path.replace("{name:path}", MODEL)) for route in APP.routes for method in sorted(route.methods)),
    *(("GET", "/none"), ("DELETE", "/v1/embeddings")),
]
"""All routes of the application, and two that do not exist."""

POSTS = [route.path for route in APP.routes if isinstance(route, APIRoute) and "POST" in route.methods]

every_route = pytest.mark.parametrize(("method", "path"), ROUTES)

KEY = "a-key"
INPUT = json.dumps({"model": MODEL, "input": "w1"}).encode()
ASK = post("/v1/embeddings", INPUT)
"""A request that gets status 200."""

MALFORMED = {
    "both lengths": b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, the other order": b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": b"content-length: 3\r\ncontent-length: 3\r\n\r\nabc",
    "two different lengths": b"content-length: 3\r\ncontent-length: 4\r\n\r\nabc",
    "a list of lengths": b"content-length: 3, 3\r\n\r\nabc",
    "a signed length": b"content-length: +3\r\n\r\nabc",
    "a space before the colon": b"content-length : 3\r\n\r\nabc",
    "another coding": b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "two codings": b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"x: a\r\n b\r\n\r\n",
    "a folded length": b"content-length:\r\n 3\r\n\r\nabc",
    "a bare line feed": b"x: a\ny: b\r\n\r\n",
    "a head that ends with bare line feeds": b"x: a\n\n",
    "a bare carriage return": b"x: a\rb\r\n\r\n",
    "a null byte": b"x: a\0b\r\n\r\n",
    "a second host": b"host: b\r\n\r\n",
    "too many headers": b"x: y\r\n" * MAX_HEADERS + b"\r\n",
    "a long header": b"x: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\n",
    "a header without an end": b"x: " + b"y" * 2 * MAX_HEAD_BYTES,
    "tiny chunks": b"transfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * (MAX_SMALL_CHUNKS + 1),
    "a chunk extension without an end": b"transfer-encoding: chunked\r\n\r\n1;" + b"x" * 2 * MAX_HEAD_BYTES,
    "a chunk extension with a bare line feed": b"transfer-encoding: chunked\r\n\r\n1;a\nb\r\nx\r\n0\r\n\r\n",
    "a chunk extension with a bare carriage return": b"transfer-encoding: chunked\r\n\r\n1;a\rb\r\nx\r\n0\r\n\r\n",
    "a chunk that is longer than its size": b"transfer-encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
    "a chunk of no size": b"transfer-encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n",
    "headers after the body": b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\nhost: b\r\n\r\n",
    "a body that ends with a bare line feed": b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\n",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with Engine(stored(encoder("Bert"), tmp_path_factory.mktemp("models") / "embed")) as made:
        yield made


@pytest.fixture(scope="module")
def address(engine: Engine) -> Iterator[str]:
    with served(engine) as url:
        yield url


@pytest.fixture(scope="module")
def guarded(engine: Engine) -> Iterator[str]:
    with served(engine, hosts=["a", "localhost"], keys=["another", KEY]) as url:
        yield url


def count(code: str) -> float:
    return REGISTRY.get_sample_value("guideway_http_errors_total", {"code": code}) or 0


def is_served(url: str) -> bool:
    with Raw(url, ASK) as honest:
        return honest.response()[0] == 200


def test_heads_and_bodies_without_an_end(engine: Engine) -> None:
    """All clients at once, because each takes its full time limit."""
    codes = ("head_timeout", "body_timeout")
    before = [count(code) for code in codes]
    with served(engine, Limits(head_timeout=2, body_timeout=2)) as url, ExitStack() as stack:
        slow = {}
        for method, path in ROUTES:
            head = f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n".encode()
            chunked = head + b"transfer-encoding: chunked\r\n\r\n"
            for what, data in {
                "head": head,
                "body": head + b"content-length: 5\r\n\r\n{",
                "chunks": chunked + b"1\r\n{\r\n",
                "chunk": chunked + b"5;name=value\r\n{",
                "end": chunked + b"1\r\n{\r\n0\r\n",
            }.items():
                slow[method, path, what] = stack.enter_context(Raw(url, data))
        silent = stack.enter_context(Raw(url))
        for name, client in slow.items():
            assert (name, *client.error()) == (name, 408, "request_timeout")
            assert client.is_closed()
        assert silent.is_closed()
    assert [count(code) for code in codes] == [before[0] + len(ROUTES) + 1, before[1] + 4 * len(ROUTES)]


@every_route
def test_requests_that_another_server_may_read_otherwise(method: str, path: str, address: str) -> None:
    for name, rest in MALFORMED.items():
        with Raw(
            address, f"{method} {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n".encode()
        ) as client:
            client.write(rest)
            assert (name, *client.error()) == (name, 400, "malformed_http")
            assert client.is_closed()
    for first in (f"{method} {path} HTTP/2.0\r\nhost: a\r\n\r\n", f"{method} {path} HTTP/1.1\r\n\r\n", "\r\n", "\0"):
        with Raw(address, first.encode()) as client:
            assert (first, *client.error()) == (first, 400, "malformed_http")
            assert client.is_closed()


@every_route
def test_another_host(method: str, path: str, guarded: str) -> None:
    for host in ("evil.example", "a.evil.example", "a@b", "[::1]", "localhost:x", "", "a:80:80"):
        request = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {KEY}\r\n\r\n"
        with Raw(guarded, request.encode()) as client:
            assert client.response(has_body=method != "HEAD")[0] == 400


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1"])
def test_hosts_of_a_loopback_address(address: str) -> None:
    assert {"localhost", "127.0.0.1", "::1", "name", address} == set(default_hosts("name", address) or ())


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "10.0.0.1", "fe80::1%eth0"])
def test_hosts_of_another_address_are_unknown(address: str) -> None:
    assert default_hosts("name", address) is None


@every_route
def test_the_api_key(method: str, path: str, guarded: str) -> None:
    def status(key: str) -> tuple[int, dict[str, str]]:
        with Raw(guarded, f"{method} {path} HTTP/1.1\r\nhost: LOCALHOST:80\r\n{key}\r\n".encode()) as client:
            return client.response(has_body=method != "HEAD")[:2]

    right, _ = status(f"authorization: bearer {KEY}\r\n")
    assert right not in (401, 500)
    for wrong in (
        "",
        "authorization: Bearer\r\n",
        f"authorization: Basic {KEY}\r\n",
        f"authorization: Bearer {KEY}x\r\n",
    ):
        found, headers = status(wrong)
        assert found == (right if path == "/health" else 401)
        assert ("www-authenticate" in headers) == (found == 401)


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("given", ["", "text/plain", "application/jsonp", "application/json; charset=utf-16", "json"])
def test_another_content_type(given: str, path: str, address: str) -> None:
    header = f"content-type: {given}\r\n" if given else ""
    with Raw(address, f"POST {path} HTTP/1.1\r\nhost: a\r\n{header}content-length: 2\r\n\r\n{{}}".encode()) as client:
        assert client.error() == (415, "unsupported_media_type")


@pytest.mark.parametrize("path", POSTS)
def test_priority_is_the_operator_s(path: str, engine: Engine, address: str) -> None:
    fields = {"query": "w1", "documents": ["w1"]} if path.endswith("rerank") else {"input": "w1"}
    bodies = [json.dumps({"model": MODEL, "user": "u", **fields, "priority": number}).encode() for number in (-1, 0)]
    with Raw(address, b"".join(post(path, body) for body in bodies)) as client:
        status, _, body = client.response()
        assert (status, json.loads(body)["error"]["param"]) == (400, "priority")
        assert client.response()[0] == (200 if path == "/v1/embeddings" else 400)  # the model is only for embeddings
    with served(engine, trusts_clients=True) as url, Raw(url, post(path, bodies[0])) as client:
        assert json.loads(client.response()[2]).get("error", {}).get("param") != "priority"


def test_bodies_that_never_end_keep_nobody_out(engine: Engine) -> None:
    limits = Limits(max_connections=20, max_requests=10)
    with served(engine, limits) as url, ExitStack() as stack:
        slow = [stack.enter_context(Raw(url, post("/v1/embeddings", b"{", 5))) for _ in range(50)]
        assert is_served(url)
        # it may be closed before the response is read
        assert b"429 Too Many Requests" in slow[0].rest() or not slow[0].rest()
        slow[-1].write(b"    ")  # the others are read as usual
        assert slow[-1].error() == (400, "invalid_request")


def test_bytes_of_bodies_that_never_end_keep_nobody_out(engine: Engine) -> None:
    with served(engine, Limits(max_bytes=1000)) as url, ExitStack() as stack:
        slow = [stack.enter_context(Raw(url, post("/v1/embeddings", b" " * 300, 301))) for _ in range(20)]
        assert is_served(url)
        slow[0].write(b" ")
        assert slow[0].error() == (429, "busy")
        assert is_served(url)


def test_connections_that_are_idle_make_room(engine: Engine) -> None:
    with served(engine, Limits(max_connections=3, max_requests=2)) as url, ExitStack() as stack:
        idle = [stack.enter_context(Raw(url)) for _ in range(2)]
        for client in idle:
            client.write(ASK)
            assert client.response()[0] == 200
        kept = stack.enter_context(Raw(url, ASK))
        assert kept.response()[0] == 200
        assert is_served(url)
        assert idle[0].is_closed()


def test_an_idle_connection_is_closed(engine: Engine) -> None:
    with served(engine, Limits(keep_alive_timeout=0.2)) as url, Raw(url, ASK + ASK) as client:
        assert client.response()[0] == client.response()[0] == 200
        assert client.is_closed()


def test_a_client_that_does_not_read_is_disconnected(engine: Engine) -> None:
    before = count("write_timeout")
    body = json.dumps({"model": MODEL, "input": ["w1"] * 2000}).encode()
    with served(engine, Limits(write_timeout=0.2), send_bytes=4096) as url:
        with Raw(url, post("/v1/embeddings", body), receive_bytes=4096):
            while count("write_timeout") == before:
                assert is_served(url)
        assert count("write_timeout") == before + 1


@pytest.mark.slow
def test_responses_that_nobody_reads_take_bounded_memory(engine: Engine) -> None:
    before = count("evicted")
    body = json.dumps({"model": MODEL, "input": ["w1"] * 2000}).encode()
    with served(engine, Limits(max_bytes=1_000_000), send_bytes=4096) as url, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(Raw(url, post("/v1/embeddings", body), receive_bytes=4096))
        while count("evicted") < before + 3:
            assert is_served(url)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_a_body_in_chunks(size: int, address: str) -> None:
    """The division of bytes into chunks and of chunks into reads does not matter; a chunk may contain text that looks
    like another."""
    body = b'{"model": "tiny", "input": ["0\\r\\n", "w1"],\r\n0'[:-1] + b'"user": "1\\r\\n"}'
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    data = b"".join(b"%x;name=value\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
    data = head + b"transfer-encoding: chunked\r\n\r\n" + data
    for step in (1, len(data)):
        with Raw(address) as client:
            for at in range(0, len(data), step):
                client.write(data[at : at + step])
            client.write(ASK)
            assert client.response()[0] == client.response()[0] == 200


def test_http_1_0(address: str) -> None:
    with Raw(address, b"GET /health HTTP/1.0\r\n\r\n") as client:
        assert client.response()[0] == 200
        assert client.is_closed()


def test_a_client_that_waits_to_be_told_to_continue(address: str, guarded: str) -> None:
    expects = post("/v1/embeddings", b"", len(INPUT), b"expect: 100-continue\r\n")
    with Raw(address, expects) as client:
        assert client.socket.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.write(INPUT)
        assert client.response()[0] == 200
    with Raw(guarded, expects) as client:  # without a key the body need not be sent
        assert client.error() == (401, "invalid_api_key")
        assert client.is_closed()


def test_the_stock_client_with_and_without_a_key(guarded: str, address: str) -> None:
    for url, key in ((guarded.replace("127.0.0.1", "localhost"), KEY), (address, "any")):
        with OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
            assert len(client.embeddings.create(model=MODEL, input=["w1", "w2"]).data) == 2
            assert client.models.list().data[0].id == client.models.retrieve(MODEL).id == MODEL
            bodies: dict[str, Any] = {
                "/rerank": {"query": "w1", "documents": ["w1"]},
                "/classify": {"input": "w1"},
            }
            assert {f"/v1{path}" for path in bodies} == set(POSTS) - {"/v1/embeddings"}
            for path, body in bodies.items():
                with pytest.raises(openai.BadRequestError, match="is not for"):
                    client.post(path, body={"model": MODEL, **body}, cast_to=object)
    with (
        OpenAI(base_url=f"{guarded.replace('127.0.0.1', 'localhost')}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


def test_metrics_are_served(guarded: str) -> None:
    with Raw(guarded, f"GET /metrics HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {KEY}\r\n\r\n".encode()) as client:
        page = client.response()[2]
    assert b'guideway_http_errors_total{code="invalid_api_key"}' in page
    assert b"# HELP guideway_step_seconds Seconds by the clock" in page


def test_the_user_of_a_request_that_fails_is_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    options = {"workflow.embed": {"runner": "engine_support.workflow_parts:PoisonedRunner"}}
    body = json.dumps({"model": MODEL, "input": "w13", "user": "who\n"}).encode()
    with (
        Engine(stored(encoder("Bert"), tmp_path / "embed"), workflow="embed", options=options) as poisoned,
        served(poisoned) as url,
        Raw(url, post("/v1/embeddings", body)) as client,
    ):
        assert client.response()[0] == 500
    assert r"of user 'who\n'" in caplog.text
