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
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from engine_support.encoders import encoder, stored
from guideway.command_line.program import main

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
    """The process, and where it serves."""
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
            with urlopen(Request(f"{url}/v1/embeddings", body), timeout=60) as response:
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
                urlopen(Request(f"{url}/v1/embeddings", b'{"model": "tiny-bert", "input": "w1"}'), timeout=60)
            with caught.value as answer:
                return answer.code, json.load(answer)["error"]["code"]

        with ThreadPoolExecutor(1) as threads:
            asked = threads.submit(ask)
            while not (tmp_path / "under_way").exists():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)  # two signals at once are one
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
    for wrong in (["--port", "x"], ["--grace", "0"]):
        assert main(["serve", "--model", str(bert), *wrong]) == 2


def test_what_is_not_installed_is_named(
    bert: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("guideway_engine.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    assert main(["serve", "--model", str(bert), "--port", "0"]) == 1
    assert "needs 'fastapi', which is not installed: pip install 'guideway[serve]'" in capsys.readouterr().err
