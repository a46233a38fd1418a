"""``guideway serve``."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from engine_support.encoders import encoder, stored
from engine_support.serving import Raw, post
from guideway.command_line.program import main

from tests.support.stages import one_in

JSON = {"content-type": "application/json"}

SLOW_RUNNER = """\
import pathlib, time
from guideway_engine.prefill.runner import PoolingRunner

class Slow(PoolingRunner):
    def execute(self, step):
        pathlib.Path("under_way").touch()
        time.sleep(1)
        return super().execute(step)
"""


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(encoder("Bert"), tmp_path_factory.mktemp("models") / "tiny-bert")


@contextmanager
def serving(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Yield the process and its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "guideway", "serve", *arguments, "--port", "0"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        try:
            found = re.search(r"serving (.+) \(workflow (.+)\) at (http://127.0.0.1:\d+)/v1", line)
            assert found is not None, line
            assert found[1] == "tiny-bert"
            yield process, found[3]
        finally:
            process.kill()


@pytest.mark.slow
def test_who_asked_before_sigterm_gets_an_answer(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "slow_runner.py").write_text(SLOW_RUNNER)
    option = "--option=workflow.embed.runner=slow_runner:Slow"
    with serving(tmp_path, "--model", str(bert), "--workflow", "embed", option) as (process, url):

        def ask() -> int:
            body = json.dumps({"model": "tiny-bert", "input": ["w1", "w2"]}).encode()
            with urlopen(Request(f"{url}/v1/embeddings", body, JSON), timeout=60) as response:
                return len(json.load(response)["data"])

        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(ask)
            while not (tmp_path / "under_way").exists():
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert asked.result() == 2
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "guideway: stopped\n"


@pytest.mark.slow
def test_who_asked_before_a_second_interrupt_hears_that_it_stops(bert: Path, tmp_path: Path) -> None:
    (tmp_path / "slow_runner.py").write_text(SLOW_RUNNER.replace("sleep(1)", "sleep(5)"))
    option = "--option=workflow.embed.runner=slow_runner:Slow"
    with serving(tmp_path, "--model", str(bert), "--workflow", "embed", option) as (process, url):

        def ask() -> tuple[int, str]:
            with pytest.raises(HTTPError) as caught:
                urlopen(Request(f"{url}/v1/embeddings", b'{"model": "tiny-bert", "input": "w1"}', JSON), timeout=60)
            with caught.value as answer:
                return answer.code, json.load(answer)["error"]["code"]

        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(ask)
            while not (tmp_path / "under_way").exists():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)  # two signals at once would count as one
            process.send_signal(signal.SIGINT)
            assert asked.result() == (503, "engine_closed")
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "guideway: stopped\n"


def test_what_cannot_be_served(bert: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GUIDEWAY_MODEL", "GUIDEWAY_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    assert main(["serve"]) == 2
    assert "no model is configured" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["serve", "--model", str(bert), "--port", str(taken.getsockname()[1])]) == 1
    assert "Address already in use; --host and --port name another place" in capsys.readouterr().err
    assert main(["serve", "--model", "demo", "--port", "0"]) == 1
    assert "this model generates text" in capsys.readouterr().err
    assert main(["serve", "--model", str(bert), "--host", "no host", "--port", "0"]) == 1
    assert "cannot serve at 'no host'" in capsys.readouterr().err
    assert main(["serve", "--model", str(bert), "--port", "0", "--max-connections", str(1 << 39)]) == 1
    assert "open files, and this process may have" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "warns"),
    one_in(
        2,
        [
            (["--host", "0.0.0.0"], True),
            (["--host", "0.0.0.0", "--allowed-hosts", "a"], False),
            (["--host", "127.0.0.1"], False),
            (["--host", "localhost"], False),
        ],
    ),
)
def test_a_server_that_others_reach_warns_unless_its_hosts_are_named(
    flags: list[str], warns: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--model", "demo", "--port", "0", *flags]) == 1  # the demo model generates text
    assert ("warning: any Host header is accepted" in capsys.readouterr().err) == warns


FLAGS: dict[str, tuple[list[str], list[str]]] = {
    "--host": (["127.0.0.1", "localhost", "::1"], []),
    "--port": ([], ["x", "-1", "65536"]),
    "--name": (["other"], []),
    "--grace": (["1"], ["0", "x", "1.5"]),
    "--api-key": (["a-key"], ["", "a key", "schl\u00fcssel"]),
    "--allowed-hosts": (["*", "a.example,b", "::1,[::1]"], ["", "http://a", "a:80", "a,,b", "*.a"]),
    "--trust-clients": ([], ["=yes"]),
    "--max-connections": (["1025"], ["0", "x", "1024", "-1"]),
    "--max-requests": (["1"], ["0", "2048", "1e3"]),
    "--max-body-bytes": (["1"], ["0", "1MB"]),
    "--max-bytes": (["1"], ["0", "1MB"]),
    "--head-timeout": (["1"], ["0", "never"]),
    "--body-timeout": (["1"], ["0", "never"]),
    "--write-timeout": (["1"], ["0", "never"]),
    "--keep-alive-timeout": (["1"], ["0", "never"]),
}
"""Right and wrong values of the command's own flags; the others are tried with this ``--port``."""


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_with_right_and_wrong_values(flag: str, bert: Path, capsys: pytest.CaptureFixture[str]) -> None:
    right, wrong = FLAGS[flag]
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket(socket.AF_INET6) as also_taken:
        port = taken.getsockname()[1]
        also_taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        also_taken.bind(("::1", port))
        serve = ["serve", "--model", str(bert), "--port", str(port)]
        for value in right:
            assert main([*serve, flag, value]) == 1, value
            assert "Address already in use" in capsys.readouterr().err
        for value in wrong:
            assert main([*serve, value.join([flag, ""]) if "=" in value else flag, value]) == 2, value
            assert flag.strip("-").replace("-", "_") in capsys.readouterr().err.replace("-", "_")


