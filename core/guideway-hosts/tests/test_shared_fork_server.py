"""One import, and one build, for the hosts of several serving processes, which are processes here too."""

from __future__ import annotations

import hmac
import json
import os
import pickle
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import xor
from pathlib import Path
from typing import Any

import pytest
from guideway_hosts.joining import VARIABLE, Listener

from tests.support.distributions import install
from tests.support.processes import hosts_of, is_alive, role_of, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the place where they meet is Linux's")

PLUGIN = """
import os, sys, time
if "guideway_hosts" in sys.orig_argv:
    with open(os.environ["IMPORTS"], "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(float(os.environ.get("TAKES", "0")))
from tests.support.hostile_strategy import *
class Strategy(Strategy):
    name = "noted"
    def __init__(self, vocabulary, options):
        super().__init__(vocabulary, options)
        if "guideway_hosts" in sys.orig_argv:
            with open(os.environ["IMPORTS"] + "-built", "a") as file:
                file.write(f"{os.getpid()}\\n")
            time.sleep(float(os.environ.get("TAKES", "0")))
            if os.environ.get("BREAKS"):
                raise ValueError("it breaks")
            if os.environ.get("LEAVES"):
                import subprocess
                subprocess.Popen(["sleep", "40"], close_fds=False)
    if os.environ.get("CLOSES"):
        def close(self):
            pass
@hookimpl
def guideway_grammar_strategy():
    return Strategy
"""

SERVER = """
import os, sys, threading, time
from dataclasses import replace
from guideway.api import GuidewayError, ModifierContext, Regex
from guideway.plugins import Plugins
from guideway_hosts.hosts import Hosts
from tests.support.hostility import VOCABULARY
VARIABLES = ("IMPORTS", "TAKES", "BREAKS", "LEAVES", "CLOSES", "PLANTED")
plugins = Plugins()
classes, records = [plugins.load("grammar", "noted")], [plugins.resolve("grammar", "noted")]
vocabulary = replace(VOCABULARY, logits_width=len(VOCABULARY) + int(os.environ["WIDER"]))
context = ModifierContext(vocabulary=vocabulary, max_num_sequences=16, max_model_len=256)
strategies = dict(zip(classes, records, strict=True))
hosts = Hosts(context, strategies, {}, {}, num_compilers=1, path=sys.path, variables=VARIABLES)
print("starts", flush=True)
if os.environ.get("FORKS"):
    def fork():
        time.sleep(3)
        if os.fork() == 0:
            os.close(0), os.close(1)
            time.sleep(40)
            os._exit(0)
    threading.Thread(target=fork, daemon=True).start()
for line in sys.stdin:
    strategy = hosts.strategies["noted"]
    try:
        strategy.supports(Regex(line.strip()))
    except GuidewayError as error:
        print(error, flush=True)
        continue
    print(hosts._server.process.pid, flush=True)
hosts.close("grammar.noted")
"""


class Server:
    """A serving process."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )
        self.pid = self._process.pid

    def ask(self, pattern: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{pattern}\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def fork_server(self, pattern: str = "[a-z]") -> int:
        """Return the PID of its fork server, after it answered `supports`."""
        self.ask(pattern)
        return int(self.answer())

    def end(self, how: signal.Signals | None = None) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        if how is not None:
            self._process.send_signal(how)
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class Servers:
    """The servers of one test, and counters of their imports and builds."""

    def __init__(self, folder: Path) -> None:
        install(folder, "noted", {"grammar.noted": "noted_strategy"})
        (folder / "noted_strategy.py").write_text(PLUGIN, "utf-8")
        self._imports = folder / "imports"
        path = os.pathsep.join([str(folder), *sys.path])
        self._environment = {**os.environ, "PYTHONPATH": path, "IMPORTS": str(self._imports), VARIABLE: folder.name}
        self.started: list[Server] = []

    def start(self, **changes: str) -> Server:
        """Start a server with a build of its own, unless `changes` sets the same vocabulary width as another's."""
        server = Server({**self._environment, "WIDER": str(len(self.started)), **changes})
        self.started.append(server)
        assert server.answer() == "starts"
        return server

    @property
    def num_imports(self) -> int:
        return len(self._imports.read_text("utf-8").splitlines())

    @property
    def num_built(self) -> int:
        built = self._imports.with_name("imports-built")
        return len(built.read_text("utf-8").splitlines()) if built.exists() else 0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    servers = Servers(tmp_path)
    try:
        yield servers
    finally:
        for server in servers.started:
            server.end()
        until(lambda: not hosts_of(*(server.pid for server in servers.started)))


@pytest.mark.slow
def test_all_share_what_is_imported_once(servers: Servers) -> None:
    """Servers that start during the import share it too."""
    started = [servers.start(TAKES="1") for _ in range(3)]
    for server in started:
        server.ask("[a-z]")
    found = {int(server.answer()) for server in started}
    assert servers.num_imports == 1
    assert len(found) == 3
    for server in started:  # lists of processes show the owner of each
        assert "fork-server" in {role_of(pid) for pid in hosts_of(server.pid)}
        assert len(hosts_of(server.pid) & found) == 1


