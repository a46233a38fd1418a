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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from guideway.api.bitmask import num_words
from guideway.api.processes import enter_killable_host
from guideway.errors import InvalidConfiguration, contain
from guideway.plugins.loading import load
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

    The fork server is a child of this process, its starter, which ends as it ends, so that the serving process knows
    how. After the first build the serving process kills the starter. At the socket `listener` the fork server accepts
    other processes, and forks a fork server for each.
    """
    if pid := os.fork():
        for each in (descriptor, *([] if listener is None else [listener])):
            os.close(each)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if status < 0:
            os.kill(os.getpid(), -status)
        os._exit(abs(status))
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
        _ForkServer(control, others).serve()


def _keep_from_others(*descriptors: int) -> None:
    """Make descriptors not inheritable, so that programs that plugins start do not get them."""
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)


class _ForkServer:
    """The fork server of one runtime. Other processes connect to `others` to get fork servers of their own."""

    def __init__(
        self, control: Line, others: Listener | None = None, plugins: Plugins | None = None, shared: str | None = None
    ) -> None:
        """`plugins` are the ones that the parent fork server had built, and `shared` their `Spec.shared`."""
        self._control = control
        self._others = others
        self._plugins = plugins
        self._shared = shared
        self._is_open = False
        """True after the first build. Only then are other processes let in, so that they share its imports."""
        self._commands: dict[str, Callable[..., dict[str, Any]]] = {
            "build": self._build,
            "fork": self._fork,
            "join": self._join,
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
        except EOFError:
            pass
        finally:
            if self._plugins is not None:
                self._plugins.close()

    def _await_command(self, others: Listener) -> bool:
        """Wait for a command or for other processes, and fork a fork server for each of those. Return whether there is
        a command."""
        ready = select.select([self._control.socket, *others.sockets()], [], [])[0]
        if self._control.socket in ready:
            return True
        for end in others.admit(ready):
            with suppress(Exception):  # another process's failure must not end this fork server
                self._fork_fork_server(end, peer_of(end))
        return False

    def _fork_fork_server(self, end: socket.socket, owner: int) -> None:
        """Fork a detached fork server for another runtime, of process `owner`, at the other end of a socket."""
        with end:
            if pid := os.fork():
                os.waitpid(pid, 0)
                return
            try:
                if os.fork() == 0:
                    self._close_sockets()
                    os.setpgid(0, 0)
                    show_owner(owner)
                    plugins = None if self._shared is None else self._plugins
                    _ForkServer(Line(end, serves=True), None, plugins, self._shared).serve()
            finally:
                os._exit(0)

    def _close_sockets(self) -> None:
        """Close the sockets in a process that was forked: otherwise the address would stay in use after the end."""
        self._control.close()
        if self._others is not None:
            self._others.close()

    def _import(self, environ: dict[str, str], spec: Spec) -> None:
        os.environ.clear()  # the environment may have changed since this process was started
        os.environ.update(environ)
        sys.path[:] = spec.path
        for record in spec.records:
            load(record)

    def _build(self, environ: dict[str, str], spec: Spec) -> dict[str, Any]:
        """Import and build plugins, unless the parent fork server had built equal ones."""
        self._is_open = True
        try:
            self._import(environ, spec)
            if self._plugins is None or self._shared != spec.shared:
                self._plugins = Plugins(spec)
            self._shared = spec.shared
        except BaseException as error:
            contain(error)
            field = error.field if isinstance(error, InvalidConfiguration) else ""
            plugin = getattr(error, "plugin", "")
            return {"error": {**describe_error(error), "field": field, "plugin": plugin, "message": str(error)}}
        return {"error": None}

    def _join(self, owner: int, environ: dict[str, str], spec: Spec) -> dict[str, Any]:
        """Import plugins, and fork a fork server for another runtime of the serving process, whose socket follows the
        command."""
        (end,) = self._receive_descriptors(1)
        try:
            self._import(environ, spec)
        except BaseException as error:  # the other fork server reports it
            contain(error)
        self._fork_fork_server(socket.socket(fileno=end), owner)
        return {}

    def _fork(self, ended: Sequence[int], role: str, memory_bytes: int, late_seconds: float) -> dict[str, Any]:
        """Reap the hosts that have ended, and fork one with the descriptors that follow the command: two sockets and
        the shared masks."""
        for pid in ended:
            os.waitpid(pid, 0)
        descriptors = self._receive_descriptors(3)
        try:
            pid = os.fork()
        except OSError as error:
            pid = -1
            failure = str(error)
        if pid == 0:
            status = 70
            try:
                self._close_sockets()
                die_with_parent()
                show_as(role)
                assert self._plugins is not None
                commands, beside, masks = descriptors
                _serve_as_host(self._plugins, commands, beside, masks, memory_bytes, late_seconds)
                status = 0
            except BaseException:
                pass
            finally:
                os._exit(status)
        for descriptor in descriptors:
            os.close(descriptor)
        return {"error": failure} if pid < 0 else {"pid": pid}

    def _receive_descriptors(self, count: int) -> list[int]:
        _, descriptors, _, _ = socket.recv_fds(self._control.socket, 1, count)
        _keep_from_others(*descriptors)
        return descriptors


def _serve_as_host(
    plugins: Plugins, commands: int, beside: int, shared: int, memory_bytes: int, late_seconds: float
) -> None:
    _silence_native_code()
    limit_memory(memory_bytes)
    gc.freeze()  # without it the first collection would write to, and so copy, all shared memory
    gc.enable()
    masks = SharedMasks(num_words(plugins.vocabulary.logits_width), shared)
    host = Server(plugins, masks, late_seconds)
    threading.stack_size(STACK_BYTES)
    threads = [
        threading.Thread(target=_answer, args=(Line(socket.socket(fileno=end), serves=True), answers), daemon=True)
        for end, answers in ((commands, host.commands), (beside, host.beside))
    ]
    for i, thread in enumerate(threads):
        thread.start()
        masks.threads[i] = thread.native_id or 0
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
