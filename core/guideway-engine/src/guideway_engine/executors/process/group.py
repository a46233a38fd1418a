"""The parent's side of an executor's worker processes.

KeyboardInterrupt may be raised between any two instructions, so every operation here can be repeated: a command that
may have been sent is sent again, and the worker drops the duplicate; a reply is moved from its pipe to a list in one
instruction, and stays there until it is processed. A reply that no caller waits for is dropped.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from guideway.errors import WorkerLost

from guideway_engine.executors.process.blocks import BlockReader, BlockWriter, anonymous_file
from guideway_engine.executors.process.child import BUSY, COMMAND, DEVICE_LOST, RAISED, REPLY, STEPS, WENT_WELL
from guideway_engine.executors.process.messages import pack, unpack, unpack_error

__all__ = ["PendingCall", "WorkerGroup"]

PROGRAM = """\
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
sys.path[:] = {path!r}
from guideway_engine.executors.process.child import Files, main
main(Files{files}, {rank}, {num_workers})
"""

CHECK_SECONDS = 1.0
"""Seconds between two checks of a process that does not answer: its pipe may be open although it has ended, because a
child of it inherited the pipe. A longer gap between checks counts as this many seconds, so that workers do not count as
late after the program was stopped together with them, as with Ctrl-Z."""

STRAGGLER_SECONDS = 10.0
"""Seconds that the other workers may take once one has failed; they may be waiting for it forever."""

CLOSE_SECONDS = 10.0
"""Seconds that workers may take to close."""

END_SECONDS = 2.0
"""Seconds that a process may take to end after SIGTERM, or after it has closed its pipe."""


class PendingCall:
    """A call that was sent to every worker."""

    def __init__(self, group: WorkerGroup) -> None:
        self._group = group
        self.replies: dict[int, tuple[bool, list[memoryview]]] = {}
        """For each rank that has answered: success, and the packed result or error."""
        self.failed_at: float | None = None
        """Monotonic time at which a worker's failure was noticed."""
        self.is_cut = False
        """True if unanswered workers were killed because another one had failed."""

    def wait(self, seconds: float) -> bool:
        return self._group.wait(self, seconds)

    def result(self) -> Any:
        return self.results()[0]

    def results(self) -> list[Any]:
        while not self.wait(CHECK_SECONDS):
            pass
        return self._group.results_of(self)


