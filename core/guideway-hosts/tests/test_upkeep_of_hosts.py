"""Housekeeping of host processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from guideway.api import Regex
from guideway.plugins.limits import Limits
from guideway_hosts.joining import VARIABLE
from guideway_hosts.line import Line
from guideway_hosts.process import Process, watch

from tests.support.hostility import VOCABULARY
from tests.support.hosts import Makes, makes_hosts
from tests.support.processes import hosts_of, role_of

SIZE = 2000
"""Bytes per allocation, too small for a block of pages of its own."""


@pytest.fixture
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Makes]:
    with makes_hosts(tmp_path_factory.mktemp("installed"), ["hostile"], Limits()) as make:
        yield make


def test_memory_that_was_freed_is_given_back() -> None:
    """A new process is needed: after other tests, blocks may lie anywhere in the heap."""
    done = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert before - after > 25_000 * SIZE


FREED = f"""
import os
from guideway_hosts.upkeep import Heap
from tests.support.processes import memory_of
heap = Heap()
kept = [bytes({SIZE}) for _ in range(50_000)]
del kept[:-1]  # the last one lies above the others, which libc keeps
_, before = memory_of(os.getpid())
heap.tidy()
print(before, memory_of(os.getpid())[1], len(kept) - 1 or "")
"""


def test_lists_of_processes_show_what_each_is_for(made: Makes) -> None:
    others = hosts_of(os.getpid())
    hosts = made(sits_out=True)
    strategy = hosts.strategies["hostile"]
    constraint = Regex("[a-z]{3}", strategy="hostile")
    strategy.supports(constraint)
    grammar = strategy.compile(constraint)
    assert grammar.matcher(VOCABULARY.stop_token_ids).validate(()) == 0
    found = {role_of(pid) for pid in hosts_of(os.getpid()) - others}
    assert found >= {"compile", "fill"}
    assert "fork-server" in {role_of(pid) for pid in hosts_of(os.getpid())}


def test_hosts_are_told_no_secrets_and_end_before_the_server(made: Makes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets in the server's environment are not passed to any kind of host."""
    for name in SECRETS:
        monkeypatch.setenv(name, "planted")
    monkeypatch.setenv("LC_TIME", "C.UTF-8")
    monkeypatch.setenv("NEEDED_BY_MINE", "given")
    others = hosts_of(os.getpid())
    hosts = made(variables=["NEEDED_BY_*"])
    strategy = hosts.strategies["hostile"]
    constraint = Regex("[a-z]{3}", strategy="hostile")
    strategy.supports(constraint)
    grammar = strategy.compile(constraint)
    assert grammar.matcher(VOCABULARY.stop_token_ids).validate(()) == 0
    found = hosts_of(os.getpid()) - others
    assert {role_of(pid) for pid in found} >= {"fork-server", "compile", "fill"}
    for pid in found:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        assert not [each for each in environment if b"planted" in each]
        assert {b"LC_TIME=C.UTF-8", b"NEEDED_BY_MINE=given"} <= set(environment)
        assert Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == "1000"
    assert Path("/proc/self/oom_score_adj").read_text().strip() != "1000"
    seen = [strategy.supports(Regex(f"SV{name}", strategy="hostile")).reason for name in (*SECRETS, "NEEDED_BY_MINE")]
    assert seen == [None] * len(SECRETS) + ["given"], "where Python looks, too"


SECRETS = ("OPENAI_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "GUIDEWAY_OPTIONS", "HTTPS_PROXY", VARIABLE)


@pytest.mark.parametrize("receives", [True, False])
def test_a_process_that_ends_in_the_middle_of_a_message_is_not_waited_for(receives: bool) -> None:
    """A process that it forked has the socket, too."""
    ours, theirs = socket.socketpair()
    with theirs, ours:
        command = [sys.executable, "-c", BROKEN_OFF, str(theirs.fileno())]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, text=True) as ended:
            assert ended.stdout is not None
            heir = int(ended.stdout.readline())
            line = Line(ours, Process(ended.pid))
            line.look = watch(heir, 20)
            ended.kill()
            try:
                with pytest.raises(EOFError, match="it has ended"):
                    line.receive() if receives else line.send_bytes(bytes(1 << 24))
            finally:
                os.kill(heir, signal.SIGKILL)


BROKEN_OFF = """
import os, socket, struct, sys, time
end = socket.socket(fileno=int(sys.argv[1]))
end.sendall(struct.pack("!Q", 100) + b"half")
if not (heir := os.fork()):
    os.close(1)
    time.sleep(60)
print(heir, flush=True)
time.sleep(60)
"""