def test_the_table_has_every_flag_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    main(["serve", "--help"])
    own = capsys.readouterr().out.partition("\nconfiguration:")[0]
    assert set(re.findall(r"^  (--[a-z-]+)", own, re.MULTILINE)) == set(FLAGS)


def test_a_key_in_the_environment(
    bert: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUIDEWAY_API_KEY", "")  # an empty key is a mistake, not a wish for an open server
    assert main(["serve", "--model", str(bert), "--port", "0"]) == 2
    assert "GUIDEWAY_API_KEY" in capsys.readouterr().err
    monkeypatch.setenv("GUIDEWAY_API_KEY", "a-key")
    assert main(["config", "show"]) == 0  # other commands ignore it and do not refuse it


@pytest.mark.slow
def test_every_limit_of_the_command_acts(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUIDEWAY_API_KEY", "a-key")
    timeouts = [f"--{part}-timeout=1" for part in ("head", "body", "write", "keep-alive")]
    sizes = ["--max-connections=4", "--max-requests=3", "--max-body-bytes=100", "--max-bytes=1000"]
    hosts = ["--allowed-hosts=a", "--trust-clients"]
    key = b"authorization: Bearer a-key\r\n"
    body = b'{"model": "tiny-bert", "input": "w1", "priority": 3}'
    with serving(tmp_path, "--model", str(bert), *timeouts, *sizes, *hosts, "--grace=20") as (process, url):
        with Raw(url, post("/v1/embeddings", body, headers=key)) as client:
            assert client.response()[0] == 200
            assert client.is_closed()  # --keep-alive-timeout
        with Raw(url, post("/v1/embeddings", body)) as client:
            assert client.error() == (401, "invalid_api_key")
        with Raw(url, post("/v1/embeddings", body, headers=key).replace(b"host: a", b"host: localhost")) as client:
            assert client.error() == (400, "invalid_request")
        with Raw(url, post("/v1/embeddings", b" " * 101, headers=key)) as client:
            assert client.error() == (413, "too_large")
        with Raw(url, b"GET ") as slow_head, Raw(url, post("/v1/embeddings", b"{", 9)) as slow_body:
            assert slow_head.error() == slow_body.error() == (408, "request_timeout")
        with ExitStack() as stack:
            first, *_ = [stack.enter_context(Raw(url, post("/v1/embeddings", b"{", 9))) for _ in range(5)]
            assert b"408" not in first.rest()  # --max-connections
        with Raw(url, post("/v1/embeddings", b"{", 9)), Raw(url, b"GET "):
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "guideway: stopped\n"


def test_what_is_not_installed_is_named(
    bert: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("guideway_engine.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve", "--model", str(bert), "--port", "0"]) == 1
    assert "needs 'fastapi', which is not installed: pip install 'guideway[serve]'" in capsys.readouterr().err