class WorkerGroup:
    """Workers that all get the same commands. If one is lost, all are killed.

    The first command creates the workers; if it fails, all later calls raise its error too.
    """

    def __init__(self, num_workers: int, timeout: float | None, make_worker: Any) -> None:
        making = pack(make_worker)
        self._timeout = timeout
        """Seconds without an answer after which a step counts as lost; None: never. Other commands, and steps that
        compile, count as lost after as many seconds in which no unanswered worker used CPU time."""
        self._lost: str | None = None
        """Reason why the group is lost."""
        self._number = -1
        self._calls: dict[int, weakref.ref[PendingCall]] = {}
        """Calls that some worker has not answered, by number. Weak references: a reply without a caller is not read."""
        self._under_way: dict[int, bool] = {}
        """Commands that some worker has not answered, by number, with True for steps."""
        self._silent = 0.0
        """Seconds without an answer or other progress."""
        self._looked = 0.0
        """Monotonic time of the last check."""
        self._used = 0.0
        """CPU seconds that the unanswered workers had used at that time."""
        self._unsent: deque[tuple[_Process, bytes]] = deque()
        self._processes: list[_Process] = []
        self._poll = select.poll()
        memory = anonymous_file()
        self._writer = BlockWriter(memory)
        # when a group is garbage collected, or the program ends, closed pipes make the workers end
        self._release = weakref.finalize(self, _release, self._processes, self._writer)
        self._release.atexit = False
        environment = _environment(num_workers)
        for rank in range(num_workers):
            process = _Process(rank, num_workers, memory, environment)
            self._processes.append(process)
            self._poll.register(process.replies, select.POLLIN)
        self._making: PendingCall | None = self._start_call(making, is_step=False)
        """The call that creates the workers, until it has succeeded."""

    def submit(self, method: str, *args: Any) -> PendingCall:
        """Call a method of every worker. Raises the errors of pickling the arguments."""
        if self._lost is None:
            self._receive(0)
        if self._lost is not None:
            return PendingCall(self)
        return self._start_call(pack((method, args)), is_step=method in STEPS)

    def made(self) -> None:
        """Wait until the workers are created. Raises the errors of creating them, and `WorkerLost`."""
        if self._making is not None:
            self._making.results()

    def wait(self, call: PendingCall, seconds: float) -> bool:
        """Wait at most `seconds` until every worker has answered `call`, some have failed and the rest were killed, or
        the workers are lost. Return whether one of these happened."""
        end = time.monotonic() + seconds
        while len(call.replies) < len(self._processes) and self._lost is None:
            self._send()
            self._receive(max(0.0, min(end - time.monotonic(), CHECK_SECONDS)))
            self._check(call)
            if time.monotonic() >= end:
                break
        return len(call.replies) == len(self._processes) or self._lost is not None

    def results_of(self, call: PendingCall) -> list[Any]:
        """Return the results of a finished call. Raises the error of a worker, and `WorkerLost`."""
        if call is not self._making:
            self.made()
        if len(call.replies) < len(self._processes) and not call.is_cut:
            raise WorkerLost(self._lost)
        replies = [(well, unpack(parts)) for _, (well, parts) in sorted(call.replies.items())]
        for well, value in replies:
            if not well:
                raise unpack_error(*value)
        if call is self._making:
            self._making = None
        return [value for _, value in replies]

    def kill(self, why: str) -> None:
        """Kill every process at once."""
        self._lost = self._lost or why
        for process in self._processes:
            process.popen.kill()
        for process in self._processes:
            process.popen.wait()
        self._release()

    def close(self) -> None:
        """Let every worker finish its commands, close and exit; kill those that do not."""
        if not self._release.alive:
            return
        self._lost = self._lost or "the executor is closed"
        try:
            for process in self._processes:
                process.close_commands()
            _wait(self._processes, CLOSE_SECONDS)
            for process in self._processes:
                process.popen.terminate()
            _wait(self._processes, END_SECONDS)
        finally:
            self.kill("the executor is closed")

    def _start_call(self, parts: list[memoryview], *, is_step: bool) -> PendingCall:
        call = PendingCall(self)
        if not self._under_way:
            self._silent, self._looked = 0.0, time.monotonic()
        self._number = number = self._number + 1
        block = self._writer.write(number, parts)
        self._calls[number] = weakref.ref(call)
        self._under_way[number] = is_step
        self._unsent.extend([(p, COMMAND.pack(number, p.last_reply, *block)) for p in self._processes])
        self._send()
        return call

    def _send(self) -> None:
        while self._unsent:
            process, frame = self._unsent[0]
            with suppress(BrokenPipeError):  # the process is lost, which `wait` notices
                os.write(process.commands, frame)
            self._unsent.popleft()

    def _receive(self, seconds: float) -> None:
        """Process replies of the workers, waiting at most `seconds` for the first."""
        ready = {descriptor for descriptor, _ in self._poll.poll(seconds * 1000)}
        for process in self._processes:
            if process.replies in ready:
                # no instruction between read and append, so an interrupt loses nothing
                process.arrived.extend(map(os.read, (process.replies,), (64 * REPLY.size,)))
            while process.arrived:
                if not process.arrived[0]:
                    self._lose(process)
                    return
                self._take(process, process.arrived[0])
                process.arrived.popleft()
            if not ready and self._silent >= CHECK_SECONDS and process.popen.poll() is not None:
                self._lose(process)
                return
        answered = min(process.last_reply for process in self._processes)
        self._writer.free(answered)
        self._calls = {number: call for number, call in self._calls.items() if number > answered}
        self._under_way = {number: is_step for number, is_step in self._under_way.items() if number > answered}

    def _take(self, process: _Process, data: bytes) -> None:
        self._silent = 0.0
        for number, how, start, length in REPLY.iter_unpack(data):
            process.compiles = how == BUSY
            if how not in (WENT_WELL, RAISED):
                continue
            reference = self._calls.get(number)
            call = None if reference is None else reference()
            if call is not None:
                call.replies[process.rank] = (how == WENT_WELL, process.reader.read(start, length))
            process.last_reply = number

    def _check(self, call: PendingCall) -> None:
        """Kill the workers if one that must answer is late."""
        now = time.monotonic()
        self._silent += min(now - self._looked, CHECK_SECONDS)
        self._looked = now
        silent = [process for process in self._processes if process.rank not in call.replies]
        if not silent or self._lost is not None:
            return
        if call.failed_at is None and not all(well for well, _ in call.replies.values()):
            call.failed_at = now
        if call.failed_at is not None and now >= call.failed_at + STRAGGLER_SECONDS:
            call.is_cut = True
            self.kill(f"{silent[0]} did not answer")
            return
        if self._timeout is None:
            return
        is_step = next(iter(self._under_way.values()), False) and not any(process.compiles for process in silent)
        if not is_step and (used := sum(process.seconds() for process in silent)) != self._used:
            self._used, self._silent = used, 0.0
        if self._silent >= self._timeout:
            which = " and ".join(map(str, silent))
            if is_step:
                self.kill(f"{which} did not answer within {self._timeout:g} seconds (timeout of executor.process)")
            else:
                self.kill(f"{which} did nothing for {self._timeout:g} seconds (timeout of executor.process)")

    def _lose(self, process: _Process) -> None:
        """Kill the workers, because `process` has closed its pipe, which means that it ends."""
        with suppress(subprocess.TimeoutExpired):
            process.popen.wait(END_SECONDS)
        self.kill(process.exit_reason())