@pytest.mark.slow
@pytest.mark.parametrize("how", [None, signal.SIGKILL], ids=["ended", "killed"])
def test_none_ends_with_another(servers: Servers, how: signal.Signals | None) -> None:
    first, second = servers.start(), servers.start()
    found = first.fork_server(), second.fork_server()
    first.end(how)
    until(lambda: not is_alive(found[0]) and not hosts_of(first.pid))
    assert second.fork_server("[b-z]") == found[1]
    # the address is free again: the next one listens there, and others join it
    third = servers.start()
    third.fork_server()
    servers.start().fork_server()
    assert servers.num_imports == 2


@pytest.mark.slow
def test_a_fork_server_that_is_lost_comes_from_the_others(servers: Servers) -> None:
    first, second = servers.start(), servers.start()
    first.fork_server()
    lost = second.fork_server()
    until(lambda: not any(map(killed, hosts_of(second.pid))))
    assert second.fork_server("[b-z]") != lost
    assert servers.num_imports == 1


def killed(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True


@pytest.mark.slow
def test_who_gets_no_answer_imports_itself(servers: Servers) -> None:
    first, second = servers.start(), servers.start()
    stopped = first.fork_server()
    os.kill(stopped, signal.SIGSTOP)
    try:
        assert second.fork_server() != stopped
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert servers.num_imports == 2
    assert first.fork_server("[b-z]") == stopped


def listening(*pids: int) -> list[bytes]:
    """Return the addresses at which these processes listen."""
    links = (str(link.readlink()) for pid in pids for link in Path(f"/proc/{pid}/fd").iterdir())
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    lines = (line.split() for line in Path("/proc/net/unix").read_text("utf-8").splitlines()[1:])
    accepting = "00010000"
    return sorted({b"\0" + line[-1][1:].encode() for line in lines if line[3] == accepting and line[6] in inodes})


def connected(address: bytes) -> socket.socket:
    end = socket.socket(socket.AF_UNIX)
    end.connect(address)
    end.settimeout(30)
    return end


@pytest.mark.slow
def test_what_strangers_say_is_not_read(servers: Servers, tmp_path: Path) -> None:
    """A silent stranger does not keep others waiting either."""
    first = servers.start()
    first.fork_server()
    addresses = listening(*hosts_of(first.pid))
    assert len(addresses) == 1
    executed = tmp_path / "executed"
    data = pickle.dumps(Executed(executed))
    frame = struct.pack("!Q", len(data)) + data
    for address in addresses:
        for said in (b"", b"nonsense", b"\xff" * 64, frame, bytes(64) + frame, frame.ljust(64, b"\0")):
            with connected(address) as end:
                end.sendall(said)
                end.shutdown(socket.SHUT_WR)
                assert len(receive_all(end)) <= 32, "no more than a nonce"
    silent = [connected(address) for address in addresses for _ in range(200)]
    try:
        servers.start(WIDER="0").fork_server()
        servers.start(WIDER="1").fork_server()
    finally:
        for end in silent:
            end.close()
    assert (servers.num_imports, servers.num_built) == (1, 2), "those who know the secret were let in"
    assert not executed.exists()


class Executed:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> Any:
        return Path.touch, (self._file,)


def receive_all(end: socket.socket) -> bytes:
    received = b""
    with suppress(ConnectionResetError):  # the peer left data unread
        while more := end.recv(1 << 16):
            received += more
    return received


@pytest.mark.slow
def test_a_stranger_in_their_place_is_told_nothing(servers: Servers) -> None:
    """The stranger listens at the address of the first server's fork server."""
    first = servers.start()
    first.fork_server()
    addresses = listening(*hosts_of(first.pid))
    first.end()
    until(lambda: not hosts_of(first.pid))
    told: list[bytes] = []

    def impersonate(listener: socket.socket) -> None:
        end, _ = listener.accept()
        with end:
            said = json.dumps({"pid": os.getpid()}).encode()
            end.sendall(bytes(64) + struct.pack("!Q", len(said)) + said)
            told.append(receive_all(end))

    listeners = [socket.socket(socket.AF_UNIX) for _ in addresses]
    for listener, address in zip(listeners, addresses, strict=True):
        listener.bind(address)
        listener.listen()
        threading.Thread(target=impersonate, args=(listener,), daemon=True).start()
    try:
        servers.start(WIDER="0", PLANTED="known to nobody").fork_server()
    finally:
        for listener in listeners:
            listener.close()
    until(lambda: len(told) == len(addresses))
    assert [len(said) for said in told] == [64], "a nonce and a proof"
    assert servers.num_imports == 2


def test_only_the_right_proof_is_taken() -> None:
    key, other = bytes(32), bytes([1] * 32)
    address = b"\0guideway-test-" + secrets.token_hex(8).encode()

    def is_taken(proves: Callable[[bytes], bytes]) -> bool:
        with connected(address) as end:
            next(listener.admit(listener.sockets()), None)
            end.sendall(proves(end.recv(64)))
            joined = list(listener.admit(listener.sockets()[1:]))
            for each in joined:
                each.close()
            return bool(joined)

    def right(nonce: bytes, key: bytes = key, role: bytes = b"joins") -> bytes:
        ours = secrets.token_bytes(32)
        return ours + hmac.digest(key, role + nonce + ours, "sha256")

    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(address)
        sock.listen()
        listener = Listener(sock, key)
        assert is_taken(right)
        assert not is_taken(partial(right, key=other)), "of another meeting"
        assert not is_taken(partial(right, role=b"listens")), "reflected"
        assert not is_taken(lambda _: right(bytes(32))), "replayed"
        assert not is_taken(lambda nonce: right(nonce)[:-1])
        for bit in range(0, 512, 7):
            changed = bytearray(64)
            changed[bit // 8] = 1 << bit % 8
            assert not is_taken(lambda nonce, changed=changed: bytes(map(xor, right(nonce), changed)))  # type: ignore[misc]
        kept = [connected(address) for _ in range(5)]
        for _ in kept:
            assert not list(listener.admit([sock]))
        assert len(listener.sockets()) == 6
        listener.close()
        for end in kept:
            with end:
                assert len(receive_all(end)) == 32


@pytest.mark.slow
@pytest.mark.parametrize("changed", [{VARIABLE: ""}, {VARIABLE: "another"}, {"PYTHONPATH": "also"}])
def test_nobody_shares_with_strangers(servers: Servers, changed: dict[str, str]) -> None:
    if path := changed.get("PYTHONPATH"):
        changed = {"PYTHONPATH": os.pathsep.join([servers._environment["PYTHONPATH"], path])}
    servers.start().fork_server()
    servers.start(**changed).fork_server()
    assert servers.num_imports == 2


@pytest.mark.slow
def test_what_is_alike_is_built_once(servers: Servers) -> None:
    """Servers that start during the build share it too."""
    started = [servers.start(WIDER="0", TAKES="0.5") for _ in range(3)]
    for server in started:
        server.ask("[a-z]")
    assert len({server.answer() for server in started}) == 3
    assert servers.num_imports == servers.num_built == 1
    for server in started:
        assert "fork-server" in {role_of(pid) for pid in hosts_of(server.pid)}
    servers.start(WIDER="1").fork_server()
    assert (servers.num_imports, servers.num_built) == (1, 2)


@pytest.mark.parametrize("how", [pytest.param(None, marks=pytest.mark.slow), signal.SIGKILL], ids=["ended", "killed"])
def test_none_ends_with_another_that_built(servers: Servers, how: signal.Signals | None) -> None:
    first, second = servers.start(WIDER="0"), servers.start(WIDER="0")
    first.fork_server()
    kept = second.fork_server()
    first.end(how)
    until(lambda: not hosts_of(first.pid))
    assert second.fork_server("[b-z]") == kept
    servers.start(WIDER="0").fork_server()  # the first there again
    servers.start(WIDER="0").fork_server()
    assert servers.num_built == 2


@pytest.mark.slow
def test_what_was_built_comes_from_the_others(servers: Servers) -> None:
    first, second = servers.start(WIDER="0"), servers.start(WIDER="0")
    first.fork_server()
    lost = second.fork_server()
    until(lambda: not any(map(killed, hosts_of(second.pid))))
    assert second.fork_server("[b-z]") != lost
    assert servers.num_built == 1


@pytest.mark.slow
def test_who_cannot_join_builds_itself(servers: Servers) -> None:
    first, second = servers.start(WIDER="0"), servers.start(WIDER="0")
    stopped = first.fork_server()
    os.kill(stopped, signal.SIGSTOP)
    try:
        second.fork_server()
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert (servers.num_imports, servers.num_built) == (2, 2)


@pytest.mark.slow
def test_who_joins_what_cannot_be_built_builds_itself(servers: Servers) -> None:
    first, second = servers.start(WIDER="0", TAKES="1", BREAKS="1"), servers.start(WIDER="0")
    first.ask("[a-z]")
    until(lambda: servers.num_built == 1)
    assert second.fork_server() > 0
    assert "it breaks" in first.answer()


@pytest.mark.slow
def test_what_has_something_to_close_is_built_for_each(servers: Servers) -> None:
    """If shared, closing it in one server would affect the others."""
    for _ in range(2):
        servers.start(WIDER="0", CLOSES="1").fork_server()
    assert (servers.num_imports, servers.num_built) == (1, 2)


@pytest.mark.slow
def test_what_a_plugin_leaves_behind_keeps_nobody_waiting(servers: Servers) -> None:
    """The plugin started a program that keeps running."""
    first = servers.start(WIDER="0", LEAVES="1")
    first.fork_server()
    first.end()
    until(lambda: not hosts_of(first.pid))
    began = time.monotonic()
    servers.start(WIDER="0").fork_server()
    assert time.monotonic() - began < 100


@pytest.mark.slow
def test_a_fork_of_a_server_keeps_nobody_waiting(servers: Servers) -> None:
    """The fork is made while the server's strategies are being built."""
    first = servers.start(WIDER="0", TAKES="2", FORKS="1")
    first.fork_server()
    first.end()
    began = time.monotonic()
    servers.start(WIDER="0").fork_server()
    assert time.monotonic() - began < 100
