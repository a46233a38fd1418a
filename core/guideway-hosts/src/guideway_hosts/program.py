"""The program of the fork server, which imports and builds plugins, and of the hosts that it forks.

The fork server has one thread and compiles nothing, so that forking it is safe. A host has two threads: one for
commands, and one for long work next to them. Both have stacks large enough for deep native recursion.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from guideway.api.processes import enter_killable_host
from guideway.errors import InvalidConfiguration, contain
from guideway.runtime.work.stacks import STACK_BYTES

from guideway_hosts.codec import decode
from guideway_hosts.joining import Listener, peer_of
from guideway_hosts.line import Line
from guideway_hosts.messages import SharedMasks, describe_error
from guideway_hosts.plugins import Plugins, Spec
from guideway_hosts.serving import Server
from guideway_hosts.upkeep import (
    Heap,
    die_before_others,
    die_with_parent,
    limit_memory,
    show_as,
    show_owner,
)

__all__ = ["main"]

MOST_WAITING = 64
"""Length of the queue of processes that connect at the same time to get a fork server of their own."""


def main(descriptor: int, listener: int | None = None) -> None:
    """Run the fork server: serve one process over a socket until its other end is closed.

    The fork server is detached from its parent. At the socket `listener` it accepts other processes, and forks a fork
    server for each.
    """
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the serving process, which then closes the socket
    # when a process of a group ends while another is stopped and its parent is in the same session, the kernel sends
    # SIGHUP to the whole group (`kill_orphaned_pgrp`): stopping one host would end all
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_before_others()
    enter_killable_host()
    gc.disable()  # imported objects stay, so collecting them repeatedly would only take time
    _keep_from_others(descriptor, *([] if listener is None else [listener]))
    control, others = Line(socket.socket(fileno=descriptor), serves=True), None
    with suppress(EOFError):
        if listener is not None:
            listening = socket.socket(fileno=listener)
            listening.listen(MOST_WAITING)  # in this process: SO_PEERCRED reports the one that listens
            others = Listener(listening, control.receive_bytes())
        _ForkServer(control, others, {}).serve()


def _keep_from_others(*descriptors: int) -> None:
    """Make descriptors not inheritable, so that programs that plugins start do not get them."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)