class _Process:
    """A worker's process, and the parent's ends of its pipes."""

    def __init__(self, rank: int, num_workers: int, command_memory: int, environment: Mapping[str, str]) -> None:
        self.rank = rank
        self.last_reply = -1
        self.compiles = False
        """True while the worker is compiling, so that its step may take longer."""
        self.arrived: deque[bytes] = deque()
        commands, self.commands = os.pipe()
        self.replies, replies = os.pipe()
        parent_pipe, self._parent_pipe = os.pipe()
        memory = anonymous_file()
        self.reader = BlockReader(memory)
        files = (commands, command_memory, replies, memory, parent_pipe)
        program = PROGRAM.format(
            path=[str(Path(entry).absolute()) for entry in sys.path], files=files, rank=rank, num_workers=num_workers
        )
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.DEVNULL,
                pass_fds=files,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)} if num_workers > 1 else environment,
            )
        finally:
            for end in (commands, replies, parent_pipe):
                os.close(end)

    def __str__(self) -> str:
        return f"worker {self.rank} (process {self.popen.pid})"

    def exit_reason(self) -> str:
        """Describe how the process ended."""
        status = self.popen.poll()
        if status is None:
            return f"{self} hung up"
        if status == DEVICE_LOST:
            return f"{self} has lost its device to an error in a kernel, which it wrote to standard error"
        if status >= 0:
            return f"{self} exited with status {status}"
        hint = "; the machine may have run out of memory" if -status == signal.SIGKILL else ""
        return f"{self} was killed by {signal.Signals(-status).name}{hint}"

    def seconds(self) -> float:
        """Return the CPU seconds that the process has used; 0 if it has ended."""
        try:
            return time.clock_gettime((~self.popen.pid << 3) | 2)  # the process's CPU clock, in Linux's encoding
        except OSError:
            return 0.0

    def close_commands(self) -> None:
        if self.commands >= 0:
            os.close(self.commands)
            self.commands = -1

    def release(self) -> None:
        self.close_commands()
        for end in (self.replies, self._parent_pipe):
            os.close(end)
        self.reader.close()


def _release(processes: list[_Process], writer: BlockWriter) -> None:
    for process in processes:
        process.release()
    writer.close()


def _wait(processes: list[_Process], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.popen.wait(max(0.0, deadline - time.monotonic()))


def _environment(num_workers: int) -> dict[str, str]:
    """Return the environment of the workers' processes, without their ranks."""
    environment = dict(os.environ)
    if num_workers > 1:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        environment |= {
            "WORLD_SIZE": str(num_workers),
            "LOCAL_WORLD_SIZE": str(num_workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        # by default gloo uses the address of the machine's name, where others may connect
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_workers)))
    return environment