class _ForkServer:
    """The fork server of one runtime. Others connect to `others` to get fork servers of their own."""

    def __init__(self, control: Line, others: Listener | None, ready: dict[str, Plugins]) -> None:
        self._control = control
        self._others = others
        self._ready = ready
        """By `Spec.shared`, the plugins that the parent fork server had built before it forked this one."""
        self._built: dict[int, tuple[Spec, Plugins]] = {}
        """By the number that the serving process gave the specification."""
        self._hosts: dict[int, int] = {}
        """By the PID of each host the number of its specification."""
        self._is_open = False
        """True after the first build. Only then are other processes let in, so that they share its imports."""
        self._commands: dict[str, Callable[..., dict[str, Any]]] = {
            "build": self._build,
            "fork": self._fork,
            "reap": self._reap,
            "drop": self._drop,
        }

    def serve(self) -> None:
        """Execute commands until the other end of the socket is closed."""
        show_as("fork-server")
        try:
            self._control.send({"pid": os.getpid()})
            while True:
                while self._others is not None and self._is_open and not self._await_command(self._others):
                    pass
                command, *arguments = self._control.receive()
                self._control.send(self._commands[command](*map(decode, arguments)))
                if command == "drop":
                    gc.collect()
        except EOFError:
            pass
        finally:
            for number in list(self._built):
                self._drop(number)

    def _await_command(self, others: Listener) -> bool:
        """Wait for a command or for other processes, and fork a fork server for each of those. Return whether there is
        a command."""
        ready = select.select([self._control.socket, *others.sockets()], [], [])[0]
        if self._control.socket in ready:
            return True
        for end in others.admit(ready):
            with suppress(Exception):  # another process's failure must not end this fork server
                self._let_join(end, others)
        return False

    def _let_join(self, end: socket.socket, others: Listener) -> None:
        """Fork a detached fork server for another runtime, which has proved that it knows the key."""
        with end:
            if pid := os.fork():
                os.waitpid(pid, 0)
                return
            try:
                if os.fork() == 0:
                    self._control.close()
                    others.close()
                    os.setpgid(0, 0)
                    show_owner(peer_of(end))
                    ready = {spec.shared: built for spec, built in self._built.values() if spec.shared is not None}
                    _ForkServer(Line(end, serves=True), None, ready).serve()
            finally:
                os._exit(0)

    def _build(self, number: int, environ: dict[str, str], spec: Spec) -> dict[str, Any]:
        """Import and build plugins, or take equal ones that the parent fork server had built."""
        os.environ.clear()  # the environment may have changed since this process was started
        os.environ.update(environ)
        sys.path[:] = spec.path
        self._is_open = True
        try:
            built = self._ready.get(spec.shared or "") if self._ready else None
            self._built[number] = spec, built or Plugins(spec)
        except BaseException as error:
            contain(error)
            field = error.field if isinstance(error, InvalidConfiguration) else ""
            plugin = getattr(error, "plugin", "")
            return {"error": {**describe_error(error), "field": field, "plugin": plugin, "message": str(error)}}
        return {"error": None}

    def _fork(self, number: int, role: str, memory_bytes: int, late_seconds: float) -> dict[str, Any]:
        """Fork a host with the three descriptors that follow the command: two sockets and the shared masks."""
        _, descriptors, _, _ = socket.recv_fds(self._control.socket, 1, 3)
        _keep_from_others(*descriptors)
        try:
            pid = os.fork()
        except OSError as error:
            pid = -1
            failure = str(error)
        if pid == 0:
            status = 70
            try:
                self._control.close()
                if self._others is not None:  # otherwise the address would stay in use after this process ends
                    self._others.close()
                die_with_parent()
                show_as(role)
                commands, beside, masks = descriptors
                _serve_as_host(*self._built[number], commands, beside, masks, memory_bytes, late_seconds)
                status = 0
            except BaseException:
                pass
            finally:
                os._exit(status)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid < 0:
            return {"error": failure}
        self._hosts[pid] = number
        return {"pid": pid}

    def _reap(self, pid: int) -> dict[str, Any]:
        """Reap a host that ended or was killed."""
        if self._hosts.pop(pid, None) is not None:
            os.waitpid(pid, 0)
        return {}

    def _drop(self, number: int) -> dict[str, Any]:
        """Kill the hosts of a specification, and close its plugins."""
        for pid in [pid for pid, its in self._hosts.items() if its == number]:
            os.kill(pid, signal.SIGKILL)
            self._reap(pid)
        if number in self._built:
            _, built = self._built.pop(number)
            with suppress(Exception):
                built.close()
        return {}


def _serve_as_host(
    spec: Spec, built: Plugins, commands: int, beside: int, shared: int, memory_bytes: int, late_seconds: float
) -> None:
    _silence_native_code()
    limit_memory(memory_bytes)
    gc.freeze()  # without it the first collection would write to, and so copy, all shared memory
    gc.enable()
    host = Server(built, SharedMasks(spec.words, shared), late_seconds)
    threading.stack_size(STACK_BYTES)
    threads = [
        threading.Thread(target=_answer, args=(Line(socket.socket(fileno=end), serves=True), answers), daemon=True)
        for end, answers in ((commands, host.commands), (beside, host.beside))
    ]
    for thread in threads:
        thread.start()
    threads[0].join()


def _silence_native_code() -> None:
    """Drop what native code writes to standard error, such as a grammar library's warnings about schemas, whose losses
    are in `unenforced`. Python still writes to `sys.stderr`. No effect if warnings are enabled (``python -W``,
    PYTHONWARNINGS, PYTHONDEVMODE)."""
    stream = sys.__stderr__
    if sys.warnoptions or sys.flags.dev_mode or stream is None or sys.stderr is not stream:
        return
    stream.flush()
    sys.stderr = open(os.dup(2), "w", buffering=1, errors="backslashreplace")  # noqa: SIM115, PTH123
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def _answer(line: Line, answers: Mapping[str, Callable[..., Any]]) -> None:
    """Execute commands until the other end is closed."""
    heap = Heap()
    try:
        while True:
            name, *arguments = line.receive() or ("again", ())
            data = None
            try:
                answer = answers[name](*(arguments if name in ("call", "again") else map(decode, arguments)))
                if isinstance(answer, tuple):
                    answer, data = answer
                plain = answer is None and data is None
                line.send(None if plain else {"value": answer, "bytes": data is not None})
            except EOFError:
                raise
            except BaseException as error:
                line.send({"error": describe_error(error)})
            if data is not None:
                line.send_bytes(data)
            answer = data = arguments = None
            heap.tidy()
    except EOFError:
        return
